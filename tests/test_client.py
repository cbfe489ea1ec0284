"""The streaming client against a server that misbehaves: one request fails, the pass goes on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import pytest
from aiohttp import web
from standin import Handler, Reply, Seen, StandIn, Stream, completion, event, tokens

from harness.config import LoadConfig
from harness.servers.ports import free_ports
from harness.workload import client
from harness.workload.client import Target, request_body, send_all
from harness.workload.prompts import Prompt
from harness.workload.stream import RequestRecord

PATH = "/v1/completions"
GOOD = Stream(completion(5, 6, 7, prompt=3, cached=2))


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


def prompts(count: int) -> list[Prompt]:
    return [Prompt(i, f"text {i}", (100 + i, 2, 3), ("\nQ:",), 16) for i in range(count)]


def send(url: str, count: int, **load: float) -> list[RequestRecord]:
    """Records of ``count`` prompts in the order in which they ended."""
    config = LoadConfig(**{"concurrency": 4, "request_timeout_s": 5.0} | load)  # type: ignore[arg-type]
    records: list[RequestRecord] = []
    wall_s = asyncio.run(send_all(prompts(count), Target(url, "pocket"), config, records.append))
    assert all(record.finished_s is None or record.finished_s <= wall_s for record in records)
    return records


def asked_for(seen: Seen) -> int:
    """Document of a request."""
    return int(seen.json()["prompt"][0]) - 100


def test_a_healthy_pass(server: StandIn) -> None:
    server.on(PATH, GOOD)
    records = send(server.url, 6)
    assert sorted(record.doc_id for record in records) == list(range(6))
    for record in records:
        assert record.error is None
        assert record.retries == 0
        assert record.token_ids == [5, 6, 7]
        assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (3, 2, 3)
        assert record.prompt_sha256 == prompts(6)[record.doc_id].sha256
        assert record.ttft_s is not None and record.finished_s is not None
        assert 0 <= record.sent_s < record.sent_s + record.ttft_s == record.token_times_s[0] <= record.finished_s


def test_requests_ask_for_what_is_measured(server: StandIn) -> None:
    server.on(PATH, GOOD)
    send(server.url, 1)
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", PATH)
    assert seen.json() == request_body(prompts(1)[0], "pocket")
    assert seen.json() == {
        "model": "pocket",
        "prompt": [100, 2, 3],
        "max_tokens": 16,
        "stop": ["\nQ:"],
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_prompts_are_sent_in_the_order_given(server: StandIn) -> None:
    server.on(PATH, GOOD)
    records = send(server.url, 8, concurrency=1)
    assert [asked_for(seen) for seen in server.seen] == list(range(8))
    assert [record.doc_id for record in records] == list(range(8))


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_never_more_in_flight_than_allowed(server: StandIn, concurrency: int) -> None:
    server.on(PATH, Stream(completion(5), pause_s=0.01))
    records = send(server.url, 12, concurrency=concurrency)
    assert len(records) == server.count(PATH) == 12
    assert server.most_in_flight == min(concurrency, 12)


def test_no_prompts_are_no_pass(server: StandIn) -> None:
    assert send(server.url, 0) == []


def test_ttft_counts_from_the_send_of_its_own_request(server: StandIn) -> None:
    """At concurrency 1 the third request waits long before it is sent; its TTFT must not."""
    server.on(PATH, Stream((completion(5)[0], b"".join(completion(5)[1:])), pause_s=0.15))
    records = send(server.url, 3, concurrency=1)
    for position, record in enumerate(records):
        assert record.ttft_s is not None and record.finished_s is not None
        assert 0.14 < record.ttft_s < 0.5
        assert record.sent_s > position * 0.29
        assert record.finished_s - record.sent_s > 0.29


BAD: list[tuple[Handler, str]] = [
    (
        Reply({"error": {"message": "too long"}}, status=400),
        r"^HTTP 400: \{\"error\": \{\"message\": \"too long\"\}\}$",
    ),
    (Reply("Internal Server Error", status=500), "^HTTP 500: Internal Server Error$"),
    (Reply("", status=503), "^HTTP 503: an empty page$"),
    (Reply(b"\xff\xfe\xff" * 200, status=502), "^HTTP 502: "),
    (Reply("<html>not a stream</html>"), "^the stream ended early, after 0 tokens$"),
    (Stream((tokens(5), b"data: {\n\n")), r"^malformed event b'\{'$"),
    (Stream((tokens(5), event({"error": {"message": "KV load failed"}}))), "^the server reported: KV load failed$"),
    (Stream((tokens(5), tokens(6))), "^the stream ended early, after 2 tokens$"),
    (
        Stream((tokens(5),), pause_s=0.02, end="reset"),
        "^the connection broke: the server closed it in the middle",
    ),
    (Stream((), end="reset"), "^the connection broke: "),
    (Stream((tokens(5),), end="hang"), r"^no end within 0\.7 s \(load\.request_timeout_s\)$"),
]


@pytest.mark.parametrize(("bad", "told"), BAD)
def test_one_failed_request_is_recorded_and_the_others_go_on(server: StandIn, bad: Handler, told: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        handler = bad if (await request.json())["prompt"][0] == 101 else GOOD
        return await handler(request)

    server.on(PATH, answer)
    began = time.monotonic()
    limit = 0.7 if isinstance(bad, Stream) and bad.end == "hang" else 10.0
    records = {record.doc_id: record for record in send(server.url, 5, concurrency=2, request_timeout_s=limit)}
    assert sorted(records) == list(range(5))
    assert time.monotonic() - began < 4
    failed = records.pop(1)
    assert failed.error is not None and re.search(told, failed.error), failed.error
    assert failed.finished_s is None
    assert failed.retries == 0, "re-sending is off unless asked for"
    assert server.count(PATH) == 5
    assert all(record.error is None and record.token_ids == [5, 6, 7] for record in records.values())


def test_nobody_there() -> None:
    (port,) = free_ports(1)
    (record,) = send(f"http://127.0.0.1:{port}", 1)
    assert (
        record.error is not None
        and record.error == f"the connection broke: 127.0.0.1:{port} can't be reached: Connection refused"
    )
    assert record.ttft_s is None


def test_retries_are_counted_and_the_good_answer_is_kept(server: StandIn) -> None:
    server.on(PATH, Stream((tokens(9),), pause_s=0.02, end="reset"), Stream((), end="reset"), GOOD)
    (record,) = send(server.url, 1, retries=3)
    assert record.error is None
    assert record.retries == 2
    assert record.token_ids == [5, 6, 7], "nothing of the broken attempt is left in it"
    assert len(record.token_times_s) == len(record.logprobs) == 3
    assert server.count(PATH) == 3


def test_retries_are_bounded(server: StandIn) -> None:
    server.on(PATH, Stream((tokens(9),), end="reset"))
    (record,) = send(server.url, 1, retries=2)
    assert record.error is not None and record.error.startswith("the connection broke")
    assert record.retries == 2
    assert server.count(PATH) == 3


def test_an_answer_that_says_no_is_not_asked_again(server: StandIn) -> None:
    server.on(PATH, Reply("too long", status=400))
    (record,) = send(server.url, 1, retries=2)
    assert record.error == "HTTP 400: too long"
    assert record.retries == 0
    assert server.count(PATH) == 1


def test_ttft_of_a_retried_request_counts_from_the_last_send(server: StandIn) -> None:
    async def slow_failure(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await Stream((tokens(9),), end="reset")(request)

    server.on(PATH, slow_failure, GOOD)
    (record,) = send(server.url, 1, retries=1)
    assert record.ttft_s is not None and record.ttft_s < 0.2
    assert record.sent_s > 0.29


@pytest.mark.parametrize(("status", "pauses"), [(None, True), (500, True), (400, False)])
def test_a_place_that_failed_waits_before_it_asks_again(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, status: int | None, pauses: bool
) -> None:
    """A server that has just died would refuse all the others within milliseconds; one that finds fault is well."""
    monkeypatch.setattr(client, "FAILED_PAUSE_S", 0.2)
    server.on(PATH, Stream((), end="reset") if status is None else Reply("", status=status))
    began = time.monotonic()
    assert len(send(server.url, 4, concurrency=1)) == 4
    assert (time.monotonic() - began > 0.79) is pauses  # four of 0.2 s, each up to a timer's millisecond less
