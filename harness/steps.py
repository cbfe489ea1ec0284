"""Steps of a check: what ``configs/check`` may list, parsed and checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.config import CheckConfig, nearest
from harness.corruption import check_corruption
from harness.errors import UsageError
from harness.sweep import Cell

PASS_NAME = re.compile(r"^[a-z][a-z0-9_]*$")

PLAIN = ("clear", "clear_l1", "reset_local", "seed")
"""``clear`` empties both caches, ``clear_l1`` LMCache's memory only, ``reset_local`` vLLM's own cache only; ``seed``
puts as many first chunks of every prompt into LMCache as the cell's target hit rate needs."""

DIVERGING = "diverging"
"""The one argument of ``seed``: whole prompts that share only the cell's first blocks with those that are asked."""

WITH_ARGUMENT = ("pass", "corrupt", "serve")


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a launch."""

    action: str
    argument: Any = None


@dataclass(frozen=True, slots=True)
class Check:
    """The steps of one launch and of each of its cells."""

    name: str
    launch: tuple[Step, ...]
    cell: tuple[Step, ...]
    seeded_cell: tuple[Step, ...] = field(default=())
    """Steps of a cell with a target hit rate, or whose prompts diverge; empty where the check knows none."""
    passes: tuple[str, ...] = field(default=())
    """Names of its passes in the order in which they run."""

    def steps_for(self, cell: Cell) -> tuple[Step, ...]:
        """Steps of a cell: other ones where something must be seeded."""
        return self.seeded_cell if cell.seeded else self.cell

    @property
    def diverges(self) -> bool:
        """Whether its seeded cells are those of prompts that diverge."""
        return Step("seed", DIVERGING) in self.seeded_cell


def parse_check(config: CheckConfig) -> Check:
    """Reads the steps of a check.

    Raises:
        UsageError: an unknown step, a pass without a name, a check that does not compare cold with warm, or a seeded
            cell that does not seed.
    """
    launch = _steps(config.launch, f"check {config.name}: launch")
    cell = _steps(config.cell, f"check {config.name}: cell")
    seeded = _steps(config.seeded_cell, f"check {config.name}: seeded_cell")
    passes = _passes(launch + cell)
    for needed in ("cold", "warm"):
        if passes.count(needed) != 1:
            raise UsageError(
                f"check {config.name} has {passes.count(needed)} passes called {needed}: one is compared with the "
                "other, so there must be exactly one of each."
            )
    if len(set(passes)) < len(passes):
        raise UsageError(f"check {config.name} names a pass twice: {', '.join(passes)}.")
    if not config.file_l2 and any(step.action == "corrupt" for step in launch + cell + seeded):
        raise UsageError(f"check {config.name} has a corrupt step, which needs file_l2: true.")
    if not config.linked_checkpoint and any(step.action == "serve" for step in launch + cell + seeded):
        raise UsageError(f"check {config.name} has a serve step, which needs linked_checkpoint: true.")
    if any(step.action == "seed" for step in launch + cell):
        raise UsageError(f"check {config.name}: seed belongs into seeded_cell: elsewhere there is no target hit rate.")
    if seeded:
        _check_seeded(config.name, launch, cell, seeded)
    return Check(config.name, launch, cell, seeded, passes)


def check_cells(check: Check, cells: Iterable[Cell]) -> None:
    """Refuses cells that a check has no steps for: target hit rates need ``seed``, divergence ``seed: diverging``.

    Raises:
        UsageError: in one sentence.
    """
    listed = list(cells)
    if any(cell.target is not None for cell in listed) and (check.diverges or not check.seeded_cell):
        has = "seeds prompts that diverge" if check.diverges else "has no seeded_cell"
        raise UsageError(
            f"check {check.name} {has}, so it can't bring a hit rate about: use sweep.hit_rates=[full] or "
            "check=reset_warm."
        )
    if any(cell.diverges_after is not None for cell in listed) and not check.diverges:
        raise UsageError(
            f"check {check.name} has no step `seed: {DIVERGING}`, so it can't make prompts diverge: use "
            "sweep.diverge_after=[] or check=divergence."
        )


def _check_seeded(name: str, launch: tuple[Step, ...], cell: tuple[Step, ...], seeded: tuple[Step, ...]) -> None:
    if _passes(seeded) != _passes(cell):
        raise UsageError(
            f"check {name}: seeded_cell has the passes {', '.join(_passes(seeded)) or 'none'} and cell has "
            f"{', '.join(_passes(cell)) or 'none'}: they must be the same."
        )
    # What cold or an earlier cell has left in LMCache would be retrieved as well.
    if seeded[0] != Step("clear") or sum(step.action == "seed" for step in seeded) != 1:
        raise UsageError(f"check {name}: seeded_cell must begin with clear and have one seed step.")


def _passes(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(str(step.argument) for step in steps if step.action == "pass")


def _steps(listed: Sequence[Any], where: str) -> tuple[Step, ...]:
    return tuple(_step(entry, f"{where}, step {number}") for number, entry in enumerate(listed, start=1))


def _step(entry: Any, where: str) -> Step:
    if isinstance(entry, str) and entry in PLAIN:
        return Step(entry)
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((action, argument),) = entry.items()
        if action == "pass" and isinstance(argument, str) and PASS_NAME.match(argument):
            return Step("pass", argument)
        if action == "pass" and isinstance(argument, str):
            raise UsageError(f"{where}: a pass can't be called {argument!r}: small letters, digits and _ make a name.")
        if action == "seed" and argument == DIVERGING:
            return Step("seed", DIVERGING)
        if action == "seed":
            raise UsageError(
                f"{where}: seed takes no argument but {DIVERGING}: write `- seed` or `- seed: {DIVERGING}`."
            )
        if action in PLAIN:
            raise UsageError(f"{where}: {action} takes no argument: write `- {action}`, without a colon.")
        if action == "corrupt" and isinstance(argument, Mapping):
            return Step("corrupt", check_corruption(argument, where))
        if action == "serve" and isinstance(argument, Mapping):
            return Step("serve", _noise(argument, where))
    name = str(next(iter(entry)) if isinstance(entry, Mapping) and entry else entry)
    if name in WITH_ARGUMENT:
        raise UsageError(
            f"{where}: {entry!r} is not complete: write `pass: NAME`, `corrupt: {{kind: …}}` or `serve: {{noise: …}}`."
        )
    raise UsageError(f"{where}: {name!r} is no step; {nearest(name, PLAIN + WITH_ARGUMENT)}")


def _noise(argument: Mapping[str, Any], where: str) -> float:
    """The noise that a `serve` step asks for, as a multiple of each tensor's own standard deviation."""
    noise = argument.get("noise")
    if (
        set(argument) != {"noise"}
        or isinstance(noise, bool)
        or not isinstance(noise, int | float)
        or not 0 <= noise <= 10
    ):
        raise UsageError(
            f"{where}: serve takes noise, from 0 (the real weights) to 10 times a tensor's standard deviation, and got "
            f"{dict(argument)}."
        )
    return float(noise)
