"""Speed: every pass of every cell, and warm against cold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.forms import fine_milliseconds, milliseconds, share
from harness.report.runs import find
from harness.report.table import Column, Table, Value, measured, numbers, without_empty_columns, word_columns, words

Cell = Mapping[str, Any]


def speed_tables(cells: Sequence[Cell]) -> list[Table]:
    """Ratios of warm to cold, then all passes; empty for a run without cells."""
    tables = (_ratios(cells), _passes(cells))
    return [without_empty_columns(table) for table in tables if table.rows]


def _ratios(cells: Sequence[Cell]) -> Table:
    columns = (
        *word_columns("cell"),
        Column("n", "requests"),
        Column("budget", "tokens"),
        Column("hit rate measured", "of prompt tokens"),
        Column("median TTFT, cold ÷ warm", "times"),
        Column("output throughput, warm ÷ cold", "times"),
    )
    rows = []
    for cell in cells:
        if cell.get("verdict") == "invalid":
            continue
        rows.append(
            (
                words(cell.get("cell")),
                measured(cell, ",", "passes", "warm", "n"),
                measured(cell, ",", "budget"),
                measured(cell, ".3f", "hit_rate", "measured"),
                measured(cell, ".2f", "speed", "ttft_p50_cold_over_warm"),
                measured(cell, ".2f", "speed", "throughput_warm_over_cold"),
            )
        )
    note = "Above 1, warm is faster. Cells that are invalid are left out. There is no reference run to compare with."
    return Table("Warm against cold", columns, tuple(rows), note)


def _passes(cells: Sequence[Cell]) -> Table:
    columns = (
        *word_columns("cell", "pass"),
        Column("n", "requests"),
        Column("wall time", "s"),
        *(Column(f"TTFT {name}", "ms") for name in ("p50", "p95", "p99")),
        *(Column(f"between tokens {name}", "ms") for name in ("p50", "p95", "p99")),
        Column("output", "tok/s"),
        Column("prompt", "tok/s"),
        Column("answered", "requests/s"),
        Column("running", "requests, mean"),
        Column("running at most", "requests"),
        Column("waiting", "requests, mean"),
        Column("from LMCache", "of prompt tokens"),
        Column("from vLLM's cache", "of prompt tokens"),
        Column("prompt tokens"),
        Column("output tokens"),
        Column("preempted"),
        Column("errors", "requests"),
        Column("re-sent"),
        Column("cut at the limit", "answers"),
    )
    rows = tuple(
        (
            words(cell.get("cell")),
            words(name),
            measured(each, ",", "n"),
            measured(each, ".1f", "wall_s"),
            *(measured(each, milliseconds, "ttft_s", part) for part in ("p50", "p95", "p99")),
            *(measured(each, fine_milliseconds, "inter_token_s", part) for part in ("p50", "p95", "p99")),
            measured(each, ",.0f", "output_tokens_per_s"),
            measured(each, ",.0f", "prompt_tokens_per_s"),
            measured(each, ".1f", "requests_per_s"),
            measured(each, ".1f", "running", "mean"),
            measured(each, ".0f", "running", "max"),
            measured(each, ".1f", "running", "waiting_mean"),
            *(_hits(each, part) for part in ("external_hit_tokens", "local_hit_tokens")),
            measured(each, ",.0f", "prompt_tokens"),
            measured(each, ",", "output_tokens"),
            measured(each, ".0f", "preemptions"),
            measured(each, ",", "errors"),
            measured(each, ",", "retries"),
            measured(each, ",", "ended_by_length"),
        )
        for cell in cells
        for name, each in (cell.get("passes") or {}).items()
    )
    note = "In the order in which they ran. TTFT: time from sending a request to its first token."
    return Table("All passes", columns, rows, note)


def _hits(each: Mapping[str, Any], name: str) -> Value:
    part, whole = find(each, name), find(each, "prompt_tokens")
    return numbers(part / whole if part is not None and whole else None, share(part, whole))
