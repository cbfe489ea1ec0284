"""What the steps of a check ask of the servers: which tokens of each pass come from which cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.corruption import KINDS, NONE, Damage, Method
from harness.estimate.scheduler import Asked, prefill_part
from harness.steps import DIVERGING, Check, Step
from harness.sweep import Cell, Launch
from harness.workload.prompts import reachable_tokens, whole_blocks
from harness.workload.seeding import shared_tokens, total_chunks


@dataclass(frozen=True, slots=True)
class Questions:
    """What every pass sends, and how."""

    lengths: Sequence[int]
    """Of the prompts, in tokens."""
    output_tokens: float
    """Of one answer."""
    block_size: int
    """N in tokens."""
    chunk_size: int
    """LMCache's, in tokens."""
    concurrency: int
    connector: bool = True
    """Whether there is an LMCache."""
    file_l2: bool = False
    """Whether it keeps on disk what leaves its memory."""


@dataclass(frozen=True, slots=True)
class Held:
    """Prompt tokens that either cache would serve of a pass."""

    local: int = 0
    lmcache: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """One step that sends requests."""

    name: str
    """Of the pass; empty for what is seeded or primed."""
    asked: Asked


def launch_passes(check: Check, launch: Launch, questions: Questions) -> tuple[list[Sent], dict[str, list[Sent]]]:
    """What a launch sends once, and what each of its cells sends, by cell id."""
    once, held = sent_by(check.launch, Held(), questions, None, launch.budget)
    cells = {}
    for cell in launch.cells:
        cells[cell.id], held = sent_by(check.steps_for(cell), held, questions, cell, launch.budget)
    return once, cells


def sent_by(
    steps: Sequence[Step], held: Held, questions: Questions, cell: Cell | None, budget: int
) -> tuple[list[Sent], Held]:
    """What steps send, and what both caches hold afterwards.

    vLLM's own cache is taken to have room for all prompts, and LMCache as well.

    Args:
        steps: of a launch or of a cell.
        held: before them.
        questions: what every pass sends.
        cell: whose steps they are; None for those of the launch.
        budget: tokens per step.
    """
    sent, full = [], _full(questions)
    for step in steps:
        if step.action in ("pass", "seed", "prime"):
            asked = _asked(step, held, questions, cell)
            sent.append(Sent(str(step.argument) if step.action == "pass" else "", asked))
        held = _after(step, held, full, questions, cell, budget)
    return sent, held


def _full(questions: Questions) -> Held:
    """What both caches hold after a pass."""
    blocks = sum(whole_blocks(length, questions.block_size) for length in questions.lengths)
    lmcache = reachable_tokens(questions.lengths, questions.chunk_size) if questions.connector else 0
    return Held(blocks * questions.block_size, lmcache)


def _asked(step: Step, held: Held, questions: Questions, cell: Cell | None) -> Asked:
    lengths, concurrency = questions.lengths, step.concurrency or questions.concurrency
    if step.action == "pass":
        output = round(questions.output_tokens * len(lengths))
        return Asked(len(lengths), sum(lengths), output, held.local, max(0, held.lmcache - held.local), concurrency)
    if step.action == "prime":
        length = int(step.argument) * questions.block_size + 1
        longer = sum(each > length for each in lengths)
        external = min(held.lmcache, longer * (length - 1))
        return Asked(longer, longer * length, longer, 0, external, concurrency)
    if step.argument == DIVERGING:
        return Asked(len(lengths), sum(lengths), len(lengths), concurrency=concurrency)
    chunks = total_chunks(lengths, questions.chunk_size, cell.target if cell else None)
    requests = min(len(lengths), chunks)
    return Asked(requests, chunks * questions.chunk_size, requests, concurrency=concurrency)


def _after(step: Step, held: Held, full: Held, questions: Questions, cell: Cell | None, budget: int) -> Held:
    """What both caches hold after a step."""
    match step.action:
        case "pass":
            return full
        case "seed" if cell is not None and cell.diverges_after is not None:
            return Held(0, _shared(cell.diverges_after, questions, budget))
        case "seed":
            chunks = total_chunks(questions.lengths, questions.chunk_size, cell.target if cell else None)
            return Held(0, chunks * questions.chunk_size)
        case "prime":
            return replace(held, local=int(step.argument) * questions.block_size * len(questions.lengths))
        case "clear":
            return Held()
        case "clear_l1":
            return replace(held, lmcache=held.lmcache if questions.file_l2 else 0)
        case "reset_local" | "serve":
            return replace(held, local=0)
        case "restart":
            kept = step.argument != "lmcache" or questions.file_l2
            return Held(0, held.lmcache if kept else 0)
        case "restore":
            return replace(held, lmcache=full.lmcache)
        case "damage" if cell is not None and cell.damage is not None:
            return replace(held, lmcache=round(held.lmcache * (1 - _recomputed(cell.damage))))
    return held


def _shared(blocks: int, questions: Questions, budget: int) -> int:
    """Tokens that LMCache serves of prompts whose first blocks are stored.

    The recurrent state is kept where a prefill step ended, so that the last of these ends within what is shared
    counts (docs/block_size.md).
    """
    served = 0
    for length in questions.lengths:
        kept = [end for end in _step_ends(length, budget, questions.block_size) if end <= blocks * questions.block_size]
        served += shared_tokens(length, max(kept, default=0), questions.chunk_size)
    return served


def _step_ends(length: int, budget: int, block_size: int) -> list[int]:
    """Where the prefill steps of a prompt end that is alone in the batch; what follows its last one is no block."""
    ends = [0]
    while ends[-1] < length:
        ends.append(ends[-1] + prefill_part(ends[-1], length, budget, min(block_size, budget)))
    return [end for _, end in pairwise(ends) if end < length]


def _recomputed(damage: Damage) -> float:
    """Share of the loads that fail, and are computed again: LMCache sees half a file, not what is in a whole one."""
    fails = damage.kind != NONE and KINDS[damage.kind].method in (Method.TRUNCATE, Method.FAIL_LOADS)
    return damage.dose if fails else 0.0
