"""The LMCache server: health, clearing, and waiting until its stores have landed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.errors import ServerError
from harness.measure.counters import Counters
from harness.servers.http import Endpoint
from harness.servers.ports import LOOPBACK
from harness.servers.process import ServerProcess
from harness.servers.waiting import wait_for, wait_until_stable

STOP_S = 20.0
CLEAR_S = 30.0
SETTLE_S = 120.0

PAIRS = (
    ("lmcache_mp_num_submitted_stores_total", "lmcache_mp_num_finished_stores_total"),
    ("lmcache_mp_num_submitted_retrieves_total", "lmcache_mp_num_finished_retrieves_total"),
)
"""Counters that agree once nothing is in flight."""


class LMCacheServer:
    """A running LMCache server.

    Args:
        process: the child process.
        http_port: port of its HTTP frontend on the loopback interface.
        l2_dir: folder of its file-system L2; None when it has none.
        url: base address of its HTTP frontend where that is another one.
    """

    HEALTH = "/healthcheck"

    def __init__(
        self, process: ServerProcess, http_port: int, l2_dir: Path | None = None, url: str | None = None
    ) -> None:
        self.process = process
        self.http = Endpoint("LMCache", url or f"http://{LOOPBACK}:{http_port}", process.explanation)
        self.l2_dir = l2_dir

    def healthy(self) -> bool:
        """Whether its health endpoint is green."""
        return self.http.answers(self.HEALTH)

    def counters(self) -> Counters:
        """All its counters; empty before the first traffic."""
        return self.http.counters()

    def clear(self) -> dict[str, Any]:
        """Empties memory and L2; see :meth:`clear_l1`."""
        return self.clear_l1() | {"l2_files_removed": self._empty_l2()}

    def objects(self) -> int:
        """Objects in its memory.

        Raises:
            ServerError: it does not answer, or does not say.
        """
        return self._sum_of("l1_manager", "total_object_count")

    def clear_l1(self) -> dict[str, Any]:
        """Empties its memory and checks that it is empty: the call says 200 even when locked objects stay.

        Returns:
            What was seen: ``{"attempts": n, "objects_left": 0}``.

        Raises:
            ServerError: objects are still held after :data:`CLEAR_S` seconds, or a server ended.
        """
        attempts = held = 0

        def emptied() -> int | None:
            nonlocal attempts, held
            self.process.check(" while LMCache was being cleared")
            attempts += 1
            self.http.post("/cache/clear")
            held = self.objects()
            return 0 if held == 0 else None

        if wait_for(emptied, CLEAR_S) is None:
            raise ServerError(
                f"LMCache still holds {held} objects after {attempts} clear requests in {CLEAR_S:g} s: "
                "something keeps them locked (a request still in flight?). Its locks run out by themselves "
                f"after minutes; {self.http.url}/status shows them. {self.process.suspended()}".rstrip()
            )
        return {"attempts": attempts, "objects_left": 0}

    def wait_until_settled(self) -> dict[str, float]:
        """Waits until every store and retrieve has finished and the counters have stopped moving.

        Returns:
            The counters that decided it.

        Raises:
            ServerError: they did not settle within :data:`SETTLE_S` seconds, or a server ended.
        """
        seen = wait_until_stable(self._settled_counters, SETTLE_S)
        if seen is None:
            counters = self.counters()
            told = ", ".join(f"{n.removeprefix('lmcache_mp_')}={counters.get(n)}" for p in PAIRS for n in p)
            raise ServerError(
                f"LMCache did not settle within {SETTLE_S:g} s ({told}): stores or retrieves are stuck. "
                + self.process.suspended()
                + self.process.log_excerpt()
            )
        return dict(seen)

    def stop(self, *, hurried: bool = False) -> list[Path]:
        """Ends it, at once if ``hurried``; see :meth:`ServerProcess.stop`."""
        return self.process.stop(0.0 if hurried else STOP_S)

    def _settled_counters(self) -> tuple[tuple[str, float], ...] | None:
        self.process.check(" while stores were landing in LMCache")
        counters = self.counters()
        if any(counters.get(submitted, 0) != counters.get(finished, 0) for submitted, finished in PAIRS):
            return None
        if counters.get("lmcache_mp_event_bus_queue_depth", 0) > 0 or self._pending_l2_stores() > 0:
            return None
        moving = [name for name in counters if name.endswith(("_stores_total", "_retrieves_total", "_chunks_total"))]
        return tuple(sorted((name, counters[name]) for name in moving))

    def _pending_l2_stores(self) -> int:
        if self.l2_dir is None:
            return 0
        return self._sum_of("store_controller", "pending_keys_count", "in_flight_task_count")

    def _sum_of(self, part: str, *names: str) -> int:
        status = self.http.json("/status")
        try:
            return sum(int(status["storage_manager"][part][name]) for name in names)
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(
                f"LMCache's /status has no storage_manager.{part} with {', '.join(names)}: this release is not the "
                "one that was tested (0.5.6)."
            ) from error

    def _empty_l2(self) -> int:
        if self.l2_dir is None:
            return 0
        files = [path for path in self.l2_dir.rglob("*") if path.is_file()]
        for path in files:
            path.unlink(missing_ok=True)
        return len(files)
