"""What can go wrong with the real servers: killed, hung, and interrupted twice; a launch each, since none survives."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from fault_support import STEPS, Act, Ended, Scene, left_of
from stack_support import server_processes, shared_memory

from harness.servers import family, vllm
from harness.servers import lmcache as lmcache_module
from harness.workload import watch

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

QUESTIONS = 60
RUN = ("servers.vllm.start_timeout_s=600", f"task.limit={QUESTIONS}", "check.launch=[clear,{pass: cold}]")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    scene = Scene(tmp_path, monkeypatch, capfd, real=True)
    yield scene
    scene.close()


def engine_core(scene: Scene) -> psutil.Process:
    """vLLM's engine, a child of its HTTP server."""
    leader = psutil.Process(scene.stacks[-1].vllm.process.pid)
    (found,) = [each for each in leader.children(recursive=True) if "EngineCore" in " ".join(each.cmdline())]
    return found


def to_engine(scene: Scene, number: signal.Signals) -> Act:
    return lambda: os.kill(engine_core(scene).pid, number)


def assert_ended(scene: Scene, ended: Ended, moment: str, code: int, sentence: str) -> None:
    """The exit code, one sentence, what was measured is kept, and nothing is left."""
    assert ended.code == code, ended.err
    assert re.search(sentence, ended.error.partition("\n")[0] if code == 3 else ended.err), ended.err
    assert "Traceback" not in ended.err.partition("Its log says")[0] and "never retrieved" not in ended.err
    assert scene.done[0] == moment
    frame = pd.read_parquet(scene.pass_folder(moment) / "requests.parquet")
    assert STEPS <= frame["error"].isna().sum() < QUESTIONS
    if moment == "warm":
        assert (scene.pass_folder("cold") / "pass.json").is_file()
    assert left_of(scene.temporary) == [] and server_processes(scene.results) == []
    assert list(scene.temporary.iterdir()) == []
    segments = {path for server in scene.servers for path in server.segments}
    assert segments and not segments & shared_memory()
    assert not list(scene.results.rglob("servers.json"))


def test_the_engine_is_killed_in_the_cold_pass(scene: Scene) -> None:
    scene.at("cold", to_engine(scene, signal.SIGKILL))
    ended = scene.run(*RUN)
    assert_ended(scene, ended, "cold", 3, r"vLLM .* during the cold pass, after \d+ of 60 requests\.")


def test_lmcache_is_killed_in_the_warm_pass(scene: Scene) -> None:
    scene.at("warm", scene.send("LMCache", signal.SIGKILL))
    ended = scene.run(*RUN)
    sentence = r"LMCache was ended by signal 9 \(.*\) during the warm pass, after \d+ of 60 requests\."
    assert_ended(scene, ended, "warm", 3, sentence)


def test_lmcache_hangs_in_the_cold_pass(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ASK_S", 2.0)
    monkeypatch.setattr(watch, "UNANSWERED_S", 10.0)
    scene.at("cold", scene.send("LMCache", signal.SIGSTOP))
    ended = scene.run(*RUN)
    assert_ended(scene, ended, "cold", 3, r"LMCache has not answered its health check for \d+ s during the cold pass")
    assert re.search(r"LMCache's process \d+ was stopped \(SIGSTOP", ended.error)


def test_the_engine_hangs_in_the_cold_pass(scene: Scene) -> None:
    """Its HTTP server stays well: only requests that never end tell."""
    scene.at("cold", to_engine(scene, signal.SIGSTOP))
    ended = scene.run(*RUN, "load.request_timeout_s=30")
    assert_ended(scene, ended, "cold", 3, r"\d+ requests in a row had no end within 30 s \(load\.request_timeout_s\)")
    assert re.search(r"vLLM's process \d+ was stopped \(SIGSTOP", ended.error)


def test_ctrl_c_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one cuts the wait short: with streams in flight vLLM would take its whole grace."""
    scene.at("cold", lambda: os.kill(os.getpid(), signal.SIGINT))
    wait_until = family.wait_until
    waits: list[float] = []

    def waited(gone: Callable[[], bool], timeout_s: float) -> bool:
        waits.append(timeout_s)
        if timeout_s == vllm.STOP_S:
            os.kill(os.getpid(), signal.SIGINT)
        return wait_until(gone, timeout_s)

    monkeypatch.setattr(family, "wait_until", waited)
    ended = scene.run(*RUN)
    assert_ended(scene, ended, "cold", 130, "to go on with it: python -m harness run resume=")
    assert vllm.STOP_S in waits and lmcache_module.STOP_S not in waits
