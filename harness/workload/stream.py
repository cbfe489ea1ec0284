"""One streamed completion, from its server-sent events to a record of what was said and when.

Pure: bytes and times in, record out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

DATA = b"data:"
DONE = b"[DONE]"
TOKEN = "token_id:"
NO_TOKEN = TOKEN + "-1"
"""Stands for the runner-up of a token that has none."""


@dataclass(slots=True)
class RequestRecord:
    """One request of a pass; times in seconds since the pass began, except TTFT (since this request was sent)."""

    doc_id: int
    prompt_sha256: str
    sent_s: float
    ttft_s: float | None = None
    finished_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    retries: int = 0
    token_times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    runner_up_ids: list[int] = field(default_factory=list)
    runner_up_logprobs: list[float] = field(default_factory=list)


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]]


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    """What is read of an event; the rest of it is skipped without being made."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_read = msgspec.json.Decoder(_Event).decode


class StreamError(Exception):
    """The stream is not what a healthy server sends; the message says how."""


class CompletionStream:
    """Reads one stream into a record.

    Args:
        record: filled in place; its ``sent_s`` is the origin of TTFT.
    """

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.done = False
        self._rest = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Takes the next bytes of the body, read at ``now_s`` seconds after the pass began.

        Raises:
            StreamError: an event that is not JSON, an error sent inside the stream, or one without its fields.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(DATA):
                self._event(line[len(DATA) :], now_s)

    def finish(self, now_s: float) -> None:
        """Called at the end of the body.

        Raises:
            StreamError: it ended before the server said that it was done, or tokens were lost on the way.
        """
        seen, counted = len(self.record.token_ids), self.record.output_tokens
        if not self.done:
            raise StreamError(f"the stream ended early, after {seen} tokens")
        if counted != seen:
            raise StreamError(f"{seen} tokens arrived and the server counted {counted}")
        self.record.finished_s = now_s

    def _event(self, payload: bytes, now_s: float) -> None:
        try:
            event = _read(payload)
            if event.error is not None:
                raise StreamError(f"the server reported: {_message(event.error)}")
            if event.choices is None:
                raise ValueError("no choices")
            for choice in event.choices:
                self._choice(choice, now_s)
            if event.usage is not None:
                self._usage(event.usage)
        except (ValueError, msgspec.MsgspecError) as error:
            if payload.strip() == DONE:
                self.done = True
                return
            raise StreamError(f"malformed event {payload.strip()[:120]!r}") from error

    def _choice(self, choice: _Choice, now_s: float) -> None:
        record = self.record
        if choice.token_ids:
            if record.ttft_s is None:
                record.ttft_s = now_s - record.sent_s
            for token in choice.token_ids:
                record.token_ids.append(token)
                record.token_times_s.append(now_s)
        if choice.text:
            record.text += choice.text
        if choice.finish_reason:
            record.finish_reason = choice.finish_reason
        if choice.logprobs is not None:
            self._logprobs(choice.logprobs)

    def _logprobs(self, logprobs: _Logprobs) -> None:
        record = self.record
        for chosen, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
            runner_up, beside = NO_TOKEN, None
            for token, value in top.items():
                if token != chosen and (runner_up is NO_TOKEN or _rank(value) > _rank(beside)):
                    runner_up, beside = token, value
            record.logprobs.append(_number(logprob))
            record.runner_up_ids.append(int(runner_up.removeprefix(TOKEN)))
            record.runner_up_logprobs.append(_number(beside))

    def _usage(self, usage: _Usage) -> None:
        self.record.prompt_tokens = usage.prompt_tokens
        self.record.output_tokens = usage.completion_tokens
        # A server that was not asked for the details (--enable-prompt-tokens-details) says nothing: not zero.
        details = usage.prompt_tokens_details
        self.record.cached_tokens = details.cached_tokens if details is not None else None


def _number(logprob: float | None) -> float:
    """Logits that are not numbers come as null: an answer of a broken model, not a broken stream."""
    return math.nan if logprob is None else logprob


def _rank(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob


def _message(error: Any) -> str:
    """What an OpenAI-style error object says."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)
