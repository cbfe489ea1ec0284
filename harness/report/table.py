"""A table as reports have it, before it becomes HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.forms import NOT_MEASURED, number
from harness.report.runs import find

LONG = 20
"""A table of more rows is folded, too."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, with the unit of what stands below it."""

    heading: str
    unit: str = ""
    """Empty for words, and for numbers that have none."""
    words: bool = False
    """Whether it holds words: aligned left, and sorted as such."""


@dataclass(frozen=True, slots=True)
class Value:
    """One entry of a table."""

    text: str
    sort: float | None = None
    """What a column of numbers is sorted by; None comes last."""
    tone: str = ""
    """A verdict, or ``ok`` and ``missed`` of a check: marked by a symbol and a colour beside the word."""
    href: str = ""
    """Where it leads: an anchor of the page, or a path relative to the report."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values below columns; every row has as many as there are columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    """How to read it, in a sentence."""
    folded: bool = False
    """Whether it is long and of interest to few: shown when asked for."""


def words(text: object) -> Value:
    """An entry of words; a dash where there are none."""
    return Value(NOT_MEASURED if text is None or text == "" else str(text))


def numbers(value: float | None, text: str) -> Value:
    """An entry of a number and how it is written."""
    return Value(text, None if value is None else float(value))


def measured(data: Mapping[str, Any], form: str | Callable[[float | None], str], *path: str) -> Value:
    """A number inside nested mappings, in a format or by what writes it; a dash where none is there."""
    value = find(data, *path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        value = None
    return numbers(value, number(value, form) if isinstance(form, str) else form(value))


def word_columns(*headings: str) -> tuple[Column, ...]:
    """Columns of words."""
    return tuple(Column(heading, words=True) for heading in headings)


def without_empty_columns(table: Table) -> Table:
    """The table without columns in which nothing was measured in any row."""
    return _with_columns(
        table,
        [place for place in range(len(table.columns)) if any(row[place].text != NOT_MEASURED for row in table.rows)],
    )


def without_column(table: Table, heading: str) -> Table:
    """The table without one of its columns, where it has that."""
    return _with_columns(table, [place for place, column in enumerate(table.columns) if column.heading != heading])


def _with_columns(table: Table, kept: Sequence[int]) -> Table:
    return Table(
        table.title,
        tuple(table.columns[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in table.rows),
        table.note,
        table.folded,
    )
