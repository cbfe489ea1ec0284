"""The command line that replays a bundle: the stored configuration, what may be given beside it, and what is shown."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence import healthy
from repro_support import CELL, broken, ill_run
from stack_support import composed

from harness.cli import main
from harness.config import RunConfig
from harness.equivalence.evidence import read_evidence
from harness.equivalence.judge import judge_cell
from harness.errors import UsageError
from harness.report.terminal import replay_line
from harness.repro.bundle import write_bundle
from harness.store import read_json, write_json

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Of a run with some fields that are not the usual ones."""
    overrides = ("check=flipped_bytes", "task.limit=60", "load.seed=5", "gate.margin=0.04", "sweep.budgets=[N,2N-1]")
    path = write_bundle(ill_run(tmp_path, broken(), *overrides), CELL)
    assert path is not None
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations of the runs that a command would begin."""
    seen: list[RunConfig] = []

    def run(config: RunConfig, progress: Any) -> None:
        seen.append(config)
        raise UsageError("enough")

    monkeypatch.setattr("harness.cli.run.run", run)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return seen


def test_the_stored_configuration_counts(bundle: Path, asked: list[RunConfig], tmp_path: Path) -> None:
    main(["run", f"replay={bundle}", f"results_dir={tmp_path / 'new'}"])
    (config,) = asked
    began = composed("check=flipped_bytes", "task.limit=20", "load.seed=5", "gate.margin=0.04", "sweep.budgets=[127]")
    assert config == replace(began, replay=str(bundle), results_dir=str(tmp_path / "new"))


def test_overrides_go_on_top_of_it(bundle: Path, asked: list[RunConfig]) -> None:
    main(
        [
            "run",
            f"replay={bundle}",
            "check=reset_warm",
            "gate.alpha=0.01",
            "servers.vllm.python=/other/python",
            "+engine.env.NEW=1",
            "task.floor=0.4",
            "run_id=again",
        ]
    )
    (config,) = asked
    assert config.check == composed("check=reset_warm").check
    assert (config.gate.alpha, config.gate.margin, config.task.floor) == (0.01, 0.04, 0.4)
    assert (config.servers.vllm.python, config.engine.env["NEW"]) == ("/other/python", "1")
    assert (config.load.seed, config.sweep.budgets, config.run_id) == (5, [127], "again")


def test_a_replay_asks_all_prompts_at_once(tmp_path: Path, asked: list[RunConfig]) -> None:
    """Few prompts, chosen because they differed: there is nothing to look at in between."""
    path = write_bundle(ill_run(tmp_path, broken(), "gate=quick"), CELL)
    main(["run", f"replay={path}"])
    (config,) = asked
    assert (config.gate.name, config.gate.looks) == ("quick", 1)


def test_every_job_of_a_multirun_has_its_own_overrides(bundle: Path, asked: list[RunConfig], tmp_path: Path) -> None:
    main(["run", "-m", f"replay={bundle}", "check=reset_warm,bypassed", f"hydra.sweep.dir={tmp_path / 'multirun'}"])
    assert [config.check.name for config in asked] == ["reset_warm", "bypassed"]
    assert [config.load.seed for config in asked] == [5, 5]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("task.limit=5", "task.limit=5 can't be given beside replay=, which sends exactly the stored prompts"),
        ("task=gsm8k", "task=gsm8k can't be given beside replay="),
        ("model=qwen3_6_27b", "as tokens of the model that they were made for"),
        ("resume=run", "replay= and resume= can't be given together"),
        ("~strict", "~strict can't be given beside replay="),
        ("check=nope", "Could not find 'check/nope'"),
        ("servers.vllm.pyton=x", "Key 'pyton' not in 'ServerConfig'"),
        ("+nonsense=1", "Key 'nonsense' not in 'RunConfig'"),
        ("load.concurrency=0", "load.concurrency=0 is out of range"),
        ("engine.env=null", "engine.env"),
        ("sweep.budgets.0=64", "sweep.budgets.0"),
    ],
)
def test_what_can_not_stand_beside_it(
    bundle: Path, asked: list[RunConfig], override: str, told: str, capsys: Captured
) -> None:
    assert main(["run", f"replay={bundle}", override]) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert asked == []


def test_what_is_no_bundle(tmp_path: Path, asked: list[RunConfig], capsys: Captured) -> None:
    assert main(["run", f"replay={tmp_path}"]) == 2
    assert f"error: replay={tmp_path} holds no bundle.json: give the repro folder" in capsys.readouterr().err
    assert main(["plan", f"replay={tmp_path}"]) == 2
    assert "plan knows no replay=" in capsys.readouterr().err


def test_a_secret_has_to_be_given_again(bundle: Path, asked: list[RunConfig], capsys: Captured) -> None:
    told = read_json(bundle / "bundle.json")
    told["config"]["engine"]["env"]["API_TOKEN"] = "***"
    write_json(bundle / "bundle.json", told)
    assert main(["run", f"replay={bundle}"]) == 2
    assert "does not hold the secret in engine.env.API_TOKEN: give it beside replay=" in capsys.readouterr().err
    main(["run", f"replay={bundle}", "+engine.env.API_TOKEN=geheim"])
    assert asked[0].engine.env["API_TOKEN"] == "geheim"


def test_report_says_where_the_worst_prompts_are(bundle: Path, tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "run"
    write_json(run / "run.json", {"status": "complete", "verdict": "fail", "error": None})
    assert main(["report", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"worst prompts side by side: {bundle / 'README.md'}\n" in out
    assert f"the same prompts again: python -m harness run replay={bundle}\n" in out


def test_the_summary_of_a_replay(tmp_path: Path, capsys: Captured) -> None:
    facts = replace(healthy().facts, replay_of="run/cell", differed_then=(3, 40, 50))
    run = ill_run(tmp_path, replace(broken(), facts=facts))
    write_json(run.path / "run.json", {"status": "complete", "verdict": "fail", "error": None})
    assert main(["report", str(run.path)]) == 0
    told = (
        "Replay of run/cell: 2 of the 3 prompts that differed then differ now, and 10 of the 117 that did not (in "
        "score, or by more than 0.1 nats in some token)."
    )
    assert told in " ".join(capsys.readouterr().out.split())


def test_a_replay_is_judged_again_from_its_files(tmp_path: Path) -> None:
    facts = replace(healthy().facts, replay_of="run/cell", differed_then=(3,))
    run = ill_run(tmp_path, replace(broken(), facts=facts))
    cell = read_json(run.cell(CELL) / "cell.json")
    evidence = read_evidence(run.cell(CELL))
    assert evidence.facts == facts
    assert judge_cell(evidence, composed().gate)["replay"] == cell["replay"]


def test_no_others_are_counted_where_all_differed(tmp_path: Path) -> None:
    facts = replace(healthy().facts, replay_of="run/cell", differed_then=tuple(range(120)))
    cell = judge_cell(replace(broken(), facts=facts), composed().gate)
    assert "12 of the 120 prompts that differed then differ now (in score" in replay_line(cell)
