"""What a launch has on the machine, written down so that it can be found even after the harness was killed.

``servers.json`` lies in the launch's folder from before its first server starts until nothing is left of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.servers.family import machine_mark, start_ticks
from harness.servers.shared_memory import present_segments
from harness.store import write_json

FILE = "servers.json"
SCHEMA = 1


class Ledger:
    """``servers.json`` of one launch.

    Args:
        folder: of the launch.
        scratch: the temporary folder of its servers.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.path = folder / FILE
        self._processes: dict[int, dict[str, Any]] = {}
        self._segments: dict[str, int] = {}
        self._segments_of_others = sorted(map(str, present_segments()))
        self._scratch = scratch
        self._written: dict[str, Any] = {}

    def note(self, name: str = "", processes: Iterable[psutil.Process] = (), segments: Iterable[Path] = ()) -> None:
        """Writes down what a server has by now; what was known before stays.

        Args:
            name: of the server; nothing of one yet without it.
            processes: its own and all that it started.
            segments: shared memory that it made.

        Raises:
            HarnessError: the disk refuses.
        """
        for process in processes:
            if (ticks := start_ticks(process.pid)) is not None:
                self._processes[process.pid] = {"server": name, "pid": process.pid, "start_ticks": ticks}
        for segment in segments:
            with suppress(OSError):
                self._segments[str(segment)] = segment.stat().st_ino
        told = {
            "schema": SCHEMA,
            "machine": machine_mark(),
            "harness": {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())},
            "scratch": str(self._scratch),
            "processes": sorted(self._processes.values(), key=lambda each: int(each["pid"])),
            "segments_of_others": self._segments_of_others,
            "segments": [{"path": path, "inode": inode} for path, inode in sorted(self._segments.items())],
        }
        if told != self._written:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, told)
            self._written = told

    def close(self) -> None:
        """Nothing is left of the launch."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._written = {}
