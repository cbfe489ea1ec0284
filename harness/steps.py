"""Steps of a check: what ``configs/check`` may list, parsed and checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.checking import MOST_REQUESTS, nearest
from harness.config import CheckConfig
from harness.corruption import check_corruption
from harness.errors import UsageError
from harness.sweep import Cell

PASS_NAME = re.compile(r"^[a-z][a-z0-9_]*$")

PLAIN = ("clear", "clear_l1", "reset_local", "seed", "damage")
"""``clear`` empties both caches, ``clear_l1`` LMCache's memory only, ``reset_local`` vLLM's own cache only; ``seed``
puts as many first chunks of every prompt into LMCache as the cell's target hit rate needs; ``damage`` damages what
LMCache's L2 holds, or its loads, as the cell says."""

DIVERGING = "diverging"
"""The one argument of ``seed``: whole prompts that share only the cell's first blocks with those that are asked."""

SERVERS = ("vllm", "lmcache")
"""What ``restart`` starts anew; with LMCache vLLM as well, which does not find a new one by itself."""

WITH_ARGUMENT = ("pass", "corrupt", "serve", "prime", "restart", "keep", "restore")
"""``prime`` asks for the first blocks of every prompt, so that vLLM's own cache holds them; ``keep`` and ``restore``
copy LMCache's L2 aside under a name, and back."""

NEEDS_LMCACHE = ("clear_l1", "seed", "damage", "corrupt", "keep", "restore", "serve")
EMPTYING = ("clear", "reset_local", "restart", "serve")
"""Steps after which vLLM's own cache is empty."""

NEEDS_FILES = ("corrupt", "keep", "restore", "damage")


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a launch."""

    action: str
    argument: Any = None
    concurrency: int | None = None
    """Of a pass; None is load.concurrency."""


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
    variants: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    """Name -> steps of a cell, in place of ``cell``."""

    def steps_for(self, cell: Cell) -> tuple[Step, ...]:
        """Steps of a cell: other ones where something must be seeded, or for each variant."""
        if cell.variant is not None:
            return self.variants[cell.variant]
        return self.seeded_cell if cell.seeded else self.cell

    @property
    def diverges(self) -> bool:
        """Whether its seeded cells are those of prompts that diverge."""
        return Step("seed", DIVERGING) in self.seeded_cell

    @property
    def damages(self) -> bool:
        """Whether its cells damage what LMCache holds as the sweep says."""
        return Step("damage") in self.cell


def primed_blocks(steps: Iterable[Step]) -> int:
    """Blocks of every prompt that vLLM's own cache is to serve in the warm pass of these steps."""
    return max((int(step.argument) for step in steps if step.action == "prime"), default=0)


def parse_check(config: CheckConfig) -> Check:
    """Reads the steps of a check.

    Raises:
        UsageError: an unknown step, a pass without a name, a check that does not compare cold with warm, a step that
            lacks what it works on, or a seeded cell that does not seed.
    """
    launch = _steps(config.launch, f"check {config.name}: launch")
    cell = _steps(config.cell, f"check {config.name}: cell")
    seeded = _steps(config.seeded_cell, f"check {config.name}: seeded_cell")
    variants = {
        _variant_name(name, config.name): _steps(listed, f"check {config.name}: variants.{name}")
        for name, listed in config.variants.items()
    }
    if variants and (cell or seeded):
        raise UsageError(f"check {config.name} has variants, so it can't have a cell or a seeded_cell beside them.")
    for steps in variants.values() if variants else [cell]:
        _check_passes(config.name, passes_of(launch + steps))
    everything = launch + cell + seeded + tuple(step for each in variants.values() for step in each)
    _check_needs(config, everything)
    if any(step.action == "seed" for step in launch + cell):
        raise UsageError(f"check {config.name}: seed belongs into seeded_cell: elsewhere there is no target hit rate.")
    if seeded:
        _check_seeded(config.name, launch, cell, seeded)
    passes = passes_of(launch + (next(iter(variants.values())) if variants else cell))
    _check_kept(config, cell, variants)
    if any((config.warm_from == "mixed") != bool(primed_blocks(each)) for each in variants.values() or [cell]):
        raise UsageError(
            f"check {config.name}: warm_from=mixed and a prime step in its cell belong together: prime is what puts "
            "first blocks into vLLM's own cache."
        )
    return Check(config.name, launch, cell, seeded, passes, variants)


def _check_kept(config: CheckConfig, cell: tuple[Step, ...], variants: Mapping[str, tuple[Step, ...]]) -> None:
    """What vLLM's own cache is to serve alone can't have been cleared before the warm pass."""
    if config.warm_from != "vllm":
        return
    for steps in variants.values() or [cell]:
        emptied = None
        for step in steps:
            if step.action in EMPTYING:
                emptied = step.action
            elif step.action == "pass" and step.argument != "warm":
                emptied = None
            elif step.action == "pass" and emptied:
                raise UsageError(
                    f"check {config.name}: check.warm_from=vllm wants the warm pass from vLLM's own cache, and the "
                    f"cell's {emptied} step empties it: take the step out, or use check.warm_from=lmcache."
                )


