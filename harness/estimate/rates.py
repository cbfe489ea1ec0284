"""What work costs: seconds per step, per computed, decoded and retrieved token, fitted to measured passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from math import log

import numpy as np
import scipy

from harness.estimate.scheduler import Work

EVEN = 0.03
"""Weight of the ridge, per measured row. Chosen on results/reference-batched-tokens-pocket: from the passes of any one
of its six budgets those of the other five are foretold within 31 % with it and within 51 % without, and what N takes
from 4N alone within 6 % and 78 %. From 0.01 to 0.3 that changes little; docs/sizing.md has the table."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Work that was measured."""

    budget: int
    work: Work
    seconds: float
    between: bool = False
    """Whether this is what lies between the passes of two cells, seeding included, and not a pass."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What work costs."""

    unit_s: tuple[float, float, float, float]
    """Seconds per step, computed token, decoded token and retrieved token; none is negative."""
    between_s: float
    """What a cell takes besides its passes and what it seeds: settling, scoring, clearing, judging, saving."""
    factors: Mapping[int, float]
    """Budget that was measured -> what its passes took in all, as a multiple of what the units say."""

    def nearest(self, budget: int) -> int:
        """The measured budget whose factor counts: this one, or the one that is nearest as a ratio."""
        return min(self.factors, key=lambda measured: abs(log(measured / budget)))

    def seconds(self, work: Work, budget: int) -> float:
        """How long work takes."""
        return self._by_units(work) * self.factors[self.nearest(budget)]

    def _by_units(self, work: Work) -> float:
        amounts = (work.steps, work.computed, work.decoded, work.retrieved)
        return sum(unit * amount for unit, amount in zip(self.unit_s, amounts, strict=True))


def fit_rates(measured: Sequence[Timed]) -> Rates:
    """Non-negative least squares (Lawson and Hanson, scipy.optimize.nnls) on relative errors, then a factor per budget.

    Relative, so that a pass of 4 s counts as much as one of 40 s; the factor then makes sums right, which relative
    errors alone leave too low where times scatter. What lies between two cells counts as well: what is seeded there
    tells the cost of computing without that of decoding, which the passes of one budget alone hardly tell apart.
    Where they can't be told apart at all (beyond 2N, steps and decoded tokens go up and down together), ``EVEN`` gives
    both their share, and not all of it to one: a sweep's next budget may have seven times the steps.

    Raises:
        ValueError: no pass was measured.
    """
    passes = [each for each in measured if not each.between]
    if not passes:
        raise ValueError("no pass was measured")
    took = np.array([each.seconds for each in measured])
    amounts = np.array([(*astuple(each.work), float(each.between)) for each in measured]) / took[:, None]
    scale = np.where(amounts.max(axis=0) > 0, amounts.max(axis=0), 1.0)
    # Ridge: rows that want every cost but the last to be nothing.
    ridge = np.sqrt(EVEN * len(took)) * np.eye(amounts.shape[1])[:-1]
    wanted = np.concatenate([np.ones(len(took)), np.zeros(len(ridge))])
    solution, _ = scipy.optimize.nnls(np.vstack([amounts / scale, ridge]), wanted)
    step, computed, decoded, retrieved, between = (float(each) for each in solution / scale)
    plain = Rates((step, computed, decoded, retrieved), between, {each.budget: 1.0 for each in passes})
    return replace(plain, factors={budget: _factor(plain, budget, passes) for budget in plain.factors})


def _factor(plain: Rates, budget: int, passes: Sequence[Timed]) -> float:
    """What the passes of a budget took in all, as a multiple of what the units say."""
    of_budget = [each for each in passes if each.budget == budget]
    expected = sum(plain.seconds(each.work, budget) for each in of_budget)
    return sum(each.seconds for each in of_budget) / expected if expected else 1.0
