"""Control calls to both servers against a stand-in that answers what healthy servers don't."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standin import Reply, StandIn

from harness.errors import ServerError
from harness.servers import http, lmcache, vllm
from harness.servers.http import Endpoint, StatusError
from harness.servers.lmcache import LMCacheServer
from harness.servers.ports import free_ports
from harness.servers.process import ServerProcess
from harness.servers.vllm import VllmServer
from harness.servers.waiting import wait_for, wait_until_stable


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


def process(folder: Path, log: str = "INFO: all is well\n") -> ServerProcess:
    """A process that was never started, with a log."""
    path = folder / "server.log"
    path.write_text(log)
    return ServerProcess("server", ["true"], {}, path)


@pytest.fixture
def cache(standin: StandIn, tmp_path: Path) -> LMCacheServer:
    return LMCacheServer(process(tmp_path), standin.port)


@pytest.fixture
def engine(standin: StandIn, tmp_path: Path) -> VllmServer:
    return VllmServer(process(tmp_path), standin.port, "pocket")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same looking and waiting, at a faster pace."""
    monkeypatch.setattr(lmcache, "wait_for", partial(wait_for, every_s=0.02))
    monkeypatch.setattr(vllm, "wait_for", partial(wait_for, every_s=0.02))
    monkeypatch.setattr(lmcache, "wait_until_stable", partial(wait_until_stable, quiet_s=0.2, every_s=0.02))


def status(objects: int = 0, pending: int = 0, in_flight: int = 0) -> Reply:
    manager = {"total_object_count": objects, "write_locked_count": 0, "read_locked_count": objects}
    controller = {"pending_keys_count": pending, "in_flight_task_count": in_flight}
    return Reply({"is_healthy": True, "storage_manager": {"l1_manager": manager, "store_controller": controller}})


def metrics(
    submitted: int, finished: int, written: int = 0, retrieves: tuple[int, int] = (0, 0), queue: int = 0
) -> Reply:
    values = {
        "num_submitted_stores_total": submitted,
        "num_finished_stores_total": finished,
        "num_submitted_retrieves_total": retrieves[0],
        "num_finished_retrieves_total": retrieves[1],
        "l1_write_chunks_total": written,
    }
    lines = [
        f'# TYPE lmcache_mp_{name} counter\nlmcache_mp_{name}{{device="cpu"}} {value}' for name, value in values.items()
    ]
    depth = "lmcache_mp_event_bus_queue_depth"
    return Reply("\n".join([*lines, f"# TYPE {depth} gauge", f"{depth} {queue}", ""]))


CLEARED = Reply({"status": "ok", "cleared": {"tier": "l1"}})
QUIET = Reply('# TYPE python_info gauge\npython_info{version="3.11.7"} 1.0\n')


# LMCache: clear


def test_clear_retries_until_it_is_empty(standin: StandIn, cache: LMCacheServer) -> None:
    standin.on("/cache/clear", CLEARED)
    standin.on("/status", status(3), status(1), status(0))
    assert cache.clear() == {"attempts": 3, "objects_left": 0, "l2_files_removed": 0}
    assert standin.count("/cache/clear") == 3
    assert {seen.method for seen in standin.seen if seen.path == "/cache/clear"} == {"POST"}


def test_clear_that_leaves_objects_fails_in_words(
    standin: StandIn, cache: LMCacheServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmcache, "CLEAR_S", 0.3)
    standin.on("/cache/clear", CLEARED)
    standin.on("/status", status(3))
    with pytest.raises(ServerError, match=r"still holds 3 objects after \d+ clear requests in 0\.3 s.*locked"):
        cache.clear()


def test_clear_empties_the_file_l2_too_and_only_with_clear(
    standin: StandIn, tmp_path: Path, cache: LMCacheServer
) -> None:
    l2 = tmp_path / "l2"
    (l2 / "deep").mkdir(parents=True)
    for name in ("a.data", "deep/b.data"):
        (l2 / name).write_bytes(b"x")
    server = LMCacheServer(cache.process, standin.port, l2)
    standin.on("/cache/clear", CLEARED)
    standin.on("/status", status(0))
    assert server.clear_l1() == {"attempts": 1, "objects_left": 0}
    assert (l2 / "deep" / "b.data").exists()
    assert server.clear()["l2_files_removed"] == 2
    assert not [path for path in l2.rglob("*") if path.is_file()]
    assert l2.is_dir()


