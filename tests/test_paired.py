"""Paired statistics against published values, other software and exhaustive enumeration of small tables."""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm
from statsmodels.stats.contingency_tables import mcnemar

from harness.equivalence.paired import (
    PairedTable,
    loss_p,
    mcnemar_p,
    needed_n,
    paired_table,
    score_interval,
    score_z,
    tost_p,
    tost_power,
)

Z_90 = float(norm.ppf(0.95))
MARGINS = (0.01, 0.03, 0.1, 0.5, 0.9)


def all_tables(n: int, max_flips: int | None = None) -> Iterator[PairedTable]:
    """Every table of n questions, optionally only those with few flips."""
    for flips in range((n if max_flips is None else max_flips) + 1):
        for b in range(flips + 1):
            yield PairedTable(n, b, flips - b)


def probability(tables: list[PairedTable], damage: float, repair: float) -> NDArray[np.float64]:
    """How likely each table is, if a question goes right -> wrong or wrong -> right with these chances."""
    n = tables[0].n
    b = np.array([table.b for table in tables])
    c = np.array([table.c for table in tables])
    weights: NDArray[np.float64] = binom.pmf(b, n, damage) * binom.pmf(c, n - b, repair / (1.0 - damage))
    return weights


SMALL_TABLES = [table for n in (1, 2, 3, 7, 20) for table in all_tables(n)]
# Large and lopsided ones, where a careless quadratic cancels.
LARGE_TABLES = [
    PairedTable(1319, 0, 0),
    PairedTable(1319, 1, 0),
    PairedTable(1319, 0, 1),
    PairedTable(1319, 70, 62),
    PairedTable(100_000, 1, 99_998),
    PairedTable(100_000, 99_999, 0),
    PairedTable(1_000_000, 3, 0),
    PairedTable(1_000_000, 0, 1_000_000),
]
TABLES = SMALL_TABLES + LARGE_TABLES


# --- the table ---------------------------------------------------------------------------------------------


def test_difference_is_positive_when_warm_lost_score() -> None:
    table = PairedTable(n=200, b=12, c=4)
    assert table.difference == pytest.approx(8 / 200)
    assert table.flip_rate == pytest.approx(16 / 200)
    assert table.se == pytest.approx(math.sqrt(16 - 8**2 / 200) / 200)


def test_se_is_that_of_the_paired_differences() -> None:
    differences = [1] * 12 + [-1] * 4 + [0] * 184
    assert PairedTable(200, 12, 4).se == pytest.approx(float(np.std(differences)) / math.sqrt(200))


@pytest.mark.parametrize("table", [PairedTable(50, 0, 0), PairedTable(50, 50, 0), PairedTable(49, 0, 49)])
def test_wald_se_collapses_where_the_score_interval_does_not(table: PairedTable) -> None:
    assert table.se == 0.0
    low, high = score_interval(table)
    assert high - low > 0.04


@pytest.mark.parametrize(("n", "b", "c"), [(0, 0, 0), (10, -1, 0), (10, 0, -1), (10, 6, 5), (-1, 0, 0)])
def test_impossible_counts_are_refused_with_the_numbers(n: int, b: int, c: int) -> None:
    with pytest.raises(ValueError, match=f"n={n}, b={b}, c={c}"):
        PairedTable(n=n, b=b, c=c)


def test_paired_table_counts_each_direction_by_document() -> None:
    cold = {7: True, 8: True, 9: True, 1: False, 2: False, 3: True}
    warm = {3: True, 2: False, 1: True, 9: False, 8: False, 7: True}
    assert paired_table(cold, warm) == PairedTable(n=6, b=2, c=1)


def test_passes_over_different_documents_are_refused_and_named() -> None:
    cold = dict.fromkeys(range(10), True)
    warm = dict.fromkeys([*range(8), 77], True)
    with pytest.raises(ValueError, match=r"missing from warm 8, 9, missing from cold 77"):
        paired_table(cold, warm)


def test_only_some_of_many_missing_documents_are_named() -> None:
    with pytest.raises(ValueError, match=r"warm 0, 1, 2, 3, 4 and 995 more, missing from cold none"):
        paired_table(dict.fromkeys(range(1000), True), {})


