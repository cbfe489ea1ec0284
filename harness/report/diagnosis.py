"""What logs say, on a terminal and as JSON. Log lines are anybody's text: they are never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.diagnosis.diagnose import Diagnosis, Finding
from harness.model.rules import Severity
from harness.report.plan import STYLES


def print_diagnoses(console: Console, diagnoses: Mapping[Path, Diagnosis], unread: Sequence[str] = ()) -> None:
    """Prints what the logs of every folder say: the cause first, then what it led to, then warnings and notes.

    Args:
        console: where.
        diagnoses: by folder.
        unread: sentences about files that tell nothing of a server.
    """
    for folder, diagnosis in diagnoses.items():
        if len(diagnoses) > 1 and (diagnosis.findings or diagnosis.unexplained):
            console.print(Text(str(folder), style="bold"), soft_wrap=True)
        if diagnosis.root is None:
            _print_unexplained(console, diagnosis, "error: not in the table of known failures; its most telling lines:")
        for finding in diagnosis.findings:
            _print_finding(console, finding, brief=finding.entry.echo and diagnosis.root is not None)
        if diagnosis.root is not None:
            _print_unexplained(console, diagnosis, "besides, not in the table of known failures:")
    if not any(diagnosis.findings or diagnosis.unexplained for diagnosis in diagnoses.values()):
        console.print(f"nothing wrong is seen in {'the other' if unread else 'these'} logs")
    for sentence in unread:
        console.print(Text(sentence, style=STYLES[Severity.WARNING]), soft_wrap=True)


def _print_finding(console: Console, finding: Finding, *, brief: bool) -> None:
    if brief:
        times = f", {finding.count} times" if finding.count > 1 else ""
        console.print(Text(f"then: {finding.cause} ({_place(finding)}{times})", style="dim"), soft_wrap=True)
        return
    severity = finding.entry.severity
    told = [
        (f"{severity.value}: {finding.cause}", STYLES[severity]),
        (f"  {finding.evidence}{_more(finding)}", ""),
        (f"  do: {finding.remedy}", ""),
        *([(f"  here: {finding.override}", "bold")] if finding.override else []),
        (f"  seen in: {finding.entry.versions}", "dim"),
    ]
    for line, style in told:
        console.print(Text(line, style=style), soft_wrap=True)


def _print_unexplained(console: Console, diagnosis: Diagnosis, heading: str) -> None:
    if diagnosis.unexplained:
        console.print(Text(heading, style=STYLES[Severity.ERROR]), soft_wrap=True)
    for evidence in diagnosis.unexplained:
        console.print(Text(f"  {evidence}"), soft_wrap=True)


def _place(finding: Finding) -> str:
    return f"{finding.evidence.file}:{finding.evidence.line}"


def _more(finding: Finding) -> str:
    return f" (and {finding.count - 1} more lines)" if finding.count > 1 else ""


def diagnoses_as_json(
    diagnoses: Mapping[Path, Diagnosis], unread: Mapping[Path, Sequence[str]]
) -> list[dict[str, Any]]:
    """One object per folder, with everything that is printed."""
    return [
        {
            "folder": str(folder),
            "wrong": diagnosis.wrong,
            "root": diagnosis.root.entry.name if diagnosis.root else None,
            "findings": [_finding_as_json(finding) for finding in diagnosis.findings],
            "unexplained": [
                {"file": each.file, "line": each.line, "text": each.text} for each in diagnosis.unexplained
            ],
            "unread": list(unread[folder]),
        }
        for folder, diagnosis in diagnoses.items()
    ]


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.entry.name,
        "severity": finding.entry.severity.value,
        "echo": finding.entry.echo,
        "cause": finding.cause,
        "evidence": {
            "file": finding.evidence.file,
            "line": finding.evidence.line,
            "text": finding.evidence.text,
        },
        "numbers": finding.numbers,
        "lines": finding.count,
        "remedy": finding.remedy,
        "override": finding.override,
        "versions": finding.entry.versions,
    }
