"""Seeding on a stand-in: exactly the chosen tokens are sent, stores are waited for, and a lost prefix is no secret."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from standin import Reply, StandIn, Stream, completion

from harness.config import LoadConfig
from harness.errors import ServerError
from harness.measure.counters import Snapshot
from harness.servers import lmcache
from harness.servers.lmcache import LMCacheServer
from harness.servers.process import ServerProcess
from harness.servers.stack import Stack
from harness.servers.vllm import VllmServer
from harness.servers.waiting import wait_until_stable
from harness.workload.passes import seed_prefixes
from harness.workload.prompts import Prompt
from harness.workload.seeding import prefixes

COMPLETIONS = "/v1/completions"


class StandInStack:
    """Both servers, played by one stand-in."""

    has_lmcache = True

    def __init__(self, standin: StandIn, folder: Path) -> None:
        log = folder / "server.log"
        log.write_text("all is well\n")
        process = ServerProcess("server", ["true"], {}, log)
        self.vllm = VllmServer(process, standin.port, "pocket")
        self.lmcache = LMCacheServer(process, standin.port)

    def check(self, during: str = "") -> None:
        """Its servers are alive."""

    def settle(self) -> dict[str, float]:
        return self.lmcache.wait_until_settled()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.vllm.counters(), self.lmcache.counters())


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with StandIn() as server:
        server.on(COMPLETIONS, Stream(completion(5)))
        server.on(
            "/metrics", counters(100, 100, 10), counters(100, 100, 10), counters(104, 102, 13), counters(104, 104, 18)
        )
        yield server


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmcache, "wait_until_stable", partial(wait_until_stable, quiet_s=0.1, every_s=0.02))


def counters(submitted: int, finished: int, chunks: int) -> Reply:
    values = {"num_submitted_stores": submitted, "num_finished_stores": finished, "l1_write_chunks": chunks}
    lines = [f"# TYPE lmcache_mp_{n}_total counter\nlmcache_mp_{n}_total {value}\n" for n, value in values.items()]
    return Reply("".join(lines))


def seed(standin: StandIn, folder: Path, counts: dict[int, int]) -> dict[str, Any]:
    prompts = [Prompt(i, "text", tuple(range(1000 * i, 1000 * i + 200)), ("\n",), 28) for i in range(4)]
    stack = cast(Stack, StandInStack(standin, folder))
    return seed_prefixes(stack, LoadConfig(concurrency=2), prefixes(prompts, counts, 64))


def test_exactly_the_chosen_tokens_are_sent(standin: StandIn, tmp_path: Path) -> None:
    seed(standin, tmp_path, {0: 3, 1: 0, 2: 1, 3: 2})
    bodies = [seen.json() for seen in standin.seen if seen.path == COMPLETIONS]
    sent = {body["prompt"][0] // 1000: body["prompt"] for body in bodies}
    assert len(bodies) == 3
    assert sent == {0: list(range(192)), 2: list(range(2000, 2064)), 3: list(range(3000, 3128))}
    assert {body["max_tokens"] for body in bodies} == {1}


def test_stores_are_waited_for_and_counted(standin: StandIn, tmp_path: Path) -> None:
    assert seed(standin, tmp_path, {0: 3, 2: 1}) == {"requests": 2, "tokens": 256, "chunks_written": 8}
    standin.on("/metrics", counters(1, 0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmcache, "SETTLE_S", 0.2)
        with pytest.raises(ServerError, match="did not settle"):
            seed(standin, tmp_path, {0: 3})


def test_nothing_to_seed_sends_nothing(standin: StandIn, tmp_path: Path) -> None:
    assert seed(standin, tmp_path, {0: 0})["requests"] == 0
    assert standin.count(COMPLETIONS) == 0


def test_a_prefix_that_was_not_taken_stops_the_cell(standin: StandIn, tmp_path: Path) -> None:
    standin.on(COMPLETIONS, Reply("no room", 500), Stream(completion(5)))
    with pytest.raises(ServerError, match="1 of 3 prefixes were not seeded, the first because HTTP 500: no room"):
        seed(standin, tmp_path, {0: 3, 1: 1, 2: 1})
