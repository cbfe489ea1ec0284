"""Ends the sending of requests when a server has died or hangs, so that a pass never outlives what it measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from harness.config import LoadConfig
from harness.errors import ServerError
from harness.interrupts import end_tasks, run_async
from harness.servers.stack import Stack
from harness.workload.client import NO_END
from harness.workload.connection import BrokenConnection, Connection
from harness.workload.stream import RequestRecord

T = TypeVar("T")

LOOK_S = 0.1
"""Between two looks at whether both servers run."""
ASK_S = 5.0
"""Between two health checks, and how long each may take."""
UNANSWERED_S = 60.0
"""A server that has answered no health check for so long hangs: both answer within milliseconds under full load."""

FEWEST_ENDLESS = 3
"""So many requests that run into their time limit, one after another, are no accident at concurrency 1 either."""


class Watch:
    """Watches over both servers while requests are being sent.

    Args:
        stack: the servers.
        load: how many requests run at once, and how long each of them may take.
        during: says what is going on, for messages: ``the cold pass, after 3 of 100 requests``.
    """

    def __init__(self, stack: Stack, load: LoadConfig, during: Callable[[], str]) -> None:
        self.stack = stack
        self.load = load
        self.during = during
        self._answered: dict[str, float] = {}
        self._endless = 0

    def saw(self, record: RequestRecord) -> None:
        """Told of every request that ended."""
        self._endless = self._endless + 1 if (record.error or "").startswith(NO_END) else 0

    def run(self, sending: Coroutine[Any, Any, T]) -> T:
        """Runs the sending in a loop of its own until it is done.

        Raises:
            ServerError: a server ended, answers no health check, or no request comes to an end.
            Interrupted: a signal came.
        """
        return run_async(self._over(sending))

    async def _over(self, sending: Coroutine[Any, Any, T]) -> T:
        self._answered = {server.http.name: time.monotonic() for server in self._servers}
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in (sending, self._look(), self._ask())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(tasks)
        # Requests that failed because their server died are no answer of a server.
        self.stack.check(f" during {self.during()}")
        for task in tasks[1:]:
            if not task.cancelled() and (error := task.exception()):
                raise error
        result: T = tasks[0].result()
        return result

    async def _look(self) -> None:
        """Returns never; raises once a server has ended or hangs."""
        while True:
            self.stack.check(f" during {self.during()}")
            # All places at once, and none of them ended well in between.
            if self._endless >= max(self.load.concurrency, FEWEST_ENDLESS):
                raise ServerError(
                    f"{self._endless} requests in a row had no end within {self.load.request_timeout_s:g} s "
                    f"(load.request_timeout_s) during {self.during()}: vLLM hangs, or it waits for LMCache. "
                    + self.stack.vllm.process.explanation()
                )
            for server in self._servers:
                if (silent := time.monotonic() - self._answered[server.http.name]) > UNANSWERED_S:
                    raise ServerError(
                        f"{server.http.name} has not answered its health check for {silent:.0f} s during "
                        f"{self.during()}: it hangs. {server.process.explanation()}"
                    )
            await asyncio.sleep(LOOK_S)

    async def _ask(self) -> None:
        await asyncio.gather(*(self._ask_one(server) for server in self._servers))

    async def _ask_one(self, server: Any) -> None:
        connection = Connection(server.http.url)
        try:
            while True:
                await asyncio.sleep(ASK_S)
                with suppress(BrokenConnection, TimeoutError):
                    answer = await connection.request("GET", server.HEALTH, timeout_s=ASK_S)
                    if answer.status == 200:
                        self._answered[server.http.name] = time.monotonic()
        finally:
            connection.close()

    @property
    def _servers(self) -> list[Any]:
        return [self.stack.lmcache, self.stack.vllm] if self.stack.has_lmcache else [self.stack.vllm]
