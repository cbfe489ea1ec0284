"""Servers as child process groups: whatever they do, they end, and nothing of them is left."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import ServerError
from harness.servers import process as process_module
from harness.servers.ports import free_ports
from harness.servers.process import ServerProcess
from harness.servers.shared_memory import SHARED_MEMORY, mapped_segments, remove_segments

QUIET = "import os, signal, subprocess, sys, time\n"

SPAWN = """
def spawn(code, **kwargs):
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], **kwargs)
    print("child", child.pid, flush=True)
    return child
"""

SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('set', flush=True); time.sleep(60)"
)

MAP = """
import mmap
def keep(path, create):
    file = open(path, "w+b" if create else "r+b")
    file.truncate(4096)
    return mmap.mmap(file.fileno(), 4096)
"""

Launch = Callable[..., ServerProcess]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "POLL_S", 0.02)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[ServerProcess] = []

    def start(script: str, *arguments: object) -> ServerProcess:
        code = QUIET + SPAWN + MAP + script
        command = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
        server = ServerProcess("Server", command, {"PATH": os.environ["PATH"]}, tmp_path / "logs" / "server.log")
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop(0.0)


@pytest.fixture
def segment() -> Iterator[Path]:
    path = SHARED_MEMORY / f"harness-test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


def says(server: ServerProcess, *words: str) -> Callable[[], bool]:
    return lambda: all(word in server.log_text() for word in words)


def ready(server: ServerProcess, *words: str) -> float:
    return server.wait_until_ready(says(server, *words or ("ready",)), 10)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(server: ServerProcess) -> list[int]:
    return [int(line.split()[1]) for line in server.log_text().splitlines() if line.startswith("child ")]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ready_is_reported_with_its_wait(launch: Launch) -> None:
    server = launch("time.sleep(0.3); print('ready', flush=True); time.sleep(60)")
    waits: list[float] = []
    waited = server.wait_until_ready(says(server, "ready"), 10, waits.append)
    assert 0.2 < waited < 5
    assert waits == sorted(waits) and waits
    assert server.alive()
    assert server.pid == os.getpgid(server.pid or 0) == os.getsid(server.pid or 0)


def test_exit_before_ready_tells_code_cause_and_log(launch: Launch) -> None:
    server = launch("print('noise'); print('RuntimeError: no room for block 784'); sys.exit(7)")
    with pytest.raises(ServerError) as error:
        server.wait_until_ready(lambda: False, 10)
    message = str(error.value)
    assert "Server exited with code 7" in message
    assert "before it was ready" in message
    assert "    RuntimeError: no room for block 784\n" in message
    assert "noise" not in message
    assert message.endswith(str(server.log))


def test_killed_before_ready_is_told_as_a_signal(launch: Launch) -> None:
    server = launch("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ServerError, match=r"was ended by signal 9 \(Killed; out of memory\?\).*\n.*it printed nothing"):
        server.wait_until_ready(lambda: False, 10)


def test_why_it_does_not_answer(launch: Launch) -> None:
    server = launch("print('ERROR: all wrong', flush=True); time.sleep(60)")
    server.wait_until_ready(lambda: "wrong" in server.log_text(), 10)
    assert server.explanation().startswith("Its log says:\n    ERROR: all wrong")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while server.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.explanation().startswith("It was ended by signal 9 (Killed; out of memory?). Its log says:")


def test_the_health_of_another_server_is_not_ours(launch: Launch) -> None:
    server = launch("sys.exit(1)")
    assert server._process is not None
    server._process.wait(10)
    with pytest.raises(ServerError, match="exited with code 1"):
        server.wait_until_ready(lambda: True, 10)


def test_deadline_tells_limit_and_last_lines(launch: Launch) -> None:
    server = launch("print('loading weights', flush=True); time.sleep(60)")
    assert ready(server, "loading") < 5
    with pytest.raises(ServerError, match=r"not ready after \d+ s \(limit 0 s\)(.|\n)*loading weights"):
        server.wait_until_ready(lambda: False, 0.1)
    assert server.alive(), "who waits decides what happens next"


def test_a_program_that_does_not_exist_and_a_log_that_cannot_be(tmp_path: Path) -> None:
    absent = ServerProcess("vLLM", ["/no/such/python", "-m", "vllm"], {}, tmp_path / "a.log")
    with pytest.raises(ServerError, match=r"vLLM could not be started: /no/such/python: No such file or directory\."):
        absent.start()
    assert absent.stop(1) == []
    (tmp_path / "file").write_text("")
    unwritable = ServerProcess("vLLM", [sys.executable], {}, tmp_path / "file" / "a.log")
    with pytest.raises(ServerError, match=r"could not be started: \S+/file: \w"):
        unwritable.start()


def test_only_this_launch_speaks_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("ValueError: of yesterday\n")
    server = ServerProcess("Server", [sys.executable, "-I", "-S", "-c", "print('ValueError: of today')"], {}, log)
    server.start()
    with pytest.raises(ServerError, match="of today") as error:
        server.wait_until_ready(lambda: False, 10)
    assert "yesterday" not in str(error.value)
    assert "yesterday" in log.read_text(), "what an earlier launch wrote is kept"


def test_graceful_stop_lets_the_leader_end_its_children(launch: Launch) -> None:
    server = launch(
        f"child = spawn({SLEEP!r})\n"
        "def end(*_): child.terminate(); child.wait(); print('bye', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('ready', flush=True)\n"
        "while True: time.sleep(1)"
    )
    ready(server)
    began = time.monotonic()
    assert server.stop(30) == []
    assert time.monotonic() - began < 10
    assert "bye" in server.log_text()
    assert not any(map(runs, children(server)))
    assert server.pid is None
    assert server.stop(30) == [], "stopping twice is nothing"


def test_firm_stop_when_sigterm_is_ignored(launch: Launch) -> None:
    server = launch(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); spawn({STUBBORN!r})\n"
        "print('ready', flush=True)\nwhile True: time.sleep(1)"
    )
    ready(server, "ready", "set")
    leader = server.pid or 0
    began = time.monotonic()
    server.stop(0.4)
    assert 0.4 <= time.monotonic() - began < 8
    assert not any(map(runs, [leader, *children(server)]))


def test_a_grandchild_that_left_the_group_is_ended_too(launch: Launch) -> None:
    server = launch(
        f"spawn({STUBBORN!r}, start_new_session=True); print('ready', flush=True)\nwhile True: time.sleep(1)"
    )
    ready(server, "ready", "set")
    (grandchild,) = children(server)
    assert os.getpgid(grandchild) != server.pid
    server.stop(0.3)
    assert not runs(grandchild)


def test_orphans_of_a_leader_that_died_are_ended_without_delay(launch: Launch, tmp_path: Path, segment: Path) -> None:
    go = tmp_path / "go"
    worker = f"{MAP}\nkept = keep({str(segment)!r}, True); print('mapped', flush=True); {SLEEP}"
    server = launch(
        "print('ready', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        f"spawn({worker!r}); os._exit(1)"
    )
    ready(server)
    go.touch()
    assert server._process is not None
    server._process.wait(10)
    until(says(server, "mapped"))
    (orphan,) = children(server)
    assert runs(orphan)
    began = time.monotonic()
    assert server.stop(30) == [segment]
    assert time.monotonic() - began < 10, "it got SIGTERM itself"
    assert not runs(orphan)


def test_what_started_while_the_server_became_ready_is_known(launch: Launch, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    server = launch(
        f"while not os.path.exists({str(asked)!r}): time.sleep(0.02)\n"
        f"spawn({STUBBORN!r}, start_new_session=True); time.sleep(60)"
    )

    def answer() -> bool:
        asked.touch()
        until(says(server, "set"))
        return True

    server.wait_until_ready(answer, 10)
    os.kill(server.pid or 0, signal.SIGKILL)
    until(lambda: not server.alive())
    server.stop(0.1)
    assert not runs(children(server)[0])


def test_it_works_in_the_folder_of_its_log(launch: Launch) -> None:
    server = launch("print('in', os.getcwd(), flush=True); time.sleep(60)")
    ready(server, "in ")
    assert server.log_text().split()[1] == str(server.log.parent)


def test_zombies_that_nobody_reaps_do_not_count(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose first process reaps nobody."""
    monkeypatch.setattr(process_module, "FIRM_STOP_S", 0.5)
    libc = ctypes.CDLL(None, use_errno=True)
    set_subreaper = 36
    assert libc.prctl(set_subreaper, 1, 0, 0, 0) == 0
    server = launch(f"spawn({SLEEP!r}); print('ready', flush=True)\nwhile True: time.sleep(1)")
    try:
        ready(server)
        server.stop(0.2)
        (orphan,) = children(server)
        assert psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE
    finally:
        libc.prctl(set_subreaper, 0, 0, 0, 0)
        for pid in children(server):
            os.waitpid(pid, 0)


