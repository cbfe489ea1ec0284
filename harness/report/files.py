"""The report as files: report.html, report.md, summary.csv and junit.xml, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.errors import HarnessError, UsageError
from harness.report.document import make_report
from harness.report.job_summary import VARIABLE, append_summary
from harness.report.junit import junit
from harness.report.markdown import markdown
from harness.report.page import figures_of, page
from harness.report.runs import Run, read_attribution
from harness.report.terminal import summary_frame
from harness.store import write_bytes, write_frame

PAGE, MARKDOWN, JUNIT, SUMMARY = "report.html", "report.md", "junit.xml", "summary.csv"

FILE_ENDINGS = (".html", ".htm", ".md", ".xml", ".csv", ".json")
"""A folder whose name ends so is meant as a file."""


def folder_for(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Where the report of these runs goes: ``out``, else the run's own folder, else the one that holds them all.

    Raises:
        UsageError: they lie in different folders, and nobody said where to; or ``out`` names a file.
    """
    if out is not None:
        if out.suffix in FILE_ENDINGS and not out.is_dir():
            raise UsageError(f"out={out} names a file: out= is the folder for {PAGE} and the others: out={out.parent}")
        return out
    if len(paths) == 1:
        return paths[0]
    parents = {path.resolve().parent for path in paths}
    if len(parents) > 1:
        raise UsageError("these runs lie in different folders: say where their report goes, with out=DIR.")
    return paths[0].parent


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """Writes the report of one run or several, and appends it to a GitHub job's summary where there is one.

    Returns:
        The HTML page.

    Raises:
        HarnessError: the folder can't be written.
    """
    beside = {run.path.resolve().parent for run in runs}
    attribution = read_attribution(beside.pop()) if len(runs) > 1 and len(beside) == 1 else None
    report = make_report(runs, folder, attribution)
    html = page(report, {each.anchor: figures_of(each.run) for each in report.runs})
    text = markdown(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / MARKDOWN, text.encode())
        write_bytes(folder / JUNIT, junit(runs))
        if any(run.cells for run in runs):
            write_frame(folder / SUMMARY, _summary(runs))
        write_bytes(folder / PAGE, html.encode())
    except (OSError, HarnessError) as error:
        told = error.strerror if isinstance(error, OSError) else getattr(error.__cause__, "strerror", None)
        raise HarnessError(f"{folder} can't be written: {told or error}. Name another folder with out=DIR.") from error
    if summary := os.environ.get(VARIABLE):
        append_summary(Path(summary), text)
    return folder / PAGE


def _summary(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per pass of every cell; of several runs, with the run's name in front."""
    frames = [summary_frame(run.cells) for run in runs if run.cells]
    if len(runs) == 1:
        return frames[0]
    named = [frame.assign(run=run.id) for frame, run in zip(frames, (run for run in runs if run.cells), strict=True)]
    whole = pd.concat(named, ignore_index=True)
    return whole[["run", *(column for column in whole.columns if column != "run")]]
