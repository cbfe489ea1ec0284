"""What a report says to do: a row for every validity check, and for every way in which a verdict comes about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_support import change_cell, failing, invalid, make_run, passing

from harness.equivalence import validity
from harness.report.advice import CAUSES, CHECKS, DELIBERATE, check_advice
from harness.report.headline import Headline, headline
from harness.report.runs import read_run
from harness.store import read_json, write_json

CONFIG: dict[str, Any] = {
    "task": {"filter": "strict-match", "metric": "exact_match", "shared_blocks": 2, "floor": 0.3},
    "load": {"request_timeout_s": 600.0, "concurrency": 8, "retries": 1},
    "model": {"max_model_len": 4096, "l1_size_gb": 2.0},
    "servers": {"lmcache": {"l1_size_gb": None, "chunk_size": None}},
}

NAMED = [
    ("same_prompts", "requests.parquet"),
    ("all_scored", "task.filter, now strict-match; task.metric, now exact_match"),
    ("no_request_failed", "load.request_timeout_s (now 600.0 s), raise it or lower load.concurrency (now 8)"),
    ("prompts_whole", "model.max_model_len, now 4096"),
    ("cold_not_retried", "load.retries=0 (now 1)"),
    ("cold_no_external_hit", "an LMCache that is empty"),
    ("cold_no_local_hit", "task.shared_blocks=0 (now 2)"),
    ("cold_not_corrupted", "without LMCache"),
    ("stores_landed", "raise servers.lmcache.l1_size_gb (now 2.0 GB"),
    ("seeds_landed", "raise servers.lmcache.l1_size_gb (now 2.0 GB)"),
    ("warm_hit_rate", "servers.lmcache.chunk_size, now not set"),
    ("warm_within_shared", "Do not serve with this build"),
    ("warm_no_external_hit", "LMCache was not empty"),
    ("warm_no_local_hit", "vLLM's own prefix cache served the warm pass"),
    ("lmcache_agrees", "retrieves that failed in lmcache.log"),
    ("competence", "task.floor (now 0.3)"),
]


@pytest.mark.parametrize(("check", "told"), NAMED)
def test_every_check_has_its_advice(check: str, told: str) -> None:
    text = check_advice(check, CONFIG)
    assert told in text
    assert "{" not in text, "every field is filled in"


def test_no_check_is_without_advice() -> None:
    every = {*validity.CHECKS, *validity.SPEED_ONLY_CHECKS, *validity.DIVERGENCE_CHECKS, *validity.REUSE_ONLY_CHECKS}
    names = {check.__name__ for check in every}
    assert names == set(CHECKS) == {check for check, _ in NAMED}
    assert {*CAUSES, *(cause for causes in CAUSES.values() for cause in causes)} <= names


def test_a_check_of_a_later_version() -> None:
    assert "docs/verdict.md" in check_advice("warp_drive_engaged", CONFIG)


def test_what_is_not_configured_is_said_to_be_so() -> None:
    assert "now not set" in check_advice("competence", {})


def of(path: Path) -> Headline:
    return headline(read_run(path))


def told(path: Path) -> list[str]:
    return [f"{each.text} {each.command}".strip() for each in of(path).advice]


def test_nothing_to_do_after_a_pass(tmp_path: Path) -> None:
    assert told(passing(tmp_path)) == []


def test_a_failure(tmp_path: Path) -> None:
    path = failing(tmp_path)
    lines = told(path)
    assert lines[0].startswith("Do not serve")
    assert f"python -m harness run replay={path}/cells/budget127-full-r1/repro" in "\n".join(lines)
    assert lines[-1].endswith("python -m harness run +check=all")


def test_a_failure_that_vllm_has_as_well(tmp_path: Path) -> None:
    path = failing(tmp_path)
    change_cell(path, lambda cell: cell["drift"]["local_warm"].update(drifts=True))
    assert any("vLLM's own prefix cache changes answers as well" in line for line in told(path))


def test_a_failure_by_lmcaches_own_rule(tmp_path: Path) -> None:
    path = failing(tmp_path)
    change_cell(path, lambda cell: cell["gate"].update(mode="lmcache_ci"))
    assert told(path) == ["This rule knows no noise: judge by gate=equivalence before anything is changed."]
    assert of(path).sentence == "LMCache's own rule does not hold; nothing else was judged."


def nearly(cell: dict[str, Any]) -> None:
    """A cell that fails by itself with p = 0.04."""
    cell["drift"]["p"] = cell["paired"]["mcnemar_p"] = 0.04
    cell["paired"]["loss_p"] = 1.0


def test_a_failure_among_many_cells(tmp_path: Path) -> None:
    """Holm's correction has turned it into doubt, so it is no reason to stop serving."""
    path = failing(tmp_path)
    run = change_cell(path, nearly)
    other = run.path / "cells" / "other"
    other.mkdir()
    cell = dict(run.cells[0]) | {"cell": "other", "verdict": "pass", "drift": {"p": 0.9}}
    cell["paired"] = run.cells[0]["paired"] | {"mcnemar_p": 0.9, "loss_p": 1.0, "tost_p": 0.001}
    write_json(other / "cell.json", cell)
    write_json(path / "run.json", read_json(path / "run.json") | {"verdict": "inconclusive"})
    assert told(path) == [
        "budget127-full-r1 fails by itself, but not among so many cells: measure it alone, with more questions than "
        "now."
    ]


