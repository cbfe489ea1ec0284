"""``python -m harness doctor``: is this machine ready for a run?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from harness.cli.compose import compose_config
from harness.cli.options import JSON, split_format
from harness.doctor.checks import check_all, exit_code
from harness.doctor.facts import gather
from harness.report.doctor import conclusion, print_checks


def doctor_command(arguments: Sequence[str]) -> int:
    """``doctor``: one line per check, each with a remedy; takes a run's overrides and starts nothing.

    Returns:
        0 where nothing fails, 3 where something does.

    Raises:
        UsageError: the configuration can't be composed.
    """
    form, overrides = split_format(arguments)
    config = compose_config(overrides)
    checks = check_all(config, gather(config))
    code = exit_code(checks)
    if form == JSON:
        told = {"ready": code == 0, "summary": conclusion(checks), "checks": [asdict(check) for check in checks]}
        print(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        print_checks(Console(highlight=False), checks)
    return code
