"""What the doctor found, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.doctor.checks import FAIL, OK, WARN, Check
from harness.report.forms import counted

STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}

SYMBOLS = {OK: "✓", WARN: "!", FAIL: "✗"}


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Prints a line per check, its remedy behind it, and what it comes to."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        line = Text(f"{SYMBOLS[check.level]} {check.level:4} {check.name:{width}}  ", style=STYLES[check.level])
        line.append(check.seen, style="default not bold")
        if check.remedy:
            line.append(f" → {check.remedy}", style="bold" if check.level == FAIL else "default not bold")
        console.print(line, soft_wrap=True)
    console.print(Text(conclusion(checks), style="bold"))


def conclusion(checks: Sequence[Check]) -> str:
    """How many fail and warn."""
    failing, warning = (sum(check.level == level for check in checks) for level in (FAIL, WARN))
    if failing:
        return f"not ready: {counted(failing, 'check')} of {len(checks)} fail{'s' if failing == 1 else ''}"
    return "ready for a run" + (f", with {counted(warning, 'warning')}" if warning else "")
