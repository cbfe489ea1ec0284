"""One server: a child in its own process group, its output in a log, stopped so that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harness.diagnosis.diagnose import Diagnosis, Log, diagnose
from harness.diagnosis.files import blocks_of, lines_before
from harness.errors import ServerError, UsageError
from harness.servers.logs import telling_lines
from harness.servers.shared_memory import mapped_segments, present_segments, remove_segments

POLL_S = 0.2
FIRM_STOP_S = 10.0
"""How long a killed process may take to vanish."""


class ServerProcess:
    """A server program and everything that it starts.

    Args:
        name: what people call it, as in error messages.
        command: program and arguments; no shell is involved.
        env: its whole environment.
        log: file that gets its output; its folder is the working directory, so that a stray module in the
            user's folder is never imported in place of a library.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env)
        self.log = log
        self.beside: list[ServerProcess] = []
        """Servers that it works with: what stopped it may stand in their logs only."""
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._log_start = 0
        self._family: set[psutil.Process] = set()
        self._segments: set[Path] = set()
        self._segments_of_others: set[Path] = set()

    @property
    def pid(self) -> int | None:
        """Process id of the leader, which is also the id of its group; None before the start."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the program in a session of its own, so that a Ctrl-C of the terminal doesn't reach it.

        Raises:
            ServerError: the program does not exist or can't be run, or its log can't be written.
        """
        self._segments_of_others = present_segments()
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as output:
                self._log_start = output.tell()
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.log.parent,
                    env=self.env,
                    start_new_session=True,
                )
        except OSError as error:
            raise ServerError(
                f"{self.name} could not be started: {error.filename or self.command[0]}: {error.strerror}."
            ) from error
        self._started = time.monotonic()

    def alive(self) -> bool:
        """Whether the leader still runs."""
        return self._process is not None and self._process.poll() is None

    def wait_until_ready(
        self, ready: Callable[[], bool], timeout_s: float, on_wait: Callable[[float], None] = lambda _: None
    ) -> float:
        """Waits until the server answers, and returns the seconds since its start.

        Args:
            ready: asks the health endpoint.
            timeout_s: deadline in seconds after the start.
            on_wait: called at every look with the seconds waited so far.

        Raises:
            ServerError: it exited or missed the deadline; with the telling lines of its log.
        """
        while True:
            waited = time.monotonic() - self._started
            self.note_family()
            if not self.alive():
                raise ServerError(
                    f"{self.name} {self._how_it_ended()} after {waited:.0f} s, before it was ready. "
                    + self.log_excerpt()
                )
            if ready():
                self.note_family()
                return waited
            if waited > timeout_s:
                raise ServerError(
                    f"{self.name} was not ready after {waited:.0f} s (limit {timeout_s:.0f} s). " + self.log_excerpt()
                )
            on_wait(waited)
            time.sleep(POLL_S)

    def log_text(self) -> str:
        """All that it has printed since its start; what an earlier launch left in the same file is not its own."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")
        return ""

    def explanation(self) -> str:
        """Why it does not answer, as far as can be told: how it ended if it did, and what its log says."""
        ended = f"It {self._how_it_ended()}. " if self._process and not self.alive() else ""
        return ended + self.log_excerpt()

    def log_excerpt(self) -> str:
        """What its log says, for an error message: the line that is the cause, what it means and what mends it where
        that is known, else the telling lines; and where the rest is.
        """
        processes = [self, *self.beside]
        diagnosis = self._diagnosis(processes)
        if (root := diagnosis.root) is None:
            lines = telling_lines(self.log_text())
            told = "\n".join(f"    {line[:400]}" for line in lines) or "    (it printed nothing)"
            return f"Its log says:\n{told}\n  All of it: {self.log}"
        speaker = next(each for each in processes if str(each.log) == root.evidence.file)
        told = f"    {speaker.log.name}:{root.evidence.line}: {root.evidence.text}\n  Cause: {root.cause}."
        told += f"\n  Remedy: {root.remedy}."
        if root.override:
            told += f"\n  Here: {root.override}"
        for other in diagnosis.unexplained:
            told += f"\n  It says too: {other.text}"
        whose = "Its" if speaker is self else f"{speaker.name}'s"
        return f"{whose} log says:\n{told}\n  All of it: {speaker.log}"

    @staticmethod
    def _diagnosis(processes: Sequence[ServerProcess]) -> Diagnosis:
        """What the logs of these processes say together, each from its own start on."""
        try:
            return diagnose(
                [
                    Log(
                        str(each.log),
                        blocks_of(each.log, each._log_start),
                        lines_before(each.log, each._log_start) + 1,
                    )
                    for each in processes
                    if each.log.is_file()
                ]
            )
        except UsageError:
            return Diagnosis((), ())

    def note_family(self) -> None:
        """Remembers its processes and shared memory while they can still be seen."""
        if self._process is None:
            return
        if self.alive():
            with suppress(psutil.NoSuchProcess):
                leader = psutil.Process(self._process.pid)
                self._family |= {leader, *leader.children(recursive=True)}
        self._family |= set(self._in_group())
        mapped = mapped_segments(process.pid for process in self._family if process.is_running())
        self._segments |= mapped - self._segments_of_others

    def stop(self, grace_s: float) -> list[Path]:
        """SIGTERM, then SIGKILL after ``grace_s`` seconds, then what is left of it is removed.

        Returns:
            Shared-memory segments that it had left behind and that were removed here.

        Raises:
            ServerError: a process of it can't be ended.
        """
        if self._process is None:
            return []
        self.note_family()
        if self.alive():
            self._process.send_signal(signal.SIGTERM)
        else:
            # The leader would have told the others.
            for process in self._members():
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
        try:
            self._wait_until_gone(grace_s)
        finally:
            # Reached by a second Ctrl-C as well: then the rest is ended at once, and still nothing is left.
            try:
                self._kill()
            finally:
                removed = remove_segments(self._segments)
        self._process = None
        return removed

    def _how_it_ended(self) -> str:
        code = self._process.returncode if self._process else None
        if code is None or code >= 0:
            return f"exited with code {code}"
        hint = "; out of memory?" if -code == signal.SIGKILL else ""
        return f"was ended by signal {-code} ({signal.strsignal(-code)}{hint})"

    def _in_group(self) -> Iterator[psutil.Process]:
        """Processes of its group, found without its leader too; one that left the group is in ``_family`` only."""
        for pid in psutil.pids():
            with suppress(OSError, psutil.NoSuchProcess):
                if os.getpgid(pid) == self._group:
                    yield psutil.Process(pid)

    def _members(self) -> list[psutil.Process]:
        """Processes of it that still run; a zombie has nothing left to stop, and nobody may ever reap it."""
        members = []
        for process in self._family | set(self._in_group()):
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
        return members

    def _gone(self) -> bool:
        return not self.alive() and not self._members()

    @property
    def _group(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _wait_until_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._gone():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _kill(self) -> None:
        if self._gone():
            return
        with suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)
        for process in self._members():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if not self._wait_until_gone(FIRM_STOP_S):
            pids = [process.pid for process in self._members()]
            raise ServerError(
                f"{self.name} could not be stopped: processes {pids} survive SIGKILL after {FIRM_STOP_S:.0f} s "
                "(stuck in the kernel or in a driver?); the machine may need a restart."
            )
