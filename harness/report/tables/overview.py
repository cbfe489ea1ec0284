"""Runs beside one another, and the cells of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.equivalence.verdict import WORST_FIRST
from harness.report.cells import RATE_DIGITS, budget_words
from harness.report.forms import milliseconds, number, p_value
from harness.report.many import MOST_CELLS
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
    if several_left := sum(not anchor for anchor in anchors):
        note += (
            f" {several_left:,} of the runs, none of a worse verdict than those with a link, are told by their row "
            "alone: python -m harness report results/<run> has all of one."
        )
    return without_empty_columns(Table("Runs", columns, tuple(rows), note))


def budgets_table(run: Run) -> Table:
    """How many cells of each budget and hit rate came to what, with medians: a run of many cells at one look."""
    groups: dict[tuple[Any, Any, Any], list[tuple[Mapping[str, Any], str]]] = {}
    for cell, (counts_as, _) in zip(run.cells, as_counted(run), strict=True):
        rate = find(cell, "hit_rate", "target")
        key = (cell.get("budget"), cell.get("unified_block_size"), None if rate is None else round(rate, RATE_DIGITS))
        groups.setdefault(key, []).append((cell, counts_as))
    columns = (
        Column("budget", "tokens (in N)"),
        _HITS[0],
        Column("cells"),
        *(Column(verdict.value, "cells, as counted") for verdict in WORST_FIRST),
        Column("loss, median", "cold minus warm"),
        Column("loss, highest", "cold minus warm"),
        Column("TTFT p50 warm, median", "ms"),
        Column("output warm, median", "tok/s"),
    )
    ranked = sorted(groups.values(), key=lambda group: [-sum(as_ == v.value for _, as_ in group) for v in WORST_FIRST])
    rows = []
    for group in ranked[:MOST_CELLS]:
        cells, counts = [cell for cell, _ in group], Counter(counts_as for _, counts_as in group)
        rows.append(
            (
                _budget(cells[0]),
                _hits(cells[0])[0],
                numbers(len(cells), f"{len(cells):,}"),
                *(numbers(counts[verdict.value], f"{counts[verdict.value]:,}") for verdict in WORST_FIRST),
                _over(cells, median, "+.3f", "paired", "difference"),
                _over(cells, max, "+.3f", "paired", "difference"),
                _over(cells, median, milliseconds, "passes", "warm", "ttft_s", "p50"),
                _over(cells, median, ",.0f", "passes", "warm", "output_tokens_per_s"),
            )
        )
    note = "All cells of the run: repeats of a budget and hit rate together, those with the worst verdicts first."
    if len(ranked) > len(rows):
        note += f" {len(ranked) - len(rows):,} more such points are in summary.csv."
    return without_empty_columns(Table("Budgets and hit rates", columns, tuple(rows), note))


def _over(
    cells: Sequence[Mapping[str, Any]],
    of: Callable[[list[float]], float],
    form: str | Callable[[float | None], str],
    *path: str,
) -> Value:
    """A number over cells; a dash where none has it."""
    found = [float(value) for cell in cells if (value := find(cell, *path)) is not None]
    return measured({"value": of(found)} if found else {}, form, "value")


def cells_table(run: Run, shown: Sequence[Mapping[str, Any]]) -> Table:
    """One row per cell that is shown."""
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
    kept = set(map(id, shown))
    for cell, (counts_as, _) in zip(run.cells, as_counted(run), strict=True):
        if id(cell) not in kept:
            continue
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
