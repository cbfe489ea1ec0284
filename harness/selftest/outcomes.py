"""What a selftest measured: its cells, and in each of them one row per document; read from results folders.

A document's row holds its score cold and warm, and how far warm and local_warm are from cold. That is all that the
detectors look at, so these rows can be mixed, and a run that keeps nothing else can still be judged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.config import GateConfig
from harness.equivalence.divergence import departures
from harness.equivalence.drift import NULLS
from harness.equivalence.evidence import Evidence, read_evidence
from harness.equivalence.verdict import Verdict
from harness.errors import UsageError
from harness.selftest.kinds import NONE, expected_verdict
from harness.store import RunFolder, read_record

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TABLE = "selftest_documents.parquet"
"""In a run's folder: the rows of all its cells, columns ``cell`` and the fields of :class:`Documents`."""

HEALTHY_CHECK = "reset_warm"
"""Runs of this check damage nothing, so that their cells tell about false alarms as well."""


@dataclass(frozen=True, slots=True)
class Documents:
    """One row per document that was scored in cold and warm, in ascending order of ids; all of shape (n,)."""

    doc_id: IntArray
    cold: BoolArray
    """Whether it was answered rightly."""
    warm: BoolArray
    nats: FloatArray
    """``max_nats`` of warm against cold (harness/equivalence/divergence.py); NaN without two answers."""
    null_nats: FloatArray
    """The same of local_warm."""

    def __len__(self) -> int:
        return len(self.doc_id)

    def frame(self) -> pd.DataFrame:
        """As a table."""
        return pd.DataFrame({name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> Documents:
        """From a table with these columns."""
        rows = frame.sort_values("doc_id")
        return cls(
            rows["doc_id"].to_numpy(np.int64),
            rows["cold"].to_numpy(bool),
            rows["warm"].to_numpy(bool),
            rows["nats"].to_numpy(np.float64),
            rows["null_nats"].to_numpy(np.float64),
        )

    def where(self, chosen: BoolArray, others: Documents) -> Documents:
        """Rows of this one where ``chosen``, shape (n,), and those of ``others`` elsewhere: the same documents."""
        return Documents(
            self.doc_id,
            np.where(chosen, self.cold, others.cold),
            np.where(chosen, self.warm, others.warm),
            np.where(chosen, self.nats, others.nats),
            np.where(chosen, self.null_nats, others.null_nats),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measured cell."""

    run: str
    launch: str
    cell: str
    kind: str
    dose: float
    """Share of the prompts whose cache was damaged."""
    damaged: frozenset[int]
    """Documents that were damaged."""
    verdict: Verdict
    reason: str
    """The first one of its reasons."""
    hit_rate: float | None
    """Measured, as a fraction of the prompt tokens of warm."""
    reachable: float
    retrieves: int | None
    """Retrieves that LMCache finished during warm."""
    gate: GateConfig
    documents: Documents

    @property
    def key(self) -> tuple[str, str]:
        """Its launch, among all runs."""
        return self.run, self.launch

    @property
    def undamaged(self) -> bool:
        """Whether its cache was left alone."""
        return self.kind == NONE or self.dose == 0


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that takes part in a summary."""

    run: str
    status: str
    outcomes: tuple[Outcome, ...]
    """In the order in which they were measured."""
    left_out: int
    """Cells that say nothing here: of another check, or healthy ones that compared nothing."""

    def frame(self) -> pd.DataFrame:
        """The rows of all cells."""
        frames = [each.documents.frame().assign(cell=each.cell) for each in self.outcomes]
        columns = ["cell", *Documents.__dataclass_fields__]
        return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def read_run(path: Path) -> Measured:
    """Reads the cells of a results folder; one that was reduced has :data:`TABLE` in place of their evidence.

    Raises:
        UsageError: it holds no run, or a file is missing.
    """
    record = read_record(path)
    healthy = record.get("config", {}).get("check", {}).get("name") == HEALTHY_CHECK
    cells = RunFolder(path).cells()
    told = [cell for cell in cells if cell.get("damage") or (healthy and cell["paired"])]
    read = _Reader(path)
    outcomes = tuple(_outcome(path.resolve().name, cell, read(cell)) for cell in told)
    return Measured(path.resolve().name, str(record["status"]), outcomes, len(cells) - len(told))


class _Reader:
    """Rows of a run's cells; what the cells of a launch share is worked out once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shared: dict[tuple[str, str], pd.Series[float]] = {}
        self._table: pd.DataFrame | None = None

    def __call__(self, cell: Mapping[str, Any]) -> Documents:
        folder = self.path / "cells" / str(cell["cell"])
        if (folder / "requests.parquet").is_file():
            evidence = read_evidence(folder)
            return documents_of(evidence, self._null(evidence))
        if self._table is None:
            self._table = _stored(self.path / TABLE)
        rows = self._table[self._table["cell"] == cell["cell"]]
        if rows.empty and cell["paired"]:
            raise UsageError(f"{folder} holds no requests.parquet, and {self.path / TABLE} no rows of it.")
        return Documents.of_frame(rows)

    def _null(self, evidence: Evidence) -> pd.Series[float] | None:
        if NULLS[0] not in evidence.passes:
            return None
        cold, null = evidence.passes["cold"], evidence.passes[NULLS[0]]
        key = (cold.started_at, null.started_at)
        if key not in self._shared:
            self._shared[key] = departures(cold.requests, null.requests)["max_nats"]
        return self._shared[key]


def documents_of(evidence: Evidence, null: pd.Series[float] | None) -> Documents:
    """The rows of one cell.

    Args:
        evidence: its passes.
        null: ``max_nats`` of local_warm by document; None without that pass.
    """
    cold, warm = evidence.passes["cold"], evidence.passes["warm"]
    scores = pd.concat({"cold": cold.scores, "warm": warm.scores}, axis=1, join="inner").sort_index()
    nats = departures(cold.requests, warm.requests)["max_nats"]
    frame = pd.DataFrame(
        {
            "doc_id": scores.index,
            "cold": scores["cold"].to_numpy() == 1,
            "warm": scores["warm"].to_numpy() == 1,
            "nats": nats.reindex(scores.index).to_numpy(),
            "null_nats": np.nan if null is None else null.reindex(scores.index).to_numpy(),
        }
    )
    return Documents.of_frame(frame)


def _outcome(run: str, cell: Mapping[str, Any], documents: Documents) -> Outcome:
    damage = cell.get("damage") or {"kind": NONE, "dose": 0.0, "documents": []}
    kind, dose = str(damage["kind"]), float(damage["dose"])
    if kind != NONE:
        expected_verdict(kind)
    return Outcome(
        run=run,
        launch=str(cell["launch"]),
        cell=str(cell["cell"]),
        kind=kind if dose else NONE,
        dose=dose if kind != NONE else 0.0,
        damaged=frozenset(int(doc) for doc in damage["documents"]),
        verdict=Verdict(cell["verdict"]),
        reason=str((cell["reasons"] or [""])[0]),
        hit_rate=cell["hit_rate"]["measured"],
        reachable=float(cell["hit_rate"]["reachable"]),
        retrieves=(cell["lmcache_ci"] or {}).get("retrieves"),
        gate=GateConfig(**cell["gate"]),
        documents=documents,
    )


def _stored(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read ({type(error).__name__}).") from error


def launches_of(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Launches in the order of their first cell."""
    return list(dict.fromkeys(each.key for each in outcomes))
