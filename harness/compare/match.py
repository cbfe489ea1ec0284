"""Which cells of two runs are the same point, and which of their documents are the same question."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from harness.report.runs import Run
from harness.sweep import budget_in_blocks

CELL_ID = re.compile(r"^budget(?P<budget>\d+)-(?P<point>.+)-r(?P<repeat>\d+)$")

REQUESTS = ("pass", "doc_id", "prompt_sha256", "sent_s", "ttft_s", "finished_s", "output_tokens", "error")
SAMPLES = ("pass", "doc_id", "score")


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
    requests: pd.DataFrame
    samples: pd.DataFrame


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
        ids = [set(each.samples["doc_id"]) | set(each.requests["doc_id"]) for each in (a, b)]
        early = any(looks["asked"] < looks["questions"] for each in (a, b) if (looks := each.cell.get("looks")))
        return Pairing(frozenset(map(int, ids[0] & ids[1])), not early or ids[0] == ids[1], True)
    prompts = [_prompts(each) for each in (a, b)]
    if not all(prompts):
        return Pairing(frozenset(), False, None not in hashes)
    same = {doc_id for doc_id, sha in prompts[0].items() if prompts[1].get(doc_id) == sha}
    return Pairing(frozenset(same), len(same) == len(prompts[0]) == len(prompts[1]), True)


def _prompts(data: CellData) -> dict[int, str]:
    rows = data.requests.drop_duplicates("doc_id")
    return {int(doc_id): str(sha) for doc_id, sha in zip(rows["doc_id"], rows["prompt_sha256"], strict=True)}


def _table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        return pd.read_parquet(path, columns=list(columns))
    except (OSError, ValueError, KeyError):
        empty: dict[Hashable, list[Any]] = {column: [] for column in columns}
        return pd.DataFrame(empty)
