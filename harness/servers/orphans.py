"""Servers that outlived their harness: killed with SIGKILL, it could not stop them, and they keep memory and a GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harness.servers.shared_memory import mapped_segments, remove_segments
from harness.servers.stack import scratch_folder

STOP_S = 30.0
KILL_S = 10.0


def stop_orphans(launches: Path) -> int:
    """Ends the servers of a run that nobody owns any more, with all that they started and left on the machine.

    A server is told by two marks, so that a shell that stands in the folder is left alone: it works in a launch's
    folder, and its temporary folder is one that a launch made.

    Args:
        launches: folder of the run's launches; the caller has locked the run, so no harness owns them.

    Returns:
        How many processes were ended.
    """
    servers = [process for process in psutil.process_iter() if _scratch_of(process, launches.resolve())]
    scratches = {scratch for process in servers if (scratch := _scratch_of(process, launches.resolve()))}
    family = _with_children(servers)
    segments = _own_segments(family)
    # Every server leads a session, and tells its own processes to end.
    _end([process for process in servers if _leads(process)], STOP_S, firmly=False)
    _end(family, KILL_S, firmly=True)
    remove_segments(segments)
    for scratch in scratches:
        shutil.rmtree(scratch, ignore_errors=True)
    return len(family)


def _scratch_of(process: psutil.Process, launches: Path) -> Path | None:
    """Temporary folder of a server of this run; None for any other process."""
    with suppress(psutil.Error, OSError):
        if Path(process.cwd()).is_relative_to(launches):
            return scratch_folder(process.environ().get("TMPDIR", ""))
    return None


def _leads(process: psutil.Process) -> bool:
    with suppress(OSError):
        return os.getsid(process.pid) == process.pid
    return False


def _with_children(servers: Sequence[psutil.Process]) -> list[psutil.Process]:
    family = set(servers)
    for server in servers:
        with suppress(psutil.Error):
            family |= set(server.children(recursive=True))
    return list(family)


def _own_segments(family: Sequence[psutil.Process]) -> set[Path]:
    """Segments that they map and that are no older than they are: older ones are somebody else's."""
    if not family:
        return set()
    began = min(process.create_time() for process in family)
    own = set()
    for path in mapped_segments(process.pid for process in family):
        with suppress(OSError):
            if path.stat().st_ctime >= began:
                own.add(path)
    return own


def _end(processes: Sequence[psutil.Process], wait_s: float, *, firmly: bool) -> None:
    for process in processes:
        with suppress(psutil.Error):
            if firmly:
                process.kill()
            else:
                process.terminate()
    psutil.wait_procs(list(processes), timeout=wait_s)
