"""``plan from=RUN``: how long a planned run takes, at the rates of one that was measured, and how far that carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.errors import UsageError
from harness.estimate.forecast import LaunchTime, forecast
from harness.estimate.history import History, read_history
from harness.estimate.rates import Rates
from harness.estimate.workload import Questions
from harness.plan import Plan
from harness.report.runs import Run, find
from harness.workload.pocket import POCKET


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a planned run takes."""

    run_id: str
    """Of the run whose rates these are."""
    measured: str
    """What was measured there, and on which machine."""
    launches: Sequence[LaunchTime]
    rates: Rates
    notes: Sequence[str]
    """How what is planned differs from what was measured, a sentence each."""

    @property
    def seconds(self) -> float:
        """Of all launches."""
        return sum(launch.seconds for launch in self.launches)


def estimate_plan(plan: Plan, run: Run) -> Estimate:
    """Works out times.

    Args:
        plan: what is to run.
        run: what was measured.

    Raises:
        UsageError: that is a run of another model or engine, or has no complete cell.
    """
    config = plan.config
    for name, planned, told in (
        ("model", config.model.name, run.record.get("model")),
        ("engine", config.engine.name, find(run.record, "config", "engine", "name")),
    ):
        if told != planned:
            raise UsageError(
                f"from={run.path}: that is a run of {name}={told}, and {name}={planned} is planned: its times say "
                f"nothing about this one. Name a run of {name}={planned}."
            )
    history = read_history(run.record, run.cells)
    rates = history.rates()
    questions, notes = _questions(plan, run, history)
    times = forecast([each.launch for each in plan.launches], plan.check, questions, history, rates)
    notes += [
        f"{time.id}: a budget of {time.budget} was not measured, so its steps are counted by vLLM's rules and their "
        f"cost is extrapolated from a budget of {time.rates_of}, the nearest that was."
        for time in times
        if time.rates_of != time.budget
    ]
    if plan.check.name != history.check.name:
        notes.append(
            f"check {history.check.name} was measured and {plan.check.name} is planned: what lies between its passes "
            "is taken to be the same."
        )
    return Estimate(run.id, _measured(run, history), times, rates, notes)


def as_json(estimate: Estimate) -> dict[str, Any]:
    """For programs; times in seconds."""
    step_s, computed_s, decoded_s, retrieved_s = estimate.rates.unit_s
    return {
        "from": estimate.run_id,
        "measured": estimate.measured,
        "seconds": estimate.seconds,
        "launches": [
            asdict(each) | {"seconds": each.seconds, "extrapolated": each.rates_of != each.budget}
            for each in estimate.launches
        ],
        "rates": {
            "step_s": step_s,
            "computed_token_s": computed_s,
            "decoded_token_s": decoded_s,
            "retrieved_token_s": retrieved_s,
            "between_cells_s": estimate.rates.between_s,
            "factors": {str(budget): factor for budget, factor in estimate.rates.factors.items()},
        },
        "notes": list(estimate.notes),
    }


def _questions(plan: Plan, run: Run, history: History) -> tuple[Questions, list[str]]:
    """What is planned to be sent, with what was measured in place of what could only be guessed."""
    sent, notes = plan.sent, []
    seen, task = history.questions, plan.config.task
    same = (find(run.record, "config", "task", "name"), bool(find(run.record, "config", "task", "long_answers"))) == (
        task.name,
        task.long_answers,
    )
    if same:
        sent = replace(sent, output_tokens=seen.output_tokens)
    else:
        known = "worked answers have" if task.name == POCKET else "answers may have at most"
        notes.append(
            f"another task was measured: answers are taken to have the {sent.output_tokens:.0f} tokens that {known}."
        )
    if plan.estimated and same and task.name != POCKET:
        mean = sum(seen.lengths) / len(seen.lengths)
        count = len(sent.lengths)
        sent = replace(sent, lengths=[round(mean * (n + 1)) - round(mean * n) for n in range(count)])
        notes.append(f"prompts are taken to have the {mean:,.0f} tokens that they had there.")
    elif plan.estimated:
        notes.append("prompts are estimated, since the tokenizer was not looked at.")
    if sent.concurrency != seen.concurrency:
        notes.append(
            f"{seen.concurrency} requests at once were measured and {sent.concurrency} are planned: steps are counted "
            "for these."
        )
    if plan.sizes.block_size != seen.block_size:
        notes.append(f"N was {seen.block_size} there and {plan.sizes.block_size} is predicted.")
    return sent, notes


def _measured(run: Run, history: History) -> str:
    """``36 passes of 18 cells at budgets 64, 127, on 2 cores``."""
    gpus = [str(each.get("name")) for each in find(run.record, "provenance", "gpus") or []]
    cores = find(run.record, "provenance", "machine", "cores")
    where = f"{len(gpus)} x {gpus[0]}" if gpus else f"{cores} cores" if cores else "an unknown machine"
    budgets = ", ".join(map(str, history.budgets))
    several = "s" if len(history.budgets) > 1 else ""
    cells = f"{len(run.cells)} cell{'s'[: len(run.cells) > 1]}"
    return f"{len(history.passes)} passes of {cells} at budget{several} {budgets}, on {where}"