def check_cells(check: Check, cells: Iterable[Cell]) -> None:
    """Refuses cells that a check has no steps for: target hit rates need ``seed``, divergence ``seed: diverging``,
    damage ``damage``.

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
    if check.damages != all(cell.damage is not None for cell in listed):
        raise UsageError(
            f"check {check.name} and the sweep's damage don't go together: use check=selftest with sweep=selftest."
        )


def _check_passes(name: str, passes: Sequence[str]) -> None:
    for needed in ("cold", "warm"):
        if passes.count(needed) != 1:
            raise UsageError(
                f"check {name} has {passes.count(needed)} passes called {needed}: one is compared with the "
                "other, so there must be exactly one of each."
            )
    if len(set(passes)) < len(passes):
        raise UsageError(f"check {name} names a pass twice: {', '.join(passes)}.")


def _check_needs(config: CheckConfig, steps: Sequence[Step]) -> None:
    """Whether the launch has what its steps work on."""
    actions = {step.action for step in steps}
    if not config.connector:
        if config.warm_from in ("lmcache", "mixed"):
            raise UsageError(f"check {config.name} has connector: false, so LMCache can't serve its warm pass.")
        if found := sorted(actions & set(NEEDS_LMCACHE)):
            raise UsageError(f"check {config.name} has connector: false, so there is no LMCache for {found[0]}.")
    if not config.file_l2 and (found := sorted(actions & set(NEEDS_FILES))):
        raise UsageError(f"check {config.name} has a {found[0]} step, which needs file_l2: true.")
    if not config.linked_checkpoint and "serve" in actions:
        raise UsageError(f"check {config.name} has a serve step, which needs linked_checkpoint: true.")
    if not config.damage_module and "damage" in actions:
        raise UsageError(f"check {config.name} has a damage step, which needs damage_module: true.")
    kept = [step.argument for step in steps if step.action == "keep"]
    for step in steps:
        if step.action == "restore" and step.argument not in kept:
            raise UsageError(f"check {config.name} restores {step.argument}, which no keep step has kept.")


def _check_seeded(name: str, launch: tuple[Step, ...], cell: tuple[Step, ...], seeded: tuple[Step, ...]) -> None:
    if passes_of(seeded) != passes_of(cell):
        raise UsageError(
            f"check {name}: seeded_cell has the passes {', '.join(passes_of(seeded)) or 'none'} and cell has "
            f"{', '.join(passes_of(cell)) or 'none'}: they must be the same."
        )
    # What cold or an earlier cell has left in LMCache would be retrieved as well.
    if seeded[0] != Step("clear") or sum(step.action == "seed" for step in seeded) != 1:
        raise UsageError(f"check {name}: seeded_cell must begin with clear and have one seed step.")


def passes_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """Names of the passes among steps, in order."""
    return tuple(str(step.argument) for step in steps if step.action == "pass")


def _variant_name(name: object, check: str) -> str:
    if not PASS_NAME.match(str(name)):
        raise UsageError(f"check {check}: a variant can't be called {name!r}: small letters, digits and _ make a name.")
    return str(name)


def _steps(listed: Sequence[Any], where: str) -> tuple[Step, ...]:
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise UsageError(f"{where}: steps are a list, and this is {listed!r}.")
    return tuple(_step(entry, f"{where}, step {number}") for number, entry in enumerate(listed, start=1))


def _step(entry: Any, where: str) -> Step:
    if isinstance(entry, str) and entry in PLAIN:
        return Step(entry)
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((action, argument),) = entry.items()
        if action in PLAIN:
            return _plain_with_argument(action, argument, where)
        if (step := _with_argument(action, argument, where)) is not None:
            return step
    name = str(next(iter(entry)) if isinstance(entry, Mapping) and entry else entry)
    if name in WITH_ARGUMENT:
        raise UsageError(
            f"{where}: {entry!r} is not complete: write `pass: NAME`, `prime: BLOCKS`, `restart: vllm`, `keep: NAME`, "
            "`restore: NAME`, `corrupt: {kind: …}` or `serve: {noise: …}`."
        )
    raise UsageError(f"{where}: {name!r} is no step; {nearest(name, PLAIN + WITH_ARGUMENT)}")


def _plain_with_argument(action: str, argument: Any, where: str) -> Step:
    if action == "seed" and argument == DIVERGING:
        return Step("seed", DIVERGING)
    if action == "seed":
        raise UsageError(f"{where}: seed takes no argument but {DIVERGING}: write `- seed` or `- seed: {DIVERGING}`.")
    raise UsageError(f"{where}: {action} takes no argument: write `- {action}`, without a colon.")


def _with_argument(action: str, argument: Any, where: str) -> Step | None:
    """A step with its argument; None for one that is unknown or not complete."""
    match action, argument:
        case "pass", str() | Mapping():
            return _pass(argument, where)
        case "corrupt", Mapping():
            return Step("corrupt", check_corruption(argument, where))
        case "serve", Mapping():
            return Step("serve", _noise(argument, where))
        case "prime", int() if not isinstance(argument, bool) and argument >= 1:
            return Step("prime", argument)
        case "restart", str() if argument in SERVERS:
            return Step("restart", argument)
        case "restart", str():
            raise UsageError(f"{where}: {argument!r} can't be restarted; {nearest(argument, SERVERS)}")
        case "keep" | "restore", str() if PASS_NAME.match(argument):
            return Step(action, argument)
    return None


def _pass(argument: str | Mapping[str, Any], where: str) -> Step:
    told = {"name": argument} if isinstance(argument, str) else dict(argument)
    name, concurrency = told.pop("name", None), told.pop("concurrency", None)
    if told or not isinstance(name, str):
        raise UsageError(f"{where}: pass takes a name, or name and concurrency, and got {argument!r}.")
    if not PASS_NAME.match(name):
        raise UsageError(f"{where}: a pass can't be called {name!r}: small letters, digits and _ make a name.")
    if concurrency is not None and (
        isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_REQUESTS
    ):
        raise UsageError(
            f"{where}: concurrency={concurrency!r} is no number of requests: write one from 1 to {MOST_REQUESTS}."
        )
    return Step("pass", name, concurrency)


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