@pytest.mark.parametrize(
    "body",
    [{}, {"storage_manager": {}}, {"storage_manager": {"l1_manager": {}}}, {"storage_manager": {"l1_manager": None}}],
)
def test_a_status_of_another_release_is_told(standin: StandIn, cache: LMCacheServer, body: dict[str, Any]) -> None:
    standin.on("/cache/clear", CLEARED)
    standin.on("/status", Reply(body))
    with pytest.raises(
        ServerError, match=r"no storage_manager\.l1_manager with total_object_count.*tested \(0\.5\.6\)"
    ):
        cache.clear()


def test_clear_of_another_release_is_told(standin: StandIn, cache: LMCacheServer) -> None:
    with pytest.raises(ServerError, match=r"LMCache answered 404 to POST http://127\.0\.0\.1:\d+/cache/clear"):
        cache.clear()


# LMCache: settled


def test_settled_waits_for_submitted_to_be_finished(standin: StandIn, cache: LMCacheServer) -> None:
    standin.on("/metrics", metrics(3, 1), metrics(3, 2), metrics(3, 3, written=6))
    began = time.monotonic()
    seen = cache.wait_until_settled()
    assert time.monotonic() - began > 0.2
    assert seen["lmcache_mp_num_submitted_stores_total"] == seen["lmcache_mp_num_finished_stores_total"] == 3
    assert seen["lmcache_mp_l1_write_chunks_total"] == 6
    assert standin.count("/metrics") >= 4


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(metrics(3, 3, retrieves=(2, 1)), id="a retrieve is under way"),
        pytest.param(metrics(3, 3, queue=1), id="events are queued"),
    ],
)
def test_settled_waits_for_more_than_stores(standin: StandIn, cache: LMCacheServer, busy: Reply) -> None:
    standin.on("/metrics", *[busy] * 25, metrics(3, 3))
    cache.wait_until_settled()
    assert standin.count("/metrics") > 25


def test_settled_waits_until_counters_stop_moving(standin: StandIn, cache: LMCacheServer) -> None:
    """Submitted equals finished at every look, and yet chunks are being written."""
    standin.on("/metrics", *[metrics(n, n, written=2 * n) for n in range(1, 8)])
    assert cache.wait_until_settled()["lmcache_mp_l1_write_chunks_total"] == 14
    assert standin.count("/metrics") >= 7 + 4


def test_settled_waits_for_the_file_l2(standin: StandIn, tmp_path: Path) -> None:
    server = LMCacheServer(process(tmp_path), standin.port, tmp_path / "l2")
    standin.on("/metrics", metrics(3, 3))
    standin.on("/status", *[status(pending=1)] * 3, *[status(in_flight=2)] * 3, status())
    server.wait_until_settled()
    assert standin.count("/status") >= 6 + 5


def test_settled_before_any_traffic_is_settled_with_nothing(standin: StandIn, cache: LMCacheServer) -> None:
    standin.on("/metrics", QUIET)
    assert cache.wait_until_settled() == {}


def test_stuck_stores_are_told_with_numbers_and_log(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmcache, "SETTLE_S", 0.3)
    server = LMCacheServer(process(tmp_path, "RuntimeError: L1 is full\n"), standin.port)
    standin.on("/metrics", metrics(3, 2))
    with pytest.raises(ServerError) as error:
        server.wait_until_settled()
    message = str(error.value)
    assert "did not settle within 0.3 s" in message
    assert "num_submitted_stores_total=3.0, num_finished_stores_total=2.0" in message
    assert "RuntimeError: L1 is full" in message
    assert str(server.process.log) in message


def test_counters_of_no_prometheus_page_are_an_error_in_words(standin: StandIn, cache: LMCacheServer) -> None:
    standin.on("/metrics", Reply("<html>proxy</html>"))
    with pytest.raises(ServerError, match=r"LMCache's /metrics can't be read as a Prometheus page"):
        cache.counters()