def test_two_empty_passes_are_refused() -> None:
    with pytest.raises(ValueError, match="no documents"):
        paired_table({}, {})


# --- McNemar -----------------------------------------------------------------------------------------------


def test_mcnemar_is_the_binomial_tail() -> None:
    for table in all_tables(20):
        flips = table.b + table.c
        tail = sum(math.comb(flips, k) for k in range(table.b, flips + 1)) / 2**flips
        assert mcnemar_p(table) == pytest.approx(tail, abs=1e-9)


def test_mcnemar_agrees_with_statsmodels() -> None:
    """The two-sided exact p is twice the smaller one-sided one, at most 1."""
    for table in all_tables(15):
        theirs = mcnemar([[0, table.b], [table.c, 0]], exact=True).pvalue
        mirrored = PairedTable(table.n, table.c, table.b)
        ours = min(1.0, 2 * min(mcnemar_p(table), mcnemar_p(mirrored)))
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_mcnemar_sees_damage_and_not_repair() -> None:
    assert mcnemar_p(PairedTable(1319, 30, 5)) < 1e-4
    assert mcnemar_p(PairedTable(1319, 5, 30)) > 0.9999
    assert mcnemar_p(PairedTable(1319, 0, 0)) == 1.0


# --- score statistic and interval --------------------------------------------------------------------------


def test_published_example_of_tango_1998() -> None:
    """Section 6.1, contact lenses: 43 pairs both effective, 1 only under the standard; margin 0.1."""
    table = PairedTable(n=44, b=0, c=1)
    assert score_z(table, -0.1) == pytest.approx(1.709, abs=5e-4)
    assert norm.sf(score_z(table, -0.1)) == pytest.approx(0.044, abs=5e-4)
    assert score_interval(table, 0.90)[0] == pytest.approx(-0.096, abs=5e-4)


@pytest.mark.parametrize(
    ("n", "b", "c", "confidence", "expected"),
    [  # as the tests of the R package ratesci (pairbinci, version 0.3) have them
        (32, 9, 3, 0.95, (-0.027, 0.390)),
        (44, 0, 1, 0.90, (-0.096, 0.037)),
    ],
)
def test_interval_agrees_with_other_software(
    n: int, b: int, c: int, confidence: float, expected: tuple[float, float]
) -> None:
    assert score_interval(PairedTable(n, b, c), confidence) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("delta0", [-0.6, -0.03, 0.03, 0.25])
def test_statistic_agrees_with_a_likelihood_maximised_by_search(delta0: float) -> None:
    """The closed form against its definition: maximise the likelihood on a fine grid under H0."""
    n = 40
    q = np.linspace(max(0.0, -delta0), (1.0 - max(delta0, -delta0)) / 2.0 + max(0.0, -delta0), 200_001)[1:-1]
    for table in (PairedTable(n, b, c) for b, c in [(3, 5), (1, 9), (12, 2), (20, 19), (7, 1)]):
        b, c = table.b, table.c
        likelihood = b * np.log(q + delta0) + c * np.log(q) + (n - b - c) * np.log(1.0 - 2 * q - delta0)
        best = q[np.argmax(likelihood)]
        expected = (b - c - n * delta0) / math.sqrt(n * (2 * best + delta0 * (1 - delta0)))
        assert score_z(table, delta0) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("delta0", [-0.6, -0.03, 0.03, 0.25])
def test_statistic_agrees_with_the_likelihood_equation_solved_by_scipy(delta0: float) -> None:
    """The root of the score function under H0, where the closed form solves a quadratic: to 1e-9."""
    for table in all_tables(24):
        n, b, c = table.n, table.b, table.c
        if not (b and c and b + c < n):
            continue  # the maximum lies on the boundary, where the score function has no root

        def slope(q: float, n: int = n, b: int = b, c: int = c) -> float:
            return b / (q + delta0) + c / q - 2 * (n - b - c) / (1.0 - 2 * q - delta0)

        low, high = max(0.0, -delta0), (1.0 - delta0) / 2.0
        q = brentq(slope, low + 1e-14, high - 1e-14, xtol=1e-15, rtol=1e-15)
        expected = (b - c - n * delta0) / math.sqrt(n * (2 * q + delta0 * (1 - delta0)))
        assert score_z(table, delta0) == pytest.approx(expected, abs=1e-9)


