"""Processes that belong together: told apart from others, found with all that they started, and ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

PROC = Path("/proc")
LOOK_S = 0.05


@cache
def machine_mark() -> str:
    """This boot of this machine and the namespace of process ids: a pid means nothing outside of them."""
    boot = ""
    with suppress(OSError):
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        boot += f" {(PROC / 'self/ns/pid').readlink()}"
    return boot


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine's start, which no jump of its clock moves.

    With its pid it tells a process from another one that got the same pid later.  None for one that is not there.
    """
    try:
        status = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses itself; 20 fields after it comes the start time.
    return int(status.rpartition(")")[2].split()[19])


def same_process(pid: int, ticks: int) -> bool:
    """Whether the process that had this pid and start time still runs."""
    return start_ticks(pid) == ticks and is_running(pid)


def is_running(pid: int) -> bool:
    """Whether it can still do something: a zombie can't, and nobody may ever reap it."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run and are no zombies."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def stopped(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that were stopped by a signal or a debugger, and wait to be let go on."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                found.append(process)
    return found


def with_children(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """These and all that they started."""
    family = set(processes)
    for process in list(family):
        with suppress(psutil.Error):
            family |= set(process.children(recursive=True))
    return family


def in_group(group: int) -> set[psutil.Process]:
    """Processes of a group, found without its leader too."""
    found = set()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group:
                found.add(psutil.Process(pid))
    return found


def tell_to_end(processes: Collection[psutil.Process]) -> None:
    """SIGTERM to each; one that is gone needs none."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()


def kill(processes: Collection[psutil.Process]) -> None:
    """SIGKILL to each; one that is gone needs none."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def wait_until(gone: Callable[[], bool], timeout_s: float) -> bool:
    """Looks until it is so; False when the time is up first."""
    deadline = time.monotonic() + timeout_s
    while not gone():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True
