"""Stand-in servers of benchmarks, each in a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import requests


@contextmanager
def serving(command: Sequence[str], port: int, **popen: Any) -> Iterator[str]:
    """Starts a server, waits until it answers, and ends it on the way out; its URL."""
    server = subprocess.Popen(command, **popen)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with suppress(requests.RequestException):
                requests.get(url + "/health", timeout=1)
                break
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()
