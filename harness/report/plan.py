"""The plan on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.estimate.planned import Estimate
from harness.model.rules import Severity
from harness.model.sizes import GIB, L1_WATERMARK, Sizes
from harness.model.support import FEATURES, status
from harness.plan import Plan, PlannedLaunch, added_arguments, lmcache_line, vllm_line
from harness.plan_arms import ArmsPlan
from harness.redaction import without_secrets
from harness.report.estimate import estimate_lines
from harness.report.forms import counted
from harness.servers.commands import Argument
from harness.workload.pocket import POCKET

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def print_plan(console: Console, plan: Plan, estimate: Estimate | None = None) -> None:
    """Prints sizes, support, cells, commands, cost, time where a run tells it, and findings."""
    _print_model(console, plan)
    _print_cost(console, plan)
    if estimate:
        _section(console, "time", estimate_lines(estimate))
    _print_reasons(console, plan)
    _print_findings(console, plan)


def print_arms(console: Console, plans: ArmsPlan) -> None:
    """Prints what all arms have in common, then each arm's cost, cells, commands and findings, and the sum."""
    shown = next((each.plan for each in plans.arms if each.plan is not None), None)
    if shown is not None:
        _print_model(console, shown)
        _print_reasons(console, shown)
    for number, each in enumerate(plans.arms, start=1):
        console.print(Text(f"arm {number} of {len(plans.arms)}: {each.arm}", style="bold underline"))
        if each.plan is not None:
            _print_cost(console, each.plan)
            _print_findings(console, each.plan)
        else:
            console.print(Text(f"can't be tried: {each.refused}", style=STYLES[Severity.ERROR]), soft_wrap=True)
        console.print()
    console.print(Text(sum_of_arms(plans), style="bold"), soft_wrap=True)


def sum_of_arms(plans: ArmsPlan) -> str:
    """What all arms come to, in one sentence."""
    if left_out := len(plans.arms) - len(plans.done):
        of = f"{len(plans.done)} of {counted(len(plans.arms), 'arm')} ({left_out} can't be tried)"
    else:
        of = counted(len(plans.arms), "arm")
    about = "about " if plans.estimated else ""
    cost = f"{counted(plans.launches, 'launch')}, {counted(plans.requests, 'request')}"
    return f"in all: {of}, {cost}, {about}{plans.prompt_tokens:,} prompt tokens"


def _print_model(console: Console, plan: Plan) -> None:
    for title, lines in (
        (f"{plan.config.model.name} on engine {plan.config.engine.name}", sizes_lines(plan.sizes)),
        ("long context", context_lines(plan)),
        ("support, as published", support_lines(plan)),
    ):
        if lines:
            _section(console, title, lines)


def _print_cost(console: Console, plan: Plan) -> None:
    _section(console, "cost", cost_lines(plan))
    console.print(cells_table(plan))
    console.print()
    for planned in plan.launches:
        _print_commands(console, plan, planned)


def _print_findings(console: Console, plan: Plan) -> None:
    for finding in plan.findings:
        text = f"{finding.severity.value}: {finding}"
        console.print(Text(f"{text} (holds for {finding.holds_for})", style=STYLES[finding.severity]), soft_wrap=True)


def sizes_lines(sizes: Sizes) -> list[str]:
    """N and what it comes from, each with its arithmetic."""
    g, serving = sizes.geometry, sizes.serving
    ranks = serving.tensor_parallel_size
    per_rank = f" on each of {ranks} ranks" if ranks > 1 else ""
    kv_dtype = g.dtype if serving.kv_cache_dtype == "auto" else serving.kv_cache_dtype
    return [
        f"N = {sizes.block_size} tokens, predicted: {serving.kernel_alignment} x ceil({sizes.recurrent_page:,} / "
        f"({serving.kernel_alignment} x {sizes.attention_per_token:,})); the running server's counts",
        f"{g.layers} layers: {g.attention_layers} of attention, {g.recurrent_layers} recurrent",
        f"recurrent state of a layer{per_rank}: {sizes.conv_state:,} B convolution ({g.dtype}) + {sizes.ssm_state:,} B "
        f"SSM ({g.ssm_dtype}) = {sizes.recurrent_page:,} B",
        f"attention of a layer{per_rank}: {sizes.attention_per_token:,} B per token ({kv_dtype}); a page of N tokens "
        f"{sizes.page:,} B, so a recurrent page is padded by {sizes.padding:,} B",
        f"KV of all layers: {sizes.kv_per_token:,} B per token; recurrent state: "
        f"{sizes.state_per_sequence / 1e6:,.1f} MB per sequence, however long",
        f"LMCache stores {sizes.stored_block / 1e6:,.2f} MB per block of N tokens: a page of every layer",
    ]


def context_lines(plan: Plan) -> list[str]:
    """KV at the longest context, with what the architecture and the KV dtype save as two separate factors."""
    sizes, tokens = plan.sizes, plan.config.model.max_model_len or plan.config.model.native_context
    if tokens is None:
        return []
    g = sizes.geometry
    wide = 2 if g.dtype in ("bfloat16", "float16") else 4
    by_dtype = sizes.kv_per_token * wide // _kv_element(sizes)
    every = by_dtype * g.layers // g.attention_layers
    lines = [
        f"KV at {tokens:,} tokens: {sizes.kv_per_token * tokens / GIB:.2f} GiB; if all {g.layers} layers kept KV in "
        f"{g.dtype}: {every * tokens / GIB:.2f} GiB ({every:,} B per token)",
        f"of that the architecture saves {g.layers / g.attention_layers:.3g} times",
    ]
    if by_dtype != sizes.kv_per_token:
        saved = by_dtype / sizes.kv_per_token
        lines.append(f"and the KV dtype another {saved:.3g} times ({by_dtype * tokens / GIB:.2f} GiB in {g.dtype})")
    return lines


