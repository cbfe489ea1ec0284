"""Ctrl-C, SIGTERM and a closed terminal: whatever is going on, servers are stopped on the way out.

Ordinary code is left by an exception.  A loop of asyncio is left by cancelling what it runs, since an exception out of
the middle of it leaves tasks behind that complain.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from harness.errors import Interrupted

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

CANCEL_AGAIN_S = 0.5
"""A task that outlives its cancellation for so long is cancelled again: a library may take one that comes
with its own timeout for that timeout, and go on, as aiohttp did."""

OBEYED = 2
"""The second signal cuts the graceful stop short; further ones are ignored: then the rest is being killed."""


class _State:
    """What the handler needs to know; signals reach the main thread only, so there is one."""

    received = 0
    held = 0
    """Depth of :func:`held`."""
    waiting: signal.Signals | None = None
    """Came while signals were held, or left a loop; not raised yet."""
    leave_loop: Callable[[], object] | None = None
    """Cancels what runs in the loop of :func:`run_async`; None outside of it."""


@contextmanager
def interruptible(*more: signal.Signals) -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Interrupted`; those that are ignored (nohup, &) stay ignored.

    Args:
        more: signals that mean the same here.
    """
    heard = [each for each in (*SIGNALS, *more) if signal.getsignal(each) is not signal.SIG_IGN]
    _State.received, _State.waiting = 0, None
    previous = {each: signal.signal(each, _handle) for each in heard}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextmanager
def held() -> Iterator[None]:
    """Puts signals off until the block ends, where an exception in the middle would lose track of something.

    Python's handlers wait, not the kernel's: a child process that is started meanwhile blocks nothing.

    Raises:
        Interrupted: a signal came meanwhile.
    """
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if not _State.held:
        _raise_waiting()


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, on uvloop, that a signal ends without a traceback: what runs is cancelled, and cleans up.

    Raises:
        Interrupted: a signal came.
    """

    import uvloop  # here: a page of help does not wait for it

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        _State.leave_loop = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return await main
        finally:
            _State.leave_loop = None

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(cancellable())
    finally:
        # In place of whatever the cancelled work ended with.
        _raise_waiting()


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and returns when all have ended; what they ended with is for the caller to look at, or not."""
    ended = list(tasks)
    going = {task for task in ended if not task.done()}
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=CANCEL_AGAIN_S)
    for task in ended:
        if not task.cancelled():
            task.exception()  # or asyncio would complain that nobody did


def _handle(signum: int, frame: FrameType | None) -> None:
    _State.received += 1
    if signum == signal.SIGHUP:
        _leave_terminal()
    if _State.received > OBEYED:
        return
    if _State.held:
        _State.waiting = signal.Signals(signum)
    elif _State.leave_loop is not None:
        _State.waiting = signal.Signals(signum)
        _State.leave_loop()
    else:
        raise Interrupted(signal.Signals(signum).name)


def _raise_waiting() -> None:
    if (late := _State.waiting) is not None:
        _State.waiting = None
        raise Interrupted(late.name)


def _leave_terminal() -> None:
    """Sends what is still to be told nowhere: writing to a terminal that is gone would raise, and stop the stop."""
    for output in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(output).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output)
                os.close(nowhere)
