"""One connection, against a server that answers byte by byte as told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.interrupts import run_async
from harness.workload.connection import Answer, BrokenConnection, Connection

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"


@dataclass
class RawServer:
    """Answers every request with the next pieces of bytes, one write each; None closes the connection."""

    answers: list[list[bytes | None]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.requests.append(head + body)
                for piece in self.answers.pop(0) if self.answers else [OK]:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def run(self, ready: threading.Event) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self.stop.wait()
        server.close()


@pytest.fixture
def server() -> Iterator[RawServer]:
    server, ready = RawServer(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.run(ready)), daemon=True)
    thread.start()
    assert ready.wait(5)
    yield server
    server.loop.call_soon_threadsafe(server.stop.set)
    thread.join(5)


def using(server: RawServer, act: Callable[[Connection], Coroutine[Any, Any, Any]], path: str = "") -> Any:
    async def main() -> Any:
        connection = Connection(f"http://127.0.0.1:{server.port}{path}")
        try:
            return await act(connection)
        finally:
            connection.close()

    return run_async(main())


async def ask(connection: Connection, **how: Any) -> Answer:
    return await connection.request("GET", "/health", **({"timeout_s": 5.0} | how))


def test_requests_share_a_connection(server: RawServer) -> None:
    async def act(connection: Connection) -> list[Answer]:
        return [await ask(connection), await connection.request("POST", "/x", body=b"{}", timeout_s=5.0)]

    assert using(server, act) == [Answer(200, b"fine")] * 2
    assert server.connections == 1
    first, second = server.requests
    assert first == f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    assert second.startswith(b"POST /x HTTP/1.1\r\n") and second.endswith(b"Content-Length: 2\r\n\r\n{}")


def test_a_path_of_the_url_goes_before_that_of_the_request(server: RawServer) -> None:
    using(server, ask, path="/behind/a/proxy/")
    assert server.requests[0].startswith(b"GET /behind/a/proxy/health HTTP/1.1\r\n")


def test_the_body_is_told_as_it_arrives_however_it_is_cut(server: RawServer) -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n3\r\nghi\r\n0\r\n\r\n"
    server.answers = [[whole[i : i + 1] for i in range(len(whole))]]
    told: list[tuple[bytes, float]] = []

    async def act(connection: Connection) -> Answer:
        return await ask(connection, on_body=lambda data, now: told.append((data, now)))

    before = time.perf_counter()
    assert using(server, act) == Answer(200, b"")
    assert b"".join(data for data, _ in told) == b"abcdefghi"
    times = [now for _, now in told]
    assert len(set(times)) == 9 and times == sorted(times) and before < times[0] < times[-1] < time.perf_counter()


def test_what_another_status_says_is_kept(server: RawServer) -> None:
    server.answers = [[b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\n", b"later"]]

    async def act(connection: Connection) -> Answer:
        return await ask(connection, on_body=lambda data, now: pytest.fail("no stream"))

    assert using(server, act) == Answer(503, b"later")


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil ", b"the end", None], b"until the end"),
        ([b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast", None], b"last"),
    ],
)
def test_a_server_that_closes_is_asked_anew(server: RawServer, pieces: list[bytes | None], body: bytes) -> None:
    server.answers = [pieces]

    async def act(connection: Connection) -> list[Answer]:
        return [await ask(connection), await ask(connection)]

    assert using(server, act) == [Answer(200, body), Answer(200, b"fine")]
    assert server.connections == 2


BROKEN: list[tuple[list[bytes | None], str]] = [
    ([None], "^the server closed it without an answer$"),
    ([OK[:-2], None], "^the server closed it in the middle of its answer$"),
    ([b"SSH-2.0-OpenSSH_9\r\n\r\n"], "^what came is no HTTP: "),
]


@pytest.mark.parametrize(("pieces", "told"), BROKEN)
def test_a_broken_answer_is_told_and_the_next_request_is_well(
    server: RawServer, pieces: list[bytes | None], told: str
) -> None:
    server.answers = [pieces]

    async def act(connection: Connection) -> Answer:
        with pytest.raises(BrokenConnection, match=told):
            await ask(connection)
        return await ask(connection)

    assert using(server, act) == Answer(200, b"fine")


def test_what_the_reader_raises_ends_the_request(server: RawServer) -> None:
    def refuse(data: bytes, now: float) -> None:
        raise KeyError(data)

    async def act(connection: Connection) -> Answer:
        with pytest.raises(KeyError, match="fine"):
            await ask(connection, on_body=refuse)
        return await ask(connection)

    assert using(server, act) == Answer(200, b"fine")


def test_the_limit_is_for_the_whole_answer(server: RawServer) -> None:
    server.answers = [[OK[:20], *[b"X-More: of it\r\n"] * 200]]

    async def act(connection: Connection) -> Answer:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await ask(connection, timeout_s=0.2)
        assert 0.19 < time.monotonic() - began < 1.0
        return await ask(connection)

    assert using(server, act) == Answer(200, b"fine")
    assert server.connections == 2


def test_a_cancelled_request_leaves_no_half_answer_to_the_next(server: RawServer) -> None:
    server.answers = [[OK[:-1], *[b""] * 100]]

    async def act(connection: Connection) -> Answer:
        task = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await ask(connection)

    assert using(server, act) == Answer(200, b"fine")
