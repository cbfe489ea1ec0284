"""What can go wrong in a run: each ends in time, in one sentence and the right exit code, and nothing is left.

Whole runs of the real command against stand-in servers; docs/reliability.md lists them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from fault_support import QUESTIONS, STEPS, Ended, Scene, left_of, run_arguments

from harness import cli, runner, session
from harness.errors import UsageError
from harness.measure.provenance import provenance
from harness.servers import family
from harness.servers import stack as stack_module
from harness.servers.ports import free_ports
from harness.store import RunFolder
from harness.workload import passes

ROOT = Path(__file__).parent.parent
LIMIT_S = 20.0
"""No fault takes longer than its deadline of a few seconds and the run's start; a machine under load doubles it."""

KILLED = r"was ended by signal 9 \(Killed; out of memory\?\)"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    scene = Scene(tmp_path, monkeypatch, capfd)
    yield scene
    scene.close()


def assert_told(ended: Ended, code: int, sentence: str) -> None:
    """The exit code, one complaint that begins with a sentence, and no traceback."""
    assert ended.code == code, ended.err
    assert re.search(sentence, ended.error.partition("\n")[0]), ended.err
    assert ended.err.count("error: ") == 1
    assert "Traceback" not in ended.err and "never retrieved" not in ended.err
    assert ended.wall_s < LIMIT_S


def answered(scene: Scene, name: str) -> int:
    """Requests of a pass that were answered and written down."""
    frame = pd.read_parquet(scene.pass_folder(name) / "requests.parquet")
    return int(frame["error"].isna().sum())


# --- a server dies or hangs ------------------------------------------------------------------------------------------

CUT = rf"after ({STEPS}|\d\d?) of {QUESTIONS} requests\."
GONE = r"({0} " + KILLED + r" {1}\.|{0} does not answer \w+ \S+ \(no connection\)\. It " + KILLED + ")"
"""What is seen first depends on the millisecond: that it is gone, or that it does not answer."""
DEATHS = [
    ("start vLLM", "vLLM", rf"vLLM {KILLED} after \d+ s, before it was ready\."),
    ("start LMCache", "LMCache", rf"LMCache {KILLED} after \d+ s, before it was ready\."),
    ("start vLLM", "LMCache", rf"LMCache {KILLED} while vLLM was starting\."),
    ("cold", "vLLM", rf"vLLM {KILLED} during the cold pass, {CUT}"),
    ("cold", "LMCache", rf"LMCache {KILLED} during the cold pass, {CUT}"),
    ("drain", "vLLM", GONE.format("vLLM", "while stores were landing in LMCache")),
    ("drain", "LMCache", GONE.format("LMCache", "while stores were landing in LMCache")),
    ("reset", "vLLM", GONE.format("vLLM", "while vLLM's prefix cache was being reset")),
    ("reset", "LMCache", GONE.format("LMCache", "while vLLM's prefix cache was being reset")),
    ("warm", "vLLM", rf"vLLM {KILLED} during the warm pass, {CUT}"),
    ("warm", "LMCache", rf"LMCache {KILLED} during the warm pass, {CUT}"),
]

SILENT = r"has not answered its health check for \d s during the {} pass, {}: it hangs\."
NO_ANSWER = r"does not answer {} \S+ \(nothing within 1 s\)\."
STOPPED = r"{}'s process \d+ was stopped \(SIGSTOP"
HANGS = [
    ("start vLLM", "vLLM", r"vLLM was not ready after 3 s \(limit 3 s\)\."),
    ("start LMCache", "LMCache", r"LMCache was not ready after 3 s \(limit 3 s\)\."),
    ("start vLLM", "LMCache", r"LMCache, which it needs, does not answer its health check\."),
    ("cold", "vLLM", "vLLM " + SILENT.format("cold", CUT.removesuffix(r"\."))),
    ("cold", "LMCache", "LMCache " + SILENT.format("cold", CUT.removesuffix(r"\."))),
    ("drain", "vLLM", "vLLM " + NO_ANSWER.format("GET")),
    ("drain", "LMCache", "LMCache " + NO_ANSWER.format("GET")),
    ("reset", "vLLM", "vLLM " + NO_ANSWER.format("POST")),
    ("reset", "LMCache", "LMCache " + NO_ANSWER.format("GET")),
    ("warm", "vLLM", "vLLM " + SILENT.format("warm", CUT.removesuffix(r"\."))),
    ("warm", "LMCache", "LMCache " + SILENT.format("warm", CUT.removesuffix(r"\."))),
]