def test_segment_of_a_killed_server_is_removed(launch: Launch, segment: Path) -> None:
    server = launch(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "kept = keep(sys.argv[1], True); print('ready', flush=True)\nwhile True: time.sleep(1)",
        segment,
    )
    ready(server)
    assert segment.exists()
    assert server.stop(0.2) == [segment]
    assert not segment.exists()


def test_segment_of_a_server_that_crashed_before_is_removed(launch: Launch, segment: Path) -> None:
    server = launch("kept = keep(sys.argv[1], True); print('ready', flush=True); time.sleep(60)", segment)
    ready(server)
    os.kill(server.pid or 0, signal.SIGKILL)
    until(lambda: not server.alive())
    assert server.stop(5) == [segment]


def test_what_was_there_before_is_left_alone(launch: Launch, segment: Path) -> None:
    """A checkpoint in /dev/shm, or another server's cache, may be mapped by ours and is not ours."""
    checkpoint = segment.with_name(segment.name + "-dir") / "model.safetensors"
    checkpoint.parent.mkdir()
    unmapped = segment.with_name(segment.name + "-unmapped")
    try:
        for path in (segment, checkpoint, unmapped):
            path.write_bytes(bytes(4096))
        server = launch(
            "kept = [keep(path, False) for path in sys.argv[1:]]\nprint('ready', flush=True); time.sleep(60)",
            segment,
            checkpoint,
        )
        ready(server)
        assert mapped_segments([server.pid or 0]) == {segment}
        assert server.stop(5) == []
        assert segment.exists() and checkpoint.exists() and unmapped.exists()
    finally:
        for path in (checkpoint, unmapped):
            path.unlink(missing_ok=True)
        checkpoint.parent.rmdir()


