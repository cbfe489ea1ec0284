"""What figures show: the numbers of a results folder, medians over repeats with their spread."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UsageError
from harness.store import RunFolder, read_json

Cell = Mapping[str, Any]
"""Contents of a cell.json."""

RATE_DIGITS = 6
"""Target hit rates that agree in so many digits are one: they come from the same prompts and the same arithmetic."""


class NothingToDraw(Exception):
    """A run has no data for a figure; the message says what is missing."""


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


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, as figures need it."""

    path: Path
    model: str
    engine: str
    block_size: int
    """N in tokens, as the running servers had it."""
    concurrency: int
    cells: tuple[Cell, ...]

    @property
    def about(self) -> str:
        """What was measured, for titles."""
        return f"model {self.model}, N = {self.block_size} tokens, engine {self.engine}"

    @property
    def speed_cells(self) -> tuple[Cell, ...]:
        """Cells whose speed means something; see :func:`tells_speed`."""
        return tuple(cell for cell in self.cells if tells_speed(cell))

    @property
    def left_out(self) -> int:
        """Number of cells whose comparison was invalid, so that nothing is claimed about their speed."""
        return sum(cell["verdict"] == "invalid" for cell in self.cells)

    def timeline(self, cell: Cell, name: str) -> pd.DataFrame:
        """Looks at the batch size over one pass: ``t_s`` in seconds, ``running`` and ``waiting`` in requests.

        Raises:
            NothingToDraw: the table is missing, unreadable or holds no look of that pass.
        """
        path = self.path / "cells" / str(cell["cell"]) / "timeline.parquet"
        try:
            table = pd.read_parquet(path)
            looks = table[table["pass"] == name][["t_s", "running", "waiting"]].sort_values("t_s")
        except (OSError, ValueError, KeyError) as error:
            raise NothingToDraw(f"{path} can't be read ({type(error).__name__})") from error
        if looks.empty:
            raise NothingToDraw(f"{path} holds no look at the batch size of pass {name}")
        return looks


def load_run(path: Path) -> RunData:
    """Reads a results folder.

    Raises:
        UsageError: it holds no run, a file can't be read, or a field is missing.
    """
    record = read_json(path / "run.json")
    try:
        cells = tuple(RunFolder(path).cells())
        for cell in cells:
            _check(cell)
        config = record["config"]
        return RunData(
            path=path,
            model=str(record["model"]),
            engine=str(config["engine"]["name"]),
            block_size=int(cells[0]["unified_block_size"] if cells else record["predicted_block_size"]),
            concurrency=int(config["load"]["concurrency"]),
            cells=cells,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} does not hold a run as docs/results.md describes it: {error!r}.") from error


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


def warm_throughput(cell: Cell) -> float | None:
    """Output tokens per second of the warm pass; None when nothing was answered."""
    return float(cell["passes"]["warm"]["output_tokens_per_s"]) or None


def warm_ttft_ms(cell: Cell) -> float | None:
    """Median TTFT of the warm pass in milliseconds; None when nothing was answered."""
    seconds = cell["passes"]["warm"]["ttft_s"]["p50"]
    return None if seconds is None else 1000 * float(seconds)


def reused_blocks(cell: Cell) -> float | None:
    """Mean number of blocks per prompt that came from the cache; None for a cell of no divergence workload.

    ``hit_tokens`` and ``shared_tokens`` count over the same prompts, of which each shares its first k blocks.
    """
    data = cell.get("reuse")
    if not data or data.get("hit_tokens") is None:
        return None
    shared = float(data["shared_tokens"])
    return float(data["diverges_after_blocks"]) * float(data["hit_tokens"]) / shared if shared else 0.0


def budget_in_blocks(tokens: int, block_size: int) -> str:
    """A budget in N as configs write it: ``N``, ``1.25N``, ``2N-1``; ``~1.27N`` where two digits do not tell it."""
    if tokens % block_size == 0:
        blocks = tokens // block_size
        return "N" if blocks == 1 else f"{blocks}N"
    if (tokens + 1) % block_size == 0:
        return f"{(tokens + 1) // block_size}N-1"
    factor = round(tokens / block_size, 2)
    return f"{'' if round(factor * block_size) == tokens else '~'}{factor:g}N"


def _check(cell: Cell) -> None:
    """Touches every field that figures read, so that a folder of another kind is told before anything is drawn."""
    target(cell), budget(cell), warm_throughput(cell), warm_ttft_ms(cell), reused_blocks(cell)
    cell["verdict"], cell["repeat"], cell["unified_block_size"], cell["hit_rate"]["measured"]
    warm = cell["passes"]["warm"]
    warm["wall_s"], warm["running"]["mean"], warm["running"]["max"]
