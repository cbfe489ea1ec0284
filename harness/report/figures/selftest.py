"""The figure of a selftest: how often damage of each kind is seen, by its dose."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from harness.report.figures.data import NothingToDraw, RunData
from harness.report.figures.style import GREY, new_figure, styles
from harness.selftest.kinds import EXPECTED, NONE, words
from harness.selftest.rates import CONFIDENCE, Rate
from harness.selftest.summary import MIXED, REAL, Point, points_of

DRAWN = {
    "gate": "the gate (verdict not pass)",
    "drift": "drift alone",
    "score": "score alone",
    "lmcache_ci": "LMCache's own rule",
}
"""Detector -> its name in the legend; in the order in which they lie beside one another."""

BESIDE = 0.18
"""Horizontal distance between detectors at the same dose, in units of the distance between doses."""

LEGEND_INCHES = 0.65

TITLE_INCHES = 0.45


def selftest(run: RunData) -> Figure:
    """Detection rate against dose, a panel per kind of damage, with intervals.

    Raises:
        NothingToDraw: no cell was damaged on purpose.
    """
    if not any(cell["damage"]["dose"] for cell in run.cells if cell.get("damage")):
        raise NothingToDraw("no cell was damaged on purpose (python -m harness selftest)")
    points = points_of(run.path, len(run.cells))
    measured = {point.kind for point in points}
    kinds = [kind for kind in EXPECTED if kind in measured]
    undamaged = [point for point in points if point.kind == NONE]
    doses = sorted({0.0, *(point.dose for point in points)})
    columns = min(2, len(kinds))
    rows = -(-len(kinds) // columns)
    note = (
        f"filled: real launches, at most {max(point.rate.launches for point in points)} of each; hollow: mixed from "
        f"their stored answers; bars: {CONFIDENCE:.0%} intervals over launches (Clopper-Pearson)\n"
        "at 0 % the same undamaged cells in every panel, so what fires there is a false alarm; doses evenly spaced"
    )
    title = "How often is damage to the cache seen?"
    height = 2.1 + 1.7 * rows
    figure, axes = new_figure(run, title, note, rows=rows, columns=columns, height=height)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    # Keeps the legend's place below the title; it is wider than a panel.
    engine.set(rect=(0, 0, 1, 1 - LEGEND_INCHES / height))
    for ax, kind in zip(axes, kinds, strict=False):
        panel(ax, [*undamaged, *(point for point in points if point.kind == kind)], doses)
        ax.set_title(f"{words(kind)} (must end in {EXPECTED[kind].value})", fontsize=9.5, loc="left")
    for ax in axes[len(kinds) :]:
        ax.set_axis_off()
    for number, ax in enumerate(axes[: len(kinds)]):
        if number % columns == 0:
            ax.set_ylabel("detection rate", fontsize=9)
        if number + columns >= len(kinds):
            ax.set_xlabel("dose (share of prompts damaged)", fontsize=9)
            # A panel above an empty place keeps its labels, which shared axes would hide.
            ax.tick_params(labelbottom=True)
    below_title = (0.0, 1 - TITLE_INCHES / height)
    told = {"ncols": 2, "fontsize": 8.5, "frameon": False, "handlelength": 3.5}
    figure.legend(handles=handles(), loc="upper left", bbox_to_anchor=below_title, **told)
    return figure


def panel(ax: Axes, points: Sequence[Point], doses: Sequence[float]) -> None:
    """One kind: a line per detector through the doses that have one, real where there is both."""
    for number, (detector, style) in enumerate(zip(DRAWN, styles(len(DRAWN)), strict=True)):
        shift = BESIDE * (number - (len(DRAWN) - 1) / 2)
        mine = [point for point in points if point.detector == detector]
        real = {point.dose for point in mine if point.source == REAL}
        line: dict[float, Rate] = {}
        for source in (MIXED, REAL):
            found = {doses.index(point.dose) + shift: point.rate for point in mine if point.source == source}
            line |= found
            for x, rate in found.items():
                # Where there are both, the mixed one lies a little to the right.
                beside = BESIDE / 2.3 if source == MIXED and doses[round(x - shift)] in real else 0.0
                ax.errorbar(
                    [x + beside],
                    [rate.rate],
                    yerr=[[rate.rate - rate.low], [rate.high - rate.rate]],
                    color=style.color,
                    marker=style.marker,
                    markersize=4.5,
                    markerfacecolor=style.color if source == REAL else "white",
                    linewidth=0.9,
                    alpha=1.0 if source == REAL else 0.8,
                    label=f"{detector} {source}",
                    zorder=3,
                )
        xs = sorted(line)
        ax.plot(xs, [line[x].rate for x in xs], color=style.color, linestyle=style.dashes, linewidth=1.1, zorder=2)
    ax.set_xticks(range(len(doses)), [f"{dose:.3g} %" for dose in (100 * dose for dose in doses)])
    ax.set_xlim(-0.5, len(doses) - 0.5)
    ax.grid(False, axis="x")
    for place in range(1, len(doses), 2):
        ax.axvspan(place - 0.5, place + 0.5, color="#F3F3F3", zorder=0)
    ax.set_ylim(-0.05, 1.05)
    ax.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])


def handles() -> list[Line2D]:
    """What the legend shows."""
    return [
        Line2D([], [], color=style.color, marker=style.marker, linestyle=style.dashes, markersize=5, label=told)
        for told, style in zip(DRAWN.values(), styles(len(DRAWN)), strict=True)
    ] + [
        Line2D([], [], color=GREY, marker="o", linestyle="none", markersize=5, label="real launches"),
        Line2D([], [], color=GREY, marker="o", linestyle="none", markersize=5, markerfacecolor="white", label="mixed"),
    ]
