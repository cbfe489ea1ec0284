"""The summary of a selftest: from the outcomes of its cells to rates, expectations, and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.equivalence.verdict import Verdict
from harness.selftest.detectors import DETECTORS, Detection, detect
from harness.selftest.expectations import Expectation, State, judge_outcome
from harness.selftest.kinds import NONE, expected_verdict, order
from harness.selftest.mixing import DOSES, DRAWS, MixingCheck, agrees, check_mixing, mixed_detection, pairs_of
from harness.selftest.outcomes import TABLE, Measured, Outcome, launches_of, read_run
from harness.selftest.rates import CONFIDENCE, Rate, rate_of
from harness.store import read_json, write_frame, write_json

FILE = "selftest.json"
SCHEMA = 1

REAL, MIXED = "real", "mixed"


@dataclass(frozen=True, slots=True)
class Point:
    """How often one detector fires at one dose of one kind."""

    kind: str
    dose: float
    source: str
    """``real``: cells that were measured; ``mixed``: stored answers of other cells, put together."""
    detector: str
    rate: Rate

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Point:
        """What :meth:`Summary.as_json` made of it."""
        rate = Rate(**{name: told[name] for name in Rate.__dataclass_fields__})
        return cls(told["kind"], told["dose"], told["source"], told["detector"], rate)

    def as_json(self) -> dict[str, Any]:
        """Flat, for selftest.json and selftest.csv."""
        point = {"kind": self.kind, "dose": self.dose, "source": self.source, "detector": self.detector}
        return point | asdict(self.rate)


@dataclass(frozen=True, slots=True)
class Row:
    """One cell, what the detectors say of it, and what was expected."""

    outcome: Outcome
    detection: Detection
    expectation: Expectation

    def as_json(self) -> dict[str, Any]:
        """For selftest.json."""
        cell = self.outcome
        return {
            "run": cell.run,
            "launch": cell.launch,
            "cell": cell.cell,
            "kind": cell.kind,
            "dose": cell.dose,
            "n": len(cell.documents),
            "damaged": len(cell.damaged),
            "verdict": cell.verdict.value,
            "hit_rate": cell.hit_rate,
            "reachable": cell.reachable,
            "detectors": self.detection._asdict(),
            "expected": self.expectation.expected,
            "state": self.expectation.state.value,
            "sentence": self.expectation.sentence,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """All that a selftest came to."""

    runs: Mapping[str, Mapping[str, Any]]
    """Run id -> ``status``, ``cells`` that count, ``left_out``."""
    rows: tuple[Row, ...]
    points: tuple[Point, ...]
    false_alarms: Mapping[str, Rate]
    """Of undamaged cells: verdict ``fail``, and each detector by itself; empty without such cells."""
    mixing: tuple[MixingCheck, ...]
    disagreements: tuple[str, ...]
    """Where real detections are unlikely if the mixed rate is right, in words."""

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What is missing for a judgement, in words."""
        demanded = [row for row in self.rows if not row.outcome.undamaged and row.expectation.expected]
        missing = [f"run {name} is {run['status']}" for name, run in self.runs.items() if run["status"] != "complete"]
        if not any(row.outcome.undamaged for row in self.rows):
            missing.append("no undamaged cell was measured, so that nothing is known about false alarms")
        if not demanded:
            missing.append("no cell was damaged enough to demand a verdict")
        return tuple(missing)

    @property
    def exit_code(self) -> int:
        """1 if the gate did not do what was expected of it somewhere, 4 if too little was measured to tell, else 0."""
        states = {row.expectation.state for row in self.rows}
        if State.NOT_MET in states:
            return 1
        return 4 if self.incomplete or State.UNDECIDED in states else 0

    def as_json(self) -> dict[str, Any]:
        """For selftest.json."""
        return {
            "schema": SCHEMA,
            "exit_code": self.exit_code,
            "incomplete": list(self.incomplete),
            "confidence": CONFIDENCE,
            "draws": DRAWS,
            "runs": {name: dict(run) for name, run in self.runs.items()},
            "false_alarms": {name: asdict(rate) for name, rate in self.false_alarms.items()},
            "points": [point.as_json() for point in self.points],
            "mixing": [asdict(check) | {"holds": check.holds} for check in self.mixing],
            "disagreements": list(self.disagreements),
            "cells": [row.as_json() for row in self.rows],
        }


