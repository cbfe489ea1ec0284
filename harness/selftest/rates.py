"""A rate over launches with its interval; a launch is one observation, whatever was drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened."""

    rate: float
    low: float
    high: float
    """Ends of the interval, confidence :data:`CONFIDENCE`."""
    launches: int

    @property
    def count(self) -> float:
        """Launches in which it happened; a fraction where it did in a part of a launch's draws or cells."""
        return self.rate * self.launches


def rate_of(per_launch: Sequence[float]) -> Rate:
    """Mean over launches, with the exact (Clopper-Pearson) interval for so many launches.

    With one cell per launch the values are 0 or 1, and this is Clopper and Pearson (1934), Biometrika 26:404-413.
    Several cells of a launch, and all draws from it, share servers, a cold pass and the answers that are mixed, so they
    are one cluster: 1,000 draws from 5 launches tell about 5 launches. For clusters, Korn and Graubard (1998), Survey
    Methodology 24:193-201, put the effective sample size into Clopper-Pearson, and the mean rate times it, which need
    not be a whole number. Here that size is the number of launches, the smallest that it can be: as if a
    launch's draws agreed entirely. So the interval is never too short for what was measured once per launch, and is
    as wide for a rate mixed from 5 launches as for 5 real runs. A bootstrap over so few launches would have no width
    where they agree.

    All launches ask the same documents: the interval is about further launches of these, not about other documents.

    Args:
        per_launch: share of each launch's cells or draws in which it happened, from 0 to 1; at least one.
    """
    from statsmodels.stats.proportion import proportion_confint  # half a second that other figures need not wait

    launches = len(per_launch)
    rate = sum(per_launch) / launches
    low, high = proportion_confint(rate * launches, launches, alpha=1 - CONFIDENCE, method="beta")
    return Rate(rate, float(low) if rate > 0 else 0.0, float(high) if rate < 1 else 1.0, launches)