# vLLM: reset


def test_reset_parses_the_body_and_retries(standin: StandIn, engine: VllmServer) -> None:
    standin.on("/reset_prefix_cache", Reply({"success": False}), Reply({"success": False}), Reply({"success": True}))
    assert engine.reset_prefix_cache() == {"attempts": 3, "success": True}
    assert [seen.method for seen in standin.seen] == ["POST"] * 3
    assert [seen.body for seen in standin.seen] == [b""] * 3, "LMCache is left alone"


def test_reset_refused_for_ever_fails_in_words(
    standin: StandIn, engine: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "RESET_S", 0.3)
    standin.on("/reset_prefix_cache", Reply({"success": False}))
    with pytest.raises(ServerError, match=r"vLLM refused \d+ times in 0\.3 s.*blocks are still held(.|\n)*all is well"):
        engine.reset_prefix_cache()


def test_reset_without_development_mode_says_what_to_set(standin: StandIn, engine: VllmServer) -> None:
    with pytest.raises(ServerError, match=r"answered 404 to POST .*/reset_prefix_cache.*VLLM_SERVER_DEV_MODE=1"):
        engine.reset_prefix_cache()
    assert standin.count("/reset_prefix_cache") == 1


@pytest.mark.parametrize("body", [Reply(""), Reply({"status": "ok"}), Reply("[true]"), Reply("true"), Reply("null")])
def test_reset_that_does_not_say_whether_it_worked_is_not_success(
    standin: StandIn, engine: VllmServer, body: Reply
) -> None:
    standin.on("/reset_prefix_cache", body)
    with pytest.raises(ServerError, match=r"whether its cache is empty is not known"):
        engine.reset_prefix_cache()


@pytest.mark.parametrize("word", ["true", 1, "yes", None])
def test_only_true_is_success(
    standin: StandIn, engine: VllmServer, monkeypatch: pytest.MonkeyPatch, word: object
) -> None:
    monkeypatch.setattr(vllm, "RESET_S", 0.1)
    standin.on("/reset_prefix_cache", Reply({"success": word}))
    with pytest.raises(ServerError, match="refused"):
        engine.reset_prefix_cache()


def test_reset_with_no_json_and_with_an_error(standin: StandIn, engine: VllmServer) -> None:
    standin.on("/reset_prefix_cache", Reply("<html>"), Reply("engine died", status=500))
    with pytest.raises(ServerError, match=r"answered /reset_prefix_cache with no JSON: '<html>'"):
        engine.reset_prefix_cache()
    with pytest.raises(StatusError, match=r"answered 500 .*engine died") as error:
        engine.reset_prefix_cache()
    assert error.value.status == 500


# vLLM: what it is


CONFIG_INFO = 'vllm:cache_config_info{block_size="%s",engine="0",mamba_block_size="4096"} 1.0\n'


def test_block_size_from_the_log_without_asking(standin: StandIn, tmp_path: Path) -> None:
    log = process(tmp_path, "(EngineCore pid=1) INFO 11-29 20:15:17 [k.py:853] kv cache group sizes (544, 544)\n")
    assert VllmServer(log, standin.port, "pocket").block_size() == 544
    assert standin.seen == []


def test_block_size_from_metrics_when_the_log_is_silent(standin: StandIn, engine: VllmServer) -> None:
    standin.on("/metrics", Reply(CONFIG_INFO % 784))
    assert engine.block_size() == 784


@pytest.mark.parametrize("page", ["", CONFIG_INFO % "None", 'vllm:cache_config_info{engine="0"} 1.0\n'])
def test_no_block_size_anywhere_names_both_places(standin: StandIn, engine: VllmServer, page: str) -> None:
    standin.on("/metrics", Reply(page))
    with pytest.raises(ServerError, match=r"block size, neither in \S+server\.log nor in /metrics"):
        engine.block_size()


