"""``python -m harness report``: the summary and the report's files again, from results folders alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.arms import read_arms
from harness.cli.options import JSON, split_format, split_out
from harness.errors import UsageError
from harness.report.attribution import print_attribution
from harness.report.files import folder_for, write_report
from harness.report.runs import Run, expand, read_run
from harness.report.terminal import print_run


def report_command(arguments: Sequence[str]) -> int:
    """``report``: the summary again and the report's files, from results folders alone.

    Raises:
        UsageError: no folder was named, one holds no run, or several lie in different places and no ``out=`` was given.
        HarnessError: the report can't be written; the summary was shown.
    """
    form, words = split_format(arguments)
    out, named = split_out(words)
    if not named:
        raise UsageError("report needs a results folder: python -m harness report results/<run id>")
    folders = [Path(word) for word in named]
    paths = expand(folders)
    folder = folder_for(paths, out)
    console = Console(stderr=form == JSON)
    for argument in folders:
        if (argument / "attribution.json").is_file():
            print_attribution(console, read_arms(argument))
    runs = [_shown(console, path) for path in paths]
    page = write_report(runs, folder).resolve().as_uri()
    if form == JSON:
        told = [{"path": str(run.path), "run": run.record, "cells": run.cells} for run in runs]
        print(json.dumps({"report": page, "runs": told}, ensure_ascii=False, indent=2))
    else:
        print(f"report: {page}")
    return 0


def _shown(console: Console, path: Path) -> Run:
    run = read_run(path)
    try:
        print_run(console, run.record, run.cells, str(path))
    except (KeyError, TypeError) as error:
        # The terminal's summary reads fields as they are now; the page does with what there is.
        told = f"{path} was written by another version: its summary lacks {error}, the report shows what there is"
        console.print(told, soft_wrap=True, highlight=False, markup=False)
    return run
