"""``python -m harness figures``: a run's figures as files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError


def figures_command(arguments: Sequence[str]) -> int:
    """``figures``: draws what results folders have the data for; paths on stdout, what was skipped on stderr.

    Raises:
        UsageError: no folder was named, or it holds no run.
        HarnessError: a folder can't be written.
    """
    if not arguments:
        raise UsageError("figures needs a results folder: python -m harness figures results/<run id>")
    from harness.report.figures import write_figures  # matplotlib: half a second that a refusal need not wait

    for argument in arguments:
        drawn = write_figures(Path(argument))
        for path in drawn.written:
            print(path)
        for name, reason in drawn.skipped.items():
            print(f"skipped {name}: {reason}", file=sys.stderr)
    return 0
