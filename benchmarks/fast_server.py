"""A server that streams made-up completions as fast as one process can: it measures clients, and is no engine.

    python benchmarks/fast_server.py PORT TOKENS

Like vLLM it works in steps, and each step sends one event to every request in flight; the events look as vLLM's do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
IDENTITY = {"id": "cmpl-4f6dc9a4b4a14b7b9f5f3e0c0f7c2a10", "object": "text_completion", "created": 1790000000}


def events(tokens: int) -> list[bytes]:
    """The events of one answer, chunked as they are sent; it ends in an answer that gsm8k can score."""
    texts = [" so"] * (tokens - 2) + [" ####", " 7"]
    sent = []
    for position, text in enumerate(texts):
        token, logprob = 1000 + position, -0.01 - position / 1e4
        chosen = f"token_id:{token}"
        choice = {
            "index": 0,
            "text": text,
            "logprobs": {
                "text_offset": [position],
                "token_logprobs": [logprob],
                "tokens": [chosen],
                "top_logprobs": [{chosen: logprob, "token_id:5": logprob - 4.25}],
            },
            "finish_reason": "stop" if position == tokens - 1 else None,
            "stop_reason": None,
            "token_ids": [token],
            "prompt_token_ids": None,
        }
        sent.append(IDENTITY | {"model": "made-up", "choices": [choice], "usage": None})
    counts = {"prompt_tokens": 512, "completion_tokens": tokens, "total_tokens": 512 + tokens}
    sent.append(IDENTITY | {"model": "made-up", "choices": [], "usage": counts})
    bodies = [f"data: {json.dumps(each)}\n\n".encode() for each in sent] + [b"data: [DONE]\n\n"]
    return [b"%x\r\n%s\r\n" % (len(body), body) for body in bodies]


class Steps:
    """Sends every request in flight its next event, again and again while there are any."""

    def __init__(self, tokens: int) -> None:
        self.events = events(tokens)
        self.flight: dict[Request, int] = {}

    def add(self, request: Request) -> None:
        if not self.flight:
            asyncio.get_running_loop().call_soon(self.step)
        self.flight[request] = 0

    def step(self) -> None:
        last = len(self.events) - 2
        for request, position in list(self.flight.items()):
            if position < last:
                request.transport.write(self.events[position])
                self.flight[request] = position + 1
            else:  # the last token's counts and the end, as vLLM's: at once
                request.transport.write(self.events[-2] + self.events[-1] + b"0\r\n\r\n")
                del self.flight[request]
        if self.flight:
            asyncio.get_running_loop().call_soon(self.step)


class Request(asyncio.Protocol):
    """One connection, and the request on it."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.parser = httptools.HttpRequestParser(self)
        self.path = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.steps.flight.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path = url

    def on_message_complete(self) -> None:
        if self.path.endswith(b"completions"):
            self.transport.write(HEAD)
            self.steps.add(self)
            return
        if self.path.endswith(b"/models"):
            self.answer(b'{"object": "list", "data": [{"id": "made-up", "object": "model"}]}')
            return
        page = "".join(
            f"vllm:num_requests_{name} {value}\n"
            for name, value in (("running", len(self.steps.flight)), ("waiting", 0))
        ).encode()
        self.answer(page)

    def answer(self, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def serve(port: int, tokens: int) -> None:
    steps = Steps(tokens)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Request(steps), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
