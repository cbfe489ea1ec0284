"""How much of a large run is shown: what a person can read. Files hold the rest, and the page says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.runs import telling_rank

MOST_CELLS = 100
"""Cells of a run that are told one by one; of more, the most telling ones."""

MOST_CELLS_OF_ALL = 400
"""The same of all runs of a report together."""

FEWEST_CELLS = 10
"""Cells that each of these runs is shown of, however many runs there are."""

MOST_RUNS = 30
"""Runs of a report that are told in full, with figures; of more, the most telling ones."""

MOST_IN_FULL = 10
"""Cells that a terminal tells in full, of a run of more than :data:`MOST_CELLS`."""

MOST_SERIES = 100
"""Series of a trend that are shown as a table."""

MOST_LINES = 50
"""Sentences or links of one kind: reasons, advice, warnings, logs."""

MOST_LAUNCHES = 100
"""Launches that are told one by one."""

IN_JUNIT = "junit.xml has all"

Cell = Mapping[str, Any]


def telling_cells(cells: Sequence[Cell], most: int = MOST_CELLS) -> tuple[Cell, ...]:
    """The most telling cells, at most so many, in their own order: the worst verdicts, then the least certain."""
    if len(cells) <= most:
        return tuple(cells)
    kept = sorted(range(len(cells)), key=lambda place: telling_rank(cells[place]))[:most]
    return tuple(cells[place] for place in sorted(kept))


def cells_each(runs: int) -> int:
    """How many cells of each run a report of so many runs tells one by one."""
    return min(MOST_CELLS, max(FEWEST_CELLS, MOST_CELLS_OF_ALL // runs))


def left_out(shown: int, cells: int) -> str:
    """What a page says of the cells that it leaves out."""
    return (
        f"Of {cells:,} cells the tables show the {shown:,} most telling: the worst verdict first, then the least "
        "certain to be equal. Counts, reasons and the verdict are of all; summary.csv and junit.xml hold every cell, "
        "and cells/<cell>/cell.json every number"
    )


def some_lines(lines: Sequence[str], where: str, most: int = MOST_LINES) -> list[str]:
    """Sentences, at most so many, and how many more there are where.

    Args:
        lines: all of them.
        where: what holds the others.
        most: of them.
    """
    more = len(lines) - most
    return list(lines) if more <= 0 else [*lines[:most], f"{more:,} more like these: {where}"]