SHORT_START = ("servers.vllm.start_timeout_s=3", "servers.lmcache.start_timeout_s=3")


def named(cases: list[tuple[str, str, str]]) -> list[Any]:
    return [pytest.param(*case, id=f"{case[1]} at {case[0]}") for case in cases]


def assert_kept(scene: Scene, moment: str) -> None:
    """What was measured before the moment is there, and run.json says what became of the run."""
    assert scene.done == [moment]
    record = scene.record()
    assert (record["status"], record["verdict"]) == ("failed", None)
    if moment in ("cold", "warm"):
        assert STEPS <= answered(scene, moment) < QUESTIONS
        asked = pd.read_parquet(scene.pass_folder(moment) / "requests.parquet")
        assert len(asked) < QUESTIONS, "a dead server was not asked for all the others"
    if moment in ("drain", "reset", "warm"):
        assert answered(scene, "cold") == QUESTIONS
        assert len(pd.read_parquet(scene.pass_folder("cold") / "samples.parquet")) == QUESTIONS
    if moment in ("reset", "warm"):
        assert (scene.pass_folder("cold") / "pass.json").is_file()
    assert not list((scene.results / "run" / "cells").iterdir())
    scene.assert_nothing_is_left()


@pytest.mark.parametrize(("moment", "server", "sentence"), named(DEATHS))
def test_a_server_is_killed(scene: Scene, moment: str, server: str, sentence: str) -> None:
    scene.faults(vllm={"token_pause_s": 0.1})
    scene.at(moment, scene.send(server, signal.SIGKILL))
    ended = scene.run()
    assert_told(ended, 3, sentence)
    assert_kept(scene, moment)


@pytest.mark.parametrize(("moment", "server", "sentence"), named(HANGS))
def test_a_server_hangs(scene: Scene, moment: str, server: str, sentence: str) -> None:
    scene.at(moment, scene.send(server, signal.SIGSTOP))
    ended = scene.run(*(SHORT_START if moment.startswith("start") else ()))
    assert_told(ended, 3, sentence)
    assert re.search(STOPPED.format(server), ended.error), ended.err
    assert_kept(scene, moment)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("server", ["vLLM", "LMCache"])
def test_a_server_that_fails_while_it_is_stopped_costs_nothing(
    scene: Scene, server: str, number: signal.Signals
) -> None:
    scene.at("stop", scene.send(server, number))
    ended = scene.run()
    assert (ended.code, scene.done) == (0, ["stop"]), ended.err
    assert scene.record()["status"] == "complete"
    scene.assert_nothing_is_left()


# --- a server does not do what it should -----------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["vLLM", "LMCache"])
def test_health_that_is_never_green(scene: Scene, server: str) -> None:
    scene.faults(**{server.lower(): {"healthy": False}})
    assert_told(scene.run(*SHORT_START), 3, rf"{server} was not ready after 3 s \(limit 3 s\)\.")
    scene.assert_nothing_is_left()


@pytest.mark.parametrize("position", [0, 2])
def test_a_port_that_was_taken_meanwhile(scene: Scene, monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]

        def ports(count: int) -> list[int]:
            chosen = free_ports(count)
            chosen[position] = taken
            return chosen

        monkeypatch.setattr(stack_module, "free_ports", ports)
        ended = scene.run()
    assert_told(ended, 3, rf"{('LMCache', '', 'vLLM')[position]} exited with code 1 after \d+ s, before it was ready\.")
    assert "another process holds the server's HTTP port" in ended.error and "ss -ltnp" in ended.error
    scene.stacks.clear()  # the port is the other one's
    scene.assert_nothing_is_left()


