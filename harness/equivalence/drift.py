"""Drift: does warm depart from cold further than vLLM's own prefix cache does, and by enough to matter?

One number per document, `Departure.max_nats`: the largest |Δlogprob| against cold over the shared tokens and the
first divergence. A mean over documents would hide damage to few of them, and the first token alone misses state that
only later tokens read. A document is *beyond* a level if its number is larger. The test is McNemar's, exact and
one-sided (McNemar 1947, Psychometrika 12:153-157): of the documents that are beyond in only one of the two passes,
are more beyond in warm than in the null? If LMCache changes nothing, warm and null are exchangeable within a document,
so either is equally likely: the test needs no distribution, and documents that are equal in both passes (exact ones
above all) drop out.

Levels are `gate.drift_margin_nats` and its 4-fold and 16-fold. On a GPU the noise of healthy passes exceeds the margin
in many documents, so that little damage would not stand out at it; it does at a level that noise rarely reaches.
The smallest p is multiplied by the number of levels (Bonferroni), which keeps the false-alarm rate at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from harness.config import GateConfig
from harness.equivalence.divergence import departures
from harness.equivalence.evidence import Evidence
from harness.equivalence.paired import PairedTable, mcnemar_p

FloatArray = NDArray[np.float64]

NULLS = ("local_warm", "control")
"""Passes that warm is judged against: the first that was run. Local_warm has the chunk shapes of warm and no LMCache;
where vLLM's own cache is what is judged, a second computed pass takes its place."""

LEVELS = (1.0, 4.0, 16.0)
"""Levels in units of the margin."""


@dataclass(frozen=True, slots=True)
class Level:
    """The test at one level; counts are documents."""

    nats: float
    beyond: int
    """Further from cold than this level in the pass that is judged."""
    null_beyond: int
    """The same in the pass it is judged against."""
    only: int
    """Beyond in the judged pass only."""
    only_null: int
    """Beyond in the other one only."""
    p: float
    """Exact one-sided McNemar, not corrected for the number of levels."""
    detectable: int | None
    """Fewest documents pushed beyond this level that make the test significant; None: not even all of them."""


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much a pass exceeds another one in departures from cold."""

    n: int
    p: float
    """Smallest p of the levels times their number, at most 1."""
    levels: tuple[Level, ...]

    @property
    def clearest(self) -> Level:
        """The level with the smallest p; of equals the lowest."""
        return min(self.levels, key=lambda level: level.p)

    @property
    def most_sensitive(self) -> Level:
        """The level that needs the fewest damaged documents; of equals the lowest."""
        return min(self.levels, key=lambda level: math.inf if level.detectable is None else level.detectable)


@dataclass(frozen=True, slots=True)
class Flips:
    """Questions whose score is not that of cold, in warm and in local_warm; shown, not judged."""

    warm: int
    local_warm: int
    only_warm: int
    only_local_warm: int
    p: float
    """Exact one-sided McNemar for more flips in warm than in local_warm."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift of one cell; ``excess``, ``flips`` and ``null_excess`` are None without documents to judge."""

    margin_nats: float
    alpha: float
    excess: Excess | None
    """Warm against the null."""
    null: str
    """Name of the pass that is the null."""
    null_excess: Excess | None
    """The null against control, or against cold itself (exactness) where there is no other control."""
    null_against: str
    flips: Flips | None
    passes: Mapping[str, Mapping[str, Any]]

    @property
    def fails(self) -> bool:
        """Whether warm departs from cold further than the null does, beyond the margin."""
        return self.excess is not None and self.excess.p < self.alpha

    @property
    def null_drifts(self) -> bool:
        """Whether the null itself departs from cold, beyond the margin."""
        return self.null_excess is not None and self.null_excess.p < self.alpha

    def numbers(self) -> dict[str, Any]:
        """What cell.json holds of it."""
        return {
            "margin_nats": self.margin_nats,
            "fails": self.fails,
            **_of(self.excess),
            "null": self.null,
            "local_warm": {"against": self.null_against, "drifts": self.null_drifts, **_of(self.null_excess)},
            "flips": asdict(self.flips) if self.flips else None,
            "passes": {name: dict(each) for name, each in self.passes.items()},
        }


def measure_drift(evidence: Evidence, gate: GateConfig) -> Drift:
    """Drift of a cell's warm pass, judged against local_warm where it was run, with control beside it.

    Documents count that every pass concerned has answered with at least one token.
    """
    cold = evidence.passes["cold"]
    by_pass = {
        name: departures(cold.requests, each.requests) for name, each in evidence.passes.items() if name != "cold"
    }
    name = next((each for each in NULLS if each in by_pass), NULLS[0])
    warm, null = by_pass["warm"], by_pass.get(name)
    control = by_pass.get("control") if name != "control" else None
    exact = null if null is None else null.assign(max_nats=0.0)
    return Drift(
        margin_nats=gate.drift_margin_nats,
        alpha=gate.alpha,
        excess=_excess_of(warm, null, gate),
        null=name,
        null_excess=_excess_of(null, exact if control is None else control, gate),
        null_against="exactness" if control is None else "control",
        flips=_count_flips(evidence, name),
        passes={name: _summary(each, gate.drift_margin_nats) for name, each in by_pass.items()},
    )


