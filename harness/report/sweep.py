"""The summary of a sweep: one line per cell, and which budget to take.

Pure: contents of cell.json in, table and sentences out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from harness.report.cells import Cell, budget, budget_words, grouped, target, tells_speed, warm_throughput
from harness.report.forms import STYLES, milliseconds, number

MATTERS = 1.2
"""From this ratio of throughputs on, a budget is said to matter at a hit rate; below, noise may explain it."""


def sweep_table(cells: Sequence[Cell]) -> Table:
    """One row per cell, in 80 columns."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("budget", justify="right", no_wrap=True)
    for heading in (
        "hits\ntarget",
        "\nfound",
        "score\ncold",
        "\nwarm",
        "TTFT\np50 ms",
        "output\ntok/s",
        "running\navg/max",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for cell in cells:
        warm, rate = cell["passes"]["warm"], cell["hit_rate"]
        table.add_row(
            budget_words(cell["budget"], cell["unified_block_size"]),
            number(rate["target"], ".3f"),
            number(rate["measured"], ".3f"),
            number(cell["passes"]["cold"]["score"], ".3f"),
            number(warm["score"], ".3f"),
            milliseconds(warm["ttft_s"]["p50"]),
            number(warm["output_tokens_per_s"], ".0f"),
            f"{number(warm['running']['mean'], '.1f')}/{number(warm['running']['max'], '.0f')}",
            f"[{STYLES.get(str(cell['verdict']), '')}]{cell['verdict']}[/]",
        )
    return table


def throughputs(cells: Sequence[Cell]) -> dict[float, dict[int, float]]:
    """Output tokens per second of warm by target hit rate and budget: medians over repeats of cells that tell speed."""
    by_rate = grouped(filter(tells_speed, cells), x=budget, line=target, y=warm_throughput)
    return {rate: {int(tokens): each.median for tokens, each in points.items()} for rate, points in by_rate.items()}


def recommendation(cells: Sequence[Cell]) -> list[str]:
    """Which budget to take, what it gains and where that matters, in sentences; none where nothing can be compared.

    Among budgets below 2N, which keep a snapshot for every block, the one with the highest throughput (geometric mean
    over the hit rates that all budgets were measured at). Larger ones are named with what they gain and what they lose.
    """
    by_rate = throughputs(cells)
    budgets = sorted({tokens for measured in by_rate.values() for tokens in measured})
    rates = [rate for rate, measured in by_rate.items() if len(measured) == len(budgets)]
    if len(budgets) < 2 or not rates:
        return []
    n = int(cells[0]["unified_block_size"])
    overall = {tokens: geometric_mean(by_rate[rate][tokens] for rate in rates) for tokens in budgets}
    small = [tokens for tokens in budgets if tokens < 2 * n] or budgets
    best = max(small, key=overall.__getitem__)
    told = [f"take a budget of {budget_words(best, n)}: {_gains(by_rate, rates, best, budgets[0], n)}"]
    if len({cell["repeat"] for cell in cells}) == 1 and len(small) > 1:
        told.append("each was measured once: between budgets that are near one another, use sweep.repeats=3 to tell")
    larger = max((tokens for tokens in budgets if tokens >= 2 * n), key=overall.__getitem__, default=None)
    if larger is not None and larger != best:
        told.append(
            f"{budget_words(larger, n)} does {overall[larger] / overall[best]:.2f} times as much, but keeps recurrent "
            "state for the last block of a step only: prompts that share a part of a stored one find little "
            "(sweep=divergence)"
        )
    return told


def _gains(by_rate: Mapping[float, Mapping[int, float]], rates: Sequence[float], best: int, least: int, n: int) -> str:
    if best == least:
        return "no larger one below 2N does more"
    ratios = {rate: by_rate[rate][best] / by_rate[rate][least] for rate in rates}
    listed = ", ".join(f"{ratio:.1f} at hit rate {rate:.2f}" for rate, ratio in ratios.items())
    matters = [rate for rate, ratio in ratios.items() if ratio >= MATTERS]
    if not matters:
        where = "it hardly matters at any hit rate"
    elif len(matters) == len(rates):
        where = "it matters at every hit rate"
    else:
        where = f"it matters at {', '.join(f'{rate:.2f}' for rate in matters)}"
    return f"its output throughput is that of {budget_words(least, n)} times {listed}; {where}"
