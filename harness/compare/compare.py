"""Run B against run A: what differs in how they were made, then every cell that both have, then what got worse."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from harness.compare.changes import Change, config_changes, incomparable, provenance_changes
from harness.compare.margins import Margins
from harness.compare.match import Key, Pairing, Point, key_of, matched, model_of, pair, read_cell
from harness.compare.score import ScoreChange, score_changes
from harness.compare.speed import HIGHER_IS_WORSE, PLACES, SpeedChange, beyond, speed_changes
from harness.equivalence.holm import holm
from harness.errors import UsageError
from harness.report.many import MOST_CELLS
from harness.report.runs import Run, find

PASSES = ("cold", "warm")

WORSENED = {("pass", "fail"), ("pass", "invalid"), ("inconclusive", "fail"), ("inconclusive", "invalid")}
"""Verdicts of A and B that are a regression, whatever the margins here: the gate's own rules say so."""


@dataclass(frozen=True, slots=True)
class CellChange:
    """A cell that both runs have."""

    key: Key
    cell_a: str
    cell_b: str
    verdict_a: str
    verdict_b: str
    paired: int
    """Documents with the same prompt."""
    same_prompts: bool
    """Whether all are."""
    scores: tuple[ScoreChange, ...]
    speeds: tuple[SpeedChange, ...]
    speed_not_judged: str
    """Why speed is shown and not judged; empty where it is."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``compare`` says."""

    a: Run
    b: Run
    margins: Margins
    config: tuple[Change, ...]
    provenance: tuple[Change, ...]
    speed_not_judged: str
    """Why no timing is judged; empty where that depends on the cell."""
    cells: tuple[CellChange, ...]
    only_a: tuple[Key, ...]
    only_b: tuple[Key, ...]
    regressions: tuple[str, ...]
    """Each in a sentence with its numbers."""

    @property
    def telling(self) -> tuple[CellChange, ...]:
        """The cells that a person is shown, in A's order: all of them, or those that changed most for the worse."""
        worst = sorted(self.cells, key=_badness)[:MOST_CELLS]
        kept = {each.key for each in worst}
        return tuple(each for each in self.cells if each.key in kept)

    @property
    def exit_code(self) -> int:
        """0 without a regression, 1 with one."""
        return 1 if self.regressions else 0


