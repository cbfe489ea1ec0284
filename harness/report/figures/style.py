"""What all figures have in common: colours, markers and lines that stay apart in print and for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from harness.report.cells import Spread
from harness.report.figures.data import RunData
from harness.sweep import budget_in_blocks

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito's palette (2008) without its yellow, which is too light for white paper."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (7, 2, 1.5, 2, 1.5, 2)))

GREY = "#555555"


class Style(NamedTuple):
    """How one line looks."""

    color: str
    marker: str
    dashes: Any


def styles(count: int) -> list[Style]:
    """So many styles; any two of the first seven differ in colour and marker, of the first 56 in one of them."""
    return [Style(*each) for each in islice(zip(cycle(OKABE_ITO), cycle(MARKERS), cycle(DASHES), strict=False), count)]


def new_figure(
    run: RunData, title: str, note: str, rows: int = 1, height: float = 4.4, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure with its title, what was measured, and a note below.

    Args:
        run: what was measured.
        title: what is shown.
        note: how to read it.
        rows: axes, one below the other, that share both axes.
        height: of the figure in inches; all are 7.2 wide, a page's text.
        columns: axes beside one another, as ``rows``; they are returned row by row.
    """
    figure = Figure(figsize=(7.2, height), layout="constrained")
    found = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes: list[Axes] = list(found.flat)
    figure.suptitle(f"{title}\n{run.about}", fontsize=11, x=0.01, ha="left")
    figure.supxlabel(f"{note}\nrun {run.path.resolve().name}", fontsize=7.5, color=GREY, x=0.01, ha="left")
    for ax in axes:
        ax.grid(True, color="#DDDDDD", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_line(ax: Axes, points: Mapping[float, Spread], style: Style, label: str) -> Line2D:
    """Medians as a line, and from the lowest to the highest value as whiskers where there were repeats."""
    places, spreads = list(points), list(points.values())
    medians = [each.median for each in spreads]
    (line,) = ax.plot(
        places,
        medians,
        color=style.color,
        marker=style.marker,
        linestyle=style.dashes,
        markersize=6,
        linewidth=1.6,
        label=label,
    )
    if any(each.repeats > 1 for each in spreads):
        below = [each.median - each.low for each in spreads]
        above = [each.high - each.median for each in spreads]
        ax.errorbar(places, medians, yerr=[below, above], fmt="none", ecolor=style.color, capsize=3, linewidth=1.0)
    return line


def nest(line: Line2D, number: int) -> None:
    """Makes markers hollow and, from line to line, smaller, so that none hides another at the same place."""
    line.set(markersize=max(4.0, 15.0 - 2 * number), markerfacecolor="none", markeredgewidth=1.4)


def legend(ax: Axes, title: str) -> None:
    """A legend beside the axes, where it covers no data."""
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(
        *ax.get_legend_handles_labels(),
        title=title,
        loc="outside right center",
        fontsize=8.5,
        title_fontsize=8.5,
        handlelength=3.5,
        labelspacing=0.8,
        markerscale=0.8,
    )


def budget_axis(ax: Axes, budgets: Sequence[int], block_size: int) -> None:
    """An axis of budgets, evenly spaced so that 2N-1 and 2N stay apart, each in tokens and in N."""
    labels = [f"{tokens}\n{budget_in_blocks(tokens, block_size)}" for tokens in budgets]
    ax.set_xticks(range(len(budgets)), labels)
    ax.set_xlim(-0.4, len(budgets) - 0.6)
    ax.set_xlabel("budget (tokens per step; below, in N; evenly spaced)")


def log_axis(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis from one round number to another (1, 2, 5, 10 …) around all values, with plain numbers."""
    rounds = [step * 10.0**power for power in range(-6, 10) for step in (1, 2, 5)]
    low = max(number for number in rounds if number <= min(values) / 1.05)
    high = min(number for number in rounds if number >= max(values) * 1.05)
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(FixedLocator([number for number in rounds if low <= number <= high]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    ax.set_ylim(low, high)


def repeats_note(spreads: Sequence[Spread]) -> str:
    """How repeats are shown."""
    most = max(each.repeats for each in spreads)
    return f"medians of up to {most} repeats, whiskers from lowest to highest" if most > 1 else "one repeat"
