"""Steps of a check: what ``configs/check`` may list, parsed and checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.config import CheckConfig, nearest
from harness.corruption import check_corruption
from harness.errors import UsageError

PASS_NAME = re.compile(r"^[a-z][a-z0-9_]*$")

PLAIN = ("clear", "clear_l1", "reset_local")
"""``clear`` empties both caches, ``clear_l1`` LMCache's memory only, ``reset_local`` vLLM's own cache only."""

WITH_ARGUMENT = ("pass", "corrupt")


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
    passes: tuple[str, ...] = field(default=())
    """Names of its passes in the order in which they run."""


def parse_check(config: CheckConfig) -> Check:
    """Reads the steps of a check.

    Raises:
        UsageError: an unknown step, a pass without a name, or a check that does not compare cold with warm.
    """
    launch = _steps(config.launch, f"check {config.name}: launch")
    cell = _steps(config.cell, f"check {config.name}: cell")
    passes = tuple(str(step.argument) for step in launch + cell if step.action == "pass")
    for needed in ("cold", "warm"):
        if passes.count(needed) != 1:
            raise UsageError(
                f"check {config.name} has {passes.count(needed)} passes called {needed}: one is compared with the "
                "other, so there must be exactly one of each."
            )
    if len(set(passes)) < len(passes):
        raise UsageError(f"check {config.name} names a pass twice: {', '.join(passes)}.")
    if not config.file_l2 and any(step.action == "corrupt" for step in launch + cell):
        raise UsageError(f"check {config.name} has a corrupt step, which needs file_l2: true.")
    return Check(config.name, launch, cell, passes)


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
        if action in PLAIN:
            raise UsageError(f"{where}: {action} takes no argument: write `- {action}`, without a colon.")
        if action == "corrupt" and isinstance(argument, Mapping):
            return Step("corrupt", check_corruption(argument, where))
    name = str(next(iter(entry)) if isinstance(entry, Mapping) and entry else entry)
    if name in WITH_ARGUMENT:
        raise UsageError(f"{where}: {entry!r} is not complete: write `pass: NAME` or `corrupt: {{kind: …}}`.")
    raise UsageError(f"{where}: {name!r} is no step; {nearest(name, PLAIN + WITH_ARGUMENT)}")
