"""``python -m harness doctor``: is this machine ready for a run?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from harness.cli.arms import compose_arms
from harness.cli.compose import compose_config
from harness.cli.options import JSON, refuse_multirun, split_format
from harness.config import RunConfig
from harness.doctor.checks import Check, check_all, exit_code, worst_of
from harness.doctor.facts import for_arm, gather
from harness.errors import UsageError
from harness.report.doctor import conclusion, print_checks


def doctor_command(arguments: Sequence[str]) -> int:
    """``doctor``: one line per check, each with a remedy; takes a run's overrides and starts nothing.

    Returns:
        0 where nothing fails, 3 where something does.

    Raises:
        UsageError: the configuration can't be composed.
    """
    form, overrides = split_format(arguments)
    refuse_multirun(overrides, "doctor")
    config = compose_config(overrides)
    checks = _checks_of_arms(config, overrides) if config.check.arms else check_all(config, gather(config))
    code = exit_code(checks)
    if form == JSON:
        told = {"ready": code == 0, "summary": conclusion(checks), "checks": [asdict(check) for check in checks]}
        print(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        print_checks(Console(highlight=False), checks)
    return code


def _checks_of_arms(config: RunConfig, overrides: Sequence[str]) -> list[Check]:
    """What all arms need: of every check the worst; the machine is looked at once.

    Raises:
        UsageError: no arm can be composed.
    """
    arms = list(compose_arms(config, overrides))
    composed = [(arm, each) for arm, each in arms if isinstance(each, RunConfig)]
    if not composed:
        raise next(each for _, each in arms if isinstance(each, UsageError))
    facts = gather(composed[0][1])
    return worst_of({arm: check_all(each, for_arm(facts, each)) for arm, each in composed})
