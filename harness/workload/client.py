"""The streaming client: sends the prompts of a pass at a fixed concurrency and keeps what came back, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from harness.config import LoadConfig
from harness.workload.connection import BrokenConnection, Connection
from harness.workload.prompts import Prompt
from harness.workload.stream import CompletionStream, RequestRecord, StreamError

PATH = "/v1/completions"


class Refused(StreamError):
    """The server is well, and finds this request wrong."""


BROKEN = (BrokenConnection, StreamError, TimeoutError)
"""What ends one request and not the pass."""


FAILED_PAUSE_S = 0.5
"""After a request that failed, its place sends nothing for so long: else a server that has just died would be asked
for all the others, and refuse them within milliseconds, before anybody could see that it is dead."""


NO_END = "no end within"
"""Begins the error of a request that took too long."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    url: str
    model: str


def request_body(prompt: Prompt, model: str) -> dict[str, object]:
    """Body of ``POST /v1/completions``: greedy, streamed, with ids, logprob and runner-up of every token."""
    return {
        "model": model,
        "prompt": list(prompt.token_ids),
        "max_tokens": prompt.max_tokens,
        "stop": list(prompt.stop),
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        # Two: the chosen token is one of them, the other is the runner-up.
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


async def send_all(
    prompts: Sequence[Prompt], target: Target, load: LoadConfig, on_done: Callable[[RequestRecord], None]
) -> float:
    """Sends prompts in the given order, at most ``load.concurrency`` at a time.

    One loop serves every concurrency, 1 included.  A request that fails is recorded with its error, and the
    others go on.

    Args:
        prompts: what to send.
        target: where to.
        load: concurrency and limits.
        on_done: given every record as its request ends.

    Returns:
        Wall time in seconds from the first request sent to the last one finished.
    """
    began = time.perf_counter()
    waiting = iter(prompts)

    async def worker() -> None:
        connection = Connection(target.url)
        try:
            for prompt in waiting:
                on_done(await _send_one(connection, prompt, target, load, began))
        finally:
            connection.close()

    await asyncio.gather(*(worker() for _ in range(min(load.concurrency, len(prompts)))))
    return time.perf_counter() - began


async def _send_one(
    connection: Connection, prompt: Prompt, target: Target, load: LoadConfig, began: float
) -> RequestRecord:
    attempt = 0
    while True:
        record = RequestRecord(prompt.doc_id, prompt.sha256, time.perf_counter() - began, retries=attempt)
        try:
            await _stream(connection, prompt, target, record, began, load.request_timeout_s)
        except BROKEN as error:
            record.error = _in_words(error, load.request_timeout_s)
            if not isinstance(error, TimeoutError | Refused):
                await asyncio.sleep(FAILED_PAUSE_S)
            # An answer that says no would say no again.
            if attempt < load.retries and isinstance(error, BrokenConnection):
                attempt += 1
                continue
        return record


async def _stream(
    connection: Connection, prompt: Prompt, target: Target, record: RequestRecord, began: float, timeout_s: float
) -> None:
    body = msgspec.json.encode(request_body(prompt, target.model))
    stream = CompletionStream(record)
    await connection.connect()
    record.sent_s = time.perf_counter() - began
    answer = await connection.request(
        "POST", PATH, body=body, timeout_s=timeout_s, on_body=lambda data, now: stream.feed(data, now - began)
    )
    if answer.status != 200:
        text = answer.body.decode(errors="replace")[:300].strip()
        kind = Refused if 400 <= answer.status < 500 else StreamError
        raise kind(f"HTTP {answer.status}: {text or 'an empty page'}")
    stream.finish(time.perf_counter() - began)


def _in_words(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"{NO_END} {timeout_s:g} s (load.request_timeout_s)"
    if isinstance(error, BrokenConnection):
        return f"the connection broke: {error}"
    return str(error)
