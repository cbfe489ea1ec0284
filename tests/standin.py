"""A small HTTP server that misbehaves as told: a fixture for error paths, never an engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Reply:
    """One answer; a dict is sent as JSON."""

    body: str | bytes | dict[str, Any] = ""
    status: int = 200

    async def __call__(self, _: web.Request) -> web.StreamResponse:
        body = json.dumps(self.body) if isinstance(self.body, dict) else self.body
        return web.Response(body=body, status=self.status)


@dataclass(frozen=True)
class Stream:
    """A streamed completion: chunks with a pause before each, and then how it ends: done, reset or hang."""

    chunks: tuple[bytes, ...]
    pause_s: float = 0.0
    end: str = "done"

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in self.chunks:
            await asyncio.sleep(self.pause_s)
            await response.write(chunk)
        if self.end == "hang":
            await asyncio.sleep(60)
        if self.end == "reset":
            assert request.transport is not None
            request.transport.abort()
        return response


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class StandIn:
    """Answers each path with its next reply, and with the last one from then on; other paths with 404."""

    replies: dict[str, list[Handler]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    port: int = 0

    def on(self, path: str, *replies: Handler) -> None:
        self.replies[path] = list(replies)

    def count(self, path: str) -> int:
        return sum(seen.path == path for seen in self.seen)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> StandIn:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(Seen(request.method, request.path, await request.read()))
        replies = self.replies.get(request.path)
        if not replies:
            return web.json_response({"detail": "Not Found"}, status=404)
        handler = replies.pop(0) if len(replies) > 1 else replies[0]
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await handler(request)
        finally:
            self.in_flight -= 1


def event(data: object) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()


def tokens(*ids: int, text: str = "", finish: str | None = None) -> bytes:
    """An event in vLLM's form with these tokens; the runner-up of token ``i`` is ``i + 1``, the third ``i + 2``."""
    logprobs = {
        "text_offset": [0] * len(ids),
        "tokens": [f"token_id:{i}" for i in ids],
        "token_logprobs": [-0.5] * len(ids),
        "top_logprobs": [{f"token_id:{i}": -0.5, f"token_id:{i + 2}": -3.0, f"token_id:{i + 1}": -1.25} for i in ids],
    }
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish, "token_ids": list(ids)}
    return event({"object": "text_completion", "choices": [choice]})


def usage(prompt: int, output: int, cached: int = 0) -> bytes:
    """The last event before the end of a stream."""
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    return event({"choices": [], "usage": counts | {"prompt_tokens_details": {"cached_tokens": cached}}})


def completion(*ids: int, prompt: int = 100, cached: int = 0) -> tuple[bytes, ...]:
    """A healthy stream, one token per event."""
    events = [tokens(i, text=f"t{i} ", finish="stop" if i == ids[-1] else None) for i in ids]
    return (*events, usage(prompt, len(ids), cached), DONE)
