"""The page docs/troubleshooting.md, from the table: ``python -m harness.diagnosis.page > docs/troubleshooting.md``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.diagnosis.diagnose import Evidence, Finding
from harness.diagnosis.table import TABLE, Entry, derived
from harness.model.rules import Severity
from harness.servers.logs import plain

LONG = 180
"""Characters of a line that the page shows."""

SECTIONS = {
    Severity.ERROR: ("Errors", "The first of them in a log is the cause; lines of the last two are echoes of it."),
    Severity.WARNING: ("Warnings", "It runs, and something about the result will surprise."),
    Severity.NOTE: ("Notes", "Nothing is wrong."),
}

INTRODUCTION = """\
# Troubleshooting

`python -m harness diagnose LOG_OR_FOLDER…` looks for the lines below in any log of vLLM or LMCache, of this harness's
servers or your own: a log file, a launch's folder, or a run's (`results/<run id>`). It tells the cause, the line that
shows it, and what mends it. A run whose server fails tells the same by itself. Logs of one folder are read together,
since one server's failure often has its cause in the other's log. A failure that is not in the table is shown by its
most telling lines. Of a file that is empty, or that has no line of either server, just that is said. Exit code 0:
nothing wrong is seen; 1: something is, known or not; 2: no such file, or none is a log of vLLM or LMCache.
`format=json` is for programs.

Numbers are those of an example. A setting can be pasted behind `python -m harness run …`; `servers.vllm.extra_args`
takes the place of what you had there.

This page is written by `python -m harness.diagnosis.page > docs/troubleshooting.md`, from `harness/diagnosis/table.py`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of failure, with the numbers of its first example."""

    severity: Severity
    symptom: str
    """What the log says."""
    cause: str
    setting: str
    """What to do, with the override in backquotes."""
    versions: str


def troubleshooting_rows() -> list[Row]:
    """All kinds of failures of the table, in its order."""
    return [_row(entry) for entry in TABLE]


def page() -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION]
    rows = troubleshooting_rows()
    for severity, (title, about) in SECTIONS.items():
        parts.append(f"\n## {title}\n{about}\n\n| the log says | cause | do | seen in |\n|---|---|---|---|\n")
        parts += [
            f"| {_code(row.symptom)} | {_cell(row.cause)} | {_cell(row.setting)} | {_cell(row.versions)} |\n"
            for row in rows
            if row.severity is severity
        ]
    return "".join(parts)


def _row(entry: Entry) -> Row:
    example = plain(entry.examples[0]).strip()
    match = re.search(entry.pattern, example)
    numbers = derived(match.groupdict()) if match else {}
    # The one entry that counts lines has no number in any of them.
    finding = Finding(entry, Evidence("", 0, example), {"requests": "300", **numbers}, 1)
    setting = f"{finding.remedy}: `{finding.override}`" if finding.override else finding.remedy
    shown = example if len(example) <= LONG else f"{example[:LONG].rsplit(' ', 1)[0]} …"
    return Row(entry.severity, shown, finding.cause, setting, entry.versions)


def _code(text: str) -> str:
    return f"``{_cell(text)}``" if "`" in text else f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(page(), end="")