def test_a_cause_explains_its_consequences(tmp_path: Path) -> None:
    path = invalid(tmp_path)
    missed = [check["check"] for check in read_run(path).cells[0]["validity"] if not check["ok"]]
    assert missed == ["warm_hit_rate", "lmcache_agrees"]
    (line,) = told(path)
    assert line.startswith("Find out why LMCache served something else")


def test_a_speed_only_pass_of_old(tmp_path: Path) -> None:
    path = passing(tmp_path)
    change_cell(path, lambda cell: cell.update(paired=None, drift=None))
    assert of(path).sentence.startswith("Nothing was compared")


@pytest.mark.parametrize(
    ("paired", "expected"),
    [
        ({"needed_n": 459, "n": 120, "gain_p": 0.5}, "Ask more questions: task.limit=459 (asked: 120)"),
        ({"needed_n": 88, "n": 120, "gain_p": 0.5}, "Ask more questions than 120: task.limit=240"),
        ({"needed_n": 459, "n": 120, "gain_p": 0.01}, "Look at control and local_warm"),
    ],
)
def test_doubt(paired: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = make_run(tmp_path, verdict="inconclusive")

    def doubtful(cell: dict[str, Any]) -> None:
        cell["verdict"] = "inconclusive"
        cell["paired"] |= paired

    change_cell(path, doubtful)
    (line,) = told(path)
    assert line.startswith(expected)


def test_a_replay_that_decides_nothing(tmp_path: Path) -> None:
    path = make_run(tmp_path, verdict="inconclusive")
    replay = {"of": "run/cell", "prompts": 20, "differed_then": 20, "of_these_differ_now": 0, "others_differ_now": 0}
    change_cell(path, lambda cell: cell.update(verdict="inconclusive", replay=replay))
    (line,) = told(path)
    assert line.startswith("A replay is too small")
    assert any("0 of the 20 prompts that differed then differ now" in reason for reason in of(path).reasons)


@pytest.mark.parametrize(("check", "expected"), sorted(DELIBERATE.items()))
def test_damage_on_purpose(check: str, expected: str, tmp_path: Path) -> None:
    path = failing(tmp_path) if expected == "fail" else invalid(tmp_path)
    record = read_json(path / "run.json")
    record["config"]["check"]["name"] = check
    write_json(path / "run.json", record)
    (line,) = told(path)
    assert line.startswith(f"Nothing: check={check} spoils the run on purpose, and {expected} is what")
    write_json(path / "run.json", record | {"verdict": "pass"})
    change_cell(path, lambda cell: cell.update(verdict="pass"))
    (line,) = told(path)
    assert line.startswith("Do not trust this gate") and f"should end in {expected}, not pass" in line


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("failed", "Mend what the error and the servers' logs"),
        ("interrupted", "Go on at the first cell that is missing"),
        ("running", "Wait for its end"),
    ],
)
def test_a_run_without_a_verdict(status: str, expected: str, tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"run_id": "x", "status": status, "verdict": None, "error": "no room"})
    (line,) = told(tmp_path)
    assert line.startswith(expected) and line.endswith("python -m harness run resume=x")
    assert "no verdict" in of(tmp_path).sentence
    assert "Error: no room" in of(tmp_path).reasons


def test_a_complete_run_without_a_cell(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"run_id": "x", "status": "complete", "verdict": "invalid", "error": None})
    assert told(tmp_path) == ["No cell is complete, so nothing was measured: run it again."]
    assert of(tmp_path).sentence == "No cell is complete, so nothing was compared."
