"""Shared-memory segments of server processes, told by what they map and never by name alone.

vLLM's CPU worker keeps the whole KV cache in ``/dev/shm``; killed before it can clean up, it leaves it there.
What a process maps is not always its own: a checkpoint kept in ``/dev/shm`` for speed is mapped as well, so
folders are never looked into, and what was there before a process started is left alone (:func:`present_segments`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def present_segments() -> set[Path]:
    """Everything that lies in ``/dev/shm`` now, whoever owns it; nothing where there is no such folder."""
    with suppress(OSError):
        return set(SHARED_MEMORY.iterdir())
    return set()


def mapped_segments(pids: Iterable[int], *, proc: Path = Path("/proc")) -> set[Path]:
    """Segments directly in ``/dev/shm`` that these processes map; a process that is gone maps none."""
    found: set[Path] = set()
    for pid in pids:
        try:
            maps = (proc / str(pid) / "maps").read_text(errors="replace")
        except OSError:
            continue
        for line in maps.splitlines():
            # address perms offset device inode path; an unlinked file ends in " (deleted)".
            start = line.find(f"{SHARED_MEMORY}/")
            if start >= 0 and not line.endswith(" (deleted)"):
                found.add(Path(line[start:]))
    return {path for path in found if path.parent == SHARED_MEMORY}


def remove_segments(segments: Iterable[Path]) -> list[Path]:
    """Unlinks the segments that are still there and returns them; another user's are left alone."""
    removed = []
    for path in segments:
        try:
            path.unlink()
        except (FileNotFoundError, PermissionError):
            continue
        removed.append(path)
    return sorted(removed)
