"""What the servers' logs say went wrong, as a table: cause, the line that shows it, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from harness.diagnosis.diagnose import Finding, diagnose
from harness.diagnosis.files import read_log
from harness.errors import HarnessError
from harness.report.many import MOST_LAUNCHES
from harness.report.table import Table, Value, word_columns, words

COLUMNS = word_columns("launch", "kind", "cause", "line that shows it", "what to do", "override", "seen in")


def logs_table(logs: Sequence[Path]) -> Table:
    """One row per finding, those of a launch together and its root cause first; empty where nothing is seen.

    Args:
        logs: of all launches, those of one together.
    """
    rows: list[tuple[Value, ...]] = []
    for folder, files in groupby(logs, key=lambda path: path.parent):
        rows += _rows(folder, list(files))
    more = len(rows) - MOST_LAUNCHES
    note = f"{more:,} more rows: python -m harness diagnose, with this run's folder." if more > 0 else ""
    return Table("What the logs say", COLUMNS, tuple(rows[:MOST_LAUNCHES]), note)


def _rows(folder: Path, logs: list[Path]) -> list[tuple[Value, ...]]:
    try:
        found = diagnose([read_log(path, path.name) for path in logs])
    except HarnessError as error:
        return [(words(folder.name), words("unread"), words(error), *[words(None)] * 4)]
    rows = [_row(folder.name, finding) for finding in found.findings]
    return rows + [
        (words(folder.name), words("unexplained"), words(None), words(evidence), *[words(None)] * 3)
        for evidence in found.unexplained
    ]


def _row(launch: str, finding: Finding) -> tuple[Value, ...]:
    entry = finding.entry
    return (
        words(launch),
        words(f"{entry.severity.value}, an echo" if entry.echo else entry.severity.value),
        words(finding.cause),
        words(finding.evidence),
        words(finding.remedy),
        words(finding.override),
        words(entry.versions),
    )
