"""Whether the comparison proves anything, check by check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.advice import check_advice
from harness.report.runs import Run
from harness.report.table import Column, Table, Value, numbers, word_columns, words

Cell = Mapping[str, Any]


def validity_tables(run: Run, shown: Sequence[Cell]) -> list[Table]:
    """Checks of the cells that are shown; of several first the misses by themselves, and a count by check, of all."""
    if len(run.cells) < 2:
        return [_checks(run.cells, "Checks")] if _any(run.cells) else []
    missed = _misses(run, shown)
    title = "Checks of every cell" if len(shown) == len(run.cells) else "Checks of these cells"
    return [
        *([missed] if missed.rows else []),
        *([_by_check(run.cells), _checks(shown, title, folded=True)] if _any(run.cells) else []),
    ]


def validity_sentence(run: Run) -> str:
    """How many of the checks hold."""
    results = [bool(check.get("ok")) for cell in run.cells for check in cell.get("validity") or []]
    if not results:
        return "No validity check was recorded."
    if all(results):
        return f"All {len(results)} checks hold: the warm answers really came from where they were to come from."
    return f"{results.count(False)} of {len(results)} checks missed, so these cells prove nothing."


def _checks(cells: Sequence[Cell], title: str, *, folded: bool = False) -> Table:
    several = len(cells) > 1
    rows = []
    for cell in cells:
        for check in cell.get("validity") or []:
            row = (
                words(check.get("check")),
                _result(check),
                words(check.get("observed")),
                words(check.get("required")),
                words(check.get("meaning")),
            )
            rows.append((words(cell.get("cell")), *row) if several else row)
    columns = word_columns("check", "result", "observed", "required", "a miss means")
    return Table(title, (*word_columns("cell"), *columns) if several else columns, tuple(rows), folded=folded)


def _misses(run: Run, shown: Sequence[Cell]) -> Table:
    config = run.record.get("config") or {}
    rows = tuple(
        (
            words(cell.get("cell")),
            words(check.get("check")),
            _result(check),
            words(check.get("observed")),
            words(check.get("required")),
            words(check_advice(str(check.get("check")), config)),
        )
        for cell in shown
        for check in cell.get("validity") or []
        if not check.get("ok")
    )
    return Table("Missed", word_columns("cell", "check", "result", "observed", "required", "what to do"), rows)


def _by_check(cells: Sequence[Cell]) -> Table:
    results: dict[str, list[bool]] = {}
    for cell in cells:
        for check in cell.get("validity") or []:
            results.setdefault(str(check.get("check")), []).append(bool(check.get("ok")))
    rows = tuple(
        (words(name), numbers(sum(held), str(sum(held))), numbers(len(held), str(len(held))), _told(all(held)))
        for name, held in results.items()
    )
    columns = (
        *word_columns("check"),
        Column("holds in", "cells"),
        Column("applies to", "cells"),
        *word_columns("result"),
    )
    return Table("By check", columns, rows)


def _any(cells: Sequence[Cell]) -> bool:
    return any(cell.get("validity") for cell in cells)


def _result(check: Mapping[str, Any]) -> Value:
    return _told(bool(check.get("ok")))


def _told(ok: bool) -> Value:
    return Value("holds", tone="ok") if ok else Value("missed", tone="missed")