def test_a_second_interrupt_cuts_the_wait_short_and_leaves_nothing(
    launch: Launch, segment: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    server = launch(
        "def told(*_): open(sys.argv[2], 'w').close()\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "kept = keep(sys.argv[1], True); print('ready', flush=True)\nwhile True: time.sleep(1)",
        segment,
        told,
    )
    ready(server)
    leader = server.pid or 0

    def interrupt() -> None:
        deadline = time.monotonic() + 10
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, raise_interrupt)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            server.stop(60)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, previous)
    assert time.monotonic() - began < 10
    assert not runs(leader)
    assert not segment.exists()


def test_mapped_segments_reads_maps_only(tmp_path: Path) -> None:
    maps = tmp_path / "12" / "maps"
    maps.parent.mkdir()
    maps.write_text(
        "7f5000000000-7f5040000000 rw-s 00000000 00:18 41   /dev/shm/lmcache_kv_12_0\n"
        "7f5100000000-7f5100001000 rw-s 00000000 00:18 42   /dev/shm/psm_b16b1f4a (deleted)\n"
        "7f5200000000-7f5200001000 r--s 00000000 00:18 43   /dev/shm/models/pocket/model.safetensors\n"
        "7f5300000000-7f5300001000 r-xp 00000000 08:01 44   /usr/lib/libc.so.6\n"
        "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0    [stack]\n"
    )
    assert mapped_segments([12, 13], proc=tmp_path) == {Path("/dev/shm/lmcache_kv_12_0")}


def test_removing_what_is_gone_is_nothing(segment: Path) -> None:
    assert remove_segments([segment]) == []
    segment.write_bytes(b"")
    assert remove_segments([segment]) == [segment]


def test_own_segments_are_seen() -> None:
    path = SHARED_MEMORY / f"harness-test-{uuid.uuid4().hex}"
    with path.open("w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            assert path in mapped_segments([os.getpid()])
    path.unlink()


def test_ports_are_distinct_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(1024 <= port < 65536 for port in ports)
