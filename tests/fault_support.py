"""A whole run against stand-in servers in which something goes wrong at a chosen moment, and a look at what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import hydra
import psutil
import pytest
from omegaconf import DictConfig, OmegaConf
from standin_servers import segment_of

from harness import cli, runner
from harness.cli.output import Output
from harness.cli.run import run_one
from harness.report.progress import RunProgress
from harness.servers import http, lmcache, process, vllm
from harness.servers.process import ServerProcess
from harness.servers.shared_memory import SHARED_MEMORY
from harness.servers.stack import Stack
from harness.servers.vllm import VllmServer
from harness.servers.waiting import wait_until_stable
from harness.workload import client, watch

QUESTIONS = 24
STEPS = 5
"""Requests of a pass that are answered before something happens in it."""

Act = Callable[[], object]


def make_questions(folder: Path, count: int = QUESTIONS) -> Path:
    """gsm8k rows of three blocks, each from its first block on unlike the others; the stand-in knows their answers."""
    folder.mkdir()
    for split in ("train", "test"):
        rows = (
            {
                "question": " ".join([*(f"w{number}x{i}" for i in range(200)), f"and how many is {number} ?"]),
                "answer": f"So many. #### {number}",
            }
            for number in range(count)
        )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def make_python(path: Path) -> Path:
    """An interpreter whose vLLM and LMCache are the stand-ins."""
    standin = Path(__file__).with_name("standin_servers.py")
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {standin} "$@"\n')
    path.chmod(0o755)
    return path


def run_arguments(folder: Path, *overrides: str, count: int = QUESTIONS) -> list[str]:
    """A run against the stand-ins, in ``folder``: a cold and a warm pass of a few questions."""
    if not (folder / "data").exists():
        make_questions(folder / "data", count)
        make_python(folder / "python")
    return [
        "run",
        "engine=cpu",
        "task=gsm8k",
        f"task.data_dir={folder / 'data'}",
        f"task.limit={count}",
        "task.min_fewshot=0",
        f"results_dir={folder / 'results'}",
        f"servers.vllm.python={folder / 'python'}",
        f"servers.lmcache.python={folder / 'python'}",
        "check.launch=[clear,{pass: cold}]",
        "gate.on_inconclusive=warn",
        *overrides,
    ]


@dataclass
class Ended:
    """How a run ended."""

    code: int
    err: str
    wall_s: float

    @property
    def error(self) -> str:
        """The complaint on stderr, without what went before it."""
        return self.err[self.err.find("error: ") :] if "error: " in self.err else ""


class Scene:
    """A run in this process, and what happens to it; against stand-ins, with deadlines of a second."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, real: bool = False
    ) -> None:
        self.folder, self.monkeypatch, self.capfd = folder, monkeypatch, capfd
        self.results = folder / "results"
        self.stacks: list[Stack] = []
        self.servers: list[ServerProcess] = []
        self.stage = ""
        self.steps = 0
        self.done: list[str] = []
        self._acts: dict[str, Act] = {}
        # Short, as sockets want it; what the tests leave there is looked for, and removed by close().
        self.temporary = Path(tempfile.mkdtemp(prefix="faults-", dir="/tmp"))
        monkeypatch.setattr(tempfile, "tempdir", str(self.temporary))
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("harness.cli.run.report_at_the_end", lambda path, output: None)
        self.real = real
        if not real:
            self._hurry()
        self._listen()

    def _hurry(self) -> None:
        monkeypatch = self.monkeypatch
        for module, name, value in (
            (http, "TIMEOUT_S", 1.0),
            (lmcache, "SETTLE_S", 1.5),
            (lmcache, "CLEAR_S", 1.0),
            (lmcache, "STOP_S", 0.5),
            (vllm, "RESET_S", 1.0),
            (vllm, "STOP_S", 0.5),
            (process, "POLL_S", 0.02),
            (watch, "ASK_S", 0.2),
            (watch, "UNANSWERED_S", 2.0),
            (client, "FAILED_PAUSE_S", 0.3),
        ):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(lmcache, "wait_until_stable", partial(wait_until_stable, quiet_s=0.1, every_s=0.03))
        # What every run of this process begins with, composed once: it takes as long as the run.
        monkeypatch.setattr("harness.cli.run.run_command", self._run_command)
        # Asking five programs for their versions takes longer than the run.
        monkeypatch.setattr(runner, "check_installed", lambda config: "0.5.6")
        monkeypatch.setattr(runner, "provenance", lambda *_: {"versions": {}})

    def close(self) -> None:
        """Ends and removes what a test that failed has left."""
        for each in left_of(self.temporary):
            each.kill()
        for path in self.segments():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def faults(self, **servers: dict[str, Any]) -> None:
        """How the stand-ins misbehave; see standin_servers.FAULTS."""
        self.monkeypatch.setenv("STANDIN_FAULTS", json.dumps(servers))

    def at(self, moment: str, act: Act) -> None:
        """Does something once: start vLLM, start LMCache, cold, drain, reset, warm or stop are moments."""
        self._acts[moment] = act

    def send(self, server: str, number: signal.Signals) -> Act:
        """A signal to the leader of a server."""

        def act() -> None:
            stack = self.stacks[-1]
            found = stack._vllm if server == "vLLM" else stack._lmcache
            assert found is not None and found.process.pid is not None
            os.kill(found.process.pid, number)

        return act

    def run(self, *overrides: str) -> Ended:
        """Runs the command; deadlines of the configuration are short, too."""
        short = ("servers.vllm.start_timeout_s=30", "servers.lmcache.start_timeout_s=30", "load.request_timeout_s=10")
        named = () if any(each.startswith("resume=") for each in overrides) else ("run_id=run",)
        began = time.monotonic()
        if self.real:
            code = cli.main(["run", "engine=cpu", f"results_dir={self.results}", *named, *overrides])
            return Ended(code, self.capfd.readouterr().err, time.monotonic() - began)
        code = cli.main([*run_arguments(self.folder), *short, *named, *overrides])
        return Ended(code, self.capfd.readouterr().err, time.monotonic() - began)

    def _run_command(self, overrides: Sequence[str]) -> int:
        chosen = [each for each in overrides if "=" in each and each.split("=")[0] not in ("task", "engine")]
        composed = OmegaConf.merge(base(), OmegaConf.from_dotlist(chosen))
        assert isinstance(composed, DictConfig)
        return run_one(composed, chosen, Output())

    def record(self) -> dict[str, Any]:
        """Contents of run.json."""
        told: dict[str, Any] = json.loads((self.results / "run" / "run.json").read_text())
        return told

    def pass_folder(self, name: str) -> Path:
        """Where the run has written a pass."""
        (found,) = self.results.glob(f"run/launches/budget127-r1/passes/**/{name}")
        return found

    def assert_nothing_is_left(self) -> None:
        """No process, port, shared memory or temporary file, and no note of any."""
        assert left_of(self.temporary) == []
        assert self.segments() == []
        assert list(self.temporary.iterdir()) == []
        assert [
            *self.results.rglob("servers.json"),
            *self.results.rglob(".reserve"),
            *self.results.rglob("*.tmp-*"),
        ] == []
        for stack in self.stacks:
            for port in (stack._lmcache_port, stack._lmcache_http_port, stack._vllm_port):
                with socket.socket() as one:
                    assert one.connect_ex(("127.0.0.1", port)) != 0, f"port {port} is still served"

    def segments(self) -> list[Path]:
        """Shared memory that stand-ins of this test have now."""
        return list(SHARED_MEMORY.glob(segment_of(self.temporary, "*").name))

    def _act(self, moment: str) -> None:
        if act := self._acts.pop(moment, None):
            self.done.append(moment)
            act()

    def _listen(self) -> None:
        scene = self
        enter, start, settle = Stack.__enter__, ServerProcess.start, Stack.settle
        stage, step, reset = RunProgress.stage, RunProgress.step, VllmServer.reset_prefix_cache

        def entered(stack: Stack) -> Stack:
            scene.stacks.append(stack)
            return enter(stack)

        def started(server: ServerProcess) -> None:
            scene.servers.append(server)
            start(server)
            scene._act(f"start {server.name}")

        def settled(stack: Stack) -> dict[str, float]:
            if scene.stage.startswith("cold pass"):
                scene._act("drain")
            return settle(stack)

        def was_reset(server: VllmServer) -> dict[str, Any]:
            if scene.stage.startswith("cold pass") and scene.steps:
                scene._act("reset")
            return reset(server)

        def staged(progress: RunProgress, text: str, total: int | None = None) -> None:
            scene.stage, scene.steps = text, 0
            stage(progress, text, total)
            if text.startswith("stopping vLLM"):
                scene._act("stop")

        def stepped(progress: RunProgress) -> None:
            step(progress)
            scene.steps += 1
            if scene.steps == STEPS:
                scene._act(scene.stage.split(" pass")[0])

        self.monkeypatch.setattr(Stack, "__enter__", entered)
        self.monkeypatch.setattr(ServerProcess, "start", started)
        self.monkeypatch.setattr(Stack, "settle", settled)
        self.monkeypatch.setattr(VllmServer, "reset_prefix_cache", was_reset)
        self.monkeypatch.setattr(RunProgress, "stage", staged)
        self.monkeypatch.setattr(RunProgress, "step", stepped)


@cache
def base() -> DictConfig:
    """The shipped configuration, for gsm8k."""
    cli.register()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(cli.configs_folder().resolve())):
        return hydra.compose("run", overrides=["task=gsm8k", "engine=cpu"])


def left_of(temporary: Path) -> list[psutil.Process]:
    """Processes whose temporary folder lies in another one: servers, and what they started."""
    found = []
    for each in psutil.process_iter():
        try:
            where = each.environ().get("TMPDIR", "")
            if where.startswith(f"{temporary}/") and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except (psutil.Error, OSError):
            continue
    return found
