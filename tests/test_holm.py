"""Holm's correction against statsmodels and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from harness.equivalence.holm import holm


def test_by_hand() -> None:
    assert holm([0.03, 0.01, 0.04, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])


def test_agrees_with_statsmodels() -> None:
    rng = np.random.default_rng(4)
    for size in (1, 2, 3, 7, 40):
        for scale in (1.0, 0.05):
            p_values = [float(p) for p in np.round(scale * rng.random(size), 2)]
            assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-9)


def test_one_test_needs_no_correction_and_none_no_answer() -> None:
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


def test_any_false_rejection_among_true_hypotheses_has_at_most_alpha() -> None:
    rng = np.random.default_rng(5)
    wrong = [min(holm([float(p) for p in rng.random(8)])) < 0.05 for _ in range(2000)]
    assert 0.03 < np.mean(wrong) < 0.06
