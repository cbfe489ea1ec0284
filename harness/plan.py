"""What a run would do, worked out without a server or a GPU: sizes, cells, commands, cost and what rules say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import ceil
from typing import Any

from harness.blocks import check_of, check_questions
from harness.config import RunConfig
from harness.equivalence.looks import levels, questions_at
from harness.equivalence.paired import tost_power
from harness.estimate.scheduler import Asked
from harness.estimate.workload import Questions, launch_passes
from harness.measure.provenance import gpus, versions
from harness.model.predict import predicted_sizes
from harness.model.rules import Facts, Finding, Severity, argument_value, check_rules
from harness.model.sizes import Sizes, bytes_per_element
from harness.pocket.ruler import POCKET_RULER
from harness.redaction import without_secrets
from harness.servers.commands import Argument, check_extra_args, lmcache_arguments, served_path, vllm_arguments, words
from harness.servers.environment import check_variables, server_environment
from harness.steps import Check, check_cells, primed_blocks
from harness.sweep import Launch, launches
from harness.workload.pocket import POCKET, pocket_problems
from harness.workload.seeding import check_divergence, check_primed, reachable_rate
from harness.workload.tasks import DEFAULT_ANSWER_TOKENS

FLIP_RATES = (0.05, 0.10, 0.20)
"""Shares of questions whose answer may change from right to wrong or back, for which power is stated."""

GSM8K_QUESTIONS = 1319
GSM8K_TOKENS = 1025
"""Of a prompt with lm-eval's five examples: 920 to 1,130 are usual with Qwen's tokenizer."""
GSM8K_EXAMPLE_TOKENS = 180

VLLM_MEMORY_UTILIZATION = 0.92
"""vLLM's default ``--gpu-memory-utilization`` (0.32)."""

PORTS = {"lmcache": 5555, "lmcache_http": 8080, "vllm": 8000}
"""Shown in commands; a run takes free ones."""


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One start of both servers."""

    launch: Launch
    lmcache: list[Argument]
    vllm: list[Argument]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do."""

    config: RunConfig
    check: Check
    sizes: Sizes
    launches: list[PlannedLaunch]
    questions: int
    prompt_tokens: list[int]
    """Of every question; see ``estimated``."""
    estimated: bool
    """Whether prompt lengths are an estimate, since the tokenizer or the data are not looked at."""
    kv_bytes: int | None
    """Memory for vLLM's cache on one GPU, if it is known."""
    findings: list[Finding]

    @property
    def sent(self) -> Questions:
        """What every pass sends."""
        chunk_size = self.config.chunk_size(self.sizes.block_size)
        return Questions(
            self.prompt_tokens,
            answer_tokens(self.config, self.sizes.block_size),
            self.sizes.block_size,
            chunk_size,
            self.config.load.concurrency,
            self.config.check.connector,
            self.config.check.file_l2,
        )

    @property
    def work(self) -> Asked:
        """All requests of the run together, seeded ones included; each cache serves what the steps imply."""
        everything, questions = [], self.sent
        for planned in self.launches:
            once, cells = launch_passes(self.check, planned.launch, questions)
            everything += [each.asked for each in (*once, *chain.from_iterable(cells.values()))]
        return Asked(
            requests=sum(each.requests for each in everything),
            prompt_tokens=sum(each.prompt_tokens for each in everything),
            output_tokens=sum(each.output_tokens for each in everything),
            local_tokens=sum(each.local_tokens for each in everything),
            external_tokens=sum(each.external_tokens for each in everything),
            concurrency=self.config.load.concurrency,
        )

    @property
    def passes(self) -> int:
        """Traversals of all questions."""
        steps = [step for each in self.launches for step in self.check.launch]
        cells = [cell for each in self.launches for cell in each.launch.cells]
        steps += [step for cell in cells for step in self.check.steps_for(cell)]
        return sum(step.action == "pass" for step in steps)

    def reachable(self, target: float | None) -> float:
        """The hit rate nearest to a target, as a fraction of prompt tokens."""
        return reachable_rate(self.prompt_tokens, self.config.chunk_size(self.sizes.block_size), target)

    @property
    def sequences(self) -> int | None:
        """The largest safe ``--max-num-seqs``, where the memory of a GPU is known."""
        return None if self.kv_bytes is None else self.sizes.blocks_in(self.kv_bytes)

    @property
    def power(self) -> dict[float, float]:
        """By flip rate: chance that an unchanged model passes with so many questions (``tost_power``).

        With looks in between: at the last of them, so that those before can only raise it.
        """
        gate = self.config.gate
        return {rate: tost_power(self.questions, rate, gate.margin, alpha=levels(gate)[-1]) for rate in FLIP_RATES}

    @property
    def looks(self) -> list[dict[str, float]]:
        """Of every look of the gate: ``look``, ``n`` questions asked until then, and its ``level``."""
        gate = self.config.gate
        counts = zip(questions_at(self.questions, gate.looks), levels(gate), strict=True)
        return [{"look": number, "n": n, "level": level} for number, (n, level) in enumerate(counts, start=1)]

    @property
    def errors(self) -> list[Finding]:
        """Findings that stop a run."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]


def make_plan(config: RunConfig) -> Plan:
    """Works out a run.

    Raises:
        UsageError: the configuration is wrong in a way that leaves nothing to plan.
    """
    check = check_of(config)
    check_extra_args(config)
    check_variables(config)
    sizes = predicted_sizes(config.model, config.engine)
    planned = [
        _planned(config, launch, sizes.block_size)
        for launch in launches(config.sweep, sizes.block_size, list(check.variants))
    ]
    check_cells(check, (cell for each in planned for cell in each.launch.cells))
    lengths, estimated = prompt_lengths(config, sizes.block_size)
    check_questions(len(lengths), config.gate.looks)
    if not estimated:
        chunk_size = config.chunk_size(sizes.block_size)
        check_reach(check, [each.launch for each in planned], lengths, sizes.block_size, chunk_size)
    python = config.servers.lmcache.python or sys.executable
    release = versions(python, server_environment(config)).get("lmcache")
    facts = rule_facts(config, sizes, [each.launch for each in planned], release, lengths)
    findings = check_rules(facts)
    return Plan(config, check, sizes, planned, len(lengths), lengths, estimated, facts.kv_bytes, findings)


def rule_facts(
    config: RunConfig, sizes: Sizes, plan: Sequence[Launch], lmcache: str | None, prompt_tokens: Sequence[int]
) -> Facts:
    """What rules look at before anything is started; ``lmcache`` is its release."""
    return Facts(
        config,
        sizes,
        list(dict.fromkeys(launch.budget for launch in plan)),
        config.chunk_size(sizes.block_size),
        lmcache,
        prompt_tokens,
        # In whole blocks the pocket problems are the same for every tokenizer.
        estimated=config.task.name != POCKET,
        targets=list(dict.fromkeys(cell.target for launch in plan for cell in launch.cells)),
        kv_bytes=kv_bytes(config),
    )


def kv_bytes(config: RunConfig) -> int | None:
    """About how much memory vLLM has for its cache on one GPU, in bytes; None where that can't be told.

    What ``--gpu-memory-utilization`` allows, less the weights. Activations and CUDA graphs take some more.
    """
    weights = weights_gb(config)
    if config.engine.name != "gpu" or weights is None:
        return None
    memory = config.engine.gpu_memory_gb or _gpu_memory_gb()
    if memory is None:
        return None
    allowed = float(argument_value(config, "--gpu-memory-utilization") or VLLM_MEMORY_UTILIZATION)
    return max(0, int((memory * allowed - weights / config.model.tensor_parallel_size) * 1e9))


def _gpu_memory_gb() -> float | None:
    """Memory of this machine's smallest GPU in GB."""
    found = [float(words[0]) for gpu in gpus() if (words := str(gpu.get("memory", "")).split())]
    return min(found) * 2**20 / 1e9 if found else None


