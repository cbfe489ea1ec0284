"""``python -m harness plan``: what a run would do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.cli.arms import compose_arms
from harness.cli.compose import compose_config
from harness.cli.options import JSON, refuse_multirun, split_fields, split_format
from harness.errors import UsageError
from harness.estimate import planned
from harness.plan import as_json, make_plan
from harness.plan_arms import arms_as_json, plan_arms
from harness.report.plan import print_arms, print_plan
from harness.report.runs import read_run


def plan_command(arguments: Sequence[str]) -> int:
    """``plan``: the same overrides as ``run``; exit code 2 where rules refuse the run, or every arm of it.

    Raises:
        UsageError: the configuration can't be composed, or leaves nothing to plan; or ``from=`` names no run, or one
            that tells nothing about this one.
    """
    chosen, words = split_format(arguments)
    fields, overrides = split_fields(words, ("from",))
    if fields.get("from") == "":
        raise UsageError("from= needs the folder of a run: plan from=results/<run id>")
    refuse_multirun(overrides, "plan")
    config = compose_config(overrides)
    if config.replay is not None:
        raise UsageError(
            f"plan knows no replay=: what it would send and with which configuration is in {config.replay}."
        )
    if config.check.arms:
        if fields:
            raise UsageError("from= tells the time of one check, not of arms: plan them one by one, check=mixed from=…")
        arms = plan_arms(compose_arms(config, overrides))
        if chosen == JSON:
            print(json.dumps(arms_as_json(arms), indent=2))
        else:
            print_arms(Console(highlight=False), arms)
        return 0 if arms.done else UsageError.exit_code
    plan = make_plan(config)
    estimate = planned.estimate_plan(plan, read_run(Path(fields["from"]))) if fields else None
    if chosen == JSON:
        told = as_json(plan) | ({"estimate": planned.as_json(estimate)} if estimate else {})
        print(json.dumps(told, indent=2))
    else:
        print_plan(Console(highlight=False), plan, estimate)
    return UsageError.exit_code if plan.errors else 0
