"""What a killed harness has left: told by pid and start time or by the launch's temporary folder, never by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cli import main
from harness.errors import HarnessError
from harness.servers import family, leftovers
from harness.servers.family import same_process, start_ticks
from harness.servers.ledger import FILE, Ledger
from harness.servers.leftovers import clear, find_leftovers
from harness.servers.shared_memory import SHARED_MEMORY
from harness.store import RunFolder

GONE = 2**22 + 1
"""More than the highest pid there can be."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "STOP_S", 2.0)


class Launch:
    """A launch's folder, temporary folder and processes, as a harness that is no more has left them."""

    def __init__(self, results: Path, temporary: Path) -> None:
        self.run = results / "run"
        self.folder = self.run / "launches" / "budget64-r1"
        self.folder.mkdir(parents=True)
        self.scratch = temporary / f"harness-{uuid.uuid4().hex[:12]}"
        self.scratch.mkdir(parents=True)
        self.ledger = Ledger(self.folder, self.scratch)
        self.ledger.note()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, temporary: Path | None = None, session: bool = True) -> psutil.Process:
        env = {"PATH": os.environ["PATH"]} | ({"TMPDIR": str(temporary)} if temporary else {})
        process = subprocess.Popen(command or ("sleep", "60"), env=env, cwd=self.folder, start_new_session=session)
        self.started.append(process)
        return psutil.Process(process.pid)

    def orphan(self, **changes: Any) -> None:
        """Its harness is gone."""
        told = json.loads((self.folder / FILE).read_text())
        told["harness"] = {"pid": GONE, "start_ticks": 1}
        (self.folder / FILE).write_text(json.dumps(told | changes))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    launch = Launch(tmp_path / "results", tmp_path / "tmp")
    yield launch
    for process in launch.started:
        process.kill()
        process.wait()


def test_recorded_processes_and_their_children_are_ended_and_nothing_else(launch: Launch, tmp_path: Path) -> None:
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '60'], env={}, start_new_session=True); time.sleep(60)"
    )
    server = launch.start(sys.executable, "-I", "-S", "-c", script)
    neighbours = [launch.start(), launch.start(temporary=tmp_path), launch.start(sys.executable, "-S", "-c", script)]
    launch.ledger.note("vLLM", [server])
    launch.orphan()
    deadline = time.monotonic() + 10
    while not server.children():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (child,) = server.children()

    (found,) = find_leftovers(launch.run)
    assert found.processes == tuple(sorted((server, child), key=lambda each: each.pid))
    assert found.in_words().startswith(f"2 processes (pid {server.pid}, {child.pid})")
    clear([found])
    assert not family.running([server, child])
    assert family.running(neighbours) == neighbours, "the same folder and the same program, and not ours"
    assert not launch.scratch.exists() and not (launch.folder / FILE).exists()
    assert find_leftovers(launch.run) == []


def test_a_pid_that_another_process_has_got_is_left_alone(launch: Launch) -> None:
    stranger = launch.start()
    launch.ledger.note("vLLM", [stranger])
    told = json.loads((launch.folder / FILE).read_text())["processes"]
    launch.orphan(processes=[each | {"start_ticks": each["start_ticks"] - 1} for each in told])
    (found,) = find_leftovers(launch.run)
    assert found.processes == ()
    clear([found])
    assert family.running([stranger])


def test_a_process_that_was_not_written_down_yet_is_told_by_the_temporary_folder_of_its_launch(launch: Launch) -> None:
    """Killed between the start of a server and the note of its pid."""
    server = launch.start(temporary=launch.scratch)
    other = launch.start(temporary=launch.scratch.with_name("harness-0123456789ab"))
    launch.orphan()
    (found,) = find_leftovers(launch.run)
    assert found.processes == (server,)
    clear([found])
    assert family.running([other])


