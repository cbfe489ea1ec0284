"""The summary that GitHub shows on a job's page, under its size limit."""

from __future__ import annotations

from pathlib import Path

from harness.errors import HarnessError

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Environment variable that names the file of a step of a GitHub job."""

LIMIT = 1024 * 1024
"""Bytes that a step may write; GitHub shows nothing of more."""

CUT = "\n\n_Cut here: GitHub shows 1 MiB of a summary. All of it is in report.md and report.html._\n"


def append_summary(file: Path, text: str) -> None:
    """Appends Markdown to a step's summary, cut at the end of a line where it would not fit beside what is there.

    Raises:
        HarnessError: the file can't be written.
    """
    try:
        there = file.stat().st_size if file.exists() else 0
        with file.open("ab") as out:
            out.write(fitted(text, LIMIT - there).encode())
    except OSError as error:
        raise HarnessError(f"{file} ({VARIABLE}) can't be written: {error.strerror or error}.") from error


def fitted(text: str, room: int) -> str:
    """A text of at most ``room`` bytes: all of it, or whole lines from its beginning and a note; empty without room."""
    if len(text.encode()) <= room:
        return text
    left = room - len(CUT.encode())
    if left < 0:
        return ""
    # A character that was cut in two goes with its line.
    kept = text.encode()[:left].decode(errors="ignore")
    return kept[: kept.rfind("\n") + 1].rstrip("\n") + CUT
