"""The page docs/sizing.md, from configs/ and a reference run: ``python -m harness.report.sizing docs/sizing.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

from harness.config import RunConfig
from harness.errors import UsageError
from harness.estimate.history import History, read_history
from harness.estimate.planned import estimate_plan
from harness.estimate.rates import fit_rates
from harness.estimate.replay import replayed
from harness.plan import Plan, make_plan
from harness.report.recipes import Compose
from harness.report.runs import Run, read_run
from harness.steps import parse_check
from harness.sweep import launches
from harness.workload.pocket import POCKET

REFERENCE = "reference-batched-tokens-pocket"
REFERENCE_OVERRIDES = (
    "model=pocket", "sweep=batched_tokens", "task=pocket_long", "task.limit=90", "load.concurrency=16",
)  # fmt: skip
"""What it was made with."""

SWEEPS = ("smoke", "batched_tokens", "hit_rate", "divergence", "selftest_short", "selftest")
"""Shipped ones; attention_backend is smoke twice."""

QUESTIONS = 45
"""Of sweeps with hit rates on GPU models: what they store fits the L1 of every shipped recipe."""

PER_SECOND = (1_000, 5_000, 20_000)
"""Computed prompt tokens per second of the scenarios: round numbers, of no GPU."""

PAGE = """\
# How long, and on how many GPUs?

No model was run on a GPU by this project, so no GPU-hour on this page was measured. What is here: the work of each
shipped sweep, which does not depend on the machine; the command that turns it into hours once you have measured one
run; and what came of that on the CPU engine, where it could be tried.

## Your own figure

Make the smallest run first, then ask for any other plan of the same model at its rates:

```bash
python -m harness run model=qwen3_6_27b run_id=first
python -m harness plan model=qwen3_6_27b from=results/first sweep=batched_tokens task=pocket_long task.limit=45
```

The second one starts nothing. It tells the time of every launch and cell, what the rates were measured on, and which
of them are extrapolated. GPU-hours are that time in seconds x the model's GPUs / 3600. It refuses a run of another
model or engine, or one without a complete cell. `format=json` has it under `estimate`.

## The work of each sweep

As `plan` counts it (`format=json`: `work`). Requests include what is seeded. Computed are the prompt tokens that no
cache serves. Output tokens are those of the worked answers for the pocket task, and the most that is allowed for
gsm8k. Sweeps with hit rates take `task=pocket_long load.concurrency=16` and few enough questions for every recipe's
L1: all numbers but launches and passes grow with `task.limit`. Prompts of models that are not here are estimated.
`sweep=attention_backend` is `smoke` twice. The selftests exchange weights, so they need a checkpoint folder
(`model.path=PATH`).

{work}

## Arithmetic, not a measurement

GPU-hours for prefill alone if a launch computed R prompt tokens per second: GPUs x computed / R / 3600. No R here was
seen on a GPU; put your own in (`prompt_tokens_per_s` of the cold pass in cell.json). The start of servers and decoding
come on top, and at a budget of N R is lower than at the others of its sweep.

{scenarios}

## How it is worked out

A launch takes the start and the end of its servers and its prompts (measured, as it is) + its passes + what is seeded
+ what lies between two cells (settling, scoring, judging, saving: measured). A pass takes

```
steps x a + computed tokens x b + decoded tokens x c + retrieved tokens x d
```

Steps are counted by playing the pass through vLLM's scheduling rules (harness/estimate/scheduler.py): a step has room
for the budget, prefill stops at multiples of N, and at a budget of N nobody begins while somebody decodes. That is
what makes N slow, so a time per token can't be carried from one budget to another. a, b, c and d are fitted to the
passes of the run that was measured, none of them negative; then the passes of each budget are made to add up to what
they took. A budget that was not measured takes the correction of the nearest one, and `plan` says so.

The remaining time that `run` shows is the same, at the rates of what that run has measured so far.

Not in it: preemption, an own cache of vLLM or an L1 of LMCache without room for all prompts, what other programs take
of the machine, and the report (seconds).

## Tried on the CPU engine

{example}

## Sharing it out

The unit is the launch: one start of both servers with the cells measured on it. A sweep of six launches can take six
machines, or six GPUs of one, and no more; `sweep.repeats` multiplies launches. `sweep.shard=i/n` takes one part of
them, and [clusters.md](clusters.md) has the launchers. The wall time is that of the slowest part; `plan from=` tells
each launch's own: at a budget of N one launch can take as long as several others. GPU-hours stay the same, since every
launch pays for its own start and its own cold pass anyway. A model of eight GPUs needs all eight for each launch.