def test_at_zero_the_statistic_is_mcnemars() -> None:
    for table in TABLES:
        flips = table.b + table.c
        expected = (table.b - table.c) / math.sqrt(flips) if flips else 0.0
        assert score_z(table, 0.0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.90, 0.95, 0.999])
def test_the_ends_of_the_interval_invert_the_statistic(confidence: float) -> None:
    z = float(norm.ppf((1 + confidence) / 2))
    for table in TABLES:
        low, high = score_interval(table, confidence)
        assert -1.0 <= low <= table.difference <= high <= 1.0
        if table.b == table.n:
            assert high == 1.0
        else:
            assert score_z(table, high) == pytest.approx(-z, abs=1e-6)
        if table.c == table.n:
            assert low == -1.0
        else:
            assert score_z(table, low) == pytest.approx(z, abs=1e-6)


@pytest.mark.parametrize("n", [1, 5, 87, 88, 300, 1319])
def test_without_flips_the_bound_is_closed(n: int) -> None:
    bound = Z_90**2 / (n + Z_90**2)
    assert score_interval(PairedTable(n, 0, 0)) == pytest.approx((-bound, bound), abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 10, 300])
def test_if_every_question_flipped_the_other_end_is_closed(n: int) -> None:
    """z(d) = sqrt(n (1 - d) / (1 + d)) at b = n, so the lower end is (n - z^2) / (n + z^2)."""
    inner = (n - Z_90**2) / (n + Z_90**2)
    assert score_interval(PairedTable(n, n, 0)) == pytest.approx((inner, 1.0), abs=1e-12)
    assert score_interval(PairedTable(n, 0, n)) == pytest.approx((-1.0, -inner), abs=1e-12)


def test_at_the_limits_of_the_parameter_the_statistic_is_its_limit() -> None:
    assert score_z(PairedTable(10, 3, 2), 1.0) == -math.inf
    assert score_z(PairedTable(10, 3, 2), -1.0) == math.inf
    assert score_z(PairedTable(10, 10, 0), 1.0) == 0.0
    assert score_z(PairedTable(10, 0, 10), -1.0) == 0.0


def test_the_statistic_falls_as_the_hypothesis_rises() -> None:
    """Without this the interval could have holes, and TOST and interval could disagree."""
    grid = np.linspace(-0.999, 0.999, 81)
    for table in SMALL_TABLES + LARGE_TABLES[:4]:
        assert np.all(np.diff([score_z(table, float(delta0)) for delta0 in grid]) < 0)


def test_swapping_the_passes_mirrors_the_interval() -> None:
    for table in TABLES:
        low, high = score_interval(table)
        mirrored = score_interval(PairedTable(table.n, table.c, table.b))
        assert mirrored == pytest.approx((-high, -low), abs=1e-12)


def test_more_confidence_is_wider() -> None:
    for table in SMALL_TABLES:
        narrow, wide = score_interval(table, 0.8), score_interval(table, 0.95)
        assert wide[0] <= narrow[0] < narrow[1] <= wide[1]


@pytest.mark.parametrize("n", [20, 30])
def test_exact_coverage_of_the_95_percent_interval(n: int) -> None:
    """Measured over this grid: 0.9413 at least (n = 20) and 0.9298 (n = 30, only damage, p = 0.3).

    The interval is approximate, so single points fall below 0.95; on average it keeps its promise.
    """
    tables = list(all_tables(n))
    low, high = np.array([score_interval(table, 0.95) for table in tables]).T
    coverages = []
    for damage, repair in itertools.product(np.linspace(0, 0.6, 31), np.linspace(0, 0.4, 21)):
        # A point exactly on an end (d = 0.6 - 0.4, say) must not depend on rounding.
        covers = (low <= damage - repair + 1e-12) & (damage - repair - 1e-12 <= high)
        coverages.append(float(probability(tables, damage, repair)[covers].sum()))
    assert min(coverages) >= 0.925
    assert 0.95 <= float(np.mean(coverages)) <= 0.96


