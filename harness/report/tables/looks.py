"""Looks of the gate in between: after how many questions, and what decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.forms import p_value
from harness.report.runs import find
from harness.report.table import Column, Table, Value, measured, word_columns, words

Cell = Mapping[str, Any]


def looks_tables(cells: Sequence[Cell]) -> list[Table]:
    """One row per look of every cell that was looked at block by block; empty without such cells."""
    looked = [(cell, look) for cell in cells for look in find(cell, "looks", "looks") or ()]
    if not looked:
        return []
    columns = (
        *word_columns("cell"),
        Column("look"),
        Column("n", "questions"),
        Column("level", "bound of p"),
        Column("broke", "questions"),
        Column("mended", "questions"),
        Column("McNemar p"),
        Column("loss p"),
        Column("TOST p"),
        Column("drift in excess of the null", "answers"),
        Column("drift p"),
        *word_columns("verdict at this level", "then"),
    )
    rows = tuple(
        (
            words(cell.get("cell")),
            *(measured(look, form, name) for name, form in (("look", ","), ("n", ","), ("level", ".4g"))),
            *(measured(look, ",", name) for name in ("b", "c")),
            *(measured(look, p_value, name) for name in ("mcnemar_p", "loss_p", "tost_p")),
            measured(look, ",", "drift_excess"),
            measured(look, p_value, "drift_p"),
            Value(str(look.get("verdict")), tone=str(look.get("verdict"))),
            words("ends" if look.get("ends") else "goes on"),
        )
        for cell, look in looked
    )
    note = (
        "Each look is the gate on all questions so far, at its own level; the levels add up to gate.alpha. Before the "
        "last look a fail by the score ends the run only if McNemar p and loss p are both below the level, and a pass "
        "only if no more broke than mended and no more drift in warm than in the null."
    )
    return [Table("Looks", columns, rows, note)]
