"""Selftests whose numbers are known: outcomes in memory, and results folders; nothing in them was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from evidence import QUESTIONS, evidence_of, pass_of, record, right_by_default, with_flow, write_cell
from synthetic_run import write_run

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence, read_evidence
from harness.equivalence.judge import judge_cell
from harness.equivalence.verdict import Verdict
from harness.selftest.outcomes import Documents, Measured, Outcome
from harness.store import write_json

GATE = GateConfig(name="equivalence")


def documents(n: int = 300, *, beyond: Iterable[int] = (), wrong: Iterable[int] = (), noisy: int = 0) -> Documents:
    """Answers that were all right cold; ``beyond`` are 2 nats away in warm, ``noisy`` first ones in local_warm."""
    nats, null, warm = np.zeros(n), np.zeros(n), np.ones(n, dtype=bool)
    nats[list(beyond)] = 2.0
    null[:noisy] = 2.0
    warm[list(wrong)] = False
    return Documents(np.arange(n), np.ones(n, dtype=bool), warm, nats, null)


def outcome(
    kind: str = "none",
    dose: float = 0.0,
    verdict: str = "pass",
    *,
    rows: Documents | None = None,
    launch: str = "budget127-r1",
    run: str = "selftest",
    **changes: Any,
) -> Outcome:
    """A cell of 300 questions, the first ones of which were damaged."""
    rows = documents() if rows is None else rows
    made = Outcome(
        run=run,
        launch=launch,
        cell=f"{launch}-{kind}-{dose:g}",
        kind=kind,
        dose=dose,
        damaged=frozenset(range(round(dose * len(rows)))),
        verdict=Verdict(verdict),
        reason="because",
        hit_rate=0.9,
        reachable=0.9,
        retrieves=300,
        gate=GATE,
        documents=rows,
    )
    return replace(made, **changes)


def measured(outcomes: Sequence[Outcome], *, run: str = "selftest", status: str = "complete") -> Measured:
    return Measured(run, status, tuple(outcomes), 0)


def damaged_evidence(kind: str, dose: float, repeat: int) -> Evidence:
    """A cell of 120 questions; damage makes an answer wrong and moves its logprobs by 3 nats, or costs its hits."""
    docs = list(range(0, QUESTIONS, round(1 / dose))) if dose else []
    told = {"kind": kind, "dose": dose, "documents": docs}
    noticed = kind in ("truncated", "failed_loads")
    wrong = set() if noticed else set(docs)
    records = [
        replace(each, logprobs=[value - 3.0 for value in each.logprobs]) if each.doc_id in wrong else each
        for each in (record("warm", doc_id) for doc_id in range(QUESTIONS))
    ]
    warm = pass_of("warm", records=records, right=lambda doc_id: right_by_default(doc_id) and doc_id not in wrong)
    name = kind if dose in (0, 1) else f"{kind}-{round(100 * dose)}pct"
    cell = evidence_of(
        [pass_of("cold"), pass_of("local_warm"), warm],
        cell_id=f"budget127-{name}-r{repeat}",
        launch_id=f"budget127-r{repeat}",
        repeat=repeat,
        damage=told,
    )
    if noticed:
        hits = warm.flow.external_hit or 0
        cell = with_flow(cell, "warm", external_hit=hits * (1 - dose), lookup_hit=hits * (1 - dose))
    return cell


CELLS = (
    ("none", 0.0),
    ("flipped_bytes", 1.0),
    ("flipped_bytes", 0.05),
    ("flipped_bytes", 0.2),
    ("truncated", 1.0),
    ("truncated", 0.05),
)
"""Kind and dose of the cells of each launch."""


def write_selftest(
    path: Path, scratch: Path, *, launches: int = 2, cells: Sequence[tuple[str, float]] = CELLS, **run: Any
) -> Path:
    """A results folder of a selftest."""
    kinds = {kind: {"name": "none"} for kind in ("model", "task", "gate", "engine")}
    config = {**kinds, "load": {"concurrency": 8}, "check": {"name": "selftest"}}
    write_run(path, [], config=config, verdict="fail", run_id=path.name, **run)
    for repeat in range(1, launches + 1):
        for kind, dose in cells:
            evidence = damaged_evidence(kind, dose, repeat)
            folder = path / "cells" / evidence.facts.cell_id
            write_cell(folder, evidence, scratch / path.name / evidence.facts.cell_id)
            write_json(folder / "cell.json", judge_cell(read_evidence(folder), GATE))
    return path
