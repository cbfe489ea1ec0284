"""What a killed harness has left on the machine: found by what the launch wrote down, and cleared away.

Never by name: a process is told by its pid *and* start time, or by the temporary folder that was made for its launch
alone; a shared-memory segment by its path and inode.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.errors import ServerError, UsageError
from harness.servers import family
from harness.servers.ledger import FILE
from harness.servers.shared_memory import SHARED_MEMORY, mapped_segments, remove_segments
from harness.store import read_json

STOP_S = 30.0
KILL_S = 30.0

SCRATCH = re.compile(r"harness-[0-9a-f]{12}")
"""Name of a launch's temporary folder; nothing else is ever removed, whatever a file says."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What one launch has left."""

    ledger: Path
    processes: tuple[psutil.Process, ...]
    segments: tuple[Path, ...]
    scratch: Path | None

    def __bool__(self) -> bool:
        return bool(self.processes or self.segments or self.scratch)

    def in_words(self) -> str:
        """What there is, with pids and paths."""
        parts = []
        if self.processes:
            pids = ", ".join(str(process.pid) for process in self.processes)
            parts.append(f"{len(self.processes)} process{'es' * (len(self.processes) > 1)} (pid {pids})")
        if self.segments:
            parts.append(", ".join(map(str, self.segments)))
        if self.scratch:
            parts.append(str(self.scratch))
        return " and ".join(parts) or "nothing"


def find_leftovers(folder: Path) -> list[Leftover]:
    """What killed harnesses have left of the launches below a folder: a launch's, a run's, or one of runs or of arms.

    Launches whose harness still runs, and those of other machines, have left nothing.
    """
    patterns = ("", "launches/*/", "*/launches/*/", "*/*/launches/*/")
    ledgers = {path for pattern in patterns for path in folder.glob(pattern + FILE)}
    found = (_leftover(path) for path in sorted(ledgers))
    return [leftover for leftover in found if leftover is not None]


def clear(leftovers: Sequence[Leftover]) -> None:
    """Ends the processes, the leaders first and the rest after them, then removes what they leave.

    Raises:
        ServerError: a process can't be ended.
    """
    processes = {process for leftover in leftovers for process in leftover.processes}
    # Every server leads a group, and tells its own processes to end; the rest is killed.
    leaders = [process for process in processes if _leads(process)]
    family.tell_to_end(leaders or list(processes))
    family.wait_until(lambda: not family.running(processes), STOP_S)
    family.kill(family.with_children(processes))
    if not family.wait_until(lambda: not family.running(processes), KILL_S):
        pids = sorted(process.pid for process in family.running(processes))
        raise ServerError(f"Processes {pids} survive SIGKILL after {KILL_S:.0f} s; the machine may need a restart.")
    for leftover in leftovers:
        remove_segments(leftover.segments)
        if leftover.scratch:
            shutil.rmtree(leftover.scratch, ignore_errors=True)
        leftover.ledger.unlink(missing_ok=True)


def _leftover(ledger: Path) -> Leftover | None:
    try:
        told = read_json(ledger)
        if told["machine"] != family.machine_mark() or _runs(told["harness"]):
            return None
        scratch = Path(told["scratch"])
        processes = family.with_children([*_recorded(told), *_working_in(scratch)])
        segments = {Path(each["path"]) for each in told["segments"] if _inode(Path(each["path"])) == each["inode"]}
        others = {Path(each) for each in told["segments_of_others"]}
    except (UsageError, KeyError, TypeError, ValueError):  # of another version, or somebody else's file
        return None
    segments |= mapped_segments(process.pid for process in processes) - others
    alive = sorted(family.running(processes), key=lambda process: process.pid)
    own = scratch if SCRATCH.fullmatch(scratch.name) and scratch.is_dir() else None
    return Leftover(ledger, tuple(alive), tuple(sorted(path for path in segments if path.parent == SHARED_MEMORY)), own)


def _recorded(told: Mapping[str, Any]) -> Iterator[psutil.Process]:
    for each in told["processes"]:
        if _runs(each):
            with suppress(psutil.Error):
                yield psutil.Process(int(each["pid"]))


def _working_in(scratch: Path) -> Iterator[psutil.Process]:
    """Processes whose temporary folder is the launch's: those that started after the last note of its pids."""
    if not SCRATCH.fullmatch(scratch.name):
        return
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("TMPDIR") == str(scratch):
                yield process


def _runs(told: Mapping[str, Any]) -> bool:
    return family.same_process(int(told["pid"]), int(told["start_ticks"]))


def _inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


def _leads(process: psutil.Process) -> bool:
    with suppress(OSError):
        return os.getpgid(process.pid) == process.pid
    return False
