"""Budgets x repeats -> launches and their cells; budgets are written relative to N."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.config import SweepConfig
from harness.errors import UsageError

IN_BLOCKS = re.compile(r"^(?P<factor>\d+(\.\d+)?)?\s*\*?\s*N\s*(?P<offset>[+-]\s*\d+)?$")


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a sweep: model x budget x hit rate x repeat."""

    id: str
    budget: int
    repeat: int
    target: float | None = None
    """Hit rate asked for, as a fraction of prompt tokens; None is all that can be reached."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of both servers and the cells measured on it."""

    id: str
    budget: int
    cells: tuple[Cell, ...] = field(default=())


def budget_tokens(budget: object, block_size: int) -> int:
    """A budget in tokens from a number or from words in N: ``2N-1``, ``1.5N``, ``N``.

    Raises:
        UsageError: neither, or smaller than one block, which no step could fill.
    """
    text = str(budget).strip()
    if text.isdecimal():
        tokens = int(text)
    elif found := IN_BLOCKS.match(text):
        tokens = round(float(found["factor"] or 1) * block_size) + int((found["offset"] or "0").replace(" ", ""))
    else:
        raise UsageError(f"sweep.budgets: {text!r} is no budget: write a number or N, 1.5N, 2N-1, 4N.")
    if tokens < block_size:
        raise UsageError(
            f"sweep.budgets: a budget of {tokens} tokens is less than one block of N = {block_size}: nothing could "
            f"ever be stored. Use sweep.budgets=[2N-1], which is {2 * block_size - 1}."
        )
    return tokens


def launches(sweep: SweepConfig, block_size: int) -> list[Launch]:
    """All launches of a sweep, in the order in which they run.

    Raises:
        UsageError: a budget is wrong, or two of them are the same number of tokens.
    """
    budgets = [budget_tokens(budget, block_size) for budget in sweep.budgets]
    if len(set(budgets)) < len(budgets):
        raise UsageError(f"sweep.budgets={sweep.budgets} names the same budget twice at N = {block_size}: {budgets}.")
    return [_launch(budget, repeat) for repeat in range(1, sweep.repeats + 1) for budget in budgets]


def _launch(budget: int, repeat: int) -> Launch:
    name = f"budget{budget}-r{repeat}"
    return Launch(name, budget, (Cell(f"budget{budget}-full-r{repeat}", budget, repeat),))
