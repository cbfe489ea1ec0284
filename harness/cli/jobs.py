"""One job of ``run``: in this process, or in one that a launcher starts on another machine.

What a job came to is known here in every case: a job elsewhere returns a :class:`JobEnd`, and one that returned nothing
ends with 3, as a machine that failed does.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from harness.cli.compose import register
from harness.cli.options import JSON
from harness.cli.output import Output
from harness.errors import HarnessError, Interrupted
from harness.interrupts import interruptible

SEVERITY = (130, 3, 2, 1, 4, 0)
"""Exit codes from worst to best: what a multirun ends with."""

LOG = "job.log"
"""What a job elsewhere prints, where its launcher keeps no log; in ``<results_dir>/multirun/<time>/<number>``."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended in another process."""

    code: int
    """Its exit code."""
    told: dict[str, Any] = field(default_factory=dict)
    """What ``format=json`` says of it: ``path``, ``run`` and ``cells``, or ``error``."""

    @classmethod
    def failed(cls, error: str, code: int = HarnessError.exit_code) -> JobEnd:
        """Of a job that could not say more than why it ended."""
        return cls(code, {"exit_code": code, "error": error})


class Job:
    """The task function of ``run``, which Hydra calls for every job, and which knows how all of them ended.

    Args:
        output: what is said of jobs, and where.
        bare: whether a run is resumed and nothing else was said.
    """

    def __init__(self, output: Output, *, bare: bool) -> None:
        self.output = output
        self.bare = bare
        self.folder = str(Path.cwd())
        self.composing = True
        """Whether Hydra has called no job so far: what it raises until then is a complaint about the configuration."""
        self.ends: dict[int, int] = {}
        """Number of the job -> its exit code."""
        self._elsewhere = False

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: no stream of this one."""
        return self.__dict__ | {"output": Output(JSON, self.output.quiet), "ends": {}, "_elsewhere": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Hydra looks at the configuration before it calls."""
        self.__dict__.update(state)
        register()

    @property
    def worst(self) -> int:
        """The exit code of all jobs together.

        Raises:
            HarnessError: no job ended.
        """
        if not self.ends:
            raise HarnessError(
                "No job said how it ended: this launcher or sweeper does not hand back its jobs' results."
            )
        return min(self.ends.values(), key=SEVERITY.index)

    def __call__(self, composed: DictConfig) -> int | JobEnd:
        """Runs a job from its composed configuration, and returns how it ended."""
        hydra = HydraConfig.get()
        if self._elsewhere:
            with _logged(Path(hydra.runtime.output_dir) / LOG):
                return self._run_elsewhere(composed, hydra.overrides.task)
        self.composing = False
        number = 0 if OmegaConf.is_missing(hydra.job, "num") else hydra.job.num
        self.ends[number] = self._run(composed, hydra.overrides.task, self.output)
        return self.ends[number]

    def started(self, number: int, overrides: Sequence[str], where: str) -> None:
        """Says that a launcher has handed a job on; ``overrides`` are those that tell it from the others."""
        self.composing = False
        if not self.output.quiet:
            self.output.tell(f"{_named(number, overrides)}: {where}")

    def ended(self, number: int, overrides: Sequence[str], end: object) -> None:
        """Notes and tells how a job ended; once, whoever says it first."""
        if number in self.ends:
            return
        if not isinstance(end, JobEnd):
            end = JobEnd.failed(f"the job returned {end!r:.200}, and not how it ended")
        self.ends[number] = end.code if end.code in SEVERITY else HarnessError.exit_code
        if self.output.form == JSON:
            self.output.emit(end.told)
        self.output.tell(f"{_named(number, overrides)}: {_in_words(end)}")

    def _run(self, composed: DictConfig, overrides: Sequence[str], output: Output) -> int:
        from harness.cli.run import run_one  # brings all that measures, for which Hydra's look at plugins need not wait

        return run_one(composed, overrides, output, bare=self.bare)

    def _run_elsewhere(self, composed: DictConfig, overrides: Sequence[str]) -> JobEnd:
        """The same in a process where nothing is set up yet."""
        _leave_group()
        os.environ["TQDM_DISABLE"] = "1"
        answer = io.StringIO()
        try:
            # Submitit's word for "the time is up"; without a handler of ours it would begin the run anew.
            with interruptible(signal.SIGUSR2), redirect_stdout(sys.stderr):
                os.chdir(self.folder)
                code = self._run(composed, overrides, Output(JSON, self.output.quiet, answer))
        except KeyboardInterrupt as cut:
            return JobEnd.failed(f"interrupted ({cut}): run it again with resume=<run id>", Interrupted.exit_code)
        except FileNotFoundError as error:
            return JobEnd.failed(
                f"{error.filename} is not there on the job's machine: use a folder that all machines see"
            )
        except Exception as error:
            traceback.print_exc()
            return JobEnd.failed(f"{type(error).__name__}: {error}")
        return JobEnd(code, json.loads(answer.getvalue()))


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """What this process and its children print goes to a file, unless submitit keeps it already."""
    if "SUBMITIT_EXECUTOR" in os.environ:
        yield
        return
    before = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        with path.open("ab") as log:
            for stream in before:
                os.dup2(log.fileno(), stream)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, kept in before.items():
            os.dup2(kept, stream)
            os.close(kept)


def _leave_group() -> None:
    """A launcher on the same machine ends its jobs by itself: the terminal's Ctrl-C, which it has blocked for them, is
    not to reach them as well.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    if signal.SIGINT in blocked:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGHUP])


def differing(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of the overrides of each job those that not all jobs have."""
    common = set(jobs[0]).intersection(*jobs[1:]) if jobs else set()
    return [[word for word in job if word not in common] for job in jobs]


def _named(number: int, overrides: Sequence[str]) -> str:
    return f"job {number}" + (f" ({' '.join(overrides)})" if overrides else "")


def _in_words(end: JobEnd) -> str:
    told = end.told
    if "error" in told:
        return f"exit code {end.code}: {told['error']}"
    verdict = (told.get("run") or {}).get("verdict") or (told.get("attribution") or {}).get("meaning")
    return f"exit code {end.code}: {verdict}; results in {told.get('path')}"
