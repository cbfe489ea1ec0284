"""Servers that somebody else has started (``servers.attach=true``): asked over HTTP whether they can be measured, and
neither started nor stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from harness.config import RunConfig
from harness.errors import ServerError, UsageError
from harness.measure.batch import RUNNING, WAITING, check_reported
from harness.servers.http import Endpoint
from harness.servers.lmcache import LMCacheServer
from harness.servers.process import ServerProcess
from harness.servers.stack import Notify, Stack
from harness.servers.vllm import VllmServer
from harness.steps import Check
from harness.sweep import Launch

NOT_KNOWN = (
    "Both servers were attached to, not started here: their arguments, environment, machine and logs are not known, "
    "and versions are what they say of themselves."
)

STARTING = ("restart", "serve")
"""Steps that start a server anew; the others that an attached one can't take are refused by what they need."""


class OutsideProcess(ServerProcess):
    """Stands for a program of somebody else: never started, stopped, or found to have ended."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        super().__init__(name, [], {}, folder / f"{name.lower()}.log")
        self.url = url

    def log_excerpt(self) -> str:
        """Where to look."""
        return f"{self.name} at {self.url} was not started by the harness (servers.attach=true): look at its log there."


class AttachedStack(Stack):
    """The same as a launch, of servers that run already; a context manager that leaves them running.

    Args:
        config: the run's configuration, with both addresses.
        budget: ``--max-num-batched-tokens`` that vLLM is said to have.
        chunk_size: LMCache's, in tokens, by the configuration.
        folder: of the launch.
        notify: told in words what is being waited for.
    """

    def __init__(
        self, config: RunConfig, *, budget: int, chunk_size: int, folder: Path, notify: Notify = lambda _: None
    ) -> None:
        servers = config.servers
        assert servers.vllm.url is not None and servers.lmcache.url is not None, "check_values refuses it"
        self.config, self.budget, self.chunk_size = config, budget, chunk_size
        self.folder, self.notify = folder.resolve(), notify
        self.urls = {"vllm": servers.vllm.url.rstrip("/"), "lmcache": servers.lmcache.url.rstrip("/")}
        self.started_s = {}
        self.leftovers = []
        self.damage = None
        self.warnings: list[str] = [NOT_KNOWN]
        self.seen: dict[str, Any] = {}
        lmcache = OutsideProcess("LMCache", self.folder, self.urls["lmcache"])
        vllm = OutsideProcess("vLLM", self.folder, self.urls["vllm"])
        self._lmcache = LMCacheServer(lmcache, 0, url=self.urls["lmcache"])
        self._vllm = VllmServer(vllm, 0, config.model.name, self.urls["vllm"])

    def __enter__(self) -> AttachedStack:
        self.notify("looking at the servers")
        self.look()
        self.vllm.reset_prefix_cache()  # here, since a vLLM without its development mode can't do it
        return self

    def look(self) -> None:
        """Asks both servers how they run, and changes nothing: notes what they say, and warnings of what they don't.

        Raises:
            ServerError: one does not answer, or does not report what is measured.
            UsageError: one runs in another way than the configuration has it.
        """
        for server in (self.lmcache, self.vllm):
            server.http.text(server.HEALTH)
        self._look_at_model()
        self._look_at_vllm()
        self._look_at_lmcache()
        self._look_at_counters()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves both running."""

    def stop(self) -> None:
        """Leaves both running."""

    def serve(self, noise: float) -> NoReturn:
        """Not for servers of others; :func:`check_attachable` refuses it."""
        raise AssertionError("serve was let through by check_attachable")

    def restart(self, server: str) -> NoReturn:
        """Not for servers of others; :func:`check_attachable` refuses it."""
        raise AssertionError("restart was let through by check_attachable")

    def described(self) -> dict[str, Any]:
        """Addresses, and what the servers say of themselves, for run.json."""
        told = {
            "budget": self.budget,
            "chunk_size": self.chunk_size,
            "commands": {},
            "environment": {},
            "started_s": {},
        }
        return told | {"attached": self.urls | self.seen}

    def _look_at_model(self) -> None:
        """Which model vLLM serves, under which name, and how long its prompts may be."""
        model, served = self.config.model, self.vllm.http.json("/v1/models")["data"]
        wanted = {model.name, model.path}
        found = next((each for each in served if {str(each.get("id")), str(each.get("root"))} & wanted), None)
        if found is None:
            names = ", ".join(str(each.get("id")) for each in served)
            raise UsageError(
                f"vLLM at {self.urls['vllm']} serves {names}, and neither {model.name} (model.name) nor {model.path} "
                f"(model.path): choose the model that it serves, or start it with --served-model-name {model.name}."
            )
        self.vllm.model = str(found["id"])
        self.seen |= {"served_model": self.vllm.model, "max_model_len": found.get("max_model_len")}
        if model.max_model_len is not None and found.get("max_model_len") != model.max_model_len:
            self.warnings.append(
                f"vLLM at {self.urls['vllm']} takes {found.get('max_model_len')} tokens (--max-model-len), and "
                f"model.max_model_len is {model.max_model_len}: the server's counts."
            )

    def _look_at_vllm(self) -> None:
        """N, and how vLLM was started, as far as its development mode tells (GET /server_info)."""
        try:
            self.vllm.block_size()
        except ServerError as error:
            raise ServerError(
                f"vLLM at {self.urls['vllm']} does not say its block size in /metrics (vllm:cache_config_info): this "
                "release is not one that was tested (0.32.0), or it runs with --disable-log-stats."
            ) from error
        told: Any = None
        with suppress(ServerError):
            told = self.vllm.http.json("/server_info?config_format=json")
        config = told.get("vllm_config") if isinstance(told, Mapping) else None
        budget = value_in(config, "scheduler_config", "max_num_batched_tokens")
        if budget is None:
            self.warnings.append(
                f"vLLM at {self.urls['vllm']} does not say how it was started (GET /server_info): that its budget is "
                f"{self.budget}, that it finds prefixes in align mode, and what it does where a load fails, is not "
                "known."
            )
            return
        self.seen |= {"max_num_batched_tokens": budget}
        if budget != self.budget:
            raise UsageError(
                f"vLLM at {self.urls['vllm']} runs with --max-num-batched-tokens {budget}, and sweep.budgets="
                f"{self.config.sweep.budgets} is {self.budget}: use sweep.budgets=[{budget}], or start it anew."
            )
        for argument, found, right in _vllm_facts(config):
            self.seen[argument.removeprefix("--").replace("-", "_")] = found
            if found is not None and found != right:
                raise UsageError(
                    f"vLLM at {self.urls['vllm']} runs with {argument} {found}, and the comparison needs {right}: "
                    "python -m harness plan shows the whole command."
                )

    def _look_at_lmcache(self) -> None:
        """LMCache's chunk size (GET /config), and whether it can be seen to be empty (GET /status)."""
        self.lmcache.objects()
        told: Any = None
        with suppress(ServerError):
            told = self.lmcache.http.json("/config")
        chunk_size = value_in(told, "mp", "chunk_size")
        self.seen |= {"chunk_size": chunk_size}
        if chunk_size is None:
            self.warnings.append(
                f"LMCache at {self.urls['lmcache']} does not say its chunk size (GET /config): it is taken to be "
                f"{self.chunk_size} tokens."
            )
        elif chunk_size != self.chunk_size:
            raise UsageError(
                f"LMCache at {self.urls['lmcache']} runs with --chunk-size {chunk_size}, and the configuration implies "
                f"{self.chunk_size}: use servers.lmcache.chunk_size={chunk_size}, or start it anew."
            )

    def _look_at_counters(self) -> None:
        """Whether both report what is measured, and nobody else is being served."""
        counters = self.vllm.counters()
        check_reported(counters, self.urls["vllm"])
        self.lmcache.counters()
        if busy := int(counters[RUNNING] + counters[WAITING]):
            raise ServerError(
                f"vLLM at {self.urls['vllm']} is answering {busy} requests of somebody else, which would be counted as "
                "ours, and wait in the same queue: keep others away while it is measured."
            )


