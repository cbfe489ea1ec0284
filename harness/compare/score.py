"""Did the score of a pass fall from run A to run B, and by more than the margin?

The same questions are compared pair by pair (:mod:`harness.equivalence.paired`); different ones as two independent
shares, with Newcombe's interval (1998, Statistics in Medicine 17:873-890, method 10) and Miettinen and Nurminen's score
test (1985, Statistics in Medicine 4:213-226), which need several times as many questions to see the same loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from statsmodels.stats.proportion import confint_proportions_2indep, test_proportions_2indep

from harness.compare.margins import Margins
from harness.compare.match import CellData, Pairing, first_rows, of_pass
from harness.equivalence.paired import PairedTable, loss_p, mcnemar_p, paired_table, score_interval
from harness.report.runs import find

RIGHT = 0.5
"""Scores beyond it are right answers."""


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """One pass of one cell, A against B; a loss is A minus B, so positive is worse."""

    name: str
    """Of the pass."""
    paired: bool
    n_a: int
    n_b: int
    score_a: float
    score_b: float
    loss: float
    low: float
    high: float
    """Ends of the interval of the loss, of confidence 1 - 2 alpha."""
    broke: int | None
    """Questions right in A and wrong in B; None where they can't be paired."""
    mended: int | None
    mcnemar_p: float | None
    """Exact one-sided McNemar test: did more break than mend?"""
    p: float
    """One-sided p of a loss beyond the margin, of this test alone."""


def score_changes(
    a: CellData, b: CellData, pairing: Pairing, margins: Margins, passes: tuple[str, ...]
) -> list[ScoreChange]:
    """Scores of every pass that both cells have scored."""
    found = (score_change(name, a, b, pairing, margins) for name in passes)
    return [change for change in found if change is not None]


def score_change(name: str, a: CellData, b: CellData, pairing: Pairing, margins: Margins) -> ScoreChange | None:
    """The score of one pass; None where one of the cells has none."""
    right = [_right(each, name) for each in (a, b)]
    both = pairing.documents & right[0].keys() & right[1].keys()
    if both:
        table = paired_table({each: right[0][each] for each in both}, {each: right[1][each] for each in both})
        return _paired(name, table, sum(right[0][each] for each in both), margins)
    counts = [_count(each, name) for each in (a, b)]
    if None in counts:
        return None
    (right_a, n_a), (right_b, n_b) = (each for each in counts if each is not None)
    return _unpaired(name, (right_a, n_a), (right_b, n_b), margins)


def _paired(name: str, table: PairedTable, right_a: int, margins: Margins) -> ScoreChange:
    low, high = score_interval(table, margins.confidence)
    return ScoreChange(
        name,
        True,
        table.n,
        table.n,
        right_a / table.n,
        (right_a - table.b + table.c) / table.n,
        table.difference,
        low,
        high,
        table.b,
        table.c,
        mcnemar_p(table),
        loss_p(table, margins.score_margin),
    )


def _unpaired(name: str, a: tuple[int, int], b: tuple[int, int], margins: Margins) -> ScoreChange:
    (right_a, n_a), (right_b, n_b) = a, b
    counts = (right_a, n_a, right_b, n_b)
    with np.errstate(divide="ignore", invalid="ignore"):  # of odds ratios that nobody asked for
        low, high = confint_proportions_2indep(*counts, compare="diff", method="newcomb", alpha=2 * margins.alpha)
        test = test_proportions_2indep(
            *counts,
            value=margins.score_margin,
            compare="diff",
            method="score",
            alternative="larger",
            return_results=True,
        )
    score_a, score_b = right_a / n_a, right_b / n_b
    p = float(test.pvalue)
    return ScoreChange(
        name, False, n_a, n_b, score_a, score_b, score_a - score_b, float(low), float(high), None, None, None, p
    )


def _right(data: CellData, name: str) -> dict[int, bool]:
    documents, rows = first_rows(data.samples, of_pass(data.samples, name))
    right = np.asarray(data.samples["score"], dtype=float)[rows] > RIGHT
    return dict(zip(documents.tolist(), right.tolist(), strict=True))


def _count(data: CellData, name: str) -> tuple[int, int] | None:
    """Right answers and questions: of the table, or of cell.json where that is all there is."""
    if right := _right(data, name):
        return sum(right.values()), len(right)
    score, n = (find(data.cell, "passes", name, field) for field in ("score", "n"))
    return None if score is None or not n else (round(score * n), int(n))
