"""The pages docs/recipes/*.md, one per model, from configs/model: ``python -m harness.report.recipes docs/recipes``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.config import RunConfig
from harness.model.support import FEATURES, status
from harness.plan import Plan, lmcache_line, make_plan, vllm_line
from harness.pocket import CHECKPOINT
from harness.report.plan import context_lines, sizes_lines
from harness.servers.environment import added_environment

Compose = Callable[[Sequence[str]], RunConfig]

LIMITS = (300, 200, 150, 100, 75, 60, 45, 30, 20)
"""Questions of the budget sweep, of which a page names the most that the model's L1 has room for."""

PER_LINE = 100
"""Characters of a line of a command, before it goes on in the next."""


def page(model: str, compose: Compose) -> str:
    """One model's page as Markdown.

    Args:
        model: its name, ``model=…``.
        compose: overrides -> configuration.
    """
    engine = "cpu" if model == "pocket" else "gpu"
    plan = make_plan(compose([f"model={model}", f"engine={engine}"]))
    parts = [_title(plan), _sizes(plan), _serving(plan), _measuring(plan, compose), _validated(plan)]
    return "\n".join(parts)


def index(models: Sequence[str], compose: Compose) -> str:
    """The page that lists them."""
    rows = []
    for model in models:
        plan = make_plan(compose([f"model={model}", f"engine={'cpu' if model == 'pocket' else 'gpu'}"]))
        config = plan.config.model
        recipe = "published" if config.recipe else "none published"
        gpus = str(config.gpus or "none")
        budget = plan.launches[0].launch.budget
        rows.append(
            f"| [{_name(plan)}]({model}.md) | `{model}` | {plan.sizes.block_size} | {budget} | {gpus} | {recipe} |"
        )
    return (
        "# Recipes\n\nOne page per model: what it implies, the commands that serve it, how to measure it, and what was "
        "validated, by whom.\n\n| model | `model=` | N, tokens | budget, tokens | GPUs | recipe |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\nThese pages are written by `python -m harness.report.recipes docs/recipes`, from `configs/model`. "
        "Another model: [models.md](../models.md).\n"
    )


