"""``python -m harness selftest``: does the gate bite?"""

from __future__ import annotations

from collections.abc import Sequence

from harness.cli.compose import compose_config
from harness.cli.run import run_command
from harness.selftest import command


def selftest_command(arguments: Sequence[str]) -> int:
    """``selftest``: a run of the check that damages, or runs that were made, and their summary.

    Raises:
        UsageError: words that don't go together, or a folder that holds no run.
    """
    return command.selftest_command(arguments, run_command, compose_config)
