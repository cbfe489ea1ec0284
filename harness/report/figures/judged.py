"""Figures of what a verdict rests on: loss with its interval, drift by answers, TTFT by requests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from harness.equivalence.divergence import departures
from harness.report.cells import Cell
from harness.report.figures.data import NothingToDraw, RunData
from harness.report.figures.style import GREY, MARKERS, OKABE_ITO, Style, legend, new_figure
from harness.report.many import telling_cells
from harness.report.runs import find, most_telling

PASS_STYLES: Mapping[str, Style] = {
    name: Style(OKABE_ITO[place], MARKERS[place], dashes)
    for place, (name, dashes) in enumerate(
        {"cold": "-", "warm": (0, (6, 2)), "local_warm": (0, (2, 1.5)), "control": (0, (7, 2, 1.5, 2))}.items()
    )
}
"""How each pass is drawn, the same in all figures of this module."""

EXACT = 1e-8
"""Nats below which answers are drawn as the same: float32 tells less."""

ROW = 0.27
"""Inches of height that a cell takes in the figure of the score."""


def score(run: RunData) -> Figure:
    """The loss of every cell with its interval, against the margin: a cell passes if its bar lies inside.

    Raises:
        NothingToDraw: cold and warm were compared in no cell.
    """
    compared = [cell for cell in run.cells if find(cell, "paired", "interval", "low") is not None]
    if not compared:
        raise NothingToDraw("cold and warm answers were compared in no cell")
    cells = telling_cells(compared)
    margin, confidence = cells[0]["paired"]["margin"], cells[0]["paired"]["interval"]["confidence"]
    note = f"bars: {100 * confidence:.4g} % intervals; beside the names: questions; not corrected over cells"
    if len(cells) < len(compared):
        note += f"\nthe {len(cells)} most telling of {len(compared):,} cells: the worst verdict, then the least certain"
    height = 1.9 + ROW * len(cells)
    figure, (ax,) = new_figure(run, "Loss of score, cold minus warm, and the margin", note, height=height)
    ax.axvspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, label=f"within the margin of ±{margin:g}")
    ax.axvline(0, color=GREY, linewidth=0.9)
    for inside, color, marker, told in (
        (True, OKABE_ITO[0], "o", "interval inside: equivalent"),
        (False, OKABE_ITO[1], "s", "interval not inside"),
    ):
        places = [place for place, cell in enumerate(cells) if _inside(cell) is inside]
        if places:
            losses = np.array([cells[place]["paired"]["difference"] for place in places])
            bounds = np.array([[cells[p]["paired"]["interval"][side] for p in places] for side in ("low", "high")])
            ax.errorbar(
                losses,
                places,
                xerr=np.abs(bounds - losses),
                fmt=marker,
                color=color,
                capsize=3,
                markersize=5,
                label=told,
            )
    ax.set_yticks(range(len(cells)), [f"{cell['cell']} (n = {cell['paired']['n']})" for cell in cells], fontsize=8.5)
    ax.set_ylim(len(cells) - 0.4, -0.6)
    widest = max(margin, *(abs(cell["paired"]["interval"][side]) for cell in cells for side in ("low", "high")))
    ax.set_xlim(-1.15 * widest, 1.15 * widest)
    ax.set_xlabel("loss of score (share of the questions); right of 0, warm is worse")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=8.5, frameon=False, handletextpad=0.6)
    return figure


def drift(run: RunData) -> Figure:
    """How many answers are further from cold than x nats, by pass, for the most telling cell.

    Raises:
        NothingToDraw: no cell's drift was judged, or its requests can't be read.
    """
    cell = most_telling([cell for cell in run.cells if find(cell, "drift", "levels")])
    if cell is None:
        raise NothingToDraw("drift was judged in no cell")
    requests = run.requests(cell)
    cold = requests["cold"]
    found = {name: departures(cold, each)["max_nats"].to_numpy() for name, each in requests.items() if name != "cold"}
    of = max(map(len, found.values()))
    first = cell["drift"]["levels"][0]["nats"]
    beyond = ", ".join(f"{name} {int((found[name] > first).sum())}" for name in PASS_STYLES if name in found)
    note = (
        f"{cell['cell']}; largest |Δlogprob| of an answer up to its first other token\ndotted: levels that are judged; "
        f"beyond the first, {first:g} nats: {beyond}"
    )
    figure, (ax,) = new_figure(run, f"How far {of} answers are from cold's", note)
    # Answers whose logits were no numbers are infinitely far: beyond the right edge.
    top = 10 * max(10.0, *(each[np.isfinite(each)].max(initial=0.0) for each in found.values()))
    for name in (each for each in PASS_STYLES if each in found):
        style, values = PASS_STYLES[name], np.sort(found[name])
        positions = np.concatenate([[EXACT], np.clip(values, EXACT, top), [top]])
        counts = np.concatenate([[(values > EXACT).sum()], len(values) - 1 - np.arange(len(values)), [0]])
        counts = np.minimum(counts, counts[0])
        label = f"{name} (n = {len(values)})"
        ax.plot(positions, counts, color=style.color, linestyle=style.dashes, drawstyle="steps-post", label=label)
    if not any(each.any() for each in found.values()):
        ax.text(0.5, 0.5, f"all {of} identical", transform=ax.transAxes, ha="center", color=GREY, fontsize=14)
    for level in cell["drift"]["levels"]:
        ax.axvline(level["nats"], color=GREY, linewidth=1.0, linestyle=(0, (1, 2)))
    ax.set_xscale("log")
    ax.set_xlim(EXACT, top)
    ax.set_ylim(-0.02 * of, 1.05 * of)
    ax.set_xlabel("distance from cold, x (nats, log scale)")
    ax.set_ylabel("answers further from cold than x")
    legend(ax, "pass")
    return figure


def latency(run: RunData) -> Figure:
    """TTFT of every request, by pass, for the most telling cell: which share has its first token after x.

    Raises:
        NothingToDraw: there is no cell, or its requests can't be read.
    """
    cell = most_telling(run.cells)
    if cell is None:
        raise NothingToDraw("no cell is complete")
    times = {name: np.sort(each["ttft_s"].dropna().to_numpy() * 1000) for name, each in run.requests(cell).items()}
    times = {name: times[name] for name in PASS_STYLES if len(times.get(name, ())) and times[name][0] > 0}
    if not times:
        raise NothingToDraw(f"{cell['cell']} has no request with a TTFT")
    note = f"{cell['cell']}; {run.concurrency} requests in flight"
    figure, (ax,) = new_figure(run, "Time to first token, request by request", note)
    for name, values in times.items():
        style, shares = PASS_STYLES[name], 100 * np.arange(1, len(values) + 1) / len(values)
        label = f"{name} (n = {len(values)})"
        ax.plot(values, shares, color=style.color, linestyle=style.dashes, drawstyle="steps-post", label=label)
    ax.axhline(50, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
    _plain_log(ax)
    ax.set_ylim(0, 102)
    ax.set_xlabel("time to first token, x (ms, log scale)")
    ax.set_ylabel("requests with their first token by x (%)")
    legend(ax, "pass")
    return figure


def _inside(cell: Cell) -> bool:
    interval, margin = cell["paired"]["interval"], cell["paired"]["margin"]
    return bool(-margin < interval["low"] and interval["high"] < margin)


def _plain_log(ax: Axes) -> None:
    """A logarithmic x axis with plain numbers, also where it spans less than a factor of ten."""
    ax.set_xscale("log", subs=[2, 5])
    plain = FuncFormatter(lambda number, _: f"{number:g}")
    ax.xaxis.set_major_formatter(plain)
    ax.xaxis.set_minor_formatter(plain)
