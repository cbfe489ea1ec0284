"""The jobs of a multirun: as Hydra's sweeper makes them, and all of them checked before the first is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

import harness.cli.run
from harness.cli import main
from harness.cli.beforehand import checked_jobs, jobs_of
from harness.errors import UsageError

Captured = pytest.CaptureFixture[str]


def test_jobs_are_those_of_hydras_sweeper() -> None:
    overrides = ["task.limit=5,6", "model=pocket", "gate=equivalence,threshold", "sweep.budgets=[64,127]"]
    parsed = OverridesParser.create().parse_overrides(overrides)
    (theirs,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    assert list(jobs_of(overrides)) == theirs and len(theirs) == 4


def test_what_is_hydras_is_no_field() -> None:
    assert list(jobs_of(["hydra/launcher=basic", "hydra.sweep.dir=x", "task.limit=5"])) == [["task.limit=5"]]
    assert list(jobs_of(["run_id=night-${hydra:job.num}", "task.limit=5"])) == [["task.limit=5"]]
    assert list(jobs_of(["hydra/sweeper=optuna", "task.limit=interval(1,5)"])) == []


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["task.limit=0,5"], "one job can't be done, task.limit=0: task.limit=0 is out of range"),
        (["task.limit=5,0"], "one job can't be done, task.limit=0: task.limit=0 is out of range"),
        (["model=pocket,pockt"], "one job can't be done, model=pockt: "),
        (["+check=[mixt]", "task.limit=5,6"], "check.arms: 'mixt' is no check"),
        (["task.limit=5,[", "model=pocket"], "mismatched input"),
    ],
)
def test_nothing_starts_where_one_job_can_not_be_done(
    overrides: list[str], told: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.cli.run, "run", lambda *_: pytest.fail("a job was started"))
    assert main(["run", "-m", *overrides, f"hydra.sweep.dir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1 and "Traceback" not in err


def test_good_jobs_are_as_they_were_typed() -> None:
    typed: list[Any] = ["-m", "task.limit=5,6", "engine=cpu"]
    assert checked_jobs(typed) == typed
    with pytest.raises(UsageError, match="without --"):
        checked_jobs(["--task.limit=5"])