def test_tokens_and_longest_prompt(standin: StandIn, engine: VllmServer) -> None:
    standin.on("/tokenize", Reply({"count": 2, "max_model_len": 4096, "tokens": [5, 6]}))
    standin.on("/v1/models", Reply({"object": "list", "data": [{"id": "pocket", "max_model_len": 4096}]}))
    assert engine.tokenize("a b") == [5, 6]
    assert standin.seen[0].json() == {"model": "pocket", "prompt": "a b"}
    assert engine.max_model_len() == 4096


# Both


def test_health(standin: StandIn, engine: VllmServer, cache: LMCacheServer) -> None:
    assert not engine.healthy() and not cache.healthy()
    standin.on("/health", Reply("", status=503), Reply(""))
    standin.on("/healthcheck", Reply({"status": "healthy"}))
    assert not engine.healthy()
    assert engine.healthy() and cache.healthy()


@pytest.mark.parametrize("name", ["vLLM", "LMCache"])
def test_a_server_that_is_gone_is_told_with_its_log(tmp_path: Path, name: str) -> None:
    (port,) = free_ports(1)
    gone = process(tmp_path, "torch.OutOfMemoryError: CUDA out of memory\n")
    server = VllmServer(gone, port, "pocket") if name == "vLLM" else LMCacheServer(gone, port)
    assert not server.healthy()
    with pytest.raises(ServerError) as error:
        server.counters()
    message = str(error.value)
    asked = f"GET {server.http.url}/metrics"
    assert message.startswith(f"{name} does not answer {asked} (no connection). Its log says:")
    assert "torch.OutOfMemoryError" in message
    assert str(gone.log) in message


def test_a_server_that_is_silent_is_told_with_the_limit(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.2)

    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    standin.on("/status", silent)
    with pytest.raises(
        ServerError, match=r"LMCache does not answer GET http://\S+/status \(nothing within 0\.2 s\)\.$"
    ):
        Endpoint("LMCache", standin.url).json("/status")


def test_proxies_of_the_environment_are_not_for_loopback(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    standin.on("/status", Reply(json.dumps([1])))
    endpoint = Endpoint("LMCache", standin.url)
    assert endpoint.json("/status") == [1]
    assert endpoint.answers("/status")


def test_empty_and_broken_bodies(standin: StandIn) -> None:
    endpoint = Endpoint("LMCache", standin.url)
    standin.on("/a", Reply(""))
    assert endpoint.post("/a") is None
    assert endpoint.text("/a") == ""
    with pytest.raises(ServerError, match="no JSON: ''"):
        endpoint.json("/a")
    standin.on("/b", Reply("", status=500))
    with pytest.raises(StatusError, match=r"answered 500 .*: an empty page$"):
        endpoint.text("/b")


# Waiting


def test_wait_for_looks_at_least_once_and_no_longer_than_asked() -> None:
    looks: list[int] = []

    def never() -> None:
        looks.append(1)

    assert wait_for(never, 0.0, every_s=0.01) is None
    assert 1 <= len(looks) <= 2
    began = time.monotonic()
    assert wait_for(never, 0.1, every_s=0.01) is None
    assert 0.1 <= time.monotonic() - began < 1
    assert wait_for(lambda: 0, 5) == 0, "a falsy thing seen is seen"


def test_what_flickers_is_not_stable() -> None:
    flicker = iter(range(10**6))
    assert wait_until_stable(lambda: next(flicker), 0.2, quiet_s=0.05, every_s=0.01) is None
    seen = iter([1, 1, None, 1, 2] + [2] * 10**4)
    began = time.monotonic()
    assert wait_until_stable(lambda: next(seen), 5, quiet_s=0.1, every_s=0.01) == 2
    assert time.monotonic() - began >= 0.1


def test_a_condition_that_breaks_starts_the_quiet_time_anew() -> None:
    looks = iter([7] * 5 + [None] + [7] * 10**4)
    taken: list[float] = []

    def look() -> int | None:
        taken.append(time.monotonic())
        return next(looks)

    assert wait_until_stable(look, 5, quiet_s=0.1, every_s=0.01) == 7
    assert taken[-1] - taken[6] >= 0.1
