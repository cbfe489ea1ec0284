"""Is run B slower than run A? Ratios B ÷ A of a pass, with intervals over its documents.

The intervals are percentile bootstraps over documents, paired: each resample draws the same documents in both runs.
They tell how much the choice of documents matters, not how much one launch differs from the next: repeats do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.compare.margins import Margins
from harness.compare.match import CellData, Columns, Pairing, first_rows, of_pass
from harness.compare.resamples import FloatArray, interval, medians, resamples, sums
from harness.report.runs import find

TTFT, THROUGHPUT = "ttft_p50_s", "output_tokens_per_s"

PLACES = {TTFT: ("ttft_s", "p50"), THROUGHPUT: (THROUGHPUT,)}
"""Where cell.json has them, in a pass."""

HIGHER_IS_WORSE = {TTFT: True, THROUGHPUT: False}

FEWEST = 10
"""Documents below which a bootstrap says nothing."""

TIMES = ("sent_s", "ttft_s", "finished_s", "output_tokens")
"""What is read of every request."""

Times = Mapping[str, FloatArray]
"""Those columns, of some requests."""


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
            n = len(of_a["ttft_s"])
            ends = intervals(of_a, of_b, after / before, margins) if n >= FEWEST else None
            low, high = ends or (None, None)
            found.append(
                SpeedChange(
                    name,
                    measure,
                    before,
                    after,
                    after / before,
                    low,
                    high,
                    n,
                    beyond(measure, low, high, margins.speed_margin),
                )
            )
    return found


def beyond(measure: str, low: float | None, high: float | None, margin: float) -> bool:
    """Whether an interval of a ratio lies beyond the margin, on the slow side."""
    if low is None or high is None:
        return False
    return low > 1 + margin if HIGHER_IS_WORSE[measure] else high < 1 - margin


def ttft_interval(a: Times, b: Times, ratio: float, margins: Margins) -> tuple[float, float]:
    """Interval of the ratio of medians."""
    before, after = a["ttft_s"], b["ttft_s"]
    drawn = resamples(len(before), margins.resamples)
    return interval((medians(after, counts) / medians(before, counts) for counts in drawn), margins.confidence)


def flow_interval(a: Times, b: Times, ratio: float, margins: Margins) -> tuple[float, float]:
    """Interval of the ratio of throughputs.

    A pass's wall time belongs to no document, but by Little's law it is the sum of all latencies ÷ requests in flight.
    These are held at what they were, so that a resample's throughput is its tokens ÷ its latencies, times a constant
    that makes the whole pass come out as measured.
    """
    tokens = [each["output_tokens"] for each in (a, b)]
    latencies = [each["finished_s"] - each["sent_s"] for each in (a, b)]
    values = np.stack([tokens[1], latencies[0], latencies[1], tokens[0]])
    of_resamples = (sums(values, counts) for counts in resamples(values.shape[1], margins.resamples))
    low, high = interval((each[0] * each[1] / (each[2] * each[3]) for each in of_resamples), margins.confidence)
    whole = (tokens[1].sum() / latencies[1].sum()) / (tokens[0].sum() / latencies[0].sum())
    return float(low * ratio / whole), float(high * ratio / whole)


def _answered(a: CellData, b: CellData, pairing: Pairing, name: str) -> tuple[Times, Times]:
    """Requests of a pass that both cells have answered, in the same order of documents."""
    (of_a, rows_a), (of_b, rows_b) = (_first_answers(each.requests, name) for each in (a, b))
    both, places_a, places_b = np.intersect1d(of_a, of_b, assume_unique=True, return_indices=True)
    paired = np.array([document in pairing.documents for document in both.tolist()], dtype=bool)
    return _times(a, rows_a[places_a[paired]]), _times(b, rows_b[places_b[paired]])


def _first_answers(requests: Columns, name: str) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Documents that a pass has answered, and where; of one that was answered twice, the first."""
    chosen = of_pass(requests, name) & pd.isna(np.asarray(requests["error"]))
    for time in ("ttft_s", "finished_s"):
        chosen &= ~np.isnan(np.asarray(requests[time], dtype=float))
    return first_rows(requests, chosen)


def _times(data: CellData, rows: NDArray[np.intp]) -> Times:
    return {column: np.asarray(data.requests[column], dtype=float)[rows] for column in TIMES}
