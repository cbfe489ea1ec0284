"""``python -m harness compare``: is run B worse than run A?"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.cli.options import JSON, MARKDOWN, TEXT, refuse_fields, split_fields, split_format
from harness.compare.compare import as_json, compare_runs
from harness.compare.margins import NAMES, read_margins
from harness.errors import UsageError
from harness.report.comparison import comparison_markdown, print_comparison
from harness.report.job_summary import VARIABLE, append_summary
from harness.report.runs import Run, expand, read_run
from harness.store import finite


def compare_command(arguments: Sequence[str]) -> int:
    """``compare``: differences first, then every cell that both runs have, then what got worse.

    Returns:
        0 without a regression, 1 with one.

    Raises:
        UsageError: not two folders were named, one holds no run, a margin is no margin, or no cell is in both.
    """
    form, words = split_format(arguments, (TEXT, JSON, MARKDOWN))
    fields, paths = split_fields(words, NAMES)
    refuse_fields(paths, (*NAMES, "format"), "compare")
    if len(paths) != 2:
        raise UsageError("compare needs two results folders: python -m harness compare results/<A> results/<B>")
    margins = read_margins(fields)
    a, b = (_one_run(Path(path)) for path in paths)
    found = compare_runs(a, b, margins)
    if form == JSON:
        print(json.dumps(finite(as_json(found)), ensure_ascii=False, indent=2))
    elif form == MARKDOWN:
        print(comparison_markdown(found), end="")
    else:
        print_comparison(Console(highlight=False), found)
    if summary := os.environ.get(VARIABLE):
        append_summary(Path(summary), comparison_markdown(found))
    return found.exit_code


def _one_run(path: Path) -> Run:
    inside = expand([path])
    if inside != [path]:
        names = ", ".join(each.name for each in inside)
        raise UsageError(f"{path} holds several runs ({names}): compare takes one, such as {inside[0]}.")
    return read_run(path)
