"""What ``trend`` says: series, their steps, and what had changed in the first run behind each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.compare.changes import Change, config_changes, provenance_changes
from harness.report.runs import Run
from harness.trend.series import METRICS, Metric, RunPoint, Series, runs_below, series_of
from harness.trend.steps import FEWEST, Step, find_steps

BETTER, WORSE, OTHER = "better", "worse", "other"


@dataclass(frozen=True, slots=True)
class MetricStep:
    """A step of one metric."""

    metric: Metric
    step: Step
    """Its index is that of the series' point."""

    @property
    def direction(self) -> str:
        """``better``, ``worse``, or ``other`` where nobody can say."""
        if self.metric.higher_is_better is None:
            return OTHER
        return BETTER if (self.step.after > self.step.before) == self.metric.higher_is_better else WORSE

    @property
    def words(self) -> str:
        """``warm TTFT p50, ms: 100 → 150 (+50 %)``."""
        before, after = self.step.before, self.step.after
        share = f" ({(after - before) / before:+.0%})" if before and self.metric.relative else ""
        return f"{self.metric.label}: {before:{self.metric.form}} → {after:{self.metric.form}}{share}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A run at which something stepped."""

    series: Series
    point: RunPoint
    """The first behind the step."""
    previous: RunPoint
    steps: tuple[MetricStep, ...]
    config: tuple[Change, ...]
    provenance: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """All of it."""

    folder: Path
    runs: tuple[Run, ...]
    left_out: Mapping[str, str]
    """Path -> why."""
    series: tuple[Series, ...]
    turns: tuple[Turn, ...]

    @property
    def several(self) -> list[Series]:
        """Series of more than one run: one run shows no trend."""
        return [each for each in self.series if len(each.points) > 1]

    @property
    def searched(self) -> int:
        """Series that are long enough to look for steps in."""
        return sum(len(each.points) >= FEWEST for each in self.series)


def read_trend(folder: Path) -> Trend:
    """Reads all runs below a folder and looks for steps.

    Raises:
        UsageError: there is no run with a complete cell.
    """
    runs, left = runs_below(folder)
    series = series_of(runs, folder)
    return Trend(folder, tuple(runs), left, tuple(series), tuple(turn for each in series for turn in turns_of(each)))


def turns_of(series: Series) -> list[Turn]:
    """Runs of a series at which any metric stepped, in order of time."""
    by_index: dict[int, list[MetricStep]] = {}
    for metric in METRICS:
        for step in steps_of(series, metric):
            by_index.setdefault(step.index, []).append(MetricStep(metric, step))
    turns = []
    for index, steps in sorted(by_index.items()):
        previous, point = series.points[index - 1], series.points[index]
        before, after = previous.run.record, point.run.record
        changed = (config_changes(before, after), provenance_changes(before, after))
        turns.append(Turn(series, point, previous, tuple(steps), *changed))
    return turns


def steps_of(series: Series, metric: Metric) -> list[Step]:
    """Steps of one metric, with indices into the series' points; runs that did not measure it are passed over."""
    measured = [
        (index, value) for index, each in enumerate(series.points) if (value := each.values[metric.name]) is not None
    ]
    values = [value for _, value in measured]
    if not values:
        return []
    least = metric.least * abs(median(values)) if metric.relative else metric.least
    return [Step(measured[step.index][0], step.before, step.after) for step in find_steps(values, least)]


def as_json(trend: Trend) -> dict[str, Any]:
    """For programs (``format=json``)."""
    return {
        "folder": str(trend.folder),
        "runs": len(trend.runs),
        "left_out": dict(trend.left_out),
        "series": [
            {
                "key": each.key._asdict(),
                "points": [
                    {"run": point.name, "path": str(point.run.path), "time": point.time, "verdict": point.verdict}
                    | dict(point.values)
                    for point in each.points
                ],
            }
            for each in trend.series
        ],
        "steps": [
            {
                "series": turn.series.key._asdict(),
                "first_run": turn.point.name,
                "path": str(turn.point.run.path),
                "time": turn.point.time,
                "run_before": turn.previous.name,
                "metrics": [
                    {
                        "metric": each.metric.name,
                        "before": each.step.before,
                        "after": each.step.after,
                        "direction": each.direction,
                    }
                    for each in turn.steps
                ],
                "config": [asdict(each) for each in turn.config],
                "provenance": [asdict(each) for each in turn.provenance],
            }
            for turn in trend.turns
        ],
    }
