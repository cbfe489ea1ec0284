"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

LIMIT_S = {False: 300, True: 1800}
"""Of a test, with its fixtures; of one with the real servers. None takes a quarter of it, but what waits for ever
must fail and show where."""


@pytest.fixture(scope="session", autouse=True)
def hang_ups_are_heard() -> Iterator[None]:
    """Tests close terminals, and a run leaves a SIGHUP ignored that was ignored when it began, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives every test its limit."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S[item.get_closest_marker("stack") is not None]))
