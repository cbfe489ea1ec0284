"""A report before it becomes HTML or Markdown: sections of sentences, tables and links, in the order of reading.

Everything here is a function of a results folder; both forms say the same, since both are made from this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.report.arms import arms_sentences, arms_table
from harness.report.cells import tells_speed
from harness.report.forms import counted
from harness.report.headline import Headline, headline
from harness.report.many import (
    IN_JUNIT,
    MOST_CELLS,
    MOST_LINES,
    MOST_RUNS,
    cells_each,
    left_out,
    some_lines,
    telling_cells,
)
from harness.report.runs import Run, as_counted, most_telling, relative, telling_rank
from harness.report.sweep import recommendation
from harness.report.table import Table, without_column
from harness.report.tables.logs import logs_table
from harness.report.tables.looks import looks_tables
from harness.report.tables.overview import budgets_table, cells_table, runs_table
from harness.report.tables.score import drift_tables, reuse_table, score_table
from harness.report.tables.setup import configuration_tables, launch_tables, provenance_tables
from harness.report.tables.speed import speed_tables
from harness.report.tables.validity import validity_sentence, validity_tables
from harness.report.terminal import what_ran
from harness.report.worst import WorstDocument, worst_documents

FIGURES = "figures"
"""Anchor of the section that holds the figures, which only HTML has."""


@dataclass(frozen=True, slots=True)
class Link:
    """A file that lies beside the report."""

    text: str
    href: str
    """Relative to the report's folder."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a run's report."""

    anchor: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    links: tuple[Link, ...] = ()
    documents: tuple[WorstDocument, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run."""

    run: Run
    anchor: str
    what: str
    """What was run, in a line."""
    headline: Headline
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """One run or several."""

    title: str
    runs: tuple[RunReport, ...]
    overview: Table | None
    """Of several runs."""
    arms: Section | None


def make_report(runs: Sequence[Run], out: Path, attribution: Mapping[str, Any] | None = None) -> Report:
    """Everything that a report says.

    Args:
        runs: at least one.
        out: folder that the report will lie in; links are relative to it.
        attribution: contents of attribution.json, where arms were run.
    """
    chosen = told_in_full(runs)
    most = cells_each(len(chosen))
    reports = tuple(_run_report(runs[place], f"run-{place + 1}", out, most) for place in chosen)
    several = len(runs) > 1
    anchors = {place: each.anchor for place, each in zip(chosen, reports, strict=True)}
    return Report(
        title=f"{counted(len(runs), 'run')}" if several else runs[0].id,
        runs=reports,
        overview=runs_table(runs, [anchors.get(place, "") for place in range(len(runs))]) if several else None,
        arms=_arms(attribution) if attribution else None,
    )


def told_in_full(runs: Sequence[Run]) -> list[int]:
    """Places of the runs that a report tells in full: all, or of very many those with the worst verdicts."""
    ranked = sorted(range(len(runs)), key=lambda place: _severity(runs[place]))
    return sorted(ranked[:MOST_RUNS])


def _severity(run: Run) -> tuple[bool, tuple[int, bool, float, float]]:
    return run.verdict is not None, telling_rank(most_telling(run.cells) or {})


def _run_report(run: Run, anchor: str, out: Path, most: int = MOST_CELLS) -> RunReport:
    few = replace(run, cells=telling_cells(run.cells, most))
    measured = (
        *_cells(run, few),
        *_broke(run, out),
        Section("validity", "Validity", (validity_sentence(run),), tuple(validity_tables(run, few.cells))),
        _answers(run, few),
        Section("speed", "Speed", (), tuple(speed_tables(few.cells))),
        Section(FIGURES, "Figures"),
    )
    sections = (
        *(measured if run.cells else ()),
        _diagnosis(run, out),
        Section("configuration", "Configuration", (), (*launch_tables(run), *configuration_tables(run))),
        Section("provenance", "Provenance", (), tuple(provenance_tables(run))),
    )
    shown = (each for each in sections if each.anchor == FIGURES or each.tables or each.sentences or each.links)
    if len(run.cells) == 1:
        shown = (replace(each, tables=tuple(without_column(table, "cell") for table in each.tables)) for each in shown)
    return RunReport(run, anchor, _what(run), headline(run), tuple(shown))


