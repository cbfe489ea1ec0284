"""Runs below a folder, as series of comparable points over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness.compare.match import key_of, model_of
from harness.errors import UsageError
from harness.report.runs import Run, find, read_run
from harness.store import RECORD

DEPTH = 3
"""Folders below the one that is named: runs of arms lie one deeper than others, nights perhaps another."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a cell that is followed over time."""

    name: str
    label: str
    path: tuple[str, ...]
    """Where cell.json has it."""
    scale: float
    """From cell.json's unit to the label's."""
    form: str
    least: float
    """Smallest step worth telling, in the label's unit; noise is taken to be half of it at least."""
    relative: bool
    """Whether ``least`` is a fraction of the series' median instead."""
    higher_is_better: bool | None


METRICS = (
    Metric("score_cold", "cold score", ("passes", "cold", "score"), 1, ".3f", 0.01, False, True),
    Metric("score_warm", "warm score", ("passes", "warm", "score"), 1, ".3f", 0.01, False, True),
    Metric("ttft_cold", "cold TTFT p50, ms", ("passes", "cold", "ttft_s", "p50"), 1000, ".0f", 0.05, True, False),
    Metric("ttft_warm", "warm TTFT p50, ms", ("passes", "warm", "ttft_s", "p50"), 1000, ".0f", 0.05, True, False),
    Metric(
        "throughput_cold", "cold output, tok/s", ("passes", "cold", "output_tokens_per_s"), 1, ".0f", 0.05, True, True
    ),
    Metric(
        "throughput_warm", "warm output, tok/s", ("passes", "warm", "output_tokens_per_s"), 1, ".0f", 0.05, True, True
    ),
    Metric("flip_rate", "flip rate", ("paired", "flip_rate"), 1, ".3f", 0.01, False, False),
    Metric("drift_beyond", "answers that drift", ("drift", "passes", "warm", "beyond"), 1, ".0f", 2, False, False),
    Metric("hit_rate", "external hit share", ("hit_rate", "measured"), 1, ".3f", 0.01, False, None),
)


class SeriesKey(NamedTuple):
    """What is the same all over a series. Versions and machine are not in it: their change is what is looked for."""

    model: str
    block_size: int
    task: str
    """With the number of questions: fewer of them have another score."""
    check: str
    gate: str
    engine: str
    budget: str
    target: str

    def __str__(self) -> str:
        return (
            f"{self.model} (N = {self.block_size}), task {self.task}, check {self.check}, gate {self.gate}, engine "
            f"{self.engine}, budget {self.budget}, {self.target}"
        )


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A run in a series: medians over its repeats."""

    run: Run
    name: str
    """Its path below the folder that was named."""
    values: Mapping[str, float | None]
    """Name of a metric -> value in its label's unit; None where it was not measured, or the cells are invalid."""
    verdict: str
    """Of its cells there; ``mixed`` where they differ."""

    @property
    def time(self) -> str:
        """When the run began, ISO 8601 UTC."""
        return str(self.run.record.get("started_at"))


@dataclass(frozen=True, slots=True)
class Series:
    """Comparable points, oldest first."""

    key: SeriesKey
    points: tuple[RunPoint, ...]


def runs_below(folder: Path) -> tuple[list[Run], dict[str, str]]:
    """Runs that lie in a folder or a few below, oldest first, and what was left out: path -> why.

    Raises:
        UsageError: there is none, or no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: name one that holds runs, such as results.")
    patterns = ["/".join(["*"] * depth + [RECORD]) for depth in range(DEPTH + 1)]
    paths = sorted({path.parent for pattern in patterns for path in folder.glob(pattern)})
    found: list[Run] = []
    left: dict[str, str] = {}
    for path in paths:
        try:
            run = read_run(path)
        except UsageError as error:
            left[str(path)] = str(error)
            continue
        if not run.cells:
            left[str(path)] = f"it is {run.status}, without a complete cell"
        elif not run.record.get("started_at"):
            left[str(path)] = "run.json does not say when it began"
        elif run.record.get("replay") or find(run.record, "config", "replay"):
            left[str(path)] = "it is a replay of single prompts"
        else:
            found.append(run)
    if not found:
        told = f" ({len(left)} can't be used: {next(iter(left.values()))})" if left else ""
        raise UsageError(f"{folder} holds no run with a complete cell{told}: python -m harness trend results")
    return sorted(found, key=lambda run: str(run.record["started_at"])), left


def series_of(runs: Sequence[Run], folder: Path) -> list[Series]:
    """Series of runs that are in order of time; the longest first, then as the first of their runs.

    Args:
        runs: in order of time.
        folder: what their names are relative to.
    """
    points: dict[SeriesKey, list[RunPoint]] = defaultdict(list)
    for run in runs:
        by_key: dict[SeriesKey, list[Mapping[str, Any]]] = defaultdict(list)
        for cell in run.cells:
            if (key := _key(run, cell)) is not None:
                by_key[key].append(cell)
        for key, cells in by_key.items():
            points[key].append(_point(run, name_below(folder, run), cells))
    found = [Series(key, tuple(each)) for key, each in points.items()]
    return sorted(found, key=lambda series: -len(series.points))


def _key(run: Run, cell: Mapping[str, Any]) -> SeriesKey | None:
    if cell.get("damage") and find(cell, "damage", "dose"):
        return None  # damaged on purpose
    point = key_of(model_of(run), cell).point
    names = {kind: str(find(run.record, "config", kind, "name")) for kind in ("task", "check", "gate", "engine")}
    n = find(cell, "passes", "cold", "n")
    size = int(cell.get("unified_block_size") or 0)
    task = f"{names['task']} n={n}"
    return SeriesKey(
        point.model, size, task, names["check"], names["gate"], names["engine"], point.budget, point.target
    )


def name_below(folder: Path, run: Run) -> str:
    """A run's path below a folder; of the folder itself, its name."""
    name = run.path.relative_to(folder).as_posix() if run.path.is_relative_to(folder) else "."
    return run.id if name == "." else name


def _point(run: Run, name: str, cells: Sequence[Mapping[str, Any]]) -> RunPoint:
    verdicts = {str(cell.get("verdict")) for cell in cells}
    values: dict[str, float | None] = {}
    for metric in METRICS:
        valid = [cell for cell in cells if cell.get("verdict") != "invalid" or metric.name == "hit_rate"]
        measured = list(_numbers(valid, metric.path))
        values[metric.name] = median(measured) * metric.scale if measured else None
    return RunPoint(run, name, values, verdicts.pop() if len(verdicts) == 1 else "mixed")


def _numbers(cells: Iterable[Mapping[str, Any]], path: tuple[str, ...]) -> Iterator[float]:
    for cell in cells:
        value = find(cell, *path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)
