"""The draws of a paired bootstrap, counted once for all cells, and statistics of every resample from those counts.

Which documents a resample draws depends on the seed and on how many there are, not on their values; so cells with as
many documents share their draws. They are those of :func:`scipy.stats.bootstrap` with the same generator and batch,
and so are the intervals, up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Counts = NDArray[np.uint8]
"""Documents x resamples: how often each is drawn. That is Poisson(1) nearly, so that 255 is out of reach."""

SEED = 0

BATCH = 500
"""Resamples that are drawn at once; bounds memory where there are many documents."""

KEPT = 1 << 25
"""Bytes of counts that are kept for the next cell; larger ones are drawn again."""


def resamples(n: int, count: int) -> Iterable[Counts]:
    """Counts of ``count`` resamples of ``n`` documents, in batches."""
    return _kept(n, count) if n * count <= KEPT else _drawn(n, count)


def medians(values: FloatArray, counts: Counts) -> FloatArray:
    """Median of every resample; exactly what sorting its values gives.

    Args:
        values: one per document.
        counts: of the same documents.
    """
    order = np.argsort(values)
    ordered, n = values[order], len(values)
    upto = np.cumsum(counts[order], axis=0, dtype=np.min_scalar_type(n))
    middle = [ordered[np.sum(upto < rank, axis=0)] for rank in ((n + 1) // 2, n // 2 + 1)]
    return np.asarray((middle[0] + middle[1]) / 2)


def sums(values: FloatArray, counts: Counts) -> FloatArray:
    """Sum of every resample.

    Args:
        values: one per document, or several rows of them.
        counts: of the same documents.
    """
    return np.asarray(values @ counts.astype(np.float64))


def interval(of_resamples: Iterable[FloatArray], confidence: float) -> tuple[float, float]:
    """Percentile interval of a statistic of all resamples (Efron 1979), by linear interpolation."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(list(of_resamples)), [tail, 1 - tail])
    return float(low), float(high)


@lru_cache(maxsize=4)
def _kept(n: int, count: int) -> tuple[Counts, ...]:
    return tuple(_drawn(n, count))


def _drawn(n: int, count: int) -> Iterator[Counts]:
    chance = np.random.default_rng(SEED)
    for begun in range(0, count, BATCH):
        rows = min(BATCH, count - begun)
        drawn = chance.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        counted = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        yield np.ascontiguousarray(counted.T.astype(np.uint8))
