"""The steps of a night: ``python -m harness.nightly STEP``, for GitHub, Buildkite or by hand.

Every step is a command of the harness. It runs in this process, so that a cancelled job's signal reaches it, notes its
exit code in ``$GATE_DIR`` and ends with 0 itself; `gate` decides by what was noted. Settings come from the environment:

GATE_MODEL          model=… of the run
GATE_RUN_ID         name of its results folder
GATE_OVERRIDES      more overrides, as in a shell
GATE_VLLM_PYTHON    another environment's vLLM, for example a pull request's build
GATE_LMCACHE_PYTHON the same of LMCache
GATE_SELFTEST       true: the negative control belongs to this job
GATE_PREVIOUS       results folder of the night before, if there is one
GATE_COMPARE        words for the comparison with it, for example speed_margin=0.2
GATE_DIR            where exit codes are noted (default: night)

Nothing but the standard library is imported until a step needs it: `matrix` runs where nothing is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parent.parent / ".github" / "nightly.json"
"""Models of the night: name, runner labels, GPUs, minutes, overrides, and which of them has the negative control."""

USAGE, SERVER = 2, 3
"""Exit codes of the harness that a gate gives by itself."""

MEANING = {
    0: "pass",
    1: "fail",
    USAGE: "wrong usage or configuration",
    SERVER: "a server or the machine failed",
    4: "inconclusive or invalid",
    130: "interrupted",
}

JUDGED = (0, 1, 4)
"""Exit codes of a run that came to a verdict."""

Command = Callable[[Sequence[str]], int]


@dataclass(frozen=True, slots=True)
class Night:
    """Settings of one job of a night."""

    model: str
    run_id: str
    overrides: tuple[str, ...] = ()
    selftest: bool = False
    previous: Path | None = None
    margins: tuple[str, ...] = ()
    """Words for the comparison."""
    folder: Path = Path("night")
    results: Path = Path("results")

    @property
    def run(self) -> Path:
        """Results folder of the run."""
        return self.results / self.run_id

    @property
    def control(self) -> Path:
        """Results folder of the negative control."""
        return self.results / f"{self.run_id}-selftest"

    def code(self, step: str) -> int | None:
        """The exit code that a step has noted; None where it did not come to its end."""
        file = self.folder / step
        return int(file.read_text()) if file.is_file() else None

    def note(self, step: str, code: int) -> None:
        """Notes the exit code of a step."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / step).write_text(f"{code}\n")


@dataclass(frozen=True, slots=True)
class Decision:
    """What a night came to."""

    code: int
    sentence: str
    notes: list[str] = field(default_factory=list)
    """What else is to be known, but decides nothing."""


def settings(environment: Mapping[str, str]) -> Night:
    """Settings of the night from the environment.

    Raises:
        ValueError: model or run id are missing, or the overrides can't be split or move the results.
    """
    names = ("GATE_MODEL", "GATE_RUN_ID")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise ValueError(f"{missing[0]} is not set: it belongs into the job's environment.")
    overrides = [f"model={environment['GATE_MODEL']}", *shlex.split(environment.get("GATE_OVERRIDES", ""))]
    owned = [word for word in overrides if word.lstrip("+~").startswith(("run_id=", "results_dir=", "resume="))]
    if owned:
        raise ValueError(f"GATE_OVERRIDES has {owned[0]}: the steps find the results by GATE_RUN_ID, in results/.")
    for server in ("vllm", "lmcache"):
        if python := environment.get(f"GATE_{server.upper()}_PYTHON"):
            # Absolute, since servers are started in folders of their own; not resolved, since an environment is a link.
            overrides.append(f"servers.{server}.python={Path(python).absolute()}")
    previous = environment.get("GATE_PREVIOUS")
    return Night(
        model=environment["GATE_MODEL"],
        run_id=environment["GATE_RUN_ID"],
        overrides=tuple(overrides),
        selftest=environment.get("GATE_SELFTEST", "").lower() == "true",
        previous=Path(previous) if previous else None,
        margins=tuple(shlex.split(environment.get("GATE_COMPARE", ""))),
        folder=Path(environment.get("GATE_DIR") or "night"),
    )


