"""Runs beside one another, and the cells of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.cells import budget_words
from harness.report.forms import milliseconds, number, p_value
from harness.report.runs import Run, as_counted, find, most_telling
from harness.report.table import Column, Table, Value, measured, numbers, without_empty_columns, word_columns, words


def runs_table(runs: Sequence[Run], anchors: Sequence[str]) -> Table:
    """One row per run, with the numbers of its most telling cell.

    Args:
        runs: in the order of the report.
        anchors: where each of them begins on the page; empty for none.
    """
    columns = (
        *word_columns("run", "verdict", "check"),
        Column("cells"),
        Column("n", "questions"),
        *_SCORES,
        Column("drift p"),
        *_HITS,
        Column("TTFT cold ÷ warm", "times"),
        *word_columns("model", "task", "engine", "numbers of cell", "started (UTC)"),
    )
    rows = []
    for run, anchor in zip(runs, anchors, strict=True):
        cell = most_telling(run.cells) or {}
        verdict = run.verdict or run.status
        check, *kinds = (
            words(find(run.record, "config", kind, "name")) for kind in ("check", "model", "task", "engine")
        )
        speed = {} if cell.get("verdict") == "invalid" else cell
        rows.append(
            (
                Value(run.id, href=f"#{anchor}" if anchor else ""),
                Value(verdict, tone=verdict),
                check,
                numbers(len(run.cells), str(len(run.cells))),
                measured(cell, ",", "passes", "cold", "n"),
                *_scores(cell),
                measured(cell, p_value, "drift", "p"),
                *_hits(cell),
                measured(speed, ".2f", "speed", "ttft_p50_cold_over_warm"),
                *kinds,
                words(cell.get("cell")),
                words(str(run.record.get("started_at") or "").removesuffix("+00:00").replace("T", " ")),
            )
        )
    note = "Numbers of each run's most telling cell: the worst verdict, then the least certain to be equal."
    return without_empty_columns(Table("Runs", columns, tuple(rows), note))


def cells_table(run: Run) -> Table:
    """One row per cell."""
    columns = (
        *word_columns("cell", "verdict", "counts as"),
        Column("budget", "tokens (in N)"),
        *_HITS,
        Column("n", "questions"),
        *_SCORES,
        Column("TOST p"),
        Column("drift p"),
        Column("TTFT p50 warm", "ms"),
        Column("output warm", "tok/s"),
        Column("running warm", "requests, mean"),
    )
    rows = []
    for cell, (counts_as, _) in zip(run.cells, as_counted(run), strict=True):
        own = str(cell.get("verdict"))
        rows.append(
            (
                words(cell.get("cell")),
                Value(own, tone=own),
                Value(counts_as, tone=counts_as),
                _budget(cell),
                *_hits(cell),
                measured(cell, ",", "passes", "cold", "n"),
                *_scores(cell),
                measured(cell, p_value, "paired", "tost_p"),
                measured(cell, p_value, "drift", "p"),
                measured(cell, milliseconds, "passes", "warm", "ttft_s", "p50"),
                measured(cell, ",.0f", "passes", "warm", "output_tokens_per_s"),
                measured(cell, ".1f", "passes", "warm", "running", "mean"),
            )
        )
    note = "“Counts as” is the verdict after Holm's correction over the cells of the run."
    return without_empty_columns(Table("Cells", columns, tuple(rows), note))


_SCORES = (Column("score cold", "share right"), Column("score warm", "share right"), Column("loss", "cold minus warm"))

_HITS = (Column("hit rate wanted", "of prompt tokens"), Column("hit rate measured", "of prompt tokens"))


def _scores(cell: Mapping[str, Any]) -> tuple[Value, ...]:
    both = (measured(cell, ".3f", "passes", name, "score") for name in ("cold", "warm"))
    return (*both, measured(cell, "+.3f", "paired", "difference"))


def _hits(cell: Mapping[str, Any]) -> tuple[Value, ...]:
    return tuple(measured(cell, ".3f", "hit_rate", name) for name in ("target", "measured"))


def _budget(cell: Mapping[str, Any]) -> Value:
    tokens, size = cell.get("budget"), cell.get("unified_block_size")
    return numbers(tokens, budget_words(tokens, size) if tokens and size else number(tokens, ","))