# --- equivalence and loss ----------------------------------------------------------------------------------


def test_an_equal_pair_without_a_flip_needs_88_questions() -> None:
    assert tost_p(PairedTable(87, 0, 0), 0.03) >= 0.05
    assert tost_p(PairedTable(88, 0, 0), 0.03) < 0.05


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_tost_passes_exactly_if_the_interval_lies_within_the_margins(alpha: float) -> None:
    for table in TABLES:
        low, high = score_interval(table, 1 - 2 * alpha)
        for margin in MARGINS:
            assert (tost_p(table, margin) < alpha) == (-margin < low and high < margin), (table, margin)


def test_loss_is_significant_exactly_if_the_interval_lies_above_the_margin() -> None:
    for table in TABLES:
        for margin in MARGINS:
            assert (loss_p(table, margin) < 0.05) == (score_interval(table)[0] > margin), (table, margin)


def test_equivalence_and_loss_are_never_both_found() -> None:
    for table, margin in itertools.product(TABLES, MARGINS):
        assert tost_p(table, margin) + loss_p(table, margin) >= 1 - 1e-12


def test_a_wider_margin_is_easier_to_keep_and_harder_to_exceed() -> None:
    for table in TABLES:
        equivalence = [tost_p(table, margin) for margin in MARGINS]
        loss = [loss_p(table, margin) for margin in MARGINS]
        assert equivalence == sorted(equivalence, reverse=True)
        assert loss == sorted(loss)


