"""One server: a child in its own process group, its output in a log, stopped so that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harness.diagnosis.diagnose import Diagnosis, Log, diagnose
from harness.diagnosis.files import blocks_of, lines_before
from harness.errors import HarnessError, ServerError, UsageError
from harness.interrupts import held
from harness.servers import family
from harness.servers.logs import telling_lines
from harness.servers.shared_memory import mapped_segments, present_segments, remove_segments

POLL_S = 0.2
ENDING_S = 0.5
"""How long an error about a server waits to learn whether that one has just ended."""

FIRM_STOP_S = 30.0
"""How long a killed process may take to vanish: giving back its memory took one more than 10 s on a busy machine."""


class ServerProcess:
    """A server program and everything that it starts.

    Args:
        name: what people call it, as in error messages.
        command: program and arguments; no shell is involved.
        env: its whole environment.
        log: file that gets its output; its folder is the working directory, so that a stray module in the
            user's folder is never imported in place of a library.
        on_family: told whenever there is more of it than was known: processes and shared-memory segments.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        on_family: Callable[[ServerProcess], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env)
        self.log = log
        self.beside: list[ServerProcess] = []
        """Servers that it works with: what stopped it may stand in their logs only."""
        self._process: subprocess.Popen[bytes] | None = None
        self._on_family = on_family
        self._started = 0.0
        self._log_start = 0
        self.family: set[psutil.Process] = set()
        """Its processes, as far as they were seen."""
        self.segments: set[Path] = set()
        """Shared memory that it made, as far as it was seen."""
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
            # A signal between the start and the note of its pid would leave a server that nobody knows.
            with self.log.open("ab") as output, held():
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
                self._started = time.monotonic()
        except OSError as error:
            raise ServerError(
                f"{self.name} could not be started: {error.filename or self.command[0]}: {error.strerror}."
            ) from error
        self.note_family()

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
                    f"{self.name} {self.how_it_ended()} after {waited:.0f} s, before it was ready. "
                    + self.log_excerpt()
                )
            if ready():
                self.note_family()
                return waited
            if waited > timeout_s:
                raise ServerError(
                    f"{self.name} was not ready after {waited:.0f} s (limit {timeout_s:.0f} s). "
                    + self.suspended()
                    + self.log_excerpt()
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
        """Why it does not answer, as far as can be told: how it or one beside it ended, or that it was stopped; and
        what its log says.
        """
        # A server that was killed answers no more a moment before it has ended.
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=ENDING_S)
        if self.ended():
            return f"It {self.how_it_ended()}. {self.log_excerpt()}"
        for other in self.beside:
            if other.ended():
                return f"{other.name} {other.how_it_ended()}. {other.log_excerpt()}"
        return self.suspended() + self.log_excerpt()

    def ended(self) -> bool:
        """Whether it was started, was not stopped here, and runs no more."""
        return self._process is not None and not self.alive()

    def suspended(self) -> str:
        """A sentence about those of its processes, and of those beside it, that something has stopped; or nothing."""
        told = ""
        for each in [self, *self.beside]:
            if pids := sorted(process.pid for process in family.stopped(each.family)):
                several = len(pids) > 1
                told += (
                    f"{each.name}'s process{'es' * several} {', '.join(map(str, pids))} {'were' if several else 'was'} "
                    "stopped (SIGSTOP, or a debugger; kill -CONT lets it go on). "
                )
        return told

    def check(self, when: str = "") -> None:
        """Sees whether it and those beside it still run.

        Args:
            when: told with it, as in `` during the cold pass``.

        Raises:
            ServerError: one of them ended; the one that was started first, since others may have ended for its sake.
        """
        for each in sorted([self, *self.beside], key=lambda process: process._started):
            if each.ended():
                raise ServerError(f"{each.name} {each.how_it_ended()}{when}. {each.log_excerpt()}")

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
        known = len(self.family), len(self.segments)
        if self.alive():
            with suppress(psutil.NoSuchProcess):
                self.family |= family.with_children([psutil.Process(self._process.pid)])
        self.family |= family.in_group(self._group)
        mapped = mapped_segments(process.pid for process in self.family if process.is_running())
        self.segments |= mapped - self._segments_of_others
        if known != (len(self.family), len(self.segments)):
            self._on_family(self)

    def stop(self, grace_s: float) -> list[Path]:
        """SIGTERM, then SIGKILL after ``grace_s`` seconds, then what is left of it is removed.

        Returns:
            Shared-memory segments that it had left behind and that were removed here.

        Raises:
            ServerError: a process of it can't be ended.
        """
        if self._process is None:
            return []
        try:
            # A disk that refuses the note of it must not keep it running.
            with suppress(HarnessError):
                self.note_family()
            if self.alive():
                self._process.send_signal(signal.SIGTERM)
            else:
                # The leader would have told the others.
                family.tell_to_end(self._members())
            family.wait_until(self._gone, grace_s)
        finally:
            # Reached by a second Ctrl-C as well: then the rest is ended at once, and still nothing is left.
            try:
                self._kill()
            finally:
                removed = remove_segments(self.segments)
        self._process = None
        return removed

    def how_it_ended(self) -> str:
        """``exited with code 1``, ``was ended by signal 9 (…)``."""
        code = self._process.returncode if self._process else None
        if code is None or code >= 0:
            return f"exited with code {code}"
        hint = "; out of memory?" if -code == signal.SIGKILL else ""
        return f"was ended by signal {-code} ({signal.strsignal(-code)}{hint})"

    def _members(self) -> list[psutil.Process]:
        """Processes of it that still run; one that left its group is in ``family`` only."""
        return family.running(self.family | family.in_group(self._group))

    def _gone(self) -> bool:
        return not self.alive() and not self._members()

    @property
    def _group(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _kill(self) -> None:
        if self._gone():
            return
        with suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)
        family.kill(self._members())
        if not family.wait_until(self._gone, FIRM_STOP_S):
            pids = [process.pid for process in self._members()]
            raise ServerError(
                f"{self.name} could not be stopped: processes {pids} survive SIGKILL after {FIRM_STOP_S:.0f} s "
                "(stuck in the kernel or in a driver?); the machine may need a restart."
            )