This page is written by `python -m harness.report.sizing docs/sizing.md`.
"""


def page(models: Sequence[str], compose: Compose, results: Path) -> str:
    """The page as Markdown.

    Args:
        models: names, ``model=…``.
        compose: overrides -> configuration.
        results: folder of the reference runs.
    """
    plans = [plan for model in models for plan in _plans(model, compose)]
    example = _example(read_run(results / REFERENCE), plans, compose(REFERENCE_OVERRIDES))
    return PAGE.format(work=_work(plans), scenarios=_scenarios(plans), example=example)


def _plans(model: str, compose: Compose) -> Iterator[tuple[str, Plan]]:
    """Each sweep of a model by name."""
    engine, limit = ("cpu", 90) if model == POCKET else ("gpu", QUESTIONS)
    for sweep in SWEEPS:
        words = [f"model={model}", f"engine={engine}", f"sweep={sweep}"]
        if sweep.startswith("selftest"):
            words += ["check=selftest"]
        elif sweep != "smoke":
            words += ["task=pocket_long", f"task.limit={limit}", "load.concurrency=16"]
        try:
            config = compose(words)
        except UsageError:  # exchanges weights, which a hub's checkpoint has no folder for
            continue
        yield sweep, make_plan(config)
    if model != POCKET:
        yield "smoke, task=gsm8k", make_plan(compose([f"model={model}", f"engine={engine}", "task=gsm8k"]))


def _work(plans: Sequence[tuple[str, Plan]]) -> str:
    """A row per plan."""
    rows = []
    for sweep, plan in plans:
        work, most = plan.work, "" if plan.config.task.name == POCKET else "at most "
        counts = (plan.questions, len(plan.launches), plan.passes, work.requests)
        rows.append(
            (
                plan.config.model.name,
                sweep,
                str(plan.config.model.gpus or "none"),
                *(f"{each:,}" for each in counts),
                _millions(work.prompt_tokens),
                _millions(work.computed_tokens),
                most + _millions(work.output_tokens),
            )
        )
    headings = "model, sweep, GPUs, questions, launches, passes, requests, prompt tokens, computed, output"
    return _table(headings.split(", "), rows)


def _scenarios(plans: Sequence[tuple[str, Plan]]) -> str:
    """GPU-hours of prefill at round rates."""
    rows = []
    for sweep, plan in plans:
        if gpus := plan.config.model.gpus:
            hours = (f"{gpus * plan.work.computed_tokens / rate / 3600:.2f}" for rate in PER_SECOND)
            rows.append((plan.config.model.name, sweep, *hours))
    return _table(["model", "sweep", *(f"R = {rate:,}/s" for rate in PER_SECOND)], rows)


def _example(reference: Run, plans: Sequence[tuple[str, Plan]], config: RunConfig) -> str:
    """What was really measured, and what it foretells.

    Args:
        reference: a run of the CPU engine.
        plans: all of the page.
        config: what the reference run was made with.
    """
    history = read_history(reference.record, reference.cells)
    step_s, computed_s, decoded_s, retrieved_s = history.rates().unit_s
    return "\n\n".join(
        [
            _paragraph(
                f"`results/{REFERENCE}`: {len(history.budgets)} launches, {len(reference.cells)} cells, 90 questions, "
                f"16 requests at once, on two shared cores. Fitted to it: a = {1000 * step_s:.1f} ms per step, "
                f"b = {1000 * computed_s:.2f} ms per computed token, c = {1000 * decoded_s:.1f} ms per decoded token, "
                f"d = {1e6 * retrieved_s:.0f} µs per retrieved token. They are of that machine, and say nothing about "
                "a GPU."
            ),
            "How far one budget carries: a, b, c and d from one launch alone, and from them the passes of the others.",
            _from_one(history),
            _paragraph(
                "The remaining time that `run` would have shown at the end of each launch of that run, from what it "
                "had measured until then, replayed from its records (tests/test_estimate.py):"
            ),
            _left(reference, config),
            _paragraph(
                "After the first launch all it knows is a budget of N, at which the same pass takes up to six times "
                "as long as at others. Machines that others use as well are less kind: in "
                "results/reference-selftest-pocket the same pass took from 9 to 54 s in five launches, which no "
                "estimate knows beforehand. After its first launch the time left was 6 % too high; after the third, "
                "when the machine had just become faster again, it was 135 % too high."
            ),
            _paragraph(
                f"At these rates, `plan model=pocket from=results/{REFERENCE}` says of other sweeps, in machine-hours "
                "of two cores:"
            ),
            _hours(reference, plans),
            _paragraph(
                "They are hours of an otherwise idle machine: the selftest of results/reference-selftest-pocket took "
                "1.19 hours on a busy one."
            ),
        ]
    )


def _from_one(history: History) -> str:
    """How far the passes of one budget alone carry: to those of all others."""
    rows = []
    for budget in history.budgets:
        own = [each for each in history.passes if each.budget == budget]
        others = [each for each in history.passes if each.budget != budget]
        rates = fit_rates([*own, *(each for each in history.betweens if each.budget == budget)])
        took = sum(each.seconds for each in others)
        error = sum(rates.seconds(each.work, each.budget) for each in others) / took - 1
        steps, own_s = sum(each.work.steps for each in own), sum(each.seconds for each in own)
        rows.append((str(budget), f"{steps:,.0f}", f"{own_s:.0f} s", f"{took:.0f} s", f"{error:+.0%}"))
    return _table(["budget", "steps", "its passes took", "all others took", "foretold from this one: error"], rows)


def _left(reference: Run, config: RunConfig) -> str:
    """What was left after each launch but the last."""
    check = parse_check(config.check)
    plan = launches(config.sweep, int(reference.record["unified_block_size"]), list(check.variants))
    told = [each for each in replayed(plan, check, reference.record, reference.cells) if each.launch_done]
    rows = [(each.launch, f"{each.left_s:.0f} s", f"{each.took_s:.0f} s", f"{each.error:+.0%}") for each in told]
    return _table(["after launch", "shown", "really", "error"], rows)


def _hours(reference: Run, plans: Sequence[tuple[str, Plan]]) -> str:
    own = [(sweep, plan) for sweep, plan in plans if plan.config.model.name == POCKET]
    rows = [(sweep, str(plan.questions), f"{estimate_plan(plan, reference).seconds / 3600:.2f}") for sweep, plan in own]
    return _table(["sweep", "questions", "machine-hours"], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.2f} M"


def _paragraph(text: str) -> str:
    return fill(text, 118, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    from harness.cli import compose_config, configs_folder

    out = Path(sys.argv[1])
    names = sorted(each.stem for each in (configs_folder() / "model").glob("*.yaml"))
    out.write_text(page(names, compose_config, out.resolve().parent.parent / "results"))
    print(out)