def _vllm_facts(config: Any) -> Iterator[tuple[str, Any, Any]]:
    """What vLLM's configuration has to hold: the argument, what it has (None where it does not say), what is right."""
    cache, transfer = value_in(config, "cache_config"), value_in(config, "kv_transfer_config")
    yield "--enable-prefix-caching", value_in(cache, "enable_prefix_caching"), True
    yield "--mamba-cache-mode", value_in(cache, "mamba_cache_mode"), "align"
    yield "kv_connector", value_in(transfer, "kv_connector") or "none", "LMCacheMPConnector"
    yield "kv_load_failure_policy", value_in(transfer, "kv_load_failure_policy"), "fail"


def value_in(data: Any, *path: str) -> Any:
    """A value deep inside what a server has said; None where any part of it is missing."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def check_attachable(check: Check, plan: Sequence[Launch]) -> None:
    """Refuses what needs a start of the servers.

    Raises:
        UsageError: in one sentence.
    """
    if len(plan) > 1:
        raise UsageError(
            f"The sweep has {len(plan)} launches, and servers.attach=true measures the servers as they run: name the "
            "one budget that vLLM has (sweep.budgets) and sweep.repeats=1."
        )
    for steps in (check.launch, check.cell, check.seeded_cell, *check.variants.values()):
        for step in steps:
            if step.action in STARTING:
                raise UsageError(
                    f"check {check.name} has a {step.action} step, and servers.attach=true starts nothing anew: use "
                    "another check, such as check=reset_warm."
                )


def said_versions(config: RunConfig) -> dict[str, dict[str, str]]:
    """Versions that attached servers say of themselves; none for one that does not."""
    said: dict[str, dict[str, str]] = {}
    for name, url in (("vllm", config.servers.vllm.url), ("lmcache", config.servers.lmcache.url)):
        told: Any = None
        with suppress(ServerError):
            told = Endpoint(name, str(url).rstrip("/")).json("/version")
        version = told.get("version") if isinstance(told, Mapping) else told
        said[name] = {name: version} if isinstance(version, str) else {}
    return said
