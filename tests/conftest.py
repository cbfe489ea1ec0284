"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def hang_ups_are_heard() -> Iterator[None]:
    """Tests close terminals, and a run leaves a SIGHUP ignored that was ignored when it began, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