def compare_runs(a: Run, b: Run, margins: Margins) -> Comparison:
    """Compares two runs, from their folders.

    Raises:
        UsageError: there is no cell that both have.
    """
    both, only_a, only_b = matched(a, b)
    if not both:
        raise UsageError(f"{a.path} and {b.path} have no cell in common: {_has(a)}; {_has(b)}.")
    why = incomparable(a.record, b.record)
    cells, seen = [], set()
    for key, (cell_a, cell_b) in both.items():
        # Cells of a launch share its cold pass, which is told once.
        cold = json.dumps([find(cell, "passes", "cold") for cell in (cell_a, cell_b)])
        cells.append(_cell(key, a, b, cell_a, cell_b, margins, why, PASSES[cold in seen :]))
        seen.add(cold)
    return Comparison(
        a,
        b,
        margins,
        config_changes(a.record, b.record),
        provenance_changes(a.record, b.record),
        why,
        tuple(cells),
        tuple(only_a),
        tuple(only_b),
        (*_verdicts(cells), *_losses(cells, margins), *_slowdowns(a, b, cells, margins)),
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """For programs (``format=json``)."""
    return {
        "a": str(found.a.path),
        "b": str(found.b.path),
        "margins": asdict(found.margins),
        "config": [asdict(each) for each in found.config],
        "provenance": [asdict(each) for each in found.provenance],
        "speed_not_judged": found.speed_not_judged,
        "cells": [
            asdict(each) | {"key": {**each.key.point._asdict(), "repeat": each.key.repeat}} for each in found.cells
        ],
        "only_a": [str(key) for key in found.only_a],
        "only_b": [str(key) for key in found.only_b],
        "regressions": list(found.regressions),
        "exit_code": found.exit_code,
    }


def _cell(
    key: Key,
    a: Run,
    b: Run,
    cell_a: Mapping[str, Any],
    cell_b: Mapping[str, Any],
    margins: Margins,
    why: str,
    passes: tuple[str, ...],
) -> CellChange:
    data_a, data_b = read_cell(a.path, cell_a), read_cell(b.path, cell_b)
    pairing = pair(data_a, data_b)
    verdicts = [str(cell.get("verdict")) for cell in (cell_a, cell_b)]
    speeds = speed_changes(data_a, data_b, pairing, margins, passes)
    return CellChange(
        key,
        str(cell_a.get("cell")),
        str(cell_b.get("cell")),
        verdicts[0],
        verdicts[1],
        len(pairing.documents),
        pairing.whole,
        tuple(score_changes(data_a, data_b, pairing, margins, passes)),
        tuple(speeds),
        why or _not_judged(pairing, (data_a.prompts, data_b.prompts), verdicts, speeds),
    )


def _badness(cell: CellChange) -> tuple[bool, bool, bool, float]:
    """Sorts cells: worse verdicts first, then other verdicts, then slower ones, then the clearest loss of score."""
    verdicts = (cell.verdict_a, cell.verdict_b)
    slower = not cell.speed_not_judged and any(change.worse for change in cell.speeds)
    loss = min((change.p for change in cell.scores), default=1.0)
    return verdicts not in WORSENED, verdicts[0] == verdicts[1], not slower, loss


def _not_judged(
    pairing: Pairing, prompts: tuple[int, int], verdicts: Sequence[str], speeds: Sequence[SpeedChange]
) -> str:
    if "invalid" in verdicts:
        return "a cell is invalid, and claims nothing about speed"
    if not pairing.whole and all(prompts) and prompts[0] != prompts[1]:
        return f"{prompts[0]:,} and {prompts[1]:,} prompts"
    if not pairing.whole:
        return (
            "the prompts are not the same" if pairing.known else "it is not recorded whether the prompts are the same"
        )
    if speeds and all(each.low is None for each in speeds):
        return "requests.parquet is missing, so that there is no interval"
    return ""


def _verdicts(cells: Sequence[CellChange]) -> list[str]:
    return [
        f"{each.key}: the verdict was {each.verdict_a} in A and is {each.verdict_b} in B"
        for each in cells
        if (each.verdict_a, each.verdict_b) in WORSENED
    ]


def _losses(cells: Sequence[CellChange], margins: Margins) -> list[str]:
    """Losses of score beyond the margin, after Holm's correction over all of them."""
    every = [(cell, change) for cell in cells for change in cell.scores]
    corrected = holm([change.p for _, change in every]) if every else []
    return [
        f"{cell.key}, {change.name}: score {change.score_a:.3f} → {change.score_b:.3f}, a loss of {change.loss:.3f} "
        f"({margins.confidence:.0%} interval {change.low:+.3f} to {change.high:+.3f}, "
        f"n = {change.n_a}{'' if change.paired else f' and {change.n_b}, unpaired'}), beyond {margins.score_margin:g} "
        f"(p = {p:.2g}, corrected over {len(every)} tests)"
        for (cell, change), p in zip(every, corrected, strict=True)
        if p < margins.alpha
    ]


def _slowdowns(a: Run, b: Run, cells: Sequence[CellChange], margins: Margins) -> list[str]:
    """Slower beyond the margin in more than half of the repeats that both have, and in the medians of all repeats:
    launches differ by themselves.
    """
    judged: dict[tuple[Point, str, str], list[SpeedChange]] = defaultdict(list)
    for cell in cells:
        for change in () if cell.speed_not_judged else cell.speeds:
            judged[cell.key.point, change.name, change.measure].append(change)
    cells_a, cells_b = _by_point(a), _by_point(b)
    told = []
    for (point, name, measure), changes in judged.items():
        worse = [change for change in changes if change.worse]
        whole = _median(cells_b[point], name, measure) / _median(cells_a[point], name, measure)
        if 2 * len(worse) <= len(changes) or not beyond(measure, whole, whole, margins.speed_margin):
            continue
        clearest = max(worse, key=lambda each: each.ratio if HIGHER_IS_WORSE[measure] else -each.ratio)
        repeats = f", in {len(worse)} of {len(changes)} repeats" if len(changes) > 1 else ""
        told.append(
            f"{point}, {name}: {_measure(clearest)}, {clearest.ratio:.2f} times A's ({margins.confidence:.0%} interval "
            f"{clearest.low:.2f} to {clearest.high:.2f}, n = {clearest.n}), beyond {margins.speed_margin:g}{repeats}"
        )
    return told


def _by_point(run: Run) -> dict[Point, list[Mapping[str, Any]]]:
    """Cells of a run that are not invalid, repeats of a point together."""
    found: dict[Point, list[Mapping[str, Any]]] = defaultdict(list)
    for cell in run.cells:
        if cell.get("verdict") != "invalid":
            found[_point(run, cell)].append(cell)
    return found


def _median(repeats: Sequence[Mapping[str, Any]], name: str, measure: str) -> float:
    """Median of a measure over repeats of a point."""
    return median(float(value) for cell in repeats if (value := find(cell, "passes", name, *PLACES[measure])))


def _measure(change: SpeedChange) -> str:
    if HIGHER_IS_WORSE[change.measure]:
        return f"median TTFT {1000 * change.a:.0f} → {1000 * change.b:.0f} ms"
    return f"output throughput {change.a:,.0f} → {change.b:,.0f} tok/s"


def _has(run: Run) -> str:
    if not run.cells:
        return f"{run.id} has no complete cell (it is {run.status})"
    points = dict.fromkeys(str(_point(run, cell)) for cell in run.cells)
    shown = list(points)[:3]
    more = f" and {len(points) - len(shown)} more" if len(points) > len(shown) else ""
    return f"{run.id} has {' · '.join(shown)}{more}"


def _point(run: Run, cell: Mapping[str, Any]) -> Point:
    return key_of(model_of(run), cell).point
