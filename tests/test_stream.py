"""One streamed completion, in vLLM's form, in one piece and in many."""

from __future__ import annotations

import json
import math

import pytest
from standin import DONE, completion, event, tokens, usage

from harness.workload.stream import CompletionStream, RequestRecord, StreamError

GENUINE = b"""\
data: {"id":"cmpl-a4d057e29d095dd0","object":"text_completion","created":1795984313,"model":"pocket","choices":[{"index":0,"text":"","logprobs":{"text_offset":[0],"token_logprobs":[-1.1762322187423706],"tokens":["token_id:368"],"top_logprobs":[{"token_id:368":-1.1762322187423706,"token_id:370":-1.7699822187423706}]},"finish_reason":null,"stop_reason":null,"prompt_token_ids":[30,31,32],"token_ids":[368]}]}

data: {"id":"cmpl-a4d057e29d095dd0","object":"text_completion","created":1795984313,"model":"pocket","choices":[{"index":0,"text":" 6 \xe2\x82\xac","logprobs":{"text_offset":[12],"token_logprobs":[-0.6955989599227905],"tokens":["token_id:366"],"top_logprobs":[{"token_id:366":-0.6955989599227905,"token_id:523":-0.6955989599227905}]},"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[366]}]}

data: {"id":"cmpl-a4d057e29d095dd0","object":"text_completion","created":1795984313,"model":"pocket","choices":[{"index":0,"text":" = 8","logprobs":{"text_offset":[96],"token_logprobs":[-0.034080687910318375],"tokens":["token_id:0"],"top_logprobs":[{"token_id:0":-0.034080687910318375,"token_id:201":-3.409080743789673}]},"finish_reason":"stop","stop_reason":null,"prompt_token_ids":null,"token_ids":[0]}]}

data: {"id":"cmpl-a4d057e29d095dd0","object":"text_completion","created":1795984313,"model":"pocket","choices":[],"usage":{"prompt_tokens":300,"total_tokens":303,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":256}},"system_fingerprint":"vllm-0.32.0-6fceea43"}

data: [DONE]

"""  # noqa: E501


def read(*chunks: bytes, sent_s: float = 0.0, finish: bool = True) -> RequestRecord:
    """Feeds chunks one second apart, the first at second 10."""
    record = RequestRecord(7, "hash", sent_s)
    stream = CompletionStream(record)
    for second, chunk in enumerate(chunks, start=10):
        stream.feed(chunk, float(second))
    if finish:
        stream.finish(99.0)
    return record


def test_genuine_stream() -> None:
    record = read(GENUINE, sent_s=8.0)
    assert record.text == " 6 € = 8"
    assert record.token_ids == [368, 366, 0]
    assert record.logprobs == [-1.1762322187423706, -0.6955989599227905, -0.034080687910318375]
    assert record.runner_up_ids == [370, 523, 201]
    assert record.runner_up_logprobs == [-1.7699822187423706, -0.6955989599227905, -3.409080743789673]
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (300, 256, 3)
    assert record.finish_reason == "stop"
    assert record.ttft_s == 2.0
    assert record.finished_s == 99.0
    assert record.error is None
    assert (record.doc_id, record.prompt_sha256) == (7, "hash")


def test_logits_that_are_no_numbers_are_an_answer() -> None:
    """What vLLM sends when the state that it was given makes NaN of everything."""
    nothing = GENUINE.replace(b"-1.1762322187423706", b"null").replace(b"-1.7699822187423706", b"null")
    record = read(nothing)
    assert record.token_ids == [368, 366, 0]
    assert math.isnan(record.logprobs[0]) and math.isnan(record.runner_up_logprobs[0])
    assert record.logprobs[1:] == [-0.6955989599227905, -0.034080687910318375]
    alone = read(GENUINE.replace(b',"token_id:370":-1.7699822187423706', b""))
    assert alone.runner_up_ids[0] == -1 and math.isnan(alone.runner_up_logprobs[0])


def test_cut_at_every_byte_the_record_is_the_same() -> None:
    whole = read(GENUINE)
    for cut in range(1, len(GENUINE)):
        halves = read(GENUINE[:cut], GENUINE[cut:])
        halves.ttft_s, halves.token_times_s = whole.ttft_s, whole.token_times_s
        assert halves == whole, cut


def test_byte_by_byte_the_record_is_the_same() -> None:
    whole = read(GENUINE)
    bytewise = read(*(bytes([byte]) for byte in GENUINE))
    bytewise.ttft_s, bytewise.token_times_s = whole.ttft_s, whole.token_times_s
    assert bytewise == whole


