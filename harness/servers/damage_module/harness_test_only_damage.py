"""TEST ONLY: a module of the LMCache server that notes what is stored, and spoils loads when it is told to.

Loaded by LMCache's own ``--server-module`` in the launches of ``check=selftest`` and nowhere else.  It notes, per
store, which prompt the chunks belong to, so that the selftest can damage the files of chosen prompts.  While its
control file says ``skip``, a retrieve copies nothing and reports success; while it says ``fail``, the copy raises, so
that LMCache reports a failed load.  Without a control file it changes nothing.

Written for LMCache 0.5.6: the two names that it wraps are internal.  Where one is missing the server does not start.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 64
"""Tokens at a prompt's beginning that tell it from others."""

_loading = threading.local()


def fingerprint(token_ids: Any) -> str:
    """What a prompt is known by: the SHA-256 of its first tokens."""
    first = [int(token) for token in token_ids[:PROMPT_TOKENS]]
    return hashlib.sha256(json.dumps(first).encode()).hexdigest()


def build_server_modules(context: Any) -> None:
    """LMCache's factory: wraps storing, retrieving and copying; adds no module of its own.

    ``context.config`` holds ``stored`` (file to append notes to) and ``control`` (file to obey, may be absent).
    """
    import lmcache.v1.multiprocess.modules.lmcache_driven_transfer as transfer

    notes = _Notes(Path(context.config["stored"]), context.server_context)
    control = _Control(Path(context.config["control"]))
    module = transfer.LMCacheDrivenTransferModule
    store, retrieve, copy = module.store, module.retrieve, transfer.transfer_kv_per_object_group

    @functools.wraps(store)
    def noted_store(self: Any, key: Any, instance_id: int, *args: Any, **kwargs: Any) -> Any:
        notes.add(self, key, instance_id)
        return store(self, key, instance_id, *args, **kwargs)

    @functools.wraps(retrieve)
    def spoiled_retrieve(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        _loading.how = control.of(key.token_ids)
        try:
            return retrieve(self, key, *args, **kwargs)
        finally:
            _loading.how = None

    @functools.wraps(copy)
    def spoiled_copy(*args: Any, **kwargs: Any) -> None:
        how = getattr(_loading, "how", None)
        if how == "fail":
            raise RuntimeError("TEST ONLY: harness_test_only_damage makes this load fail")
        if how != "skip":
            copy(*args, **kwargs)

    module.store, module.retrieve = noted_store, spoiled_retrieve
    transfer.transfer_kv_per_object_group = spoiled_copy


class _Notes:
    """Appends one line per store."""

    def __init__(self, path: Path, server_context: Any) -> None:
        self.path = path
        self.context = server_context
        self.lock = threading.Lock()

    def add(self, module: Any, key: Any, instance_id: int) -> None:
        entry = module.get_and_touch_context_entry(instance_id)
        if entry is None:
            return
        windows = entry.cache_context.kv_layer_groups_manager.get_attn_desc().num_chunks_in_sw
        (keys,) = self.context.resolve_obj_keys(key, [0])
        noted = {
            "prompt": fingerprint(key.token_ids),
            "first_chunk": key.start // self.context.chunk_size,
            "chunks": [each.chunk_hash.hex() for each in keys],
            # Of recurrent state only the last chunk is needed, so LMCache gives its group a window.
            "recurrent_groups": [group for group, window in enumerate(windows) if window >= 0],
        }
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(noted) + "\n")


class _Control:
    """What the control file says of a prompt's loads; read anew when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: tuple[int, int] | None = None
        self.how: str | None = None
        self.prompts: frozenset[str] = frozenset()

    def of(self, token_ids: Any) -> str | None:
        self._read()
        return self.how if self.how and fingerprint(token_ids) in self.prompts else None

    def _read(self) -> None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self.seen, self.how = None, None
            return
        if (found.st_mtime_ns, found.st_ino) != self.seen:
            told = json.loads(self.path.read_text())
            self.seen = (found.st_mtime_ns, found.st_ino)
            self.how, self.prompts = told["how"], frozenset(told["prompts"])
