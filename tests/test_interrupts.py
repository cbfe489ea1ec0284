"""Signals: an exception in ordinary code, a cancelled loop elsewhere, and never a server that nobody knows."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

import pytest

from harness.errors import Interrupted
from harness.interrupts import held, interruptible, run_async


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_in_the_middle_of_a_task_leaves_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    async def interrupted() -> None:
        await asyncio.sleep(0.01)
        interrupt()
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(interrupted())
        await asyncio.wait([task, asyncio.create_task(asyncio.sleep(60))], return_when=asyncio.FIRST_COMPLETED)

    with interruptible(), pytest.raises(Interrupted):
        run_async(main())
    gc.collect()
    assert caplog.messages == []  # asyncio logs "Task exception was never retrieved", with a traceback


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_is_left_in_order(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    """Every task is cancelled and cleans up, and nothing complains of an exception that nobody took."""
    cleaned: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(name)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.05, interrupt, number)
        await asyncio.gather(work("a"), work("b"))

    with interruptible(), pytest.raises(Interrupted, match=number.name):
        run_async(main())
    gc.collect()
    assert sorted(cleaned) == ["a", "b"]
    assert capfd.readouterr().err == ""


def test_what_the_cancelled_work_ends_with_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(0.01, interrupt)
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError

    with interruptible(), pytest.raises(Interrupted):
        run_async(main())


def test_a_loop_without_signals_is_as_any_other() -> None:
    async def main(fails: bool) -> int:
        await asyncio.sleep(0)
        if fails:
            raise ValueError("of its own")
        return 7

    with interruptible():
        assert run_async(main(False)) == 7
        with pytest.raises(ValueError, match="of its own"):
            run_async(main(True))
        with pytest.raises(Interrupted):
            interrupt()  # afterwards it is an exception again
            signal.sigtimedwait([], 1)


def test_signals_wait_while_they_are_held() -> None:
    done = []
    with interruptible():
        with pytest.raises(Interrupted, match="SIGTERM"), held():
            with held():
                interrupt(signal.SIGTERM)
                done.append(1)
            done.append(2)
        assert done == [1, 2]
        with held():
            pass  # nothing waits any more


def test_ignored_signals_stay_ignored() -> None:
    """``nohup`` ignores SIGHUP, and a shell's ``&`` in a script SIGINT."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            interrupt(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
