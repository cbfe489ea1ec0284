"""Complete runs for the tests of reports, judged from made evidence; no server has run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evidence import healthy
from repro_support import CELL, broken, ill_run, not_retrieved

from harness.equivalence.evidence import Evidence
from harness.report.runs import Run, read_run
from harness.repro.bundle import write_bundle
from harness.store import read_json, write_json

EVIL = "<script>alert(1)</script>"
"""What must never reach a page as markup."""


def make_run(folder: Path, evidence: Evidence | None = None, *overrides: str, **record: Any) -> Path:
    """A complete run with one cell, its repro bundle where it is ill; ``record`` changes run.json."""
    run = ill_run(folder, evidence or healthy(), *overrides)
    verdict = read_json(run.cell(CELL) / "cell.json")["verdict"]
    told = read_json(run.path / "run.json")
    told |= {"schema": 1, "status": "complete", "verdict": verdict, "error": None, "model": "pocket", "warnings": []}
    told |= {"reasons": [f"{CELL}: {verdict}"], "predicted_block_size": 64, "unified_block_size": 64, "launches": {}}
    write_json(run.path / "run.json", told | record)
    write_bundle(run, CELL)
    return run.path


def passing(folder: Path) -> Path:
    """A run that passes."""
    return _copy("passing", folder)


def failing(folder: Path) -> Path:
    """A run whose warm answers are worse."""
    return _copy("failing", folder)


def invalid(folder: Path) -> Path:
    """A run that retrieved nothing."""
    return _copy("invalid", folder)


def _copy(kind: str, folder: Path) -> Path:
    return shutil.copytree(Path(_made(kind).name) / "run", folder / "run")


@cache
def _made(kind: str) -> TemporaryDirectory[str]:
    """Judging takes a second, so it is done once; the folder goes when the tests end."""
    folder = TemporaryDirectory()
    made: dict[str, Callable[[], Evidence]] = {"passing": healthy, "failing": broken, "invalid": not_retrieved}
    make_run(Path(folder.name), made[kind]())
    return folder


def change_cell(path: Path, change: Callable[[dict[str, Any]], None]) -> Run:
    """The run, after its cell.json was changed in place."""
    file = path / "cells" / CELL / "cell.json"
    cell = read_json(file)
    change(cell)
    write_json(file, cell)
    return read_run(path)


def cell_of(path: Path) -> dict[str, Any]:
    """Contents of the run's cell.json."""
    return read_json(path / "cells" / CELL / "cell.json")
