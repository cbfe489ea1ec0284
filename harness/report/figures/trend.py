"""The figure of a trend: the main numbers of every run over time, with the steps that were found."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.report.figures.data import NothingToDraw
from harness.report.figures.style import GREY, OKABE_ITO, styles
from harness.trend.series import METRICS, Metric, Series, SeriesKey, name_below
from harness.trend.trend import Trend, Turn

PANELS = ("score_warm", "ttft_warm", "throughput_warm", "drift_beyond")
"""Metrics, from the top."""

MOST = len(OKABE_ITO)
"""Series in one figure: more can't be told apart."""

LABELS = 12
"""Runs named below the axis; of more, every second, third …"""


def trend_figure(trend: Trend) -> Figure:
    """A panel per number, a line per series; a dashed line where a series stepped, a hollow marker for a cell that did
    not pass.

    Raises:
        NothingToDraw: no series has two runs.
    """
    drawn = trend.several[:MOST]
    if not drawn:
        raise NothingToDraw("no two runs are of one series: the same model, N, task, check, gate, budget and hit rate")
    drawn_runs = {str(point.run.path) for each in drawn for point in each.points}
    runs = [run for run in trend.runs if str(run.path) in drawn_runs]
    places = {str(run.path): place for place, run in enumerate(runs)}
    metrics = [metric for name in PANELS for metric in METRICS if metric.name == name]
    figure = Figure(figsize=(7.2, 1.9 + 1.55 * len(metrics) + 0.16 * len(drawn)), layout="constrained")
    axes: list[Axes] = list(figure.subplots(len(metrics), 1, sharex=True, squeeze=False).flat)
    more = len(trend.several) - len(drawn)
    note = "runs in order of time, evenly spaced; medians over repeats; hollow: not every cell passed; dashed: a step"
    note += f"\n{more} more series are in the table" if more else ""
    figure.supxlabel(note, fontsize=7.5, color=GREY, x=0.01, ha="left")
    common, labels = _told_apart([each.key for each in drawn])
    for ax, metric in zip(axes, metrics, strict=True):
        _panel(ax, metric, dict(zip(labels, drawn, strict=True)), places, trend.turns)
    ticks = range(0, len(runs), -(-len(runs) // LABELS))
    names = [
        f"{_when(runs[place].record.get('started_at'))}\n{_short(name_below(trend.folder, runs[place]))}"
        for place in ticks
    ]
    axes[-1].set_xticks(list(ticks), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
    axes[-1].set_xlim(-0.5, len(runs) - 0.5)
    # The title is the legend's, which keeps them apart.
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        title=f"{len(runs)} runs over time\n{textwrap.fill(common, 90)}",
        title_fontsize=9,
        alignment="left",
        loc="outside upper left",
        ncols=2 if len(drawn) > 1 else 1,
        fontsize=8,
        handlelength=3.5,
        frameon=False,
    )
    return figure


def _told_apart(keys: Sequence[SeriesKey]) -> tuple[str, list[str]]:
    """What all series have in common, and what each has of its own; with one series, all of it is common."""
    fields = [name for name in SeriesKey._fields if len({getattr(key, name) for key in keys}) > 1]
    shown = {"block_size": "N =", "target": ""}

    def told(key: SeriesKey, names: Sequence[str]) -> str:
        return ", ".join(f"{shown.get(name, name)} {getattr(key, name)}".strip() for name in names)

    same = told(keys[0], [name for name in SeriesKey._fields if name not in fields])
    return same, [told(key, fields) or "every run" for key in keys]


def _panel(
    ax: Axes, metric: Metric, drawn: Mapping[str, Series], places: Mapping[str, int], turns: Sequence[Turn]
) -> None:
    every: list[float] = []
    for (label, series), style in zip(drawn.items(), styles(len(drawn)), strict=True):
        points = [(places[str(each.run.path)], each) for each in series.points]
        known = [(x, value, each) for x, each in points if (value := each.values[metric.name]) is not None]
        xs, ys = [x for x, _, _ in known], [value for _, value, _ in known]
        every += ys
        ax.plot(
            xs,
            ys,
            color=style.color,
            linestyle=style.dashes,
            linewidth=1.2,
            marker=style.marker,
            markersize=5,
            label=label,
        )
        odd = [(x, value) for x, value, each in known if each.verdict != "pass"]
        ax.plot(
            [x for x, _ in odd],
            [value for _, value in odd],
            color=style.color,
            marker=style.marker,
            markersize=5,
            markerfacecolor="white",
            linestyle="none",
        )
        for turn in turns:
            for step in turn.steps:
                if turn.series is series and step.metric.name == metric.name:
                    x = places[str(turn.point.run.path)] - 0.5
                    ax.axvline(x, color=style.color, linestyle=(0, (4, 2)), linewidth=1.2)
                    told = f"{step.step.before:{metric.form}} → {step.step.after:{metric.form}}"
                    ax.annotate(
                        told,
                        (x, 1.0),
                        (0, 4),
                        xycoords=ax.get_xaxis_transform(),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        color=style.color,
                    )
    ax.set_title(metric.label, fontsize=9, loc="left")
    ax.grid(True, color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    low, high = _limits(metric, every)
    ax.set_ylim(low, high)
    if metric.form == ".0f":
        ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _limits(metric: Metric, values: Sequence[float]) -> tuple[float, float]:
    """Scores around what they are, since they hardly move; all else from 0, with room for markers at the edges."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if metric.name.startswith("score"):
        return low - 0.05, high + 0.05
    high = max(high, 1.0)
    return -0.06 * high, 1.1 * high


def _when(time: object) -> str:
    """``11-30 00:42``."""
    return str(time)[5:16].replace("T", " ")


def _short(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"…{name[-most + 1 :]}"