def test_reset_refused_for_a_while(scene: Scene) -> None:
    scene.faults(vllm={"refuse_resets": 3})
    ended = scene.run()
    assert ended.code == 0, ended.err
    scene.assert_nothing_is_left()


def test_reset_refused_for_ever(scene: Scene) -> None:
    scene.faults(vllm={"refuse_resets": -1})
    assert_told(scene.run(), 3, r"vLLM refused \d+ times in 1 s to reset its prefix cache: blocks are still held")
    scene.assert_nothing_is_left()


def test_stores_that_never_land(scene: Scene) -> None:
    scene.faults(lmcache={"stores": "hang"})
    assert_told(scene.run(), 3, r"LMCache did not settle within 1\.5 s \(num_submitted_stores_total=8\.0, num_finished")
    scene.assert_nothing_is_left()


METRICS = [
    ("vllm", "missing", 3, r"vLLM answered 404 to GET \S+/metrics"),
    ("vllm", "empty", 3, r"The batch size can't be read from \S+/metrics: vllm:num_requests_running is not reported"),
    ("vllm", "renamed", 3, r"The batch size can't be read from \S+/metrics: vllm:num_requests_running is not reported"),
    ("vllm", "garbage", 3, r"vLLM's /metrics can't be read as a Prometheus page"),
    ("lmcache", "missing", 3, r"LMCache answered 404 to GET \S+/metrics"),
    ("lmcache", "empty", 4, r"stores_landed"),
    ("lmcache", "renamed", 4, r"stores_landed"),
    ("lmcache", "garbage", 3, r"LMCache's /metrics can't be read as a Prometheus page"),
]


@pytest.mark.parametrize(("server", "how", "code", "told"), METRICS)
def test_counters_that_are_not_there(scene: Scene, server: str, how: str, code: int, told: str) -> None:
    scene.faults(**{server: {"metrics": how}})
    ended = scene.run()
    if code == 3:
        assert_told(ended, code, told)
    else:
        assert_invalid(scene, ended, told)
    scene.assert_nothing_is_left()


def assert_invalid(scene: Scene, ended: Ended, check: str) -> None:
    """The run went to its end, and its cell proves nothing."""
    assert ended.code == 4, ended.err
    assert ended.wall_s < LIMIT_S
    (cell,) = RunFolder(scene.results / "run").cells()
    assert cell["verdict"] == "invalid"
    assert check in [each["check"] for each in cell["validity"] if not each["ok"]]


STREAMS = [
    ("hang", r"no end within 2 s \(load\.request_timeout_s\)"),
    ("reset", "the connection broke: the server closed it in the middle of its answer|ConnectionReset"),
    ("malformed", "malformed event b'{'"),
    ("refused", "HTTP 400: .*too long"),
]


@pytest.mark.parametrize(("how", "told"), STREAMS)
def test_a_request_that_goes_wrong_is_recorded_and_the_pass_goes_on(scene: Scene, how: str, told: str) -> None:
    scene.faults(vllm={"completion": how, "of_prompts": [17]})
    ended = scene.run("load.request_timeout_s=2")
    assert_invalid(scene, ended, "no_request_failed")
    for name in ("cold", "warm"):
        frame = pd.read_parquet(scene.pass_folder(name) / "requests.parquet").set_index("doc_id")
        assert len(frame) == QUESTIONS
        assert re.search(told, frame["error"].dropna().to_dict().pop(17))
        assert frame["error"].notna().sum() == 1
    scene.assert_nothing_is_left()


