"""Arms: several checks as runs of their own, and what becomes of the ones that can't be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evidence import healthy, write_cell

import harness.arms
from harness.arms import Arms, read_arms, run_arms
from harness.cli import compose_config, main
from harness.config import RunConfig
from harness.equivalence.evidence import read_evidence
from harness.equivalence.judge import judge_cell
from harness.errors import Interrupted, ServerError, UsageError
from harness.overrides import arm_overrides, check_arms, with_arms
from harness.report.progress import RunProgress
from harness.store import RunFolder, read_json, write_json


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["+check=all"], ["check=all"]),
        (["check=all"], ["check=all"]),
        (["check=mixed"], ["check=mixed"]),
        (["+check=mixed"], ["check=all", "check.arms=[mixed]"]),
        (["a=b", "+check=[mixed,l2]"], ["a=b", "check=all", "check.arms=[mixed,l2]"]),
        (["check=[mixed,l2]", "-m"], ["check=all", "check.arms=[mixed,l2]", "-m"]),
    ],
)
def test_arms_as_they_are_typed(typed: list[str], meant: list[str]) -> None:
    assert with_arms(typed) == meant


def test_an_arm_gets_what_the_whole_got_but_what_only_another_arm_understands() -> None:
    typed = ["check=all", "check.arms=[a]", "task.limit=5", "sweep.diverge_after=[2]", "run_id=x", "results_dir=y"]
    assert arm_overrides(typed, "mixed") == ["task.limit=5", "check=mixed"]
    assert arm_overrides(typed, "divergence") == ["task.limit=5", "sweep.diverge_after=[2]", "check=divergence"]


def test_arms_must_be_checks_and_different_ones() -> None:
    check_arms(["mixed", "l2"], ["l2", "mixed"])
    with pytest.raises(UsageError, match="'mixt' is no check; did you mean mixed"):
        check_arms(["mixt"], ["l2", "mixed"])
    with pytest.raises(UsageError, match="names a check twice"):
        check_arms(["l2", "l2"], ["l2", "mixed"])


def whole(folder: Path, *arms: str, **fields: Any) -> RunConfig:
    config = compose_config(["check=all", f"check.arms=[{','.join(arms)}]", f"results_dir={folder}", "engine=cpu"])
    config.run_id = "arms"
    for name, value in fields.items():
        setattr(config, name, value)
    return config


class Runs:
    """In place of the runner: leaves a run's folder, or fails as told."""

    def __init__(self, tmp_path: Path) -> None:
        self.made: list[tuple[str | None, str | None]] = []
        self.failing: dict[str, BaseException] = {}
        self.cell = write_cell(tmp_path / "evidence", healthy(), tmp_path / "passes")

    def compose(self, arm: str) -> RunConfig:
        return compose_config([f"check={arm}", "engine=cpu"])

    def run(self, config: RunConfig, progress: RunProgress) -> tuple[RunFolder, dict[str, Any], int]:
        self.made.append((config.run_id, config.resume))
        arm = config.check.name
        folder = RunFolder(Path(config.results_dir) / arm)
        (folder.path / "cells").mkdir(parents=True, exist_ok=True)
        write_json(folder.path / "run.json", {"status": "failed"})
        if arm in self.failing:
            raise self.failing[arm]
        judged = judge_cell(read_evidence(self.cell), config.gate)
        folder.cell(str(judged["cell"])).mkdir(exist_ok=True)
        write_json(folder.cell(str(judged["cell"])) / "cell.json", judged)
        data = {"status": "complete", "verdict": judged["verdict"], "reasons": ["1 cell: all pass"]}
        write_json(folder.path / "run.json", data)
        return folder, data, 0


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs(tmp_path)
    monkeypatch.setattr(harness.arms, "run", made.run)
    return made


def measure(runs: Runs, config: RunConfig) -> Arms:
    return run_arms(config, runs.compose, RunProgress(), lambda path: None)


