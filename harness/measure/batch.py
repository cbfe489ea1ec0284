"""Running and waiting requests over a pass: the batch size, which shows why a budget is slow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from harness.errors import ServerError
from harness.interrupts import end_tasks
from harness.measure.counters import Counters, read_gauges
from harness.workload.connection import BrokenConnection, Connection

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"

LOOK_TIMEOUT_S = 5.0

NOT_READ = "The batch size can't be read from {url}/metrics"
NOT_TESTED = "This vLLM release is not one that was tested (0.32.0), or it runs with --disable-log-stats."


@dataclass(frozen=True, slots=True)
class BatchSample:
    """One look, ``t_s`` seconds after the pass began."""

    t_s: float
    running: float
    waiting: float


def read_batch(text: str, t_s: float) -> BatchSample:
    """Sample from a ``/metrics`` page of vLLM, summed over engines.

    Raises:
        ValueError: the page has no such gauges, so this vLLM is not one that was tested.
    """
    values = read_gauges(text, [RUNNING, WAITING])
    return BatchSample(t_s, values[RUNNING], values[WAITING])


def check_reported(counters: Counters, url: str) -> None:
    """Refuses a vLLM that does not report its batch, before a pass is sent for nothing.

    Raises:
        ServerError: naming the gauge.
    """
    for name in (RUNNING, WAITING):
        if name not in counters:
            raise ServerError(f"{NOT_READ.format(url=url)}: {name} is not reported. {NOT_TESTED}")


class BatchSampler:
    """Reads the gauges at a steady rate while a pass runs; an async context manager.

    Args:
        url: base URL of vLLM.
        hz: looks per second; a look that takes longer than its turn delays the next one.

    Raises:
        ServerError: on leaving, when the page did not show what was looked for; a look that got no answer is only
            counted in ``missed``.
    """

    def __init__(self, url: str, hz: float) -> None:
        self.url = url
        self.every_s = 1.0 / hz
        self.samples: list[BatchSample] = []
        self.missed = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BatchSampler:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._task is not None
        await end_tasks([self._task])
        ended = None if self._task.cancelled() else self._task.exception()
        if isinstance(ended, ValueError) and kind is None:
            raise ServerError(f"{NOT_READ.format(url=self.url)}: {ended}. {NOT_TESTED}") from ended

    async def _run(self) -> None:
        began = time.perf_counter()
        connection = Connection(self.url)
        try:
            while True:
                turn = time.perf_counter()
                await self._look(connection, began)
                await asyncio.sleep(max(0.0, self.every_s - (time.perf_counter() - turn)))
        finally:
            connection.close()

    async def _look(self, connection: Connection, began: float) -> None:
        try:
            answer = await connection.request("GET", "/metrics", timeout_s=LOOK_TIMEOUT_S)
        except (BrokenConnection, TimeoutError):
            self.missed += 1
            return
        if answer.status != 200:
            self.missed += 1
            return
        self.samples.append(read_batch(answer.body.decode(errors="replace"), time.perf_counter() - began))