def test_more_damage_is_less_equivalent() -> None:
    for flips in (4, 10, 40):
        damaged = [PairedTable(300, b, flips - b) for b in range(flips // 2, flips + 1)]
        equivalence = [tost_p(table, 0.03) for table in damaged]
        loss = [loss_p(table, 0.03) for table in damaged]
        direction = [mcnemar_p(table) for table in damaged]
        assert equivalence == sorted(set(equivalence))
        assert loss == sorted(set(loss), reverse=True)
        assert direction == sorted(set(direction), reverse=True)


def test_equivalence_does_not_care_about_the_direction() -> None:
    for table in TABLES:
        assert tost_p(table, 0.03) == pytest.approx(tost_p(PairedTable(table.n, table.c, table.b), 0.03))


@pytest.mark.parametrize(
    ("n", "max_flips", "margin", "bound"),
    [
        (1319, 140, 0.03, 0.050),
        (300, 60, 0.03, 0.055),
        (100, 60, 0.05, 0.050),
        (100, 60, 0.10, 0.060),
        (30, 30, 0.20, 0.055),
        (88, 45, 0.03, 0.070),
    ],
)
def test_exact_size_of_tost_at_the_margin(n: int, max_flips: int, margin: float, bound: float) -> None:
    """Size at a true loss of exactly the margin, nominal 0.05; `max_flips` holds all but 1e-6 of the mass.

    The worst is the smallest n that can pass at all, with damage only: there "nothing flipped" passes, and
    has probability 0.97^88 = 0.0685.
    """
    tables = list(all_tables(n, max_flips))
    passes = np.array([tost_p(table, margin) < 0.05 for table in tables])
    sizes = []
    for repair in (0.0, 0.002, 0.005, 0.01, 0.02):
        weights = probability(tables, margin + repair, repair)
        assert weights.sum() == pytest.approx(1.0, abs=1e-6)
        sizes.append(float(weights[passes].sum()))
    assert max(sizes) <= bound
    assert max(sizes) >= 0.03


# --- planning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.03, 0.05, 0.1])
def test_without_flips_the_needed_n_is_the_smallest_that_passes(margin: float) -> None:
    n = needed_n(0.0, margin)
    assert tost_p(PairedTable(n, 0, 0), margin) < 0.05
    assert tost_p(PairedTable(n - 1, 0, 0), margin) >= 0.05


def test_needed_n_of_the_default_margin() -> None:
    assert needed_n(0.0, 0.03) == 88


@pytest.mark.parametrize(("flip_rate", "margin"), [(0.2, 0.03), (0.5, 0.03), (0.5, 0.05), (0.1, 0.01)])
def test_with_many_flips_needed_n_is_the_rule_of_thumb(flip_rate: float, margin: float) -> None:
    assert needed_n(flip_rate, margin) == pytest.approx(10.8 * flip_rate / margin**2, rel=0.01)


def test_needed_n_grows_with_flips_and_power_and_shrinks_with_margin_and_alpha() -> None:
    rates = [needed_n(rate, 0.03) for rate in (0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)]
    powers = [needed_n(0.1, 0.03, power=power) for power in (0.5, 0.8, 0.9, 0.99)]
    margins = [needed_n(0.1, margin) for margin in (0.1, 0.05, 0.03, 0.01)]
    alphas = [needed_n(0.1, 0.03, alpha=alpha) for alpha in (0.2, 0.05, 0.01)]
    for values in (rates, powers, margins, alphas):
        assert values == sorted(set(values))


@pytest.mark.parametrize("margin", [0.02, 0.03, 0.05])
@pytest.mark.parametrize("flip_rate", [0.01, 0.02, 0.03, 0.05, 0.1, 0.2])
def test_needed_n_delivers_its_power(flip_rate: float, margin: float) -> None:
    """Measured here: 0.895 to 0.961. The rule of thumb 10.8 f / margin^2 delivers 0.41 at f = 0.01, 0.03."""
    n = needed_n(flip_rate, margin)
    assert 0.88 <= tost_power(n, flip_rate, margin) <= 0.97


@pytest.mark.parametrize(
    ("n", "flip_rate", "margin", "alpha"),
    [(30, 0.1, 0.2, 0.05), (30, 0.5, 0.3, 0.05), (88, 0.02, 0.05, 0.05), (60, 0.04, 0.1, 0.01)],
)
def test_power_is_that_of_brute_force(n: int, flip_rate: float, margin: float, alpha: float) -> None:
    tables = list(all_tables(n))
    passes = np.array([tost_p(table, margin) < alpha for table in tables])
    expected = probability(tables, flip_rate / 2, flip_rate / 2)[passes].sum()
    assert 0.05 < expected < 0.99
    assert tost_power(n, flip_rate, margin, alpha=alpha) == pytest.approx(expected, abs=1e-9)


def test_power_without_flips_is_all_or_nothing() -> None:
    assert tost_power(87, 0.0, 0.03) == 0.0
    assert tost_power(88, 0.0, 0.03) == 1.0


def test_power_falls_with_flips() -> None:
    powers = [tost_power(1319, rate, 0.03) for rate in (0.02, 0.05, 0.1, 0.2, 0.4)]
    assert powers == sorted(powers, reverse=True)
    assert powers[0] > 0.999
    assert powers[-1] < 0.6


# --- wrong arguments ---------------------------------------------------------------------------------------

TABLE = PairedTable(100, 3, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score_z(TABLE, 1.5), "1.5"),
        (lambda: score_z(TABLE, math.nan), "nan"),
        (lambda: score_interval(TABLE, 1.0), "confidence"),
        (lambda: score_interval(TABLE, 0.0), "confidence"),
        (lambda: tost_p(TABLE, 0.0), "margin"),
        (lambda: tost_p(TABLE, -0.03), "margin"),
        (lambda: loss_p(TABLE, 3), "margin"),
        (lambda: needed_n(1.2, 0.03), "flip_rate"),
        (lambda: needed_n(0.1, 0.0), "margin"),
        (lambda: needed_n(0.1, 0.03, alpha=0.0), "alpha"),
        (lambda: needed_n(0.1, 0.03, power=1.0), "power"),
        (lambda: tost_power(0, 0.1, 0.03), "n=0"),
        (lambda: tost_power(10, -0.1, 0.03), "flip_rate"),
        (lambda: tost_power(10, 0.1, 1.0), "margin"),
        (lambda: tost_power(10, 0.1, 0.03, alpha=1.0), "alpha"),
    ],
)
def test_arguments_out_of_range_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
