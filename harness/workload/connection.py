"""One HTTP/1.1 connection that asks one thing at a time, and tells the body as it arrives with the time of its arrival.

A general HTTP client wakes a task for every piece of a body; at a hundred streams that costs more than reading them.
Here the bytes go from the socket through httptools to the reader of the stream, and a task wakes once per request.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

OnBody = Callable[[bytes, float], None]
"""Given a piece of the body and ``time.perf_counter()`` of its arrival."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that has ended; ``body`` is what nobody took as it arrived."""

    status: int
    body: bytes


class BrokenConnection(Exception):
    """The connection was refused, reset or closed in the middle, or what came is no HTTP."""


class Connection(asyncio.Protocol):
    """Made when first needed, kept alive between requests, and made again when the server has closed it.

    Args:
        url: ``http://host:port`` or ``https://host:port``, with or without a path, which goes before that of requests.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._prefix = parts.hostname or "", parts.path.rstrip("/")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._on_body: OnBody | None = None
        self._begin_answer()

    async def connect(self) -> None:
        """Makes the connection unless it is there.

        Raises:
            BrokenConnection: it can't be made.
        """
        if self._transport is not None and not self._transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, self._host, self._port, ssl=self._ssl)
        except OSError as error:
            why = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
            raise BrokenConnection(f"{self._authority} can't be reached: {why}") from error

    async def request(
        self, method: str, path: str, *, body: bytes = b"", timeout_s: float, on_body: OnBody | None = None
    ) -> Answer:
        """Sends a request and returns when its answer has ended.

        Args:
            method: GET or POST.
            path: of the resource.
            body: JSON, if any.
            timeout_s: limit in seconds for the whole, from the send.
            on_body: given the body of an answer 200 piece by piece.

        Raises:
            BrokenConnection: the connection broke.
            TimeoutError: the limit was reached.
            Exception: what ``on_body`` raised; it ends the request.
        """
        await self.connect()
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._begin_answer()
        self._on_body = on_body
        self._ended = loop.create_future()
        limit = loop.call_later(timeout_s, self._fail, TimeoutError())
        self._transport.write(self._head(method, path, len(body)) + body)
        try:
            await self._ended
        except BaseException:
            self.close()
            raise
        finally:
            limit.cancel()
            self._ended = None
        if not self._keep:
            self.close()
        return Answer(self._status, b"".join(self._pieces))

    def close(self) -> None:
        """Ends the connection, and with it a request that is still being answered."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _begin_answer(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._sized = self._keep = False
        self._now = 0.0
        self._pieces: list[bytes] = []

    def _head(self, method: str, path: str, length: int) -> bytes:
        sized = f"Content-Type: application/json\r\nContent-Length: {length}\r\n" if length else ""
        return f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\n{sized}\r\n".encode()

    def _fail(self, error: Exception) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _tell(self) -> None:
        """Passes on what has arrived together as one piece: chunks of a chunked body mean nothing."""
        if self._on_body is None or self._status != 200 or not self._pieces:
            return
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._ended is None or self._ended.done():
            return
        try:
            self._on_body(data, self._now)
        except Exception as error:  # told to the one who waits, whatever it is
            self._fail(error)

    # --- what asyncio tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of :class:`asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, though no subclass

    def data_received(self, data: bytes) -> None:
        """Of :class:`asyncio.Protocol`."""
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(BrokenConnection(f"what came is no HTTP: {error}"))
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of :class:`asyncio.Protocol`."""
        self._transport = None
        if self._status and not self._sized and exc is None:
            # An answer that tells no length ends with its connection.
            self.on_message_complete()
        when = "in the middle of its answer" if self._status else "without an answer"
        told = f"{type(exc).__name__}: {exc}" if exc else f"the server closed it {when}"
        self._fail(BrokenConnection(told))

    # --- what httptools tells ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        self._sized = self._sized or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Of httptools."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Of httptools."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Of httptools."""
        self._tell()
        self._keep = self._parser.should_keep_alive()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
