"""junit.xml: what CI makes of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from report_support import EVIL, cell_of, change_cell, failing, invalid, make_run, passing

from harness.report.junit import junit
from harness.report.runs import read_run
from harness.store import read_json, write_json


def suites(*paths: Path) -> list[TestSuite]:
    """Parsed back from the bytes that would be written."""
    return list(JUnitXml.fromstring(junit([read_run(path) for path in paths])))


def case_of(path: Path) -> TestCase:
    (suite,) = suites(path)
    (case,) = list(suite)
    return case


def test_a_pass(tmp_path: Path) -> None:
    path = passing(tmp_path)
    case = case_of(path)
    assert case.is_passed
    assert case.name == "budget127-full-r1" and case.classname == "run"
    assert case.time == pytest.approx(sum(each["wall_s"] for each in cell_of(path)["passes"].values()))


@pytest.mark.parametrize(("make", "kind", "verdict"), [(failing, Failure, "fail"), (invalid, Error, "invalid")])
def test_what_did_not_pass(make: Callable[[Path], Path], kind: type, verdict: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    (result,) = case_of(path).result
    assert isinstance(result, kind) and result.type == verdict
    assert result.message == cell_of(path)["reasons"][0]
    assert result.text == "\n".join(cell_of(path)["reasons"])


def test_doubt_is_skipped_with_the_reason(tmp_path: Path) -> None:
    path = passing(tmp_path)
    change_cell(path, lambda cell: cell.update(verdict="inconclusive", reasons=["too few"]))
    (result,) = case_of(path).result
    assert isinstance(result, Skipped) and result.message == "too few"


def test_a_failure_that_does_not_count_in_its_run(tmp_path: Path) -> None:
    path = failing(tmp_path)

    def nearly(cell: dict[str, Any]) -> None:
        cell["drift"]["p"] = cell["paired"]["mcnemar_p"] = 0.04
        cell["paired"]["loss_p"] = 1.0

    run = change_cell(path, nearly)
    for name in ("second", "third"):
        cell = dict(run.cells[0]) | {"cell": name, "verdict": "pass", "drift": {"p": 0.9}}
        cell["paired"] = run.cells[0]["paired"] | {"mcnemar_p": 0.9, "loss_p": 1.0, "tost_p": 0.001}
        (path / "cells" / name).mkdir()
        write_json(path / "cells" / name / "cell.json", cell)
    (suite,) = suites(path)
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (3, 0, 0, 1)
    (skipped,) = (case for case in suite if case.is_skipped)
    assert skipped.name == "budget127-full-r1"
    assert "not below 0.05 among so many" in str(skipped.result[0].text)


def test_a_speed_only_cell_passes(tmp_path: Path) -> None:
    path = passing(tmp_path)
    change_cell(path, lambda cell: cell.update(paired=None, drift=None, reasons=["speed only"]))
    assert case_of(path).is_passed


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_a_run_that_did_not_complete(status: str, tmp_path: Path) -> None:
    path = make_run(tmp_path, status=status, verdict=None, error="vLLM\x1b[31m exited\x00")
    (suite,) = suites(path)
    assert (suite.tests, suite.errors) == (2, 1)
    (case,) = (case for case in suite if case.is_error)
    assert case.name == "run"
    assert "vLLM\N{REPLACEMENT CHARACTER}[31m exited" in str(case.result[0].text), "what XML can't hold is replaced"


def test_several_runs_are_several_suites(tmp_path: Path) -> None:
    found = suites(passing(tmp_path / "a"), failing(tmp_path / "b"))
    assert [(suite.tests, suite.failures) for suite in found] == [(1, 0), (1, 1)]


def test_names_are_text(tmp_path: Path) -> None:
    path = failing(tmp_path)
    write_json(path / "run.json", read_json(path / "run.json") | {"run_id": EVIL})
    change_cell(path, lambda cell: cell.update(reasons=[EVIL]))
    assert EVIL.encode() not in junit([read_run(path)])
    (suite,) = suites(path)
    assert suite.name == EVIL


def test_a_cell_of_another_version(tmp_path: Path) -> None:
    path = passing(tmp_path)

    def without(cell: dict[str, Any]) -> None:
        for name in ("passes", "reasons", "paired", "drift", "gate"):
            del cell[name]

    change_cell(path, without)
    assert case_of(path).time == 0