def support_lines(plan: Plan) -> list[str]:
    """The status of every feature; nothing for a model that states none."""
    model = plan.config.model
    if not model.support:
        return []
    stated = ", ".join(f"{name}: {status(model.support, feature)}" for feature, name in FEATURES.items())
    return [stated] + ([f"source: {model.support_source}"] if model.support_source else [])


def cost_lines(plan: Plan) -> list[str]:
    """Requests and tokens, L1, and what so many questions can decide."""
    about = "about " if plan.estimated else ""
    mean = sum(plan.prompt_tokens) / len(plan.prompt_tokens)
    needed, gate = plan.sizes.l1_bytes(plan.prompt_tokens), plan.config.gate
    power = ", ".join(f"{chance:.2f} at a flip rate of {rate:.2f}" for rate, chance in plan.power.items())
    work = plan.work
    most = "about" if plan.config.task.name == POCKET else "at most"
    return [
        f"{plan.questions} questions x {plan.passes} passes = {plan.questions * plan.passes:,} requests; prompts of "
        f"{about}{mean:,.0f} tokens, {about}{plan.passes * sum(plan.prompt_tokens):,} tokens in all",
        f"with what is seeded {work.requests:,} requests, which compute {about}{work.computed_tokens:,} prompt tokens "
        f"and {most} {work.output_tokens:,} output tokens; plan from=results/<run id> tells how long",
        f"L1: {about}{needed / 1e9:.1f} GB hold one pass (eviction starts at {L1_WATERMARK:.0%}); "
        f"{plan.config.l1_size_gb:g} GB are set",
        *looks_lines(plan),
        *sequences_lines(plan),
        f"chance that an unchanged model passes (margin {gate.margin:g}, n = {plan.questions}): {power}",
    ]


def looks_lines(plan: Plan) -> list[str]:
    """What looks in between may save; nothing without them."""
    first, *others = plan.looks
    if not others:
        return []
    least = plan.passes * int(first["n"])
    levels = ", ".join(f"{each['level']:.4g}" for each in plan.looks)
    return [
        f"that is the worst case: looks after {', '.join(str(each['n']) for each in plan.looks)} questions, and at the "
        f"first one {least:,} requests were sent; levels {levels} of alpha = {plan.config.gate.alpha:g}"
    ]


def sequences_lines(plan: Plan) -> list[str]:
    """How many sequences vLLM's cache has blocks for on one GPU, if its memory is known."""
    if plan.config.engine.name != "gpu":
        return []
    if plan.sequences is None:
        return ["running sequences: engine.gpu_memory_gb=80, for one, tells how many a GPU of 80 GB has blocks for"]
    return [
        f"running sequences: about {plan.sequences:,} have a block for their recurrent state on one GPU: the largest "
        "safe --max-num-seqs"
    ]


def cells_table(plan: Plan) -> Table:
    """One row per cell."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    for heading in ("launch", "budget", "in N", "cell", "hit rate", "reachable"):
        table.add_column(heading, overflow="fold")
    for planned in plan.launches:
        launch = planned.launch
        for number, cell in enumerate(launch.cells):
            first = (launch.id, str(launch.budget), f"{launch.budget / plan.sizes.block_size:.3g}")
            target = "full" if cell.target is None else f"{cell.target:g}"
            reachable = f"{plan.reachable(cell.target):.3f}"
            table.add_row(*(first if number == 0 else ("", "", "")), cell.id, target, reachable)
    return table


def _print_commands(console: Console, plan: Plan, planned: PlannedLaunch) -> None:
    _section(
        console,
        f"launch {planned.launch.id}",
        [shlex.join(lmcache_line(planned)), shlex.join(vllm_line(plan.config, planned))],
    )


def _print_reasons(console: Console, plan: Plan) -> None:
    """What the harness adds to a model's recipe, with the reasons; without a recipe, everything."""
    recipe, first = plan.config.model.recipe, plan.launches[0]
    of_recipe: tuple[Sequence[str], Sequence[str]] = (recipe.lmcache, recipe.vllm) if recipe else ((), ())
    title = f"added to {recipe.source}" if recipe else "arguments, and why"
    for server, arguments, published in (
        ("lmcache server", first.lmcache, of_recipe[0]),
        ("vllm serve", first.vllm, of_recipe[1]),
    ):
        added = added_arguments(arguments, published)
        _section(console, f"{server}: {title}", [f"{_shown(each)}: {each.why}" for each in added])


def _shown(argument: Argument) -> str:
    text = shlex.join(without_secrets(argument.words))
    return text if len(text) <= 60 else f"{argument.words[0]} …"


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()


def _kv_element(sizes: Sizes) -> int:
    """Bytes of one element of K or V."""
    g, ranks = sizes.geometry, sizes.serving.tensor_parallel_size
    return sizes.attention_per_token // (2 * max(1, g.kv_heads // ranks) * g.head_dim)
