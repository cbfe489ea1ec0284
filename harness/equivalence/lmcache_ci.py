"""LMCache's own rule for a hybrid model, so that both verdicts can stand side by side on the same run.

Source: LMCache's CI, `.buildkite/k3_tests/multiprocess/scripts`: `workloads/vllm/hma-lm-eval.sh` fails if the scores
of the two passes differ by more than `SCORE_TOLERANCE` or if no retrieve was logged in the second one, and looks at
nothing else; `run-single-test.sh` sets the tolerance to 0.05 and `LIMIT` to 300 for Qwen3.5 (seen in the repository's
history of 2026; the defaults of hma-lm-eval.sh itself, 0 and 100, are meant for bit-exact models).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.equivalence.evidence import Evidence

FloatArray = NDArray[np.float64]

TOLERANCE = 0.05
"""Largest |score difference| that LMCache accepts."""

QUESTIONS = 300
"""How many questions LMCache asks: the first ones of the task."""


@dataclass(frozen=True, slots=True)
class LMCacheRule:
    """What LMCache's CI would say of this cell."""

    passes: bool
    n: int
    """Questions it counts: the first 300 by document id, or all if there are fewer."""
    difference: float
    """Cold score minus warm score over them; each pass's own mean, not paired."""
    retrieves: int | None
    """Retrieves that LMCache finished during warm; None when not reported, which counts as none."""
    reason: str

    def numbers(self) -> dict[str, Any]:
        """What cell.json holds of it."""
        stored = {name: value for name, value in asdict(self).items() if name != "passes"}
        return {"verdict": "pass" if self.passes else "fail", "tolerance": TOLERANCE, **stored}


def lmcache_rule(evidence: Evidence) -> LMCacheRule:
    """LMCache's rule on a cell: any retrieve at all, and |difference of scores| <= 0.05 over 300 questions."""
    cold, warm = (
        evidence.passes[name].samples.sort_values("doc_id")["score"].to_numpy(np.float64) for name in ("cold", "warm")
    )
    return judge_scores(cold, warm, evidence.passes["warm"].flow.retrieves_finished)


def judge_scores(cold: FloatArray, warm: FloatArray, finished: float | None) -> LMCacheRule:
    """LMCache's rule on scores.

    Args:
        cold, warm: score of every question in ascending order of document ids.
        finished: retrieves that LMCache finished during warm; None when not reported.
    """
    scores = [(len(first), float(first.sum())) for first in (cold[:QUESTIONS], warm[:QUESTIONS])]
    (n, cold_sum), (warm_n, warm_sum) = scores
    # Of whole numbers where both passes have the same questions: 15 of 300 is not beyond 0.05 by rounding.
    same = n == warm_n > 0
    difference = (cold_sum - warm_sum) / n if same else cold_sum / max(n, 1) - warm_sum / max(warm_n, 1)
    within, retrieved = abs(difference) <= TOLERANCE, bool(finished)
    return LMCacheRule(
        passes=within and retrieved,
        n=n,
        difference=difference,
        retrieves=None if finished is None else int(finished),
        reason=f"LMCache's own rule: scores differ by {abs(difference):.3f} over {n} questions, "
        f"{'within' if within else 'beyond'} {TOLERANCE:g}; "
        f"{f'{finished:.0f} retrieves, any would do' if retrieved else 'no retrieve'}; no error rate is controlled",
    )
