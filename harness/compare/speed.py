"""Is run B slower than run A? Ratios B ÷ A of a pass, with intervals over its documents.

The intervals are percentile bootstraps over documents, paired: each resample draws the same documents in both runs.
They tell how much the choice of documents matters, not how much one launch differs from the next: repeats do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import bootstrap

from harness.compare.margins import Margins
from harness.compare.match import CellData, Pairing
from harness.report.runs import find

FloatArray = NDArray[np.float64]

TTFT, THROUGHPUT = "ttft_p50_s", "output_tokens_per_s"

PLACES = {TTFT: ("ttft_s", "p50"), THROUGHPUT: (THROUGHPUT,)}
"""Where cell.json has them, in a pass."""

HIGHER_IS_WORSE = {TTFT: True, THROUGHPUT: False}

FEWEST = 10
"""Documents below which a bootstrap says nothing."""

SEED = 0


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """One measure of one pass of one cell."""

    name: str
    """Of the pass."""
    measure: str
    """``ttft_p50_s``, the median in seconds, or ``output_tokens_per_s``."""
    a: float
    b: float
    ratio: float
    """B ÷ A."""
    low: float | None
    high: float | None
    """Ends of its interval, of confidence 1 - 2 alpha; None without a table of requests."""
    n: int
    """Documents that were answered in both, and so resampled."""
    worse: bool
    """Whether the interval lies beyond the margin, on the slow side."""


def speed_changes(
    a: CellData, b: CellData, pairing: Pairing, margins: Margins, passes: Sequence[str]
) -> list[SpeedChange]:
    """TTFT and throughput of every pass that both cells have timed."""
    found = []
    for name in passes:
        of_a, of_b = _answered(a, b, pairing, name)
        for measure, intervals in ((TTFT, ttft_interval), (THROUGHPUT, flow_interval)):
            values = [find(each.cell, "passes", name, *PLACES[measure]) for each in (a, b)]
            if None in values or not all(values):
                continue
            before, after = map(float, values)
            interval = None
            if len(of_a) >= FEWEST:
                interval = intervals(of_a, of_b, after / before, margins)
            low, high = interval or (None, None)
            found.append(
                SpeedChange(
                    name,
                    measure,
                    before,
                    after,
                    after / before,
                    low,
                    high,
                    len(of_a),
                    beyond(measure, low, high, margins.speed_margin),
                )
            )
    return found


def beyond(measure: str, low: float | None, high: float | None, margin: float) -> bool:
    """Whether an interval of a ratio lies beyond the margin, on the slow side."""
    if low is None or high is None:
        return False
    return low > 1 + margin if HIGHER_IS_WORSE[measure] else high < 1 - margin


def ttft_interval(a: pd.DataFrame, b: pd.DataFrame, ratio: float, margins: Margins) -> tuple[float, float]:
    """Interval of the ratio of medians."""

    def statistic(before: FloatArray, after: FloatArray, axis: int) -> FloatArray:
        return np.asarray(np.median(after, axis=axis) / np.median(before, axis=axis))

    return _interval([a["ttft_s"], b["ttft_s"]], statistic, margins)


def flow_interval(a: pd.DataFrame, b: pd.DataFrame, ratio: float, margins: Margins) -> tuple[float, float]:
    """Interval of the ratio of throughputs.

    A pass's wall time belongs to no document, but by Little's law it is the sum of all latencies ÷ requests in flight.
    These are held at what they were, so that a resample's throughput is its tokens ÷ its latencies, times a constant
    that makes the whole pass come out as measured.
    """
    tokens = [each["output_tokens"] for each in (a, b)]
    latencies = [each["finished_s"] - each["sent_s"] for each in (a, b)]

    def statistic(tok_a: Any, lat_a: Any, tok_b: Any, lat_b: Any, axis: int) -> FloatArray:
        before, after = (tok.sum(axis=axis) / lat.sum(axis=axis) for tok, lat in ((tok_a, lat_a), (tok_b, lat_b)))
        return np.asarray(after / before)

    data = [tokens[0], latencies[0], tokens[1], latencies[1]]
    whole = (tokens[1].sum() / latencies[1].sum()) / (tokens[0].sum() / latencies[0].sum())
    low, high = _interval(data, statistic, margins)
    return float(low * ratio / whole), float(high * ratio / whole)


def _interval(
    data: Sequence[pd.Series[Any]], statistic: Callable[..., FloatArray], margins: Margins
) -> tuple[float, float]:
    found = bootstrap(
        tuple(np.asarray(each, dtype=float) for each in data),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=margins.resamples,
        batch=500,
        confidence_level=margins.confidence,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


def _answered(a: CellData, b: CellData, pairing: Pairing, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Requests of a pass that both cells have answered, in the same order of documents."""
    tables = []
    for each in (a, b):
        rows = each.requests
        rows = rows[(rows["pass"] == name) & rows["error"].isna() & rows["ttft_s"].notna() & rows["finished_s"].notna()]
        tables.append(rows.drop_duplicates("doc_id").set_index("doc_id"))
    both = sorted(pairing.documents & set(tables[0].index) & set(tables[1].index))
    return tables[0].loc[both], tables[1].loc[both]
