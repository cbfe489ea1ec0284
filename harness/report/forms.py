"""How numbers and verdicts are written, on a terminal and in reports."""

from __future__ import annotations

STYLES = {"pass": "bold green", "fail": "bold red", "invalid": "bold magenta", "inconclusive": "bold yellow"}

NOT_MEASURED = "-"


def number(value: float | None, form: str) -> str:
    """A number in a format, or a dash where there is none."""
    return NOT_MEASURED if value is None else format(value, form)


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds, or a dash."""
    return NOT_MEASURED if seconds is None else f"{seconds * 1000:.0f}"


def fine_milliseconds(seconds: float | None) -> str:
    """A time between tokens in milliseconds, with a tenth, or a dash."""
    return NOT_MEASURED if seconds is None else f"{seconds * 1000:.1f}"


def p_value(value: float | None) -> str:
    """A p-value as the reasons of a verdict write it, or a dash."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def times(ratio: float) -> str:
    """A ratio to the cold pass in words."""
    return f"{ratio:.2f} of cold" if ratio < 1 else f"{ratio:.1f} times cold"


def share(part: float | None, whole: float | None) -> str:
    """A fraction of the prompt tokens."""
    return NOT_MEASURED if part is None or not whole else f"{part / whole:.3f}"


def counted(count: int, what: str) -> str:
    """``1 cell``, ``2 cells``, ``2 launches``."""
    return f"{count} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith(('ch', 's')) else 's'}"
