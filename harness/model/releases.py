"""What depends on a release of vLLM or LMCache: one table, with the releases that each entry holds for."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, slots=True)
class BudgetWindow:
    """Budgets that a range of LMCache releases accepts for a hybrid model."""

    releases: str
    """As pip writes it, such as ``<=0.5.3``."""
    below_2n_only: bool
    """Whether budgets of 2N and more are refused."""
    object_groups_needed: bool
    """Whether hybrids need ``--separate-object-groups``."""
    source: str


BUDGET_WINDOWS = (
    BudgetWindow("<=0.5.3", True, False, "its connector refuses max_num_batched_tokens outside [N, 2N)"),
    BudgetWindow(">=0.5.6", False, True, "its connector refuses max_num_batched_tokens < N only; read in 0.5.6"),
)
"""0.5.4 and 0.5.5 were not looked at: there the narrower window is taken, which both accept."""

ASSUMED_WINDOW = BudgetWindow("not known", True, True, "the narrowest of the known windows")


def budget_window(lmcache: str | None) -> BudgetWindow:
    """The window of an LMCache release; of one that is not known, or not installed here, the narrowest."""
    try:
        version = Version(lmcache or "")
    except InvalidVersion:
        return ASSUMED_WINDOW
    for window in BUDGET_WINDOWS:
        if SpecifierSet(window.releases).contains(version, prereleases=True):
            return window
    return ASSUMED_WINDOW