def test_requests_that_all_hang_end_the_pass_together(scene: Scene) -> None:
    """Health and metrics are well; the limit is waited for once, not five times for 16 requests, 3 at a time."""
    scene.faults(vllm={"completion": "hang", "of_prompts": list(range(8, QUESTIONS))})
    ended = scene.run("load.request_timeout_s=1.5", "load.concurrency=3")
    assert_told(
        ended, 3, r"\d requests in a row had no end within 1\.5 s \(load\.request_timeout_s\) during the cold pass"
    )
    frame = pd.read_parquet(scene.pass_folder("cold") / "requests.parquet")
    assert 3 <= len(frame) < QUESTIONS
    scene.assert_nothing_is_left()


# --- the disk, the folder, the clock ---------------------------------------------------------------------------------

IN_NAMESPACE = ["unshare", "-rm", "sh", "-c"]
can_mount = subprocess.run([*IN_NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount, reason="needs a user namespace, to mount a small disk")
@pytest.mark.parametrize(
    ("mount", "code", "told"),
    [
        ("-t tmpfs -o size=150k none", 3, r"error: \S+\.parquet can't be written: .*No space left on device"),
        ("-t tmpfs -o ro none", 2, r"error: results_dir=\S+ can't be written: \S+ is not yours to write"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_refuses(scene: Scene, mount: str, code: int, told: str) -> None:
    scene.results.mkdir()
    words = " ".join(f"'{each}'" for each in run_arguments(scene.folder, "run_id=run"))
    script = f"mount {mount} {scene.results} && {sys.executable} -m harness {words}; code=$?; "
    script += f"cat {scene.results}/run/run.json; ls -A {scene.results}/run; exit $code"
    env = os.environ | {"TMPDIR": str(scene.temporary), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*IN_NAMESPACE, script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == code, done.stderr
    assert re.search(told, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    if code == 3:
        assert '"status": "failed"' in done.stdout and "No space left on device" in done.stdout
        assert "servers.json" not in done.stdout and ".tmp-" not in done.stdout
    scene.assert_nothing_is_left()


def test_a_cell_that_is_half_written_is_not_there(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(folder: Path, *_: object) -> None:
        (folder / "requests.parquet").touch()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(session, "gather_cell", half)
    ended = scene.run()
    assert ended.code == 130 and "Traceback" not in ended.err
    assert list((scene.results / "run" / "cells").iterdir()) == []
    assert answered(scene, "warm") == QUESTIONS
    scene.assert_nothing_is_left()


def test_a_second_run_in_the_same_folder_is_refused_and_changes_nothing(scene: Scene) -> None:
    def again() -> None:
        command = [sys.executable, "-m", "harness", "run", "resume=run", f"results_dir={scene.results}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done.stderr
        assert "is being written by another process: the run still goes on" in done.stderr

    scene.at("drain", again)
    ended = scene.run()
    assert (ended.code, scene.done) == (0, ["drain"]), ended.err
    before = {path: path.stat().st_mtime_ns for path in scene.results.rglob("*")}
    assert_told(scene.run(), 2, r"results/run exists already: choose another run_id or leave it out\.")
    assert {path: path.stat().st_mtime_ns for path in scene.results.rglob("*")} == before
    scene.assert_nothing_is_left()


def test_a_clock_that_jumps_changes_no_measured_number(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time

    class Jumped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - timedelta(hours=1)

    def jump() -> None:
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        monkeypatch.setattr(passes, "datetime", Jumped)
        monkeypatch.setattr(runner, "datetime", Jumped)

    scene.at("cold", jump)
    ended = scene.run()
    monkeypatch.undo()
    assert ended.code == 0, ended.err
    (cell,) = RunFolder(scene.results / "run").cells()
    for told in cell["passes"].values():
        assert 0 < told["wall_s"] < LIMIT_S
        assert 0 < told["ttft_s"]["p50"] < LIMIT_S
    record = scene.record()
    assert record["finished_at"] < record["started_at"], "told as the clock told it"
    assert datetime.fromisoformat(record["started_at"]).tzinfo == UTC


# --- signals ---------------------------------------------------------------------------------------------------------

MOMENTS = ["start LMCache", "start vLLM", "cold", "drain", "reset", "warm", "stop"]
SIGNALS = [*((signal.SIGINT, moment) for moment in MOMENTS), (signal.SIGTERM, "cold"), (signal.SIGHUP, "warm")]


def assert_interrupted(scene: Scene, ended: Ended) -> None:
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err and "never retrieved" not in ended.err and "error" not in ended.err
    assert (scene.record()["status"], scene.record()["error"]) == ("interrupted", "interrupted")
    scene.assert_nothing_is_left()


@pytest.mark.parametrize(("number", "moment"), SIGNALS)
def test_a_signal(scene: Scene, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, moment: str) -> None:
    monkeypatch.setattr("harness.interrupts._leave_terminal", lambda: None)  # the terminal of this process
    scene.at(moment, lambda: os.kill(os.getpid(), number))
    ended = scene.run()
    assert scene.done == [moment]
    assert_interrupted(scene, ended)
    assert "interrupted; what was measured before is in" in ended.err
    if moment in ("cold", "warm"):
        assert STEPS <= answered(scene, moment) < QUESTIONS


@pytest.mark.parametrize("server", ["vllm", "lmcache"])
def test_a_signal_between_the_start_of_a_server_and_the_note_of_its_pid(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    popen = subprocess.Popen

    def started(command: list[str], **how: Any) -> Any:
        process = popen(command, **how)
        if any(word.startswith(f"{server}.") for word in command):
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    ended = scene.run()
    monkeypatch.setattr(subprocess, "Popen", popen)
    assert_interrupted(scene, ended)


def test_a_second_ctrl_c_cuts_the_graceful_stop_short(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers hang, so that only the grace of the first could take long: 30 s here, as in reality."""
    monkeypatch.setattr("harness.servers.vllm.STOP_S", 30.0)
    monkeypatch.setattr("harness.servers.lmcache.STOP_S", 20.0)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def hang_and_interrupt() -> None:
        scene.send("vLLM", signal.SIGSTOP)()
        scene.send("LMCache", signal.SIGSTOP)()
        wait_until = family.wait_until

        def waited(gone: Callable[[], bool], timeout_s: float) -> bool:
            # Not at the moment itself, which is before the stop, but while it is waited for.
            if timeout_s == 30.0:
                interrupt()
            return wait_until(gone, timeout_s)

        monkeypatch.setattr(family, "wait_until", waited)

    scene.at("cold", interrupt)
    scene.at("stop", hang_and_interrupt)
    ended = scene.run()
    assert scene.done == ["cold", "stop"]
    assert_interrupted(scene, ended)
    assert ended.wall_s < LIMIT_S


def start(scene: Scene, *overrides: str, **files: Any) -> subprocess.Popen[bytes]:
    """A run in a process of its own, whose passes take seconds."""
    faults = json.dumps({"vllm": {"token_pause_s": 0.5}})
    env = os.environ | {"TMPDIR": str(scene.temporary), "STANDIN_FAULTS": faults, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness", *run_arguments(scene.folder, "run_id=run", *overrides)]
    return subprocess.Popen(command, cwd=ROOT, env=env, **files)


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_terminal_is_closed(scene: Scene) -> None:
    """Its session gets SIGHUP, and nothing can be written to it any more."""
    terminal, side = os.openpty()
    # The child becomes the leader of a session that has the terminal, as a shell's is.
    child = "import fcntl, os, sys, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    env = os.environ | {
        "TMPDIR": str(scene.temporary),
        "STANDIN_FAULTS": json.dumps({"vllm": {"token_pause_s": 0.5}}),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", child, sys.executable, "-m", "harness"]
    run = subprocess.Popen(
        [*command, *run_arguments(scene.folder, "run_id=run")],
        cwd=ROOT, env=env, stdin=side, stdout=side, stderr=side, start_new_session=True,
    )  # fmt: skip
    os.close(side)
    cold = scene.results / "run" / "launches" / "budget127-r1" / "passes" / "cold"
    os.set_blocking(terminal, False)

    def in_cold() -> bool:
        with suppress(BlockingIOError):
            os.read(terminal, 65536)  # or the pipe fills
        return cold.is_dir()

    until(in_cold)
    log = cold.parent.parent / "vllm.log"
    warm_up = log.read_text().count("POST")
    until(lambda: in_cold() and log.read_text().count("POST") > warm_up)
    os.close(terminal)
    assert run.wait(60) == 130
    assert scene.record()["status"] == "interrupted"
    assert (cold / "requests.parquet").is_file()
    scene.assert_nothing_is_left()


def killed(scene: Scene) -> list[psutil.Process]:
    """Kills a harness in its cold pass, and returns what it leaves running."""
    with (scene.folder / "err").open("wb") as err:
        run = start(scene, stdout=subprocess.DEVNULL, stderr=err)
    until((scene.results / "run" / "launches" / "budget127-r1" / "passes" / "cold").is_dir)
    run.kill()
    run.wait()
    left = left_of(scene.temporary)
    assert len(left) == 3, "LMCache, vLLM and its child"
    assert len(scene.segments()) == 1
    assert list(scene.temporary.iterdir())
    return left


def test_what_a_killed_harness_has_left_is_found_by_the_next_run_and_cleared(scene: Scene) -> None:
    left = killed(scene)
    folder = scene.results / "run"
    # One that dies by itself leaves its shared memory, which no process then maps.
    vllm = next(each for each in left if "vllm.entrypoints.cli.main" in each.cmdline())
    vllm.kill()

    ended = scene.run("run_id=next")
    assert ended.code == 0, ended.err
    (warning,) = [line for line in ended.err.splitlines() if line.startswith("warning: Run run was killed")]
    assert f"python -m harness clean {folder}" in warning
    assert "2 processes (pid " in warning and "/dev/shm/standin-" in warning
    assert json.loads((scene.results / "next" / "run.json").read_text())["warnings"] == [
        warning.removeprefix("warning: ")
    ]
    assert len(left_of(scene.temporary)) == 2, "told, not touched"

    assert cli.main(["clean", str(folder)]) == 0
    assert "ended and removed 2 processes" in scene.capfd.readouterr().out
    scene.assert_nothing_is_left()
    assert cli.main(["clean", str(scene.results)]) == 0
    assert scene.capfd.readouterr().out == "nothing was left of killed runs\n"


def test_what_a_killed_harness_has_left_is_cleared_when_it_is_resumed(scene: Scene) -> None:
    killed(scene)
    scene.monkeypatch.setattr(runner, "provenance", provenance)
    ended = scene.run("resume=run", "servers.vllm.start_timeout_s=300", "servers.lmcache.start_timeout_s=120",
                      "load.request_timeout_s=600")  # fmt: skip
    assert ended.code == 0, ended.err
    assert "warning: the killed run had left 3 processes" in ended.err
    assert scene.record()["status"] == "complete"
    scene.assert_nothing_is_left()


def test_two_runs_of_one_second_get_two_folders(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both saw the same free name."""
    config = cli.compose_config(run_arguments(scene.folder)[1:])
    names = iter(["same", "same", "other"])
    monkeypatch.setattr(runner, "new_run_id", lambda _: next(names))
    assert [runner.new_folder(config).path.name for _ in range(2)] == ["same", "other"]
    monkeypatch.setattr(runner, "new_run_id", lambda _: "same")
    with pytest.raises(UsageError, match="exists already"):
        runner.new_folder(config)


def test_a_signal_before_the_run_has_begun_leaves_no_folder(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner, "provenance", interrupted)
    ended = scene.run()
    assert ended.code == 130 and "Traceback" not in ended.err
    assert list(scene.results.iterdir()) == []


def test_nobody_reads_what_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed pipe: the run goes on, and its servers are stopped."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    scene.at("cold", lambda: monkeypatch.setattr("rich.console.Console.print", closed))
    monkeypatch.setattr("harness.cli.run.print_run", lambda *_: None)
    ended = scene.run()
    assert ended.code == 0, ended.err
    scene.assert_nothing_is_left()