def _what(run: Run) -> str:
    try:
        return what_ran(run.record["config"])
    except (KeyError, TypeError):
        return f"model {run.record['model']}" if run.record.get("model") else "what was run is not recorded"


def _cells(run: Run, few: Run) -> list[Section]:
    if len(run.cells) < 2:
        return []
    try:
        told = recommendation([cell for cell in run.cells if tells_speed(cell)])
    except (KeyError, TypeError, ValueError):
        told = []  # cells of an earlier version
    tables = [cells_table(run, few.cells)]
    if len(few.cells) < len(run.cells):
        told = [left_out(len(few.cells), len(run.cells)), *told]
        tables = [budgets_table(run), *tables]
    return [Section("cells", "Cells", tuple(f"{each}." for each in told), tuple(tables))]


def _broke(run: Run, out: Path) -> list[Section]:
    """The worst answers of the most telling cell that has a bundle."""
    ill = {str(cell.get("cell")): path for cell in run.cells if (path := run.repro(cell)) is not None}
    cell = most_telling([cell for cell in run.cells if str(cell.get("cell")) in ill])
    if cell is None:
        return []
    first = ill[str(cell.get("cell"))]
    paths = [first, *(path for path in ill.values() if path != first)]
    links = tuple(
        Link(f"all worst answers of {path.parent.name}", relative(path / "README.md", out))
        for path in paths[:MOST_LINES]
    )
    try:
        documents = worst_documents(run, cell)
    except HarnessError as error:
        return [Section("broke", "What broke", (f"The answers can't be shown: {error}",), links=links)]
    sentences = (
        f"The {len(documents)} worst answers of {cell['cell']}: first those that were right cold and wrong warm, then "
        "by the largest change of a token's log-probability. The marked rest begins where the texts of cold and warm "
        "part.",
        *_more(len(paths) - MOST_LINES, "cells have worst answers: their bundles are cells/<cell>/repro"),
    )
    return [Section("broke", "What broke", sentences, links=links, documents=documents)]


def _answers(run: Run, few: Run) -> Section:
    reuse = reuse_table(few.cells)
    score = score_table(few.cells)
    scored = any(not column.words for column in score.columns)
    looks = looks_tables(few.cells)
    tables = (*([score] if scored else []), *looks, *drift_tables(few.cells), *([reuse] if reuse else []))
    corrected = some_lines([sentence for _, sentence in as_counted(run) if sentence], IN_JUNIT)
    return Section("score", "Score and drift", tuple(f"{each}." for each in corrected), tables)


def _diagnosis(run: Run, out: Path) -> Section:
    """The run's error, its warnings, what the servers' logs say, and where they are."""
    error = run.record.get("error")
    warnings = some_lines([f"Warning: {each}" for each in run.record.get("warnings") or []], "run.json has all")
    sentences = [f"Error: {error}"] if error else ["The run recorded no error."]
    sentences += warnings or ["It recorded no warning."]
    logs = run.logs()
    links = tuple(Link(f"{path.parent.name}/{path.name}", relative(path, out)) for path in logs[:MOST_LINES])
    if not links:
        sentences.append("No server log lies in the folder.")
    table = logs_table(logs)
    if links and not table.rows:
        sentences.append("Nothing wrong is seen in the servers' logs.")
    sentences += _more(len(logs) - MOST_LINES, "logs were read and lie in launches/<launch>")
    return Section("diagnosis", "Diagnosis", tuple(sentences), (table,) if table.rows else (), links=links)


def _more(count: int, what: str) -> list[str]:
    """A sentence about what is not listed; none where all is."""
    return [f"{count:,} more {what}."] if count > 0 else []


def _arms(attribution: Mapping[str, Any]) -> Section:
    return Section("arms", "Arms", tuple(arms_sentences(attribution)), (arms_table(attribution),))
