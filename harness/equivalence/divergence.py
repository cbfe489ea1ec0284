"""How far answers depart from the cold ones, document by document, up to and including the first divergence.

Behind the first divergence two answers continue different texts, so their logprobs say nothing about each other.
Logprobs and differences are in nats.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Servers compute logprobs in float32, so a probability mass below its rounding is not known.
_SMALLEST_MASS = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of one answer; four arrays of the same length, logprobs in nats."""

    ids: IntArray
    logprobs: FloatArray
    runner_up_ids: IntArray
    runner_up_logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class Departure:
    """How one answer departs from the cold answer to the same prompt; None where there is nothing to measure."""

    shared: int
    """Tokens before the first divergence."""
    diverged: bool
    """Whether the token ids differ anywhere, length included; then ``shared`` is the index of the first difference."""
    max_nats: float
    """Largest |Δlogprob| over the shared tokens and the divergence itself: what drift is judged by."""
    first_nats: float
    """|Δlogprob| at the first token, which depends on nothing but the prompt's state."""
    sum_nats: float
    """Sum of |Δlogprob| over the shared tokens."""
    sum_kl_nats: float
    """Sum of :func:`coarse_kl` over the shared tokens."""
    gap_nats: float | None
    """By how much cold preferred its own token to its runner-up at the divergence; small is a near tie."""


def departures(cold: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Departures of a pass from the cold one.

    Args:
        cold, other: requests of two passes, columns as in requests.parquet.

    Returns:
        The fields of :class:`Departure` (NaN for None), one row per document that both passes answered with at least
        one token, indexed by ``doc_id`` in ascending order.
    """
    of_cold, of_other = answers(cold), answers(other)
    both = sorted(of_cold.keys() & of_other.keys())
    columns = list(Departure.__dataclass_fields__)
    rows = [astuple(departure(of_cold[doc_id], of_other[doc_id])) for doc_id in both]
    # Types are told, since an empty table has none.
    types: dict[Hashable, Any] = dict.fromkeys(columns, float) | {"shared": int, "diverged": bool}
    return pd.DataFrame(rows, columns=columns, index=pd.Index(both, name="doc_id")).astype(types)


def departure(cold: Answer, other: Answer) -> Departure:
    """Departure of one answer from the cold one; both have at least one token."""
    shortest = min(len(cold.ids), len(other.ids))
    differing = np.flatnonzero(cold.ids[:shortest] != other.ids[:shortest])
    shared = int(differing[0]) if len(differing) else shortest
    measured = _distance(cold.logprobs[:shared] - other.logprobs[:shared])
    apart = _distance(np.array([at_divergence(cold, other, shared)])) if shared < shortest else np.array([])
    every = np.append(measured, apart)
    diverged = shared < max(len(cold.ids), len(other.ids))
    gap = cold.logprobs[shared] - cold.runner_up_logprobs[shared] if diverged and shared < len(cold.ids) else None
    return Departure(
        shared=shared,
        diverged=diverged,
        max_nats=float(every.max()),
        first_nats=float(every[0]),
        sum_nats=float(measured.sum()),
        sum_kl_nats=float(coarse_kl(cold, other, shared).sum()),
        gap_nats=None if gap is None else float(gap),
    )


def _distance(difference: FloatArray) -> FloatArray:
    """Absolute differences of logprobs; one that is not a number, as NaN logits give, is further than any other."""
    return np.nan_to_num(np.abs(difference), nan=np.inf, posinf=np.inf)


def at_divergence(cold: Answer, other: Answer, index: int) -> float:
    """|Δlogprob| where the passes chose different tokens: the larger one of cold's token and of the other's.

    The logprob of a token that the other pass did not choose is known where it is the runner-up there. Where it is
    not, the runner-up's is an upper bound of it, so the difference returned is a lower bound of the true one. It is
    never below half of cold's gap: with gaps g, h between choice and runner-up in the two passes, both greedy, the
    two differences add up to at least g + h.
    """
    lost, won = (
        float(chooser.logprobs[index] - reader.runner_up_logprobs[index])
        for chooser, reader in ((cold, other), (other, cold))
    )
    # The smaller one may be negative; its absolute value would not exceed the larger one, as the sum is not negative.
    return float(np.max([lost, won]))


def coarse_kl(cold: Answer, other: Answer, shared: int) -> FloatArray:
    """Kullback-Leibler divergence of cold from the other pass at each shared token, as far as it can be known.

    Only two logprobs per token are recorded, so both distributions are coarsened to (chosen token, runner-up, all
    other tokens), or to (chosen token, all others) where the runners-up differ. Coarsening never increases the
    divergence (data-processing inequality; Cover and Thomas, Elements of Information Theory, 2nd ed., section 2.8),
    so this is a lower bound of the true one, at the positions that cold's greedy answer happened to visit.
    Below about 1e-6 nats it is float32 rounding.

    Returns:
        Shape (shared,), in nats, never negative.
    """
    same = cold.runner_up_ids[:shared] == other.runner_up_ids[:shared]
    chosen = [each.logprobs[:shared] for each in (cold, other)]
    second = [each.runner_up_logprobs[:shared] for each in (cold, other)]
    p, q = (np.exp(each) for each in chosen)
    p2, q2 = (np.where(same, np.exp(each), 0.0) for each in second)
    rest_p, rest_q = (np.clip(1.0 - one - two, _SMALLEST_MASS, 1.0) for one, two in ((p, p2), (q, q2)))
    total: FloatArray = p * (chosen[0] - chosen[1]) + p2 * (second[0] - second[1]) + rest_p * np.log(rest_p / rest_q)
    return total.clip(min=0.0)


def answers(requests: pd.DataFrame) -> dict[int, Answer]:
    """Answers with their logprobs by document; of a document that was sent twice, the first."""
    found: dict[int, Answer] = {}
    for row in requests[requests["error"].isna()].itertuples(index=False):
        each = _answer(row)
        if 0 < len(each.ids) == len(each.logprobs) == len(each.runner_up_ids):
            found.setdefault(int(row.doc_id), each)  # type: ignore[arg-type]
    return found


def _answer(row: Any) -> Answer:
    return Answer(
        np.asarray(row.token_ids, dtype=np.int64),
        np.asarray(row.logprobs, dtype=np.float64),
        np.asarray(row.runner_up_ids, dtype=np.int64),
        np.asarray(row.runner_up_logprobs, dtype=np.float64),
    )