def test_an_event_counts_when_its_last_byte_is_here() -> None:
    first = tokens(5)
    record = read(first[:20], first[20:-3], first[-3:], usage(1, 1), DONE)
    assert record.token_times_s == [12.0]
    assert record.ttft_s == 12.0


def test_several_events_in_a_chunk_share_its_time() -> None:
    record = read(tokens(5) + tokens(6), tokens(7) + usage(9, 3) + DONE, sent_s=4.0)
    assert record.token_ids == [5, 6, 7]
    assert record.token_times_s == [10.0, 10.0, 11.0]
    assert record.ttft_s == 6.0


def test_several_tokens_in_an_event() -> None:
    record = read(tokens(5, 6, 7, text="abc"), usage(9, 3), DONE)
    assert record.token_ids == [5, 6, 7]
    assert record.token_times_s == [10.0] * 3
    assert record.logprobs == [-0.5] * 3
    assert record.text == "abc"
    assert record.output_tokens == 3


def test_ttft_waits_for_a_token_and_not_for_an_event() -> None:
    record = read(tokens(), tokens(5), usage(9, 1), DONE)
    assert record.ttft_s == 11.0
    assert read(usage(9, 0), DONE).ttft_s is None


def test_the_reason_of_the_end_is_kept() -> None:
    assert read(tokens(5, finish="length"), tokens(), usage(9, 1), DONE).finish_reason == "length"


def test_the_runner_up_is_the_best_other_token() -> None:
    record = read(tokens(5), usage(9, 1), DONE)
    assert record.runner_up_ids == [6], "not 7, though it stands before 6"
    assert record.runner_up_logprobs == [-1.25]


def test_carriage_returns_comments_and_other_fields_are_allowed() -> None:
    body = b": ping\r\n\r\nevent: message\r\n" + b"".join(completion(5)).replace(b"\n", b"\r\n")
    assert read(body).token_ids == [5]


def test_a_missing_space_after_data_is_allowed() -> None:
    assert read(b"".join(completion(5)).replace(b"data: ", b"data:")).token_ids == [5]


def test_cached_tokens_that_are_not_reported_are_not_zero() -> None:
    silent = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}})
    assert read(tokens(5), silent, DONE).cached_tokens is None
    assert read(tokens(5), usage(9, 1, cached=0), DONE).cached_tokens == 0


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(completion(5, 6)[:-1], id="no DONE"),
        pytest.param((*completion(5, 6)[:-1], b"data: [DONE]"), id="DONE without its line end"),
        pytest.param((tokens(5), tokens(6)), id="cut after the second token"),
        pytest.param((tokens(5), tokens(6), tokens(7)[:-2]), id="cut within the third"),
    ],
)
def test_an_early_end_is_told_with_what_came(chunks: tuple[bytes, ...]) -> None:
    with pytest.raises(StreamError, match="ended early, after 2 tokens"):
        read(*chunks)
    assert read(*chunks, finish=False).finished_s is None


def test_nothing_at_all_is_an_early_end() -> None:
    with pytest.raises(StreamError, match="after 0 tokens"):
        read()


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"",
        b"null",
        b"[1]",
        b'"error"',
        b'{"id": 1}',
        b'{"choices": 3}',
        b'{"choices": ["text"]}',
        b'{"choices": [], "usage": {"prompt_tokens": 1}}',
        b'{"choices": [{"text": "a", "token_ids": [1], "logprobs": {"tokens": []}}]}',
        b"\xff\xfe",
    ],
)
def test_a_malformed_event_is_shown(payload: bytes) -> None:
    with pytest.raises(StreamError, match=r"^malformed event b"):
        read(b"data: " + payload + b"\n\n")


def test_logprobs_of_fewer_tokens_than_chosen_are_malformed() -> None:
    data = json.loads(tokens(5, 6).removeprefix(b"data: "))
    data["choices"][0]["logprobs"]["top_logprobs"].pop()
    with pytest.raises(StreamError, match="malformed"):
        read(event(data))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            {"message": "KV load failed", "type": "InternalServerError", "code": 500},
            "the server reported: KV load failed$",
        ),
        ({"code": 500}, r"the server reported: \{'code': 500\}$"),
        ("out of memory", "the server reported: out of memory$"),
    ],
)
def test_an_error_inside_the_stream_is_told_in_its_own_words(error: object, told: str) -> None:
    with pytest.raises(StreamError, match=told):
        read(tokens(5), event({"error": error}), DONE)