def prompt_lengths(config: RunConfig, block_size: int) -> tuple[list[int], bool]:
    """Tokens of every prompt, and whether they are an estimate.

    Raises:
        UsageError: the pocket problems don't fit N.
    """
    task = config.task
    if task.name != POCKET:
        questions = min(task.limit or GSM8K_QUESTIONS, GSM8K_QUESTIONS)
        covering = task.min_blocks * block_size + 1 + GSM8K_EXAMPLE_TOKENS // 2
        return [max(GSM8K_TOKENS, covering)] * questions, True
    problems = pocket_problems(task, block_size, POCKET_RULER)
    return [problem.prompt_tokens for problem in problems], lengths_are_estimated(config)


def answer_tokens(config: RunConfig, block_size: int) -> float:
    """Tokens of one answer: of the pocket task those of the worked answers on average, of another task the most that
    an answer may have.

    Raises:
        UsageError: the pocket problems don't fit N.
    """
    task = config.task
    if task.name != POCKET:
        return task.max_gen_toks or DEFAULT_ANSWER_TOKENS
    problems = pocket_problems(task, block_size, POCKET_RULER)
    return sum(problem.answer_tokens for problem in problems) / len(problems)


def lengths_are_estimated(config: RunConfig) -> bool:
    """Whether nobody has looked at the prompts yet: at a hub's data, or at another model's tokenizer."""
    return config.task.name != POCKET or config.model.gpus > 0


def check_reach(check: Check, plan: Sequence[Launch], lengths: Sequence[int], block_size: int, chunk_size: int) -> None:
    """Refuses a point of divergence or a number of primed blocks that the prompts do not have.

    Args:
        check: its steps.
        plan: launches and their cells.
        lengths: of the prompts, in tokens.
        block_size: N in tokens.
        chunk_size: LMCache's, in tokens.

    Raises:
        UsageError: in one sentence, with the numbers.
    """
    for cell in (cell for launch in plan for cell in launch.cells):
        check_divergence(lengths, block_size, chunk_size, cell.diverges_after)
        check_primed(lengths, block_size, primed_blocks(check.steps_for(cell)))