def decide(
    doctor: int | None,
    run: int | None,
    report: int | None = 0,
    compare: int | None = None,
    selftest: int | None = None,
    *,
    control: bool = False,
    why: Sequence[str] = (),
) -> Decision:
    """What a night came to: exit codes -> one exit code, and why.

    Without a verdict nothing else counts; a verdict that is no pass is the night's. A pass still needs a negative
    control that was caught, no regression since the night before, and a report. A night before that is not there, or
    that can't be compared with, decides nothing.

    Args:
        doctor: exit code of the preflight.
        run: of the run.
        report: of the report.
        compare: of the comparison with the night before; None where there was none.
        selftest: of the negative control.
        control: whether this job has a negative control.
        why: the run's own reasons.
    """
    notes = _notes(doctor, report, compare, selftest, control=control)
    if doctor != 0:
        told = "did not come to its end" if doctor is None else f"ended in {doctor}, {meaning(doctor)}"
        return Decision(_blocking(doctor), f"Nothing was measured: the preflight (doctor) {told}.", notes)
    if run is None:
        return Decision(SERVER, "Nothing was decided: the run was killed or never began.", notes)
    reason = f": {'; '.join(why)}" if why else ""
    if run != 0:
        return Decision(run, f"The run ended in {run}, {meaning(run)}{reason}.", notes)
    if control and selftest != 0:
        if selftest == 1:
            told = "was not caught, or raised a false alarm: tonight's pass proves nothing"
        elif selftest is None:
            told = "did not come to its end, so nobody knows whether this gate bites"
        else:
            told = f"ended in {selftest}, {meaning(selftest)}, so nobody knows whether this gate bites"
        return Decision(_blocking(selftest), f"The run passed, but the negative control {told}.", notes)
    if compare == 1:
        return Decision(1, "The run passed, but is worse than the night before: see the comparison.", notes)
    if report != 0:
        return Decision(SERVER, "The run passed, but its report could not be written.", notes)
    return Decision(0, f"The run passed{reason}.", notes)


def meaning(code: int) -> str:
    """An exit code in words."""
    return MEANING.get(code, "killed" if code > 128 else "a crash")


def _blocking(code: int | None) -> int:
    return SERVER if code is None else code


def _notes(
    doctor: int | None, report: int | None, compare: int | None, selftest: int | None, *, control: bool
) -> list[str]:
    notes = []
    if control and selftest is not None:
        caught = "caught what was damaged, and nothing else" if selftest == 0 else meaning(selftest)
        notes.append(f"negative control: {caught}")
    elif not control:
        notes.append("negative control: belongs to another job")
    if compare is None:
        notes.append("night before: none to compare with")
    else:
        told = {0: "no regression", 1: "a regression"}.get(compare, f"can't be compared with (exit code {compare})")
        notes.append(f"night before: {told}")
    if report not in (0, None) or (report is None and doctor == 0):
        notes.append("the report was not written; run.json and cells/ in the artifact hold all numbers")
    return notes


# --- steps -------------------------------------------------------------------------------------------------


def doctor_step(night: Night, command: Command) -> None:
    """Preflight: is this machine able to do the run?"""
    night.note("doctor", command(["doctor", *night.overrides]))


def run_step(night: Night, command: Command) -> None:
    """Measures and judges, once: a failure is never tried again."""
    if night.code("doctor") != 0:
        print("not run: the preflight did not pass")
        return
    with WithoutSummary():
        night.note("run", command(["run", *night.overrides, f"run_id={night.run_id}"]))


def report_step(night: Night, command: Command) -> None:
    """Writes the report, also of a run that failed, and the job's summary."""
    if not night.run.is_dir():
        print(f"no report: {night.run} is not there")
        return
    night.note("report", command(["report", str(night.run)]))


def compare_step(night: Night, command: Command) -> None:
    """Compares with the night before; where there is none, nothing happens."""
    if night.previous is None or not (night.previous / "run.json").is_file() or night.code("run") not in JUDGED:
        print("not compared: there is no night before, or no verdict of tonight")
        return
    words = ["compare", str(night.previous), str(night.run), *night.margins, "format=markdown"]
    night.note("compare", command(words))


def selftest_step(night: Night, command: Command) -> None:
    """Damages what the cache holds, and looks whether the gate says so."""
    if not night.selftest or night.code("run") not in JUDGED:
        print("no negative control: it belongs to another job, or tonight's run has no verdict")
        return
    with WithoutSummary():
        words = ["selftest", "short", *night.overrides, *checkpoint(night), f"run_id={night.control.name}"]
        night.note("selftest", command(words))