def test_one_that_ignores_sigterm_or_hangs_is_killed(launch: Launch) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    stubborn = launch.start(sys.executable, "-S", "-c", script)
    hung = launch.start()
    hung.suspend()
    launch.ledger.note("vLLM", [stubborn, hung])
    launch.orphan()
    began = time.monotonic()
    clear(find_leftovers(launch.run))
    assert not family.running([stubborn, hung])
    assert time.monotonic() - began < 10


def test_segments_are_told_by_path_and_inode(launch: Launch) -> None:
    own, replaced = (SHARED_MEMORY / f"harness-test-{uuid.uuid4().hex}" for _ in range(2))
    try:
        for path in (own, replaced):
            path.write_bytes(b"x")
        launch.ledger.note("vLLM", segments=[own, replaced])
        launch.orphan()
        held = replaced.open()  # so that its inode is not given again
        replaced.unlink()
        replaced.write_bytes(b"of somebody else")
        (found,) = find_leftovers(launch.run)
        assert found.segments == (own,)
        clear([found])
        held.close()
        assert not own.exists() and replaced.exists()
    finally:
        for path in (own, replaced):
            path.unlink(missing_ok=True)


def test_what_a_file_says_never_removes_anything_else(launch: Launch, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    inode = precious.stat().st_ino
    launch.orphan(scratch=str(precious), segments=[{"path": str(precious), "inode": inode}])
    (found,) = find_leftovers(launch.run)
    assert not found
    clear([found])
    assert precious.is_dir()


@pytest.mark.parametrize(
    "changes",
    [{"machine": "another boot"}, {"harness": {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}}],
    ids=["another machine", "its harness runs"],
)
def test_what_is_not_left_is_not_found(launch: Launch, changes: dict[str, Any]) -> None:
    launch.ledger.note("vLLM", [launch.start()])
    launch.orphan(**changes)
    assert find_leftovers(launch.run) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": 1, "harness": {"pid": "x"}}'])
def test_a_file_of_somebody_else_is_nothing(launch: Launch, text: str) -> None:
    (launch.folder / FILE).write_text(text)
    assert find_leftovers(launch.run) == []


def test_a_jump_of_the_clock_changes_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert same_process(os.getpid(), ticks)
    assert not same_process(os.getpid(), ticks + 1)
    assert start_ticks(GONE) is None and not same_process(GONE, 1)


@pytest.mark.parametrize("name", ["run", "results", "above"])
def test_clean_takes_a_run_or_the_folder_of_several(
    launch: Launch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    launch.ledger.note("vLLM", [launch.start()])
    launch.orphan()
    half = launch.run / "cells" / "half.tmp-1"
    half.mkdir(parents=True)
    (launch.run / ".reserve").touch()
    folder = {"run": launch.run, "results": launch.run.parent, "above": launch.run.parent.parent}[name]
    assert main(["clean", str(folder)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{launch.run}: ended and removed 1 process (pid ")
    assert told[1] == f"{launch.run}: removed 1 file(s) or cell(s) that were half written"
    assert not half.exists() and not (launch.run / ".reserve").exists()
    assert find_leftovers(folder) == []


def test_clean_refuses_what_it_should(launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (([], "clean needs a results folder"), ([str(tmp_path / "tmp")], "holds no run")):
        assert main(["clean", *arguments]) == 2
        assert told in capsys.readouterr().err
    run = RunFolder(launch.run)
    run.lock()
    half = launch.run / "cells" / "half.tmp-1"
    half.mkdir(parents=True)
    assert main(["clean", str(launch.run)]) == 2
    assert "the run still goes on" in capsys.readouterr().err
    assert main(["clean", str(launch.run.parent)]) == 0
    assert half.is_dir()
    run.unlock()


def test_a_ledger_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "servers.json").mkdir()
    with pytest.raises(HarnessError, match=r"servers\.json can't be written"):
        Ledger(tmp_path, tmp_path / "harness-0123456789ab").note()
