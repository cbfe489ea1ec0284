"""Paired statistics on the scores of one question set, answered cold and answered warm.

Each question is right or wrong in either pass, so the data are `n`, `b` (right cold, wrong warm) and `c`
(wrong cold, right warm); questions with the same outcome twice enter only through `n`. The quantity of
interest is the loss d = P(right cold) - P(right warm), estimated by (b - c) / n: positive means that warm
lost score.

Everything rests on Tango's score test, whose variance comes from the model restricted to the hypothesis
and not from the observed flips, so it stays right where the usual (Wald) interval collapses: no flip at all.

Sources: Tango (1998), Statistics in Medicine 17:891-908 (score test and interval); Schuirmann (1987),
Journal of Pharmacokinetics and Biopharmaceutics 15:657-680 (two one-sided tests, TOST); McNemar (1947),
Psychometrika 12:153-157 (discordant pairs).
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy  # loads its parts when they are asked for: servers start meanwhile
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Flip counts less likely than this are left out of a power: together they weigh less than n times as much.
_NEGLIGIBLE_MASS = 1e-12
_IDS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PairedTable:
    """The discordant counts of `n` questions: `b` went right -> wrong, `c` went wrong -> right.

    Raises ValueError if `n < 1`, a count is negative, or `b + c > n`.
    """

    n: int
    b: int
    c: int

    def __post_init__(self) -> None:
        if self.n < 1 or self.b < 0 or self.c < 0 or self.b + self.c > self.n:
            raise ValueError(
                f"not a paired table: n={self.n}, b={self.b}, c={self.c} (needs n >= 1, b >= 0, c >= 0, b + c <= n)"
            )

    @property
    def difference(self) -> float:
        """The observed loss (b - c) / n; positive means that warm lost score."""
        return (self.b - self.c) / self.n

    @property
    def flip_rate(self) -> float:
        """The share of questions whose outcome changed, (b + c) / n."""
        return (self.b + self.c) / self.n

    @property
    def se(self) -> float:
        """Wald standard error of the difference, sqrt((b + c) - (b - c)^2 / n) / n.

        For display: it is 0 when nothing flipped, so decisions use the score test instead.
        """
        # Written as a sum of non-negative terms: the subtraction could round below 0 at b = n.
        unflipped = self.n - self.b - self.c
        return math.sqrt(((self.b + self.c) * unflipped + 4 * self.b * self.c) / self.n) / self.n


def paired_table(cold: Mapping[int, bool], warm: Mapping[int, bool]) -> PairedTable:
    """Count the flips between two passes over the same documents, keyed by document id.

    b = #{right cold, wrong warm}, c = #{wrong cold, right warm} (McNemar 1947).
    Raises ValueError if there are no documents, or if the passes did not score the same ones.
    """
    if cold.keys() != warm.keys():
        raise ValueError(
            "the passes scored different documents:"
            f" missing from warm {_some_ids(cold.keys() - warm.keys())},"
            f" missing from cold {_some_ids(warm.keys() - cold.keys())}"
        )
    if not cold:
        raise ValueError("no documents to compare: both passes are empty")
    b = sum(1 for document, right in cold.items() if right and not warm[document])
    c = sum(1 for document, right in cold.items() if not right and warm[document])
    return PairedTable(n=len(cold), b=b, c=c)


@cache
def mcnemar_p(table: PairedTable) -> float:
    """Exact one-sided McNemar p-value for damage (right -> wrong flips dominating).

    p = sum over k = b .. b+c of C(b+c, k) / 2^(b+c); 1.0 when nothing flipped. McNemar (1947), exact form.
    """
    flips = table.b + table.c
    if flips == 0:
        return 1.0
    return float(scipy.stats.binomtest(table.b, flips, 0.5, alternative="greater").pvalue)


def score_z(table: PairedTable, delta0: float) -> float:
    """Tango's score statistic for H0: the true difference is `delta0`.

    z = (b - c - n delta0) / sqrt(n (2 q + delta0 (1 - delta0))), where q is the maximum-likelihood estimate
    of P(wrong -> right) under H0, the larger root of
    2n q^2 + ((2n - b + c) delta0 - (b + c)) q - c delta0 (1 - delta0) = 0. At delta0 = 0 it is McNemar's
    (b - c) / sqrt(b + c), and 0 when nothing flipped. It decreases as delta0 grows, to -inf at 1 (+inf at
    -1), or to 0 there if every question flipped that way. Tango (1998), equations 24-26.

    Raises ValueError if `delta0` is outside [-1, 1].
    """
    if not -1.0 <= delta0 <= 1.0:
        raise ValueError(f"delta0 is a difference of two proportions, within [-1, 1]: got {delta0}")
    return float(_score(*_counts(table), table.n, delta0))


def score_interval(table: PairedTable, confidence: float = 0.90) -> tuple[float, float]:
    """Tango's score interval for the true difference: every delta0 with |z(delta0)| <= the normal quantile.

    The ends solve z(delta0) = +-z_{(1 + confidence)/2}. Without flips they are -+z^2 / (n + z^2). If every
    question flipped one way, one end is the limit, -1 or 1, and the other -+(n - z^2) / (n + z^2).
    Tango (1998).

    Raises ValueError if `confidence` is outside (0, 1).
    """
    _require_open_unit("confidence", confidence)
    z = float(scipy.special.ndtri((1.0 + confidence) / 2.0))
    b, c = _counts(table)
    return -_upper_end(c, b, table.n, z), _upper_end(b, c, table.n, z)


def tost_p(table: PairedTable, margin: float) -> float:
    """Equivalence p-value: TOST of H0: |true difference| >= `margin` with Tango's score statistic.

    p = max(Phi(z(margin)), 1 - Phi(z(-margin))). It is below alpha exactly if the score interval of
    confidence 1 - 2 alpha lies strictly inside (-margin, margin). Schuirmann (1987), Tango (1998).

    Raises ValueError if `margin` is outside (0, 1).
    """
    _require_open_unit("margin", margin)
    return float(_tost_p(*_counts(table), table.n, margin))


def loss_p(table: PairedTable, margin: float) -> float:
    """P-value for a loss beyond the margin: H0: d <= `margin` against d > `margin`.

    p = 1 - Phi(z(margin)), one-sided, with Tango's (1998) score statistic.

    Raises ValueError if `margin` is outside (0, 1).
    """
    _require_open_unit("margin", margin)
    return float(scipy.special.ndtr(-score_z(table, margin)))


def needed_n(flip_rate: float, margin: float, *, alpha: float = 0.05, power: float = 0.90) -> int:
    """Questions that TOST needs to pass with probability `power` when the true difference is 0.

    n is the smallest integer above ((z_{1-alpha} s0 + z_{1-(1-power)/2} s1) / margin)^2: half of the error
    on each side (Schuirmann 1987), s1^2 = f the variance of one question at the truth, with f the flip rate,
    and s0^2 = 2q + margin (1 - margin) the one that the score test (Tango 1998) assumes at the margin for
    the expected table. Where f is well above the margin, s0 = s1, and n = 10.8 f / margin^2 for 90 %. With
    fewer flips s0 is the larger one, and that formula promises far too much; at f = 0, n is the smallest that
    passes without a flip: z^2 / (n + z^2) < margin. `tost_power` gives the exact power at the n returned,
    which can miss `power` where the n holds less than one or two expected flips.

    Raises ValueError if `flip_rate` is outside [0, 1], or another argument outside (0, 1).
    """
    _require_rate("flip_rate", flip_rate)
    _require_open_unit("margin", margin)
    _require_open_unit("alpha", alpha)
    _require_open_unit("power", power)
    z_reject = float(scipy.special.ndtri(1.0 - alpha))
    z_power = float(scipy.special.ndtri(1.0 - (1.0 - power) / 2.0))
    one_way = np.asarray(flip_rate / 2.0)
    _, variance = _gap_and_variance(one_way, one_way, 1, margin)
    spread = z_reject * math.sqrt(variance) + z_power * math.sqrt(flip_rate)
    return math.floor((spread / margin) ** 2) + 1


def tost_power(n: int, flip_rate: float, margin: float, *, alpha: float = 0.05) -> float:
    """Exact probability that TOST passes when the true difference is 0.

    sum over m of P(M = m) P(tost_p(b, m - b) < alpha | b ~ Binomial(m, 1/2)), with M ~ Binomial(n, f) flips
    in all; values of m less likely than 1e-12 are left out. Test: Schuirmann (1987), Tango (1998).

    Raises ValueError if `n < 1`, `flip_rate` is outside [0, 1], or another argument outside (0, 1).
    """
    if n < 1:
        raise ValueError(f"power needs at least one question: got n={n}")
    _require_rate("flip_rate", flip_rate)
    _require_open_unit("margin", margin)
    _require_open_unit("alpha", alpha)
    mass = scipy.stats.binom.pmf(np.arange(n + 1), n, flip_rate)
    likely = np.flatnonzero(mass >= _NEGLIGIBLE_MASS)
    return sum(float(mass[flips]) * _pass_probability(int(flips), n, margin, alpha) for flips in likely)


def _counts(table: PairedTable) -> tuple[FloatArray, FloatArray]:
    return np.asarray(float(table.b)), np.asarray(float(table.c))


def _pass_probability(flips: int, n: int, margin: float, alpha: float) -> float:
    """P(TOST passes) given the number of flips, each equally likely to go either way."""
    b = np.arange(flips + 1, dtype=np.float64)
    passes = _tost_p(b, flips - b, n, margin) < alpha
    return float(scipy.stats.binom.pmf(b[passes], flips, 0.5).sum())


def _tost_p(b: FloatArray, c: FloatArray, n: int, margin: float) -> FloatArray:
    """TOST p-values of many tables of `n` questions at once."""
    above = scipy.special.ndtr(_score(b, c, n, margin))
    below = scipy.special.ndtr(-_score(b, c, n, -margin))
    return np.maximum(above, below)


def _score(b: FloatArray, c: FloatArray, n: int, delta0: float) -> FloatArray:
    """Score statistics of many tables of `n` questions at once."""
    gap, variance = _gap_and_variance(b, c, n, delta0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # At delta0 = -1 and 1, and at 0 without flips, H0 allows no variance: the limit is 0 if the table
        # agrees with H0, and infinite if it cannot come from it.
        return np.where(gap == 0.0, 0.0, gap / np.sqrt(variance))


def _gap_and_variance(b: FloatArray, c: FloatArray, n: int, delta0: float) -> tuple[FloatArray, FloatArray]:
    """Numerator b - c - n delta0 of the score statistic, and its variance n (2q + delta0 (1 - delta0))."""
    if delta0 < 0.0:
        # Mirrored, both terms under the root are non-negative, so q is never below 0.
        gap, variance = _gap_and_variance(c, b, n, -delta0)
        return -gap, variance
    linear = (2 * n - b + c) * delta0 - (b + c)
    q = (np.sqrt(linear**2 + 8 * n * c * delta0 * (1.0 - delta0)) - linear) / (4 * n)
    return b - c - n * delta0, n * (2.0 * q + delta0 * (1.0 - delta0))


def _upper_end(b: FloatArray, c: FloatArray, n: int, z: float) -> float:
    """The delta0 above the observed difference at which the score statistic is -z."""
    # Where H0 at the observed difference allows no variance, that difference is a root of its own and would
    # be found instead of the end: closed forms.
    if b + c == 0:
        return z**2 / (n + z**2)
    if c == n:
        return (z**2 - n) / (z**2 + n)

    def excess(delta0: float) -> float:
        # score + z, times the standard deviation: unlike the score it stays finite at delta0 = 1 (and is 0
        # there if every question went right -> wrong, so that 1 is the end).
        gap, variance = _gap_and_variance(b, c, n, delta0)
        return float(gap + z * np.sqrt(variance))

    return float(scipy.optimize.brentq(excess, float(b - c) / n, 1.0, xtol=1e-15, rtol=1e-15))


def _some_ids(ids: Set[int]) -> str:
    """A few ids for a message, and how many more there are."""
    if not ids:
        return "none"
    shown = ", ".join(str(document) for document in sorted(ids)[:_IDS_SHOWN])
    hidden = len(ids) - _IDS_SHOWN
    return f"{shown} and {hidden} more" if hidden > 0 else shown


def _require_open_unit(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1: got {value}")


def _require_rate(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is a share, within [0, 1]: got {value}")