def measure_step(night: Night, command: Command) -> None:
    """All steps up to the negative control, for a job that shows them as one."""
    for step in (doctor_step, run_step, report_step, compare_step, selftest_step):
        step(night, command)


def gate_step(night: Night, command: Command) -> int:
    """Decides, and says why."""
    decision = decide(
        night.code("doctor"),
        night.code("run"),
        night.code("report"),
        night.code("compare"),
        night.code("selftest"),
        control=night.selftest,
        why=reasons(night.run),
    )
    sign = "✓" if decision.code == 0 else "✗"
    lines = [f"### {sign} {night.model}: {decision.sentence}", "", *(f"- {note}" for note in decision.notes)]
    tell("\n".join([*lines, f"- exit code {decision.code}: {meaning(decision.code)}", ""]))
    return decision.code


def clean_step(night: Night, command: Command) -> int:
    """Ends what a killed run has left on this machine: processes, ports, shared memory. The results stay."""
    codes = [command(["clean", str(path)]) for path in (night.run, night.control) if path.is_dir()]
    return max(codes, default=0)


def matrix_step(environment: Mapping[str, str]) -> int:
    """Prints the night's jobs for a matrix; ``GATE_MODELS`` chooses some by name, by default all."""
    entries: list[dict[str, Any]] = json.loads(MODELS.read_text())
    chosen = environment.get("GATE_MODELS", "all").replace(",", " ").split() or ["all"]
    known = [str(entry["model"]) for entry in entries]
    unknown = [name for name in chosen if name not in ("all", *known)]
    if unknown:
        print(f"error: {unknown[0]} is no model of the night; known: all, {', '.join(known)}.", file=sys.stderr)
        return USAGE
    picked = [entry for entry in entries if "all" in chosen or entry["model"] in chosen]
    line = f"matrix={json.dumps({'include': picked})}"
    print(line)
    if file := environment.get("GITHUB_OUTPUT"):
        with Path(file).open("a") as out:
            print(line, file=out)
    return 0


STEPS: Mapping[str, Callable[[Night, Command], int | None]] = {
    "doctor": doctor_step,
    "run": run_step,
    "report": report_step,
    "compare": compare_step,
    "selftest": selftest_step,
    "measure": measure_step,
    "gate": gate_step,
    "clean": clean_step,
}
"""Name -> step, in the order of a night; ``measure`` stands for all before it."""


class WithoutSummary:
    """Keeps a command from writing the job's summary: `report` writes it, once."""

    def __enter__(self) -> None:
        self.file = os.environ.pop("GITHUB_STEP_SUMMARY", None)

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            os.environ["GITHUB_STEP_SUMMARY"] = self.file


def checkpoint(night: Night) -> list[str]:
    """The override that names the checkpoint's folder, where the model is known by its name on the hub: the negative
    control exchanges weights behind a path.
    """
    from harness.cli import compose_config

    path = compose_config(night.overrides).model.path
    if Path(path).expanduser().is_dir():
        return []
    from huggingface_hub import snapshot_download

    return [f"model.path={snapshot_download(path)}"]


def reasons(folder: Path) -> list[str]:
    """The run's own reasons, as far as it has written any."""
    try:
        record = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        return []
    told = [record["error"]] if record.get("error") else record.get("reasons") or []
    return [str(each).rstrip(".") for each in told]


def tell(text: str) -> None:
    """Prints Markdown, and appends it to the job's summary where there is one."""
    print(text)
    if file := os.environ.get("GITHUB_STEP_SUMMARY"):
        from harness.report.job_summary import append_summary

        append_summary(Path(file), f"{text.rstrip()}\n\n")


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs one step and returns its exit code, which is 0 for all but `gate`, `clean` and `matrix`."""
    if len(arguments) != 1 or arguments[0] not in ("matrix", *STEPS):
        print(f"usage: python -m harness.nightly {'|'.join(['matrix', *STEPS])}", file=sys.stderr)
        return USAGE
    (step,) = arguments
    if step == "matrix":
        return matrix_step(environment)
    try:
        night = settings(environment)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    from harness import cli

    return STEPS[step](night, cli.main) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
