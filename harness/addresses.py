"""Where servers are that run already (``servers.attach=true``), and which fields say nothing of those."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from harness.checking import value_at
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.config import RunConfig

UNATTACHED: dict[str, object] = {
    "servers.vllm.python": None,
    "servers.lmcache.python": None,
    "servers.vllm.extra_args": [],
    "servers.lmcache.extra_args": [],
    "check.connector": True,
    "check.file_l2": False,
    "check.linked_checkpoint": False,
    "check.damage_module": False,
    "check.kv_blocks_per_request": None,
    "check.load_failures": "fail",
}
"""Fields that say how servers are started, and the value that asks for nothing, which servers.attach=true needs."""


def check_attached(config: RunConfig) -> None:
    """Refuses addresses that are none, and what only a start could give a server that runs already.

    Raises:
        UsageError: one sentence with the field, its value and the accepted form.
    """
    servers = config.servers
    urls = {"servers.vllm.url": servers.vllm.url, "servers.lmcache.url": servers.lmcache.url}
    for field, url in urls.items():
        if not servers.attach and url is not None:
            raise UsageError(
                f"{field}={url} is of a server that runs already: add servers.attach=true, or leave it out."
            )
        if servers.attach and url is None:
            raise UsageError(f"servers.attach=true needs {field}, such as {field}=http://127.0.0.1:8000.")
        if url is not None:
            _check_url(field, url)
    if not servers.attach:
        return
    for name, nothing in UNATTACHED.items():
        if (value := value_at(config, name)) != nothing:
            raise UsageError(
                f"{name}={value} says how a server is to be started, and servers.attach=true starts none: leave it out"
                + (f" (check={config.check.name} sets it: use another check)." if name.startswith("check.") else ".")
            )


def _check_url(field: str, url: str) -> None:
    form = "write http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{field}={url} is no address ({error}): {form}.") from error
    if parts.scheme not in ("http", "https") or not host or any(each.isspace() for each in url):
        raise UsageError(f"{field}={url} is no address of a server: {form}.")
    if parts.username is not None or parts.query or parts.fragment or parts.path.rstrip("/").endswith("/v1"):
        raise UsageError(f"{field}={url} has more than a base address: {form}, without /v1, a password or a query.")
