"""Which cells of two runs are the same point, and which of their documents are the same question."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.report.runs import Run
from harness.sweep import budget_in_blocks

CELL_ID = re.compile(r"^budget(?P<budget>\d+)-(?P<point>.+)-r(?P<repeat>\d+)$")

REQUESTS = ("pass", "doc_id", "prompt_sha256", "sent_s", "ttft_s", "finished_s", "output_tokens", "error")
SAMPLES = ("pass", "doc_id", "score")

Columns = pd.DataFrame | Mapping[str, NDArray[Any]]
"""A table by the names of its columns, which are all as long."""


class Point(NamedTuple):
    """Where a cell lies in a sweep; budgets are told in N, so that runs at another N can be matched."""

    model: str
    budget: str
    """``2N-1``."""
    target: str
    """What is retrieved or damaged: ``full``, ``hit0.50``, ``after4``, a variant or a kind of damage."""

    def __str__(self) -> str:
        return f"{self.model}, budget {self.budget}, {self.target}"


class Key(NamedTuple):
    """A cell."""

    point: Point
    repeat: int

    def __str__(self) -> str:
        return f"{self.point}, repeat {self.repeat}"


@dataclass(frozen=True, slots=True)
class CellData:
    """A cell with what it says of single documents; tables that are not there are empty."""

    cell: Mapping[str, Any]
    requests: Columns
    samples: Columns

    @property
    def prompts(self) -> int:
        """Different prompts that were asked; 0 where neither table is there."""
        return len(set(self.samples["doc_id"]) | set(self.requests["doc_id"]))


@dataclass(frozen=True, slots=True)
class Pairing:
    """Documents that both cells have asked in the same words."""

    documents: frozenset[int]
    whole: bool
    """Whether these are all, in both: not where a cell ended early, at a look, unless both did at the same one."""
    known: bool
    """Whether it can be told at all, of prompts by their hashes."""


def key_of(model: str, cell: Mapping[str, Any]) -> Key:
    """Where a cell lies; a name of an unknown form is a point of its own."""
    found = CELL_ID.match(str(cell.get("cell")))
    budget, size = cell.get("budget"), cell.get("unified_block_size")
    words = budget_in_blocks(int(budget), int(size)) if budget and size else str(budget)
    return Key(Point(model, words, found["point"] if found else str(cell.get("cell"))), int(cell.get("repeat") or 1))


def matched(a: Run, b: Run) -> tuple[dict[Key, tuple[Mapping[str, Any], Mapping[str, Any]]], list[Key], list[Key]]:
    """Cells that both runs have, in A's order, those that A alone has, and those that B alone has."""
    of_a, of_b = ({key_of(model_of(run), cell): cell for cell in run.cells} for run in (a, b))
    both = {key: (cell, of_b[key]) for key, cell in of_a.items() if key in of_b}
    return both, [key for key in of_a if key not in of_b], [key for key in of_b if key not in of_a]


def model_of(run: Run) -> str:
    """The model of a run."""
    return str(run.record.get("model") or "unknown")


def read_cell(path: Path, cell: Mapping[str, Any]) -> CellData:
    """The tables of a cell in a run's folder; reference runs were stripped of some."""
    folder = path / "cells" / str(cell.get("cell"))
    return CellData(cell, _table(folder / "requests.parquet", REQUESTS), _table(folder / "samples.parquet", SAMPLES))


def pair(a: CellData, b: CellData) -> Pairing:
    """Documents with the same prompt: all that both have where the sets of prompts have the same hash, else those
    with the same id and the same hash of their own.
    """
    hashes = [each.cell.get("prompt_set_sha256") for each in (a, b)]
    if hashes[0] is not None and hashes[0] == hashes[1]:
        ids = [np.union1d(each.samples["doc_id"], each.requests["doc_id"]) for each in (a, b)]
        early = any(looks["asked"] < looks["questions"] for each in (a, b) if (looks := each.cell.get("looks")))
        both = frozenset(map(int, np.intersect1d(ids[0], ids[1], assume_unique=True)))
        return Pairing(both, not early or np.array_equal(ids[0], ids[1]), True)
    prompts = [_prompts(each) for each in (a, b)]
    if not all(prompts):
        return Pairing(frozenset(), False, None not in hashes)
    same = {doc_id for doc_id, sha in prompts[0].items() if prompts[1].get(doc_id) == sha}
    return Pairing(frozenset(same), len(same) == len(prompts[0]) == len(prompts[1]), True)


def first_rows(table: Columns, chosen: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Documents among the chosen rows, ascending, and the first of these rows that each has."""
    rows = np.flatnonzero(chosen)
    documents, first = np.unique(np.asarray(table["doc_id"])[rows], return_index=True)
    return documents, rows[first]


def of_pass(table: Columns, name: str) -> NDArray[np.bool_]:
    """Which rows are of a pass."""
    return np.asarray(np.asarray(table["pass"], dtype=object) == name, dtype=bool)


def _prompts(data: CellData) -> dict[int, str]:
    hashes = np.asarray(data.requests["prompt_sha256"])
    documents, rows = first_rows(data.requests, np.ones(len(hashes), dtype=bool))
    return {int(document): str(hashes[row]) for document, row in zip(documents, rows, strict=True)}


def _table(path: Path, columns: Sequence[str]) -> Columns:
    """Columns of a file; a run of many cells has thousands of them, so only these are read, and without pandas, which
    takes several times as long over a file of a few hundred rows.
    """
    try:
        with pq.ParquetFile(path) as file:
            if set(columns) <= set(file.schema_arrow.names):
                found = file.read(list(columns), use_threads=False)
                return {name: found[name].to_numpy() for name in columns}
    except (OSError, ValueError, KeyError):
        pass
    return {column: np.empty(0) for column in columns}