def excess(judged: FloatArray, null: FloatArray, margin_nats: float, alpha: float) -> Excess:
    """Tests whether departures from cold are larger in one pass than in another one.

    Args:
        judged, null: shape (n,), n >= 1: `max_nats` of the same documents in the two passes.
        margin_nats: the lowest level.
        alpha: significance level that ``detectable`` is for.
    """
    levels = tuple(_level(judged > nats, null > nats, nats, alpha) for nats in margin_nats * np.array(LEVELS))
    return Excess(len(judged), min(1.0, len(levels) * min(level.p for level in levels)), levels)


@cache
def detectable(n: int, null_beyond: int, alpha: float) -> int | None:
    """Fewest damaged documents that make the test of one level significant.

    Counted from what an undamaged warm pass is expected to show if it exceeds the level as often as the null, in
    documents of its own: m (n - m) / n of them on either side, rounded up, with m = ``null_beyond``. Without noise
    (m = 0) damage to that many documents is always seen, with noise in about half of all runs.
    """
    background = math.ceil(null_beyond * (n - null_beyond) / n)
    damaged = np.arange(1, n - null_beyond + 1)
    p = scipy.stats.binom.sf(background + damaged - 1, 2 * background + damaged, 0.5)
    seen = damaged[len(LEVELS) * p < alpha]
    return int(seen[0]) if len(seen) else None


def _level(judged: NDArray[np.bool_], null: NDArray[np.bool_], nats: float, alpha: float) -> Level:
    only, only_null = int((judged & ~null).sum()), int((null & ~judged).sum())
    return Level(
        nats=float(nats),
        beyond=int(judged.sum()),
        null_beyond=int(null.sum()),
        only=only,
        only_null=only_null,
        p=mcnemar_p(PairedTable(len(judged), only, only_null)),
        detectable=detectable(len(judged), int(null.sum()), alpha),
    )


def _excess_of(judged: pd.DataFrame | None, null: pd.DataFrame | None, gate: GateConfig) -> Excess | None:
    if judged is None or null is None:
        return None
    both = pd.concat({"judged": judged["max_nats"], "null": null["max_nats"]}, axis=1, join="inner")
    if both.empty:
        return None
    return excess(both["judged"].to_numpy(), both["null"].to_numpy(), gate.drift_margin_nats, gate.alpha)


def _count_flips(evidence: Evidence, null_name: str) -> Flips | None:
    if null_name not in evidence.passes:
        return None
    cold, warm, null = (evidence.passes[name].scores for name in ("cold", "warm", null_name))
    both = pd.concat({"cold": cold, "warm": warm, "null": null}, axis=1, join="inner")
    if both.empty:
        return None
    flipped, null_flipped = both["warm"] != both["cold"], both["null"] != both["cold"]
    only, only_null = int((flipped & ~null_flipped).sum()), int((null_flipped & ~flipped).sum())
    p = mcnemar_p(PairedTable(len(both), only, only_null))
    return Flips(int(flipped.sum()), int(null_flipped.sum()), only, only_null, p)


def _summary(rows: pd.DataFrame, margin_nats: float) -> dict[str, Any]:
    """Departures of one pass in a few numbers; None where nothing was measured."""
    diverged = rows[rows["diverged"]]
    tokens = int(rows["shared"].sum())
    # Within the margin on both sides, no larger gap can be turned over: see divergence.at_divergence.
    near_ties = int((diverged["gap_nats"] <= 2 * margin_nats).sum())
    return {
        "n": len(rows),
        "beyond": int((rows["max_nats"] > margin_nats).sum()),
        "diverged": len(diverged),
        "near_ties": near_ties,
        "first_divergence_p50": float(diverged["shared"].median()) if len(diverged) else None,
        "first_token_nats": _quantiles(rows["first_nats"]),
        "max_nats": _quantiles(rows["max_nats"]),
        "shared_tokens": tokens,
        "mean_nats": float(rows["sum_nats"].sum()) / tokens if tokens else None,
        "mean_kl_nats": float(rows["sum_kl_nats"].sum()) / tokens if tokens else None,
    }


def _quantiles(values: pd.Series[Any]) -> dict[str, float | None]:
    if values.empty:
        return {"p50": None, "p95": None, "max": None}
    p50, p95, most = np.quantile(values.to_numpy(dtype=np.float64), [0.5, 0.95, 1.0])
    return {"p50": float(p50), "p95": float(p95), "max": float(most)}


def _of(found: Excess | None) -> dict[str, Any]:
    if found is None:
        return {"n": 0, "p": None, "detectable": None, "levels": []}
    return {
        "n": found.n,
        "p": found.p,
        "detectable": found.most_sensitive.detectable,
        "levels": [asdict(level) for level in found.levels],
    }
