"""``python -m harness plan``: what a run would do."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from harness.cli.compose import compose_config
from harness.cli.options import JSON, split_format
from harness.errors import UsageError
from harness.plan import as_json, make_plan
from harness.report.plan import print_plan


def plan_command(arguments: Sequence[str]) -> int:
    """``plan``: the same overrides as ``run``; exit code 2 where rules refuse the run.

    Raises:
        UsageError: the configuration can't be composed, or leaves nothing to plan.
    """
    chosen, overrides = split_format(arguments)
    config = compose_config(overrides)
    if config.replay is not None:
        raise UsageError(
            f"plan knows no replay=: what it would send and with which configuration is in {config.replay}."
        )
    plan = make_plan(config)
    if chosen == JSON:
        print(json.dumps(as_json(plan), indent=2))
    else:
        print_plan(Console(highlight=False), plan)
    return UsageError.exit_code if plan.errors else 0
