"""Requests are sent no longer than both servers live and answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from standin import Reply, StandIn

from harness import interrupts
from harness.config import LoadConfig
from harness.errors import ServerError
from harness.workload import watch
from harness.workload.client import NO_END
from harness.workload.stream import RequestRecord
from harness.workload.watch import Watch


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    monkeypatch.setattr(watch, "ASK_S", 0.05)
    monkeypatch.setattr(watch, "UNANSWERED_S", 0.6)


class Process:
    def explanation(self) -> str:
        return "Its log says nothing."


class Server:
    HEALTH = "/health"

    def __init__(self, name: str, url: str) -> None:
        self.process, self.http = Process(), self
        self.name, self.url = name, url


class Servers:
    """Both servers at one stand-in; ``dead`` is what a look finds."""

    has_lmcache = True

    def __init__(self, url: str) -> None:
        self.vllm, self.lmcache = Server("vLLM", url), Server("LMCache", url)
        self.dead = ""

    def check(self, when: str) -> None:
        if self.dead:
            raise ServerError(self.dead + when)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with StandIn() as standin:
        standin.on("/health", Reply("ok"))
        servers = Servers(standin.url)
        servers.standin = standin  # type: ignore[attr-defined]
        yield servers


def watching(servers: Any, **load: Any) -> Watch:
    return Watch(servers, LoadConfig(**load), lambda: "the cold pass")


async def sleep(seconds: float, answer: int = 7) -> int:
    await asyncio.sleep(seconds)
    return answer


def ended(error: str | None) -> RequestRecord:
    return RequestRecord(0, "", 0.0, error=error)


def test_healthy_servers_are_let_alone_for_as_long_as_it_takes(servers: Servers) -> None:
    assert watching(servers).run(sleep(1.0)) == 7


def test_a_dead_server_ends_the_sending_at_once(servers: Servers) -> None:
    async def sending() -> int:
        await asyncio.sleep(0.1)
        servers.dead = "vLLM was killed"
        return await sleep(60)

    began = time.monotonic()
    with pytest.raises(ServerError, match=r"^vLLM was killed during the cold pass$"):
        watching(servers).run(sending())
    assert time.monotonic() - began < 2


def test_a_server_that_died_with_the_last_request_is_seen_too(servers: Servers) -> None:
    async def sending() -> int:
        servers.dead = "LMCache was killed"
        return 7

    with pytest.raises(ServerError, match="LMCache was killed"):
        watching(servers).run(sending())


@pytest.mark.parametrize("reply", [Reply("", status=503), None])
def test_health_that_ceases_ends_the_sending(servers: Any, reply: Reply | None) -> None:
    servers.standin.on("/health", *([Reply("ok")] * 6), *([reply] if reply else []))
    if reply is None:
        servers.vllm.url = "http://127.0.0.1:9"
    with pytest.raises(ServerError, match=r"has not answered its health check for 1 s during the cold pass: it hangs"):
        watching(servers).run(sleep(60))


def test_requests_that_never_end_end_the_sending(servers: Servers) -> None:
    watched = watching(servers, concurrency=4)

    async def sending() -> int:
        for error in (*[NO_END] * 3, None, *[NO_END] * 3, "HTTP 500", *[NO_END] * 4):
            watched.saw(ended(error))
            await asyncio.sleep(0.1)
        return await sleep(60)

    with pytest.raises(ServerError, match=r"^4 requests in a row had no end within 600 s"):
        watched.run(sending())


def test_one_request_that_never_ends_is_not_enough_at_concurrency_1(servers: Servers) -> None:
    watched = watching(servers, concurrency=1)
    for _ in range(2):
        watched.saw(ended(NO_END))
    assert watched.run(sleep(0.1)) == 7
    watched.saw(ended(NO_END))
    with pytest.raises(ServerError, match="3 requests in a row"):
        watched.run(sleep(60))


def test_what_the_sending_raises_is_told(servers: Servers) -> None:
    async def sending() -> int:
        raise ServerError("of its own")

    with pytest.raises(ServerError, match="of its own"):
        watching(servers).run(sending())


def test_what_swallows_its_cancellation_is_cancelled_again(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As aiohttp did once in some hundred passes: the pass was over, and the run waited for ever."""
    monkeypatch.setattr(interrupts, "CANCEL_AGAIN_S", 0.05)
    swallowed: list[bool] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed.append(True)

    watched = watching(servers)
    monkeypatch.setattr(watched, "_ask", stubborn)
    assert watched.run(asyncio.wait_for(sleep(0.1), 10)) == 7
    assert swallowed
