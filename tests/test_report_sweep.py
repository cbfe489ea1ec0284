"""The summary of a sweep: a line per cell in 80 columns, and the budget to take, by hand numbers."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from harness.report.cells import budget_words
from harness.report.sweep import recommendation, sweep_table, throughputs
from harness.report.terminal import print_run

N = 64


def cell(
    budget: int, target: float, throughput: float | None, *, verdict: str = "pass", repeat: int = 1
) -> dict[str, Any]:
    """What a summary reads of cell.json."""
    each = {
        "score": 0.9,
        "ttft_s": {"p50": 0.1234, "p95": 0.2},
        "output_tokens_per_s": throughput,
        "running": {"mean": 7.25, "max": 16.0},
    }
    return {
        "cell": f"budget{budget}-hit{target:.2f}-r{repeat}",
        "budget": budget,
        "repeat": repeat,
        "unified_block_size": N,
        "verdict": verdict,
        "reasons": ["because"],
        "hit_rate": {"target": target, "reachable": target, "measured": target},
        "passes": {"cold": each, "warm": each},
    }


SWEEP = [
    *(cell(64, rate, speed) for rate, speed in ((0.0, 50.0), (0.5, 100.0), (0.97, 400.0))),
    *(cell(127, rate, speed) for rate, speed in ((0.0, 200.0), (0.5, 210.0), (0.97, 440.0))),
    *(cell(256, rate, speed) for rate, speed in ((0.0, 400.0), (0.5, 420.0), (0.97, 440.0))),
]


def test_the_recommended_budget_by_hand() -> None:
    take, once, beyond = recommendation(SWEEP)
    assert once.startswith("each was measured once")
    assert take == (
        "take a budget of 127 (2N-1): its output throughput is that of 64 (N) times 4.0 at hit rate 0.00, "
        "2.1 at hit rate 0.50, 1.1 at hit rate 0.97; it matters at 0.00, 0.50"
    )
    # Geometric mean of 2, 2 and 1.
    assert beyond.startswith("256 (4N) does 1.59 times as much, but keeps recurrent state for the last block")


def test_medians_over_repeats_and_no_invalid_cells() -> None:
    cells = [
        *(cell(64, 0.5, speed, repeat=number) for number, speed in enumerate((10.0, 90.0, 30.0), 1)),
        cell(127, 0.5, 60.0),
        cell(127, 0.5, 9000.0, verdict="invalid", repeat=2),
        cell(256, 0.5, None),
    ]
    assert throughputs(cells) == {0.5: {64: 30.0, 127: 60.0}}
    assert "times 2.0 at hit rate 0.50; it matters at every hit rate" in recommendation(cells)[0]


def test_only_hit_rates_that_all_budgets_have_are_compared() -> None:
    cells = [*SWEEP[:2], cell(127, 0.0, 100.0)]
    take = recommendation(cells)[0]
    assert "times 2.0 at hit rate 0.00;" in take


@pytest.mark.parametrize("cells", [[], SWEEP[:3], [cell(64, 0.5, 1.0), cell(127, 0.0, 1.0)]])
def test_nothing_is_recommended_where_nothing_can_be_compared(cells: list[dict[str, Any]]) -> None:
    assert recommendation(cells) == []


def test_a_budget_that_gains_nothing() -> None:
    least = recommendation([cell(64, 0.5, 100.0), cell(127, 0.5, 90.0)])[0]
    assert least == "take a budget of 64 (N): no larger one below 2N does more"
    take = recommendation([cell(64, 0.5, 100.0), cell(127, 0.5, 101.0)])[0]
    assert take.endswith("1.0 at hit rate 0.50; it hardly matters at any hit rate")


@pytest.mark.parametrize(
    ("budget", "shown"), [(64, "64 (N)"), (80, "80 (1.25N)"), (127, "127 (2N-1)"), (128, "128 (2N)"), (256, "256 (4N)")]
)
def test_budgets_in_blocks(budget: int, shown: str) -> None:
    assert budget_words(budget, N) == shown


def printed(cells: list[dict[str, Any]], width: int = 80) -> str:
    out = io.StringIO()
    print_run(Console(file=out, width=width), {"verdict": "pass", "error": None}, cells, "results/run")
    return out.getvalue()


def test_many_cells_are_one_line_each_in_80_columns() -> None:
    text = printed(SWEEP)
    assert max(map(len, text.splitlines()[: len(SWEEP) + 3])) <= 80
    row = next(line.split() for line in text.splitlines() if "127 (2N-1)" in line and " 0.500 " in line)
    assert row == ["127", "(2N-1)", "0.500", "0.500", "0.900", "0.900", "123", "210", "7.2/16", "pass"]
    assert "take a budget of 127 (2N-1)" in text
    assert "…" not in text


def test_the_longest_verdict_is_not_cut() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(sweep_table([cell(127, 0.97, 1234.0, verdict="inconclusive")]))
    assert " inconclusive" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_every_cell_has_its_line() -> None:
    assert len(sweep_table(SWEEP).rows) == len(SWEEP)
