"""A run that is small enough to be kept in git, and can still be summarized, reported and drawn."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError, UsageError
from harness.selftest.outcomes import TABLE
from harness.selftest.summary import FILE
from harness.store import NewFolder, inside, read_json, write_json

KEPT = ("run.json", "summary.csv", FILE, "selftest.csv", TABLE, "figures/selftest.png", "figures/selftest.svg")
"""Beside every ``cell.json``: :data:`TABLE` has what the detectors need of each document, so that launches, evidence
and answers (some 30 MB of a full selftest) can go."""


def reduce_run(path: Path, to: Path) -> Path:
    """Copies what is kept of a summarized run, with paths of this machine shortened.

    Args:
        path: the run's folder; ``selftest.json`` must be there.
        to: the new folder, which must not exist; its name becomes the run's.

    Raises:
        UsageError: it exists, or the run was not summarized.
        HarnessError: the disk refuses.
    """
    if to.exists():
        raise UsageError(f"into={to} exists already: remove it, or choose another folder.")
    if not (path / FILE).is_file():
        raise UsageError(f"{path} holds no {FILE}: python -m harness selftest from={path} writes it.")
    try:
        with NewFolder(to) as folder:
            for name in KEPT:
                if (path / name).is_file() and inside(path / name, path):
                    (folder / name).parent.mkdir(exist_ok=True)
                    shutil.copyfile(path / name, folder / name)
            for cell in sorted(each for each in (path / "cells").glob("*/cell.json") if inside(each, path)):
                (folder / "cells" / cell.parent.name).mkdir(parents=True)
                shutil.copyfile(cell, folder / "cells" / cell.parent.name / "cell.json")
            for name in ("run.json", FILE):
                renamed = _rename(read_json(folder / name), path.resolve().name, to.name)
                write_json(folder / name, _shorten(renamed, _machine(path)))
    except OSError as error:
        raise HarnessError(f"{to} can't be written: {error.strerror or error}.") from error
    return to


def _machine(path: Path) -> list[str]:
    """Prefixes that say nothing elsewhere, longest first."""
    checkout = Path(__file__).resolve().parents[2]
    folders = [checkout, path.resolve().parent.parent, Path.home(), Path(sys.prefix)]
    return sorted((f"{each}/" for each in folders if len(each.parts) > 1), key=len, reverse=True)


def _shorten(value: object, prefixes: Sequence[str]) -> dict[str, object]:
    """The same object with these prefixes cut off the beginning of its strings."""
    shortened = _each(value, prefixes)
    assert isinstance(shortened, dict)
    return shortened


def _each(value: object, prefixes: Sequence[str]) -> object:
    if isinstance(value, dict):
        return {name: _each(each, prefixes) for name, each in value.items()}
    if isinstance(value, list):
        return [_each(each, prefixes) for each in value]
    if isinstance(value, str):
        return next((value.removeprefix(each) for each in prefixes if value.startswith(each)), value)
    return value


def _rename(told: dict[str, object], old: str, new: str) -> dict[str, object]:
    """A record under the run's new name: its ``run_id``, and in a summary the names of runs."""
    if "run_id" in told:
        return told | {"run_id": new}
    runs, cells = told["runs"], told["cells"]
    assert isinstance(runs, dict) and isinstance(cells, list)
    return told | {
        "runs": {new if name == old else name: run for name, run in runs.items()},
        "cells": [cell | {"run": new if cell["run"] == old else cell["run"]} for cell in cells],
    }
