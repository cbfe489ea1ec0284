"""Waiting for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], timeout_s: float, *, every_s: float = 0.1) -> T | None:
    """Looks until there is something to see; None when the time is up first."""
    deadline = time.monotonic() + timeout_s
    while (seen := look()) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(every_s)
    return seen


def wait_until_stable(
    look: Callable[[], T | None], timeout_s: float, *, quiet_s: float = 0.5, every_s: float = 0.1
) -> T | None:
    """Looks until what is seen has stayed the same for ``quiet_s`` seconds; None when the time is up first.

    ``look`` returns None while the condition does not hold, which starts the quiet time anew.
    """
    last: T | None = None
    since = time.monotonic()

    def settled() -> T | None:
        nonlocal last, since
        seen = look()
        if seen is None or seen != last:
            last, since = seen, time.monotonic()
        elif time.monotonic() - since >= quiet_s:
            return seen
        return None

    return wait_for(settled, timeout_s, every_s=every_s)
