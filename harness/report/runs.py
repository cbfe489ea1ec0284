"""A results folder as reports read it: tolerant of what older, failed and unfinished runs lack.

What isn't there was not measured: it is told as such, and never stops a report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.equivalence.verdict import WORST_FIRST, Verdict, counted_cells
from harness.errors import HarnessError, UsageError
from harness.repro.bundle import FOLDER as REPRO
from harness.store import RECORD, RunFolder, inside, read_json, read_record

ATTRIBUTION = "attribution.json"
LOGS = ("vllm.log", "lmcache.log")


@dataclass(frozen=True, slots=True)
class Run:
    """What a results folder holds."""

    path: Path
    """As it was named, for commands that a reader may type."""
    record: Mapping[str, Any]
    """Contents of run.json."""
    cells: tuple[Mapping[str, Any], ...]
    """Contents of every complete cell's cell.json, in the order in which they were measured."""

    @property
    def id(self) -> str:
        """Its name."""
        return str(self.record.get("run_id") or self.path.resolve().name)

    @property
    def status(self) -> str:
        """``running``, ``complete``, ``failed`` or ``interrupted``."""
        return str(self.record.get("status") or "unknown")

    @property
    def verdict(self) -> str | None:
        """Of the run; None where it has none."""
        verdict = self.record.get("verdict")
        return None if verdict is None else str(verdict)

    @property
    def check(self) -> str | None:
        """The check that was run."""
        name = find(self.record, "config", "check", "name")
        return None if name is None else str(name)

    def repro(self, cell: Mapping[str, Any]) -> Path | None:
        """The repro bundle of a cell, if it has one."""
        path = self.path / "cells" / str(cell.get("cell")) / REPRO
        return path if inside(path, self.path) and (path / "bundle.json").is_file() else None

    def logs(self) -> list[Path]:
        """Server logs of all launches, in the order of the launches' names."""
        return [
            path
            for launch in sorted((self.path / "launches").glob("*"))
            for path in _present(launch, LOGS)
            if inside(path, self.path)
        ]


def read_run(path: Path) -> Run:
    """Reads a results folder.

    Raises:
        UsageError: it holds no run, or a file of it is not JSON.
    """
    record = read_record(path)
    try:
        cells = tuple(RunFolder(path).cells())
    except KeyError as error:
        raise UsageError(
            f"{path} has a cell without {error}, which docs/results.md wants in every cell.json."
        ) from error
    return Run(path, record, cells)


def expand(paths: Sequence[Path]) -> list[Path]:
    """The runs that were named; a folder that is none but holds some stands for those, by name."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(each.parent for each in path.glob(f"*/{RECORD}"))
        found += inside if inside and not (path / RECORD).exists() else [path]
    return found


def read_attribution(folder: Path) -> Mapping[str, Any] | None:
    """What the arms beside one another came to, from the folder that holds their runs; None where nothing says so."""
    try:
        return read_json(folder / ATTRIBUTION)
    except HarnessError:
        return None


def find(data: Any, *path: str) -> Any:
    """A value deep inside nested mappings; None where any of them is missing."""
    for name in path:
        if not isinstance(data, Mapping):
            return None
        data = data.get(name)
    return data


def as_counted(run: Run) -> list[tuple[str, str]]:
    """Every cell's verdict as it counts in its run, after Holm's correction over the cells, and what that came to.

    The sentence is empty where nothing was corrected. Cells of earlier versions lack what the correction reads; their
    own verdicts stand.
    """
    own = [str(cell.get("verdict")) for cell in run.cells]
    try:
        counted = counted_cells(run.cells)
    except (KeyError, TypeError, ValueError):
        return [(verdict, "") for verdict in own]
    several = len(own) > 1
    return [
        (verdict.value, sentence if several and alone == Verdict.FAIL else "")
        for alone, (verdict, sentence) in zip(own, counted, strict=True)
    ]


def telling_rank(cell: Mapping[str, Any]) -> tuple[int, bool, float, float]:
    """Sorts cells by how soon a reader should look: the worst verdict, then the least certain to be equal."""
    verdict, tost = cell.get("verdict"), find(cell, "paired", "tost_p")
    severity = WORST_FIRST.index(Verdict(verdict)) if verdict in set(Verdict) else len(WORST_FIRST)
    drift = find(cell, "drift", "p")
    return severity, tost is None, 1.0 if drift is None else float(drift), -float(tost or 0)


def most_telling(cells: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The cell that a reader should look at first; the first of equals, None of none."""
    return min(cells, key=telling_rank, default=None)


def relative(path: Path, start: Path) -> str:
    """A path as a link in a report that lies in ``start`` has to say it."""
    return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()


def _present(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]
