"""A report's table on a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from harness.report.forms import STYLES
from harness.report.table import Table

TONES = STYLES | {"ok": "green", "missed": "bold red"}


def print_table(console: Console, table: Table) -> None:
    """Prints a table below its title, with its note; nothing where it has no row."""
    if not table.rows:
        return
    console.print(Text(table.title, style="bold"), soft_wrap=True)  # a table's own title is folded to its width
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        heading = f"{column.heading}\n{column.unit}" if column.unit else column.heading
        shown.add_column(Text(heading), justify="left" if column.words else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(value.text, style=TONES.get(value.tone, "")) for value in row))
    console.print(shown)
    if table.note:
        console.print(Text(table.note, style="dim"), soft_wrap=not console.is_terminal)
    console.print()
