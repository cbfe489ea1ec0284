"""Budgets x (hit rates and points of divergence) x repeats -> launches and their cells; budgets are relative to N."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from harness.checking import shard_numbers
from harness.config import SweepConfig
from harness.corruption import Damage, parse_damage
from harness.errors import UsageError

IN_BLOCKS = re.compile(r"^(?P<factor>\d+(\.\d+)?)?\s*\*?\s*N\s*(?P<offset>[+-]\s*\d+)?$")

MOST_TOKENS = 10**7
"""The largest budget."""

FULL = "full"
"""The hit rate that retrieves all that can be retrieved."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a sweep: model x budget x hit rate or point of divergence x repeat."""

    id: str
    budget: int
    repeat: int
    target: float | None = None
    """Hit rate asked for, as a fraction of prompt tokens; None is all that can be reached."""
    diverges_after: int | None = None
    """Blocks of N that what is stored shares with the prompts; None stores the prompts themselves."""
    damage: Damage | None = None
    """What is damaged before its warm pass; None in a sweep that damages nothing."""
    variant: str | None = None
    """Which steps of its check it takes; None where the check has no variants."""

    @property
    def seeded(self) -> bool:
        """Whether it retrieves what was seeded for it, not what cold has stored."""
        return self.target is not None or self.diverges_after is not None


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
    if text.isascii() and text.isdecimal():
        tokens = int(text)
    elif text.isascii() and (found := IN_BLOCKS.match(text)):
        tokens = round(float(found["factor"] or 1) * block_size) + int((found["offset"] or "0").replace(" ", ""))
    else:
        raise UsageError(f"sweep.budgets: {text!r} is no budget: write a number or N, 1.5N, 2N-1, 4N.")
    if tokens > MOST_TOKENS:
        raise UsageError(f"sweep.budgets: a budget of {text} is more than {MOST_TOKENS:,} tokens: no server takes it.")
    if tokens < block_size:
        raise UsageError(
            f"sweep.budgets: a budget of {tokens} tokens is less than one block of N = {block_size}: nothing could "
            f"ever be stored. Use sweep.budgets=[2N-1], which is {2 * block_size - 1}."
        )
    return tokens


def budget_in_blocks(tokens: int, block_size: int) -> str:
    """A budget in N as configs write it: ``N``, ``1.25N``, ``2N-1``; ``~1.27N`` where two digits do not tell it."""
    if tokens % block_size == 0:
        blocks = tokens // block_size
        return "N" if blocks == 1 else f"{blocks}N"
    if (tokens + 1) % block_size == 0:
        return f"{(tokens + 1) // block_size}N-1"
    factor = round(tokens / block_size, 2)
    return f"{'' if round(factor * block_size) == tokens else '~'}{factor:g}N"


def hit_rate_target(rate: object) -> float | None:
    """A target hit rate as a fraction of prompt tokens; None for ``full``.

    Raises:
        UsageError: neither ``full`` nor a number from 0 to 1.
    """
    if rate == FULL:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise UsageError(
            f"sweep.hit_rates: {rate!r} is no hit rate: write a number from 0 to 1, or full for all that is reachable."
        )
    return float(rate)


def divergence_blocks(blocks: object) -> int:
    """Whole blocks that are shared before a divergence.

    Raises:
        UsageError: no whole number from 1 on.
    """
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise UsageError(
            f"sweep.diverge_after: {blocks!r} is no number of blocks: write whole numbers from 1 on, such as [8, 4]."
        )
    return blocks