def missing_hardware(config: RunConfig) -> str | None:
    """What a model needs and this machine lacks, in one sentence; None where it can run."""
    model = config.model
    if not model.gpus and config.engine.name != "gpu":
        return None
    needed = max(1, model.gpus)
    found = len(gpus())
    if config.engine.name == "gpu" and found >= needed:
        return None
    memory = weights_gb(config)
    each = " each" if needed > 1 else ""
    takes = f" with {ceil(memory / needed)} GB or more{each}, for its weights alone" if memory else ""
    has = f"this machine has {found or 'none'}" if config.engine.name == "gpu" else "engine=cpu uses none"
    instead = "run model=pocket" if model.gpus else "use engine=cpu"
    asks = f"model={model.name}" if model.gpus else f"engine={config.engine.name}"
    return (
        f"{asks} needs {needed} NVIDIA GPU{'s' if needed > 1 else ''}{takes}, and {has}: see what it would do with "
        f"`python -m harness plan` and the same overrides, or {instead}."
    )


def weights_gb(config: RunConfig) -> float | None:
    """Memory that the weights take, in GB, where the number of parameters is known."""
    model = config.model
    if model.parameters_b is None:
        return None
    return model.parameters_b * bytes_per_element(model.geometry.dtype if model.geometry else "bfloat16")


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs (``format=json``)."""
    sizes = plan.sizes
    return {
        "model": plan.config.model.name,
        "unified_block_size": sizes.block_size,
        "budgets": [each.launch.budget for each in plan.launches],
        "launches": [
            {"id": each.launch.id, "budget": each.launch.budget, "cells": [cell.id for cell in each.launch.cells]}
            for each in plan.launches
        ],
        "cells": [
            asdict(cell) | {"reachable": plan.reachable(cell.target)}
            for each in plan.launches
            for cell in each.launch.cells
        ],
        "commands": {
            each.launch.id: {"lmcache": lmcache_line(each), "vllm": vllm_line(plan.config, each)}
            for each in plan.launches
        },
        "kv_bytes_per_token": sizes.kv_per_token,
        "recurrent_page_bytes": sizes.recurrent_page,
        "attention_bytes_per_token": sizes.attention_per_token,
        "page_bytes": sizes.page,
        "state_bytes_per_sequence": sizes.state_per_sequence,
        "stored_block_bytes": sizes.stored_block,
        "max_num_seqs": plan.sequences,
        "l1_bytes_needed": sizes.l1_bytes(plan.prompt_tokens),
        "questions": plan.questions,
        "passes": plan.passes,
        "requests": plan.passes * plan.questions,
        "prompt_tokens": plan.passes * sum(plan.prompt_tokens),
        "prompt_tokens_estimated": plan.estimated,
        "work": work_as_json(plan),
        "looks": plan.looks,
        "power": {f"{rate:.2f}": power for rate, power in plan.power.items()},
        "errors": [_finding(each) for each in plan.findings if each.severity is Severity.ERROR],
        "warnings": [_finding(each) for each in plan.findings if each.severity is Severity.WARNING],
        "notes": [_finding(each) for each in plan.findings if each.severity is Severity.NOTE],
    }


def work_as_json(plan: Plan) -> dict[str, Any]:
    """What the servers are asked in all, with what is seeded."""
    work = plan.work
    return {
        "requests": work.requests,
        "prompt_tokens": work.prompt_tokens,
        "computed_tokens": work.computed_tokens,
        "local_tokens": work.local_tokens,
        "external_tokens": work.external_tokens,
        "output_tokens": work.output_tokens,
        "output_tokens_at_most": plan.config.task.name != POCKET,
    }


def lmcache_line(planned: PlannedLaunch) -> list[str]:
    """``lmcache server …`` as a person types it."""
    return ["lmcache", "server", *without_secrets(words(planned.lmcache))]


def vllm_line(config: RunConfig, planned: PlannedLaunch) -> list[str]:
    """``vllm serve …`` as a person types it."""
    return ["vllm", "serve", served_path(config.model.path), *without_secrets(words(planned.vllm))]


def added_arguments(arguments: Sequence[Argument], recipe: Sequence[str]) -> list[Argument]:
    """Arguments that a recipe does not have."""
    return [each for each in arguments if not _contains(recipe, each.words)]


def _contains(whole: Sequence[str], part: Sequence[str]) -> bool:
    return any(tuple(whole[start : start + len(part)]) == tuple(part) for start in range(len(whole) - len(part) + 1))


def _planned(config: RunConfig, launch: Launch, block_size: int) -> PlannedLaunch:
    chunk_size = config.chunk_size(block_size)
    return PlannedLaunch(
        launch,
        lmcache_arguments(config, chunk_size=chunk_size, port=PORTS["lmcache"], http_port=PORTS["lmcache_http"]),
        vllm_arguments(config, budget=launch.budget, port=PORTS["vllm"], lmcache_port=PORTS["lmcache"]),
    )


def _finding(finding: Finding) -> dict[str, str | None]:
    return {
        "rule": finding.rule,
        "text": str(finding),
        "override": finding.override,
        "holds_for": finding.holds_for,
    }
