"""``python -m harness trend``: all runs of a folder over time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.cli.options import JSON, MARKDOWN, TEXT, refuse_fields, split_format, split_out
from harness.errors import HarnessError, UsageError
from harness.report.figures.data import NothingToDraw
from harness.report.figures.files import FORMATS, rendered
from harness.report.figures.trend import trend_figure
from harness.report.job_summary import VARIABLE, append_summary
from harness.report.trend import print_trend, trend_markdown
from harness.store import finite, write_bytes
from harness.trend.trend import Trend, as_json, read_trend

NAME = "trend"


def trend_command(arguments: Sequence[str]) -> int:
    """``trend``: every series with its steps, and a figure; 0 whatever stepped, since ``compare`` judges.

    Raises:
        UsageError: not one folder was named, or it holds no run with a complete cell.
        HarnessError: the figure can't be written; the rest was shown.
    """
    form, words = split_format(arguments, (TEXT, JSON, MARKDOWN))
    out, paths = split_out(words)
    refuse_fields(paths, ("out", "format"), "trend")
    if len(paths) != 1:
        raise UsageError("trend needs one folder of runs: python -m harness trend results")
    trend = read_trend(Path(paths[0]))
    if form == JSON:
        print(json.dumps(finite(as_json(trend)), ensure_ascii=False, indent=2))
    elif form == MARKDOWN:
        print(trend_markdown(trend, f"{NAME}.png"), end="")
    else:
        print_trend(Console(highlight=False), trend)
    if summary := os.environ.get(VARIABLE):
        append_summary(Path(summary), trend_markdown(trend))
    for path in draw(trend, out or Path(paths[0])):
        print(path, file=sys.stdout if form == TEXT else sys.stderr)
    return 0


def draw(trend: Trend, folder: Path) -> list[Path]:
    """Writes the figure of a trend; nothing, with a word on stderr, where there is nothing to draw.

    Raises:
        HarnessError: the folder can't be written.
    """
    try:
        figure = trend_figure(trend)
    except NothingToDraw as reason:
        print(f"no figure: {reason}", file=sys.stderr)
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"{folder} can't be written: {error.strerror}. Name another with out=DIR.") from error
    files = [folder / f"{NAME}.{form}" for form in FORMATS]
    for file, form in zip(files, FORMATS, strict=True):
        write_bytes(file, rendered(figure, form))
    return files