def launches(sweep: SweepConfig, block_size: int, variants: Sequence[str] = ()) -> list[Launch]:
    """All launches of a sweep, in the order in which they run: one per budget and repeat, with all its cells; of a
    shard those that are its own.

    Args:
        sweep: the axes.
        block_size: N in tokens.
        variants: of the check, each a cell.

    Raises:
        UsageError: a budget, hit rate, point of divergence or damage is wrong, two of them are the same, or axes are
            asked for that exclude each other, or the shard is none or has no launch.
    """
    budgets = [budget_tokens(budget, block_size) for budget in sweep.budgets]
    if len(set(budgets)) < len(budgets):
        raise UsageError(f"sweep.budgets={sweep.budgets} names the same budget twice at N = {block_size}: {budgets}.")
    targets = [hit_rate_target(rate) for rate in sweep.hit_rates]
    if len(set(targets)) < len(targets):
        raise UsageError(f"sweep.hit_rates={sweep.hit_rates} names the same hit rate twice.")
    afters = [divergence_blocks(blocks) for blocks in sweep.diverge_after]
    if len(set(afters)) < len(afters):
        raise UsageError(f"sweep.diverge_after={sweep.diverge_after} names the same number of blocks twice.")
    damages = _damages(sweep)
    if (variants or any(damages)) and (targets != [None] or afters):
        raise UsageError(
            "sweep.hit_rates and sweep.diverge_after are fixed for this check: use sweep.hit_rates=[full] "
            "sweep.diverge_after=[], or check=reset_warm."
        )
    # The full cell retrieves what cold has stored; the others begin by clearing it.
    targets.sort(key=lambda target: target is not None)
    return _shard(
        [
            Launch(f"budget{budget}-r{repeat}", budget, _cells(budget, repeat, targets, afters, damages, variants))
            for repeat in range(1, sweep.repeats + 1)
            for budget in budgets
        ],
        sweep.shard,
    )


def missing(plan: list[Launch], done: Container[str]) -> list[Launch]:
    """What of a plan is still to be measured: launches with the cells that are not done, and none without."""
    left = [replace(launch, cells=tuple(cell for cell in launch.cells if cell.id not in done)) for launch in plan]
    return [launch for launch in left if launch.cells]


def _shard(plan: list[Launch], shard: str | None) -> list[Launch]:
    """Every n-th launch from the i-th on: neighbours, which cost about the same, go to different shards."""
    if shard is None:
        return plan
    number, of = shard_numbers(shard)
    if of > len(plan):
        raise UsageError(
            f"sweep.shard={shard}: the sweep has {len(plan)} launch{'es' * (len(plan) > 1)} (budgets x repeats), too "
            f"few for {of} shards: use sweep.shard=1/{len(plan)} or more budgets or repeats."
        )
    return plan[number - 1 :: of]


def _damages(sweep: SweepConfig) -> tuple[list[Damage], list[Damage]]:
    """What is damaged in every repeat, and what in the first one only."""
    always, once = ([parse_damage(word) for word in words] for words in (sweep.damage, sweep.damage_once))
    if len(set(always + once)) < len(always + once):
        raise UsageError(f"sweep.damage={sweep.damage} and sweep.damage_once={sweep.damage_once} name a damage twice.")
    return always, once


def _cells(
    budget: int,
    repeat: int,
    targets: Sequence[float | None],
    afters: Sequence[int],
    damages: tuple[list[Damage], list[Damage]],
    variants: Sequence[str],
) -> tuple[Cell, ...]:
    def named(name: str) -> str:
        return f"budget{budget}-{name}-r{repeat}"

    if any(damages):
        always, once = damages
        chosen = always + (once if repeat == 1 else [])
        return tuple(Cell(named(damage.name), budget, repeat, damage=damage) for damage in chosen)
    if variants:
        return tuple(Cell(named(variant), budget, repeat, variant=variant) for variant in variants)
    cells = [Cell(named(_hit_rate_name(target)), budget, repeat, target) for target in targets]
    cells += [Cell(named(f"after{blocks}"), budget, repeat, diverges_after=blocks) for blocks in afters]
    return tuple(cells)


def _hit_rate_name(target: float | None) -> str:
    """``full``, ``hit0.50``, or more digits where two do not tell it."""
    if target is None:
        return FULL
    return f"hit{target:.2f}" if round(target, 2) == target else f"hit{target!r}"
