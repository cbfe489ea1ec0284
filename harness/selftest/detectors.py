"""What each detector says of a cell's documents: the tests of harness/equivalence, each by itself."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from harness.config import GateConfig
from harness.equivalence.drift import Excess, excess
from harness.equivalence.lmcache_ci import judge_scores
from harness.equivalence.paired import PairedTable
from harness.equivalence.score import score_tests
from harness.equivalence.verdict import Verdict, judge_score
from harness.selftest.outcomes import Documents


class Detection(NamedTuple):
    """Which detectors fire."""

    score: bool
    """The verdict by the paired score alone (TOST, McNemar, loss beyond the margin) is ``fail``."""
    drift: bool
    """Drift fails: warm is further from cold than local_warm, token by token."""
    lmcache_ci: bool
    """LMCache's own rule fails: scores differ by more than 0.05, or nothing was retrieved."""
    gate: bool
    """The verdict of the whole gate is not ``pass``; of documents alone, as if every validity check held."""


DETECTORS = Detection._fields


def detect(documents: Documents, retrieves: int | None, gate: GateConfig) -> Detection:
    """What each detector says.

    Args:
        documents: one row per document; without any, nothing is shown, so the gate does not pass.
        retrieves: that LMCache finished during warm; None when not reported.
        gate: margin, significance level and drift margin.
    """
    found = drift_excess(documents, gate)
    drifts = found is not None and found.p < gate.alpha
    broke, mended = documents.cold & ~documents.warm, documents.warm & ~documents.cold
    by_score = _by_score(len(documents), int(broke.sum()), int(mended.sum()), gate.margin, gate.alpha)
    rule = judge_scores(documents.cold.astype(np.float64), documents.warm.astype(np.float64), retrieves)
    return Detection(
        score=by_score is Verdict.FAIL,
        drift=drifts,
        lmcache_ci=not rule.passes,
        gate=drifts or by_score is not Verdict.PASS,
    )


def drift_excess(documents: Documents, gate: GateConfig) -> Excess | None:
    """The drift test over the documents that cold, warm and local_warm have answered; None without any."""
    known = ~(np.isnan(documents.nats) | np.isnan(documents.null_nats))
    if not known.any():
        return None
    return excess(documents.nats[known], documents.null_nats[known], gate.drift_margin_nats, gate.alpha)


@cache
def _by_score(n: int, b: int, c: int, margin: float, alpha: float) -> Verdict:
    if not n:
        return Verdict.INVALID
    return judge_score(score_tests(PairedTable(n, b, c), GateConfig(margin=margin, alpha=alpha))).verdict
