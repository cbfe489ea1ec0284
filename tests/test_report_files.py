"""The report's files: where they go, what they replace, and what becomes of a run that ends with them."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
from junitparser import JUnitXml
from report_support import change_cell, failing, passing

from harness.cli import main
from harness.errors import HarnessError
from harness.report import files
from harness.store import RunFolder, read_json, write_json

Captured = pytest.CaptureFixture[str]

WRITTEN = {"report.html", "report.md", "summary.csv", "junit.xml"}


def everything(path: Path) -> dict[Path, bytes]:
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_one_run_holds_its_own_report(tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path)
    before = everything(path)
    assert main(["report", str(path)]) == 0
    after = everything(path)
    assert {name: after[name] for name in before} == before, "what the run wrote stays as it was"
    assert {str(name) for name in after.keys() - before.keys()} == WRITTEN
    out = capsys.readouterr().out
    assert f"report: {(path / 'report.html').as_uri()}\n" in out
    assert out.index("PASS:") < out.index("report: ")


def test_the_same_run_gives_the_same_report(tmp_path: Path) -> None:
    path = failing(tmp_path)
    main(["report", str(path)])
    before = everything(path)
    main(["report", str(path)])
    assert everything(path) == before


def test_runs_beside_one_another(tmp_path: Path) -> None:
    one, other = passing(tmp_path / "a").rename(tmp_path / "one"), failing(tmp_path / "b").rename(tmp_path / "other")
    assert main(["report", str(one), str(other)]) == 0
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == WRITTEN
    assert not (one / "report.html").exists()
    frame = pd.read_csv(tmp_path / "summary.csv")
    assert list(frame.columns[:2]) == ["run", "cell"] and len(frame) == 8
    assert len(list(JUnitXml.fromfile(str(tmp_path / "junit.xml")))) == 2


def test_a_folder_of_runs_stands_for_them(tmp_path: Path, capsys: Captured) -> None:
    passing(tmp_path / "a").rename(tmp_path / "one")
    failing(tmp_path / "b").rename(tmp_path / "other")
    write_json(
        tmp_path / "attribution.json",
        {"arms": [{"arm": "one", "verdict": "pass"}], "row": "several", "meaning": "odd one out"},
    )
    assert main(["report", str(tmp_path)]) == 0
    assert "odd one out" in (tmp_path / "report.html").read_text()
    out = capsys.readouterr().out
    assert out.index("PASS:") < out.index("FAIL:")


def test_runs_in_different_places_need_to_be_told(tmp_path: Path, capsys: Captured) -> None:
    runs = [str(passing(tmp_path / "a")), str(failing(tmp_path / "b"))]
    assert main(["report", *runs]) == 2
    assert "say where their report goes, with out=DIR" in capsys.readouterr().err
    assert main(["report", *runs, f"out={tmp_path / 'new' / 'folder'}"]) == 0
    assert {file.name for file in (tmp_path / "new" / "folder").iterdir()} == WRITTEN


def test_out_without_a_folder(tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", str(passing(tmp_path)), "out="]) == 2
    assert "out= needs a folder" in capsys.readouterr().err


def test_a_folder_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Root may write anywhere, so the refusal is made."""
    path = passing(tmp_path)

    def refuse(file: Path, data: bytes) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert main(["report", str(path)]) == 3
    out, err = capsys.readouterr()
    assert "PASS:" in out, "the summary is shown anyway"
    assert f"error: {path} can't be written: Read-only file system. Name another folder with out=DIR." in err


def test_out_is_a_file(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["report", str(passing(tmp_path)), f"out={tmp_path / 'taken'}"]) == 3
    assert "can't be written: File exists" in capsys.readouterr().err


@pytest.mark.parametrize("lacks", ["passes", "agreement", "hit_rate", "drift"])
def test_a_run_of_another_version_has_its_report(lacks: str, tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path)
    change_cell(path, lambda cell: cell.pop(lacks))
    assert main(["report", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "report: file://" in out and "Traceback" not in out + err
    assert (lacks == "drift") or f"lacks '{lacks}'" in out
    assert (path / "summary.csv").is_file()


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one cell that has just failed its model, instead of real servers."""
    path = failing(tmp_path)
    record = read_json(path / "run.json")
    monkeypatch.setattr("harness.cli.run.run", lambda config, progress: (RunFolder(path), record, 1))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return path


def test_a_run_ends_with_its_report(ended: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu"]) == 1
    assert f"report: {(ended / 'report.html').as_uri()}" in capsys.readouterr().err
    assert (ended / "junit.xml").is_file()


@pytest.mark.parametrize("error", [HarnessError("the disk is full."), ValueError("a bug"), ZeroDivisionError()])
def test_a_report_that_fails_loses_nothing(
    error: Exception, ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fails(*_: object) -> Path:
        raise error

    monkeypatch.setattr(files, "write_report", fails)
    assert main(["run", "engine=cpu"]) == 1, "the verdict's"
    told = str(error).rstrip(".") or "ZeroDivisionError"
    err = capsys.readouterr().err
    assert f"warning: the report was not written: {told}. Try again: python -m harness report {ended}" in err


def test_out_is_a_folder_and_no_page(tmp_path: Path, capsys: Captured) -> None:
    path = str(passing(tmp_path))
    assert main(["report", path, f"out={tmp_path / 'x' / 'r.html'}"]) == 2
    assert f"r.html names a file: out= is the folder for report.html and the others: out={tmp_path / 'x'}" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "x").exists()
