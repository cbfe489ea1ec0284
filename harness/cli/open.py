"""``python -m harness open``: a run's report, one step away."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.report.files import PAGE, write_report
from harness.report.runs import expand, read_run
from harness.store import RECORD


def open_command(arguments: Sequence[str]) -> int:
    """``open``: prints the address of a report and shows it where there is a display; writes it where it is missing.

    Raises:
        UsageError: not one folder was named, or it holds no run.
        HarnessError: the report is missing and can't be written.
    """
    if len(arguments) != 1:
        raise UsageError("open needs one results folder: python -m harness open results/<run id>")
    page = page_of(Path(arguments[0]))
    address = page.resolve().as_uri()
    print(address, flush=True)
    if has_display(os.environ, sys.platform) and not webbrowser.open(address):
        print("no browser answered: open that address yourself", file=sys.stderr)
    return 0


def page_of(path: Path) -> Path:
    """The report of a run, or of a folder of runs; or the page itself.

    Raises:
        UsageError: there is no run.
        HarnessError: it can't be written.
    """
    if path.name == PAGE and path.is_file():
        return path
    if not (path / PAGE).is_file():
        runs = [read_run(each) for each in expand([path])]
        print(f"writing {path / PAGE}", file=sys.stderr)
        return write_report(runs, path)
    if (path / RECORD).is_file() and (path / RECORD).stat().st_mtime > (path / PAGE).stat().st_mtime:
        print(f"the run went on since: python -m harness report {path} writes it again", file=sys.stderr)
    return path / PAGE


def has_display(environment: Mapping[str, str], platform: str) -> bool:
    """Whether a browser's window would be seen here: not through SSH, and not where there is no screen."""
    if environment.get("SSH_CONNECTION") or environment.get("CI"):
        return False
    if platform in ("darwin", "win32") or environment.get("BROWSER"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