def summarize(runs: Sequence[Measured]) -> Summary:
    """Judges the outcomes of one or several runs together."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    rows = tuple(_row(outcome) for outcome in outcomes)
    pairs = pairs_of(outcomes)
    mixed = [
        Point(kind, dose, MIXED, detector, rate_of([share[detector] for share in shares]))
        for kind, found in pairs.items()
        for dose in DOSES
        for shares in [[mixed_detection(pair, dose) for pair in found]]
        for detector in DETECTORS
        # Validity is judged by counters of a whole pass, which are no sum over documents.
        if detector != "gate" or expected_verdict(kind) is Verdict.FAIL
    ]
    points = sorted([*_real(rows), *mixed], key=lambda each: (order(each.kind), each.dose, each.source == MIXED))
    return Summary(
        runs={run.run: {"status": run.status, "cells": len(run.outcomes), "left_out": run.left_out} for run in runs},
        rows=rows,
        points=tuple(points),
        false_alarms=_false_alarms(rows),
        mixing=tuple(sorted(check_mixing(pairs, outcomes), key=lambda each: (order(each.kind), each.dose))),
        disagreements=tuple(_disagreements(points)),
    )


def read_summary(paths: Sequence[Path]) -> tuple[Summary, list[Measured]]:
    """The summary of results folders, worked out anew from their cells.

    Raises:
        UsageError: a folder holds no run, or a file is missing.
    """
    runs = [read_run(path) for path in paths]
    return summarize(runs), runs


def write_summary(path: Path, summary: Summary, measured: Measured) -> list[Path]:
    """Writes selftest.json, selftest.csv and the rows of its own cells into a run's folder.

    Raises:
        HarnessError: the disk refuses.
    """
    files = [path / FILE, path / "selftest.csv", path / TABLE]
    write_json(files[0], summary.as_json())
    write_frame(files[1], pd.DataFrame([point.as_json() for point in summary.points]))
    write_frame(files[2], measured.frame())
    return files


def points_of(path: Path, cells: int) -> list[Point]:
    """The points of a run, as stored if that was after its last cell, else worked out.

    Args:
        path: of the run.
        cells: that it has now.

    Raises:
        UsageError: a file is missing.
    """
    if (path / FILE).is_file():
        told = read_json(path / FILE)
        run = told["runs"].get(path.resolve().name)
        if run and run["cells"] + run["left_out"] == cells:
            return [Point.from_json(point) for point in told["points"]]
    return list(read_summary([path])[0].points)


def _row(outcome: Outcome) -> Row:
    found = detect(outcome.documents, outcome.retrieves, outcome.gate)
    # Of a real cell the verdict is known, validity included.
    return Row(outcome, found._replace(gate=outcome.verdict is not Verdict.PASS), judge_outcome(outcome))


def _real(rows: Iterable[Row]) -> list[Point]:
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.outcome.kind, row.outcome.dose), []).append(row)
    return [
        Point(kind, dose, REAL, detector, _over_launches(found, [getattr(row.detection, detector) for row in found]))
        for (kind, dose), found in groups.items()
        for detector in DETECTORS
    ]


def _false_alarms(rows: Iterable[Row]) -> dict[str, Rate]:
    undamaged = [row for row in rows if row.outcome.kind == NONE]
    if not undamaged:
        return {}
    failed = [row.outcome.verdict is Verdict.FAIL for row in undamaged]
    by_detector = {
        name: _over_launches(undamaged, [getattr(row.detection, name) for row in undamaged])
        for name in DETECTORS
        if name != "gate"
    }
    return {"fail": _over_launches(undamaged, failed)} | by_detector


def _over_launches(rows: Sequence[Row], fired: Sequence[bool]) -> Rate:
    shares = []
    for key in launches_of([row.outcome for row in rows]):
        mine = [each for row, each in zip(rows, fired, strict=True) if row.outcome.key == key]
        shares.append(sum(mine) / len(mine))
    return rate_of(shares)


def _disagreements(points: Sequence[Point]) -> list[str]:
    mixed = {(each.kind, each.dose, each.detector): each.rate for each in points if each.source == MIXED}
    return [
        f"{each.kind} at {each.dose:.0%}: {each.detector} fired in {each.rate.count:g} of {each.rate.launches} real "
        f"launches, and in {expected.rate:.0%} of the mixtures"
        for each in points
        if each.source == REAL and (expected := mixed.get((each.kind, each.dose, each.detector)))
        if not agrees(each.rate, expected)
    ]


def verdicts_of(rows: Iterable[Row], kind: str, dose: float) -> Counter[str]:
    """How many real cells of a kind and dose came to each verdict."""
    return Counter(row.outcome.verdict.value for row in rows if (row.outcome.kind, row.outcome.dose) == (kind, dose))
