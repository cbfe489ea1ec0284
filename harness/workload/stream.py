"""One streamed completion, from its server-sent events to a record of what was said and when.

Pure: bytes and times in, record out.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

DATA = b"data:"
DONE = b"[DONE]"
NO_TOKEN = "token_id:-1"
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
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            line = line.strip()
            if line.startswith(DATA):
                self._event(line[len(DATA) :].strip(), now_s)

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
        if payload == DONE:
            self.done = True
            return
        try:
            event = json.loads(payload)
            if "error" in event:
                raise StreamError(f"the server reported: {_message(event['error'])}")
            for choice in event["choices"]:
                self._choice(choice, now_s)
            if event.get("usage"):
                self._usage(event["usage"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StreamError(f"malformed event {payload[:120]!r}") from error

    def _choice(self, choice: dict[str, Any], now_s: float) -> None:
        record = self.record
        ids = choice.get("token_ids") or []
        if ids and record.ttft_s is None:
            record.ttft_s = now_s - record.sent_s
        record.text += choice.get("text") or ""
        record.token_ids += ids
        record.token_times_s += [now_s] * len(ids)
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
        if choice.get("logprobs"):
            self._logprobs(choice["logprobs"])

    def _logprobs(self, logprobs: dict[str, Any]) -> None:
        record = self.record
        for chosen, logprob, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            # Logits that are not numbers come as null: an answer of a broken model, not a broken stream.
            others = {token: _number(value) for token, value in top.items() if token != chosen}
            runner_up = max(others, key=lambda token: _rank(others[token])) if others else NO_TOKEN
            record.logprobs.append(_number(logprob))
            record.runner_up_ids.append(int(runner_up.removeprefix("token_id:")))
            record.runner_up_logprobs.append(others.get(runner_up, math.nan))

    def _usage(self, usage: dict[str, Any]) -> None:
        self.record.prompt_tokens = int(usage["prompt_tokens"])
        self.record.output_tokens = int(usage["completion_tokens"])
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        # A server that was not asked for the details (--enable-prompt-tokens-details) says nothing: not zero.
        self.record.cached_tokens = None if cached is None else int(cached)


def _number(logprob: float | None) -> float:
    return math.nan if logprob is None else float(logprob)


def _rank(logprob: float) -> float:
    return -math.inf if math.isnan(logprob) else logprob


def _message(error: Any) -> str:
    """What an OpenAI-style error object says."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)
