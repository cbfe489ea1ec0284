"""Budgets in words of N, and the launches that a sweep comes to."""

from __future__ import annotations

import pytest

from harness.config import SweepConfig
from harness.errors import UsageError
from harness.sweep import budget_tokens, launches


def sweep(*budgets: object, repeats: int = 1) -> SweepConfig:
    return SweepConfig(name="test", budgets=list(budgets), repeats=repeats)


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [
        ("N", 784),
        ("1N", 784),
        ("2N-1", 1567),
        ("2N - 1", 1567),
        (" 2 * N - 1 ", 1567),
        ("1.5N", 1176),
        ("4N", 3136),
        ("16N+3", 12547),
        ("N+784", 1568),
        (1567, 1567),
        ("1567", 1567),
    ],
)
def test_budgets(budget: object, tokens: int) -> None:
    assert budget_tokens(budget, 784) == tokens


def test_published_recipes() -> None:
    assert [budget_tokens("2N-1", n) for n in (784, 544, 400)] == [1567, 1087, 799]


@pytest.mark.parametrize(
    "budget", ["", "2M-1", "N2", "2N-", "2N-1-1", "-5", "n", "1e3", "²", "2N-1.5", 127.0, True, None, [127]]
)
def test_what_is_no_budget(budget: object) -> None:
    with pytest.raises(UsageError, match=r"is no budget: write a number or N, 1\.5N, 2N-1, 4N") as caught:
        budget_tokens(budget, 64)
    assert repr(str(budget)) in str(caught.value)


@pytest.mark.parametrize("budget", [783, "783", 0, "0.5N", "N-1", "2N-785", "0N"])
def test_less_than_a_block_is_answered_with_the_recipe(budget: object) -> None:
    """The refusal's own advice in old LMCache releases, N, is the slow setting."""
    with pytest.raises(UsageError, match=r"less than one block of N = 784.*\[2N-1\], which is 1567"):
        budget_tokens(budget, 784)


def test_a_launch_per_budget_and_repeat() -> None:
    plan = launches(sweep("N", "2N-1", repeats=2), 64)
    assert [launch.id for launch in plan] == ["budget64-r1", "budget127-r1", "budget64-r2", "budget127-r2"]
    assert [launch.budget for launch in plan] == [64, 127, 64, 127]
    for launch in plan:
        (cell,) = launch.cells
        assert cell.budget == launch.budget
        assert cell.target is None
    assert [launch.cells[0].id for launch in plan] == [
        "budget64-full-r1",
        "budget127-full-r1",
        "budget64-full-r2",
        "budget127-full-r2",
    ]
    assert [launch.cells[0].repeat for launch in plan] == [1, 1, 2, 2]


def test_the_same_budget_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names the same budget twice at N = 64: \[127, 127\]"):
        launches(sweep("2N-1", 127), 64)


def test_every_budget_is_checked_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="less than one block"):
        launches(sweep("2N-1", 10), 64)