def write_pages(folder: Path, models: Sequence[str], compose: Compose) -> list[Path]:
    """Writes all pages, and returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"README": index(models, compose)} | {model: page(model, compose) for model in models}
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    return [folder / f"{name}.md" for name in texts]


def _title(plan: Plan) -> str:
    config = plan.config.model
    where = f"{config.gpus} GPU{'s' * (config.gpus > 1)}" if config.gpus else "the CPU engine"
    lines = [f"# {_name(plan)} on {where}", ""]
    lines.append(
        f"`model={config.name}`, N = {plan.sizes.block_size} tokens, budget 2N-1 = {plan.launches[0].launch.budget}."
    )
    if config.recipe:
        lines.append(f"The commands hold the arguments of {config.recipe.source} unchanged.")
    elif config.gpus:
        lines.append(
            "No recipe is published: the commands are what the rules of [block_size.md](../block_size.md) give."
        )
    return "\n".join([*lines, ""])


def _sizes(plan: Plan) -> str:
    lines = [
        f"- {line}" for line in [*sizes_lines(plan.sizes), *(context_lines(plan) if plan.config.model.gpus else [])]
    ]
    return "\n".join(["## What it implies", "", *lines, ""])


def _serving(plan: Plan) -> str:
    planned = plan.launches[0]
    environment = added_environment(plan.config)
    shown = " ".join(f"{name}={value}" for name, value in sorted(environment.items()) if name != "PYTHONPATH")
    commands = [_command(_portable(line)) for line in (lmcache_line(planned), vllm_line(plan.config, planned))]
    told = (
        "The CPU builds need the folder `harness/servers/cpu_engine` on `PYTHONPATH` beside these ([its README]"
        "(../../harness/servers/cpu_engine/README.md) says why), which a run sees to.\n\n"
        if plan.config.engine.overlay
        else ""
    )
    return (
        "## Serving it\n\nA run starts both servers by itself, on free ports. By hand, LMCache first:\n\n"
        f"```bash\n{commands[0]}\n```\n\n```bash\n{commands[1]}\n```\n\n"
        f"Both get `{shown}`. {told}`python -m harness plan model={plan.config.model.name}` says why each argument is "
        "there.\n"
    )


def _portable(line: Sequence[str]) -> list[str]:
    """A command without the place of this checkout, whose length would decide where its lines are broken."""
    return [word.replace(str(CHECKPOINT), "harness/pocket/checkpoint") for word in line]


def _measuring(plan: Plan, compose: Compose) -> str:
    model = plan.config.model.name
    lines = [
        f"python -m harness doctor model={model}     # is this machine able to?",
        f"python -m harness plan model={model}       # what it will cost, without a GPU",
        f"python -m harness run model={model}        # the gate: {plan.questions} questions of {plan.config.task.name}",
    ]
    limit = _limit(model, plan.config.engine.name, compose)
    if limit:
        lines.append(
            f"python -m harness run model={model} sweep=batched_tokens task=pocket_long task.limit={limit} "
            "load.concurrency=16"
        )
    room = f", and {limit} questions are about what an L1 of {plan.config.l1_size_gb:g} GB has room for"
    told = f"The last one measures six budgets at three hit rates{room * (limit != LIMITS[0])}.\n" if limit else ""
    return "\n".join(["## Measuring it", "", "```bash", *lines, "```", told])


def _validated(plan: Plan) -> str:
    config = plan.config.model
    lines = ["## What was validated", ""]
    if config.support:
        lines += [f"As published ({config.support_source}):", "", "| feature | status |", "|---|---|"]
        lines += [f"| {name} | {status(config.support, feature)} |" for feature, name in FEATURES.items()]
        lines += [""]
    if config.gpus:
        lines += [
            "By this project, without a GPU:",
            "",
            "- N and the sizes above follow from the checkpoint's geometry"
            + (
                ", and agree with the published chunk size and budget."
                if config.recipe
                else "; N is a published value."
            ),
            "- Both commands are accepted by the argument parsers of vLLM 0.32.0 and LMCache 0.5.6 "
            "(tests/test_plan.py).",
            "- **Nothing was measured with this model**: no score, time to first token or throughput. The harness "
            "itself was proven with the pocket model on the CPU builds; see [limits.md](../limits.md).",
        ]
    else:
        lines += [
            "Measured here, with vLLM 0.32.0 and LMCache 0.5.6 on two CPU cores: the gate's verdicts, its negative "
            "controls and the budget sweep in results/reference-batched-tokens-pocket. It says nothing about CUDA "
            "kernels or transfers; see [limits.md](../limits.md).",
        ]
    return "\n".join([*lines, ""])


def _name(plan: Plan) -> str:
    path = plan.config.model.path
    return "The pocket model" if path == str(CHECKPOINT) else path.rpartition("/")[2]


def _limit(model: str, engine: str, compose: Compose) -> int:
    """The most questions of the budget sweep that the model's L1 has room for; 0 if it has none for the fewest."""
    few = LIMITS[-1]
    sweep = [f"model={model}", f"engine={engine}", "sweep=batched_tokens", "task=pocket_long", f"task.limit={few}"]
    plan = make_plan(compose(sweep))
    # All prompts have as many whole blocks.
    room = plan.config.l1_size_gb * 1e9 * few / plan.sizes.l1_bytes(plan.prompt_tokens)
    return next((limit for limit in LIMITS if limit <= room), 0)


def _command(line: Sequence[str]) -> str:
    """A command over several lines, an option with its values in one piece."""
    pieces = [" ".join(shlex.quote(word) for word in words) for words in _options(line)]
    rows = [pieces[0]]
    for piece in pieces[1:]:
        if len(rows[-1]) + len(piece) < PER_LINE:
            rows[-1] += f" {piece}"
        else:
            rows.append(f"  {piece}")
    return " \\\n".join(rows)


def _options(line: Sequence[str]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in line:
        if re.match(r"--?[a-z]", word):
            groups.append([])
        groups[-1].append(word)
    return groups


if __name__ == "__main__":
    from harness.cli import compose_config, configs_folder

    for written in write_pages(
        Path(sys.argv[1]), sorted(each.stem for each in (configs_folder() / "model").glob("*.yaml")), compose_config
    ):
        print(written)
