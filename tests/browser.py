"""A headless Chromium for tests, driven over its DevTools protocol; nothing but aiohttp is needed for that."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

VARIABLE = "HARNESS_BROWSER"
"""Environment variable with the path of a browser that is on no PATH."""

START_S = 60.0


def find_browser() -> str | None:
    """Path of a Chromium or Chrome; None where there is none."""
    return os.environ.get(VARIABLE) or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """An open page, and everything it has complained about and asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """Messages of the console at any level, uncaught errors, and what the content policy has refused."""
        self.requested: list[str] = []
        """Addresses of everything that was fetched."""
        self._loaded = False

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    async def open(self, file: Path) -> None:
        """Loads a file and waits until all of it is there."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.command(f"{domain}.enable")
        self._loaded = False
        await self.command("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            await self._receive()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        told = await self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def look(self, *, theme: str = "light", width: int = 1200, height: int = 900, media: str = "screen") -> None:
        """Sets theme, size in CSS pixels and medium; up to 600 wide it is a phone's screen."""
        feature = {"name": "prefers-color-scheme", "value": theme}
        await self.command("Emulation.setEmulatedMedia", media=media, features=[feature])
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width <= 600,
        )

    async def screenshot(self, file: Path) -> None:
        """Saves the whole page as PNG."""
        told = await self.command("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        file.write_bytes(base64.b64decode(told["data"]))

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=START_S)
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.complaints.append(f"console: {told['type']}: {told['args']}")
            case "Runtime.exceptionThrown":
                self.complaints.append(f"exception: {told['exceptionDetails']}")
            case "Log.entryAdded":
                self.complaints.append(f"log: {told['entry']['text']}")
            case "Network.requestWillBeSent":
                self.requested.append(str(told["request"]["url"]))
            case "Page.loadEventFired":
                self._loaded = True
        return message


@contextlib.asynccontextmanager
async def browser_page(browser: str) -> AsyncIterator[Page]:
    """A page of a browser that ends with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(_command(browser, profile), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [each for each in await answer.json() if each["type"] == "page"]
                address = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            process.kill()
            process.wait()


def _command(browser: str, profile: str) -> Sequence[str]:
    return [
        browser,
        "--headless=new",
        # Root has no sandbox; what is opened here is our own file.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
    ]


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that the browser listens on, which it writes into its profile."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the browser did not start (exit code {process.poll()})")
