"""Looks in between: a check taken block of documents by block, so that it can end before all of them were asked.

Pure: configurations and steps in, steps and positions out.
"""

from __future__ import annotations

from harness.config import RunConfig
from harness.equivalence.looks import questions_at
from harness.errors import UsageError
from harness.steps import Check, Step, parse_check, passes_of
from harness.workload.prompts import order_for

TAKEN = ("clear", "pass", "reset_local", "clear_l1", "corrupt")
"""Steps that can be taken again for every block, on servers that go on."""


def check_of(config: RunConfig) -> Check:
    """The check of a run: as ``configs/check`` has it, or block by block where the gate looks in between.

    Raises:
        UsageError: the check is wrong, or can't be taken in blocks.
    """
    check = parse_check(config.check)
    return check if config.gate.looks == 1 else _in_blocks(check, config)


def check_questions(count: int, looks: int) -> None:
    """Refuses more looks than there are questions.

    Raises:
        UsageError: in one sentence.
    """
    if count < looks:
        raise UsageError(
            f"gate.looks={looks} needs at least one question for each look, and {count} are asked: raise task.limit, "
            "or use gate.looks=1."
        )


def blocks_of(count: int, looks: int, seed: int) -> list[list[int]]:
    """Positions of the documents of every block, each in ascending order: a seeded order of all, cut into equal parts.

    Args:
        count: documents.
        looks: blocks.
        seed: of the run.
    """
    order, ends = order_for("blocks", count, seed), questions_at(count, looks)
    return [sorted(order[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def _in_blocks(check: Check, config: RunConfig) -> Check:
    """Clears once, and then takes every step from the cold pass on for each block, which only its own documents know.

    What the check does before its cold pass is left out: a control pass would double the cost of what is to be quick.
    Nothing is cleared between blocks: first chunks are unique to a document wherever cold passes can be valid at all.
    """
    whole = check.launch + check.cell
    if reason := _unsuited(check, config, whole):
        raise UsageError(
            f"gate.looks={config.gate.looks} asks block by block, and check={check.name} {reason}: use "
            "check=reset_warm, or gate=equivalence."
        )
    block = whole[whole.index(next(step for step in whole if step.argument == "cold")) :]
    return Check(check.name, (Step("clear"),), block, passes=passes_of(block))


def _unsuited(check: Check, config: RunConfig, steps: tuple[Step, ...]) -> str | None:
    """Why a check can't be taken in blocks; None where it can."""
    if check.variants:
        return "has variants, each a cell of its own"
    if config.check.warm_from != "lmcache":
        return f"is not about what LMCache serves alone (check.warm_from={config.check.warm_from})"
    if config.check.preempts:
        return "is about preemption, which needs all requests at once"
    other = next((step.action for step in steps if step.action not in TAKEN), None)
    return None if other is None else f"has a {other} step, which can't be taken again for every block"
