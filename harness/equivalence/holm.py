"""Holm's correction for several tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: rejecting those below alpha keeps the chance of any false rejection at most alpha.

    In ascending order, p of rank i (from 1) of m becomes the largest of min(1, (m - j + 1) p_j) over j <= i. Valid
    whatever the dependence between the tests, so that cells which share a cold pass, or repeat the same documents,
    may stand in one family. Holm (1979), Scandinavian Journal of Statistics 6:65-70.

    Returns:
        In the order given.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    stepped = np.maximum.accumulate(factors * np.asarray(p_values, dtype=np.float64)[order])
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]