def test_an_arm_that_can_not_be_done_or_fails_does_not_stop_the_others(runs: Runs, tmp_path: Path) -> None:
    runs.failing = {"mixed": UsageError("prompts are too short"), "l2": ServerError("vLLM is gone")}
    arms = measure(runs, whole(tmp_path, "mixed", "reset_warm", "l2", "restart_vllm"))
    assert [(each["arm"], each["status"], each["code"]) for each in arms.records] == [
        ("mixed", "refused", 2),
        ("reset_warm", "complete", 0),
        ("l2", "error", 3),
        ("restart_vllm", "complete", 0),
    ]
    assert arms.exit_code == 3
    told = read_json(tmp_path / "arms" / "attribution.json")
    assert [each["arm"] for each in told["arms"]] == ["mixed", "reset_warm", "l2", "restart_vllm"]
    assert {each["arm"] for each in told["not_exercised"]} >= {"mixed", "l2"}
    again = read_arms(tmp_path / "arms")
    assert [(each["arm"], each["status"], each["code"]) for each in again] == [
        (each["arm"], each["status"], each["code"]) for each in arms.records
    ]


def test_a_refused_arm_counts_for_nothing_beside_others(runs: Runs, tmp_path: Path) -> None:
    runs.failing = {"mixed": UsageError("prompts are too short")}
    assert measure(runs, whole(tmp_path, "mixed", "reset_warm")).exit_code == 0
    assert measure(runs, whole(tmp_path, "mixed", run_id="alone")).exit_code == 2


def test_resume_keeps_arms_that_are_complete_and_resumes_the_one_that_is_not(runs: Runs, tmp_path: Path) -> None:
    runs.failing = {"l2": Interrupted("SIGTERM")}
    with pytest.raises(Interrupted) as stopped:
        measure(runs, whole(tmp_path, "reset_warm", "l2", "mixed"))
    assert str(stopped.value.goes_on).startswith(f"python -m harness run resume={tmp_path / 'arms'}, with the same")
    assert [each["arm"] for each in read_json(tmp_path / "arms" / "attribution.json")["arms"]] == ["reset_warm"]
    runs.made, runs.failing = [], {}
    arms = measure(runs, whole(tmp_path, "reset_warm", "l2", "mixed", run_id=None, resume="arms"))
    assert runs.made == [(None, "l2"), ("mixed", None)]
    assert [each["status"] for each in arms.records] == ["complete"] * 3


def test_a_folder_is_not_written_into_twice(runs: Runs, tmp_path: Path) -> None:
    measure(runs, whole(tmp_path, "l2"))
    with pytest.raises(UsageError, match="exists already"):
        measure(runs, whole(tmp_path, "l2"))
    with pytest.raises(UsageError, match="there are no arms to go on with"):
        measure(runs, whole(tmp_path, "l2", run_id=None, resume="other"))


CHOSEN = ["+check=[mixed,preemption]", "engine=cpu", "task.limit=30"]


@pytest.mark.parametrize("typed", ["+check=all", "check=all"])
def test_all_arms_are_composed_as_a_run_does(typed: str) -> None:
    assert len(compose_config([typed, "engine=cpu"]).check.arms) == 12


def test_the_plan_of_arms_is_each_arms_and_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *CHOSEN]) == 0
    out = capsys.readouterr().out
    assert "arm 1 of 2: mixed" in out and "arm 2 of 2: preemption" in out
    assert "30 questions x 3 passes = 90 requests" in out and "30 questions x 4 passes = 120 requests" in out
    assert "in all: 2 arms, 2 launches, 210 requests, " in out.splitlines()[-1]


def test_the_plan_of_arms_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *CHOSEN, "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["arm"] for each in told["arms"]] == ["mixed", "preemption"]
    plans = [each["plan"] for each in told["arms"]]
    for name in ("requests", "prompt_tokens"):
        assert told[name] == sum(plan[name] for plan in plans)
    assert (told["launches"], told["requests"], plans[0]["requests"]) == (2, 210, 90)


def test_an_arm_that_can_not_be_done_is_told_and_the_others_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    # Only a check that seeds the cache can reach a hit rate.
    assert main(["plan", "+check=[reset_warm,l2]", "engine=cpu", "sweep.hit_rates=[0.5]"]) == 0
    out = capsys.readouterr().out
    assert out.count("can't be tried: ") == 1
    assert "in all: 1 of 2 arms (1 can't be tried), 1 launch, " in out
    assert main(["plan", "+check=[l2]", "engine=cpu", "sweep.hit_rates=[0.5]"]) == 2
    assert "in all: 0 of 1 arm (1 can't be tried)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "doctor"])
def test_an_arm_that_is_no_check_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "+check=[mixt]", "engine=cpu"]) == 2
    assert capsys.readouterr().err == "error: check.arms: 'mixt' is no check; did you mean mixed?\n"
