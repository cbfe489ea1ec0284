"""What reports read of cells: points of budget x hit rate, and medians over repeats with their spread.

Pure: contents of cell.json in, numbers out.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.equivalence.reuse import mean_blocks
from harness.sweep import budget_in_blocks

Cell = Mapping[str, Any]
"""Contents of a cell.json."""

RATE_DIGITS = 6
"""Target hit rates that agree in so many digits are one: they come from the same prompts and the same arithmetic."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What repeats of one measurement came to."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median, lowest and highest of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


def slowdown(cells: Iterable[Cell]) -> dict[float, Spread]:
    """How many times slower the warm pass is at a budget of N than at 2N-1, by target hit rate in ascending order.

    Each value is output tokens per second at 2N-1 divided by that at N, of the same repeat, without a unit; above 1, N
    is slower. At hit rate 0 warm recomputes everything, so that is the cold load. Hit rates that were not measured
    at both budgets, cells that were judged invalid, and passes that put out nothing are absent.
    """
    speeds: dict[tuple[float, int], dict[str, float]] = defaultdict(dict)
    for cell in filter(tells_speed, cells):
        words = budget_in_blocks(budget(cell), int(cell["unified_block_size"]))
        if (speed := warm_throughput(cell)) is not None:
            speeds[target(cell), cell["repeat"]][words] = speed
    ratios: dict[float, list[float]] = defaultdict(list)
    for (rate, _), by_budget in sorted(speeds.items()):
        if "N" in by_budget and "2N-1" in by_budget:
            ratios[rate].append(by_budget["2N-1"] / by_budget["N"])
    return {rate: Spread.of(values) for rate, values in ratios.items()}


def grouped(
    cells: Iterable[Cell],
    x: Callable[[Cell], float],
    line: Callable[[Cell], float],
    y: Callable[[Cell], float | None],
) -> dict[float, dict[float, Spread]]:
    """Values of cells over their repeats: line -> x -> spread, both ascending; values that are None are left out.

    Args:
        cells: what to group.
        x: cell -> position.
        line: cell -> the line that it belongs to.
        y: cell -> value or None.
    """
    values: dict[float, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if (value := y(cell)) is not None:
            values[line(cell)][x(cell)].append(value)
    return {
        name: {place: Spread.of(each) for place, each in sorted(points.items())}
        for name, points in sorted(values.items())
    }


def tells_speed(cell: Cell) -> bool:
    """Whether a cell is a point of budget x hit rate whose comparison was valid.

    Cells of a divergence workload are none: prompts that share different beginnings can't be compared.
    """
    return cell["verdict"] != "invalid" and not cell.get("reuse")


def target(cell: Cell) -> float:
    """Target hit rate, a fraction of prompt tokens."""
    return round(float(cell["hit_rate"]["target"]), RATE_DIGITS)


def budget(cell: Cell) -> int:
    """Budget in tokens."""
    return int(cell["budget"])


def budget_words(tokens: int, block_size: int) -> str:
    """A budget in tokens and in N: ``127 (2N-1)``, ``80 (1.25N)``."""
    return f"{tokens} ({budget_in_blocks(tokens, block_size)})"


def warm_throughput(cell: Cell) -> float | None:
    """Output tokens per second of the warm pass; None when nothing was answered."""
    return float(cell["passes"]["warm"]["output_tokens_per_s"] or 0) or None


def warm_ttft_ms(cell: Cell) -> float | None:
    """Median TTFT of the warm pass in milliseconds; None when nothing was answered."""
    seconds = cell["passes"]["warm"]["ttft_s"]["p50"]
    return None if seconds is None else 1000 * float(seconds)


def reused_blocks(cell: Cell) -> float | None:
    """Mean number of blocks per prompt that came from the cache; None for a cell of no divergence workload."""
    return mean_blocks(cell)[0] if cell.get("reuse") else None
