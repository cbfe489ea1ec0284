"""The figures, one function each: from a run's data to a matplotlib Figure, or NothingToDraw with what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.report.cells import (
    Cell,
    Spread,
    budget,
    budget_words,
    grouped,
    reused_blocks,
    slowdown,
    target,
    warm_throughput,
    warm_ttft_ms,
)
from harness.report.figures.data import NothingToDraw, RunData
from harness.report.figures.judged import drift, latency, score
from harness.report.figures.selftest import selftest
from harness.report.figures.style import (
    GREY,
    budget_axis,
    draw_line,
    legend,
    log_axis,
    nest,
    new_figure,
    repeats_note,
    styles,
)

DOCUMENTED = 7.0
"""Times that N was reported to be slower than 2N-1: Qwen3.6-27B, cold or low-hit run, batch stuck at 1."""

DOCUMENTED_LABEL = "about 7: documented for Qwen3.6-27B (cold or low hit), not measured here"

HIT_RATE_AXIS = "target hit rate (fraction of prompt tokens)"


def throughput(run: RunData) -> Figure:
    """Output throughput of warm against budget, a line per hit rate, with its slowdown at N in the legend.

    With one budget it is drawn against the hit rate.

    Raises:
        NothingToDraw: fewer than two points of budget x hit rate.
    """
    ratios = slowdown(run.cells)
    figure, ax = _by_budget(
        run,
        warm_throughput,
        "Throughput of the warm pass",
        told={rate: f": {_times(spread)}" for rate, spread in ratios.items()},
        legend_title="hit rate:\nslowdown at N\n(2N-1 ÷ N)" if ratios else None,
    )
    ax.set_ylabel("output tokens per second (log scale)")
    return figure


def ttft(run: RunData) -> Figure:
    """Median TTFT of warm against budget, a line per hit rate; with one budget against the hit rate.

    Raises:
        NothingToDraw: fewer than two points of budget x hit rate.
    """
    figure, ax = _by_budget(run, warm_ttft_ms, "Time to first token of the warm pass")
    ax.set_ylabel("median TTFT (ms, log scale)")
    return figure


def slowdown_figure(run: RunData) -> Figure:
    """How many times slower N is than 2N-1, by hit rate, beside what is documented for another model.

    Raises:
        NothingToDraw: no hit rate was measured at both budgets.
    """
    ratios = slowdown(run.cells)
    if not ratios:
        raise NothingToDraw(_no_pair(run))
    title = "How many times slower is a budget of N than 2N-1?"
    figure, (ax,) = new_figure(
        run, title, f"warm pass, {run.concurrency} requests in flight; {_note(run, list(ratios.values()))}"
    )
    for height, told, dashes in ((1.0, "1: equally fast", "-"), (DOCUMENTED, DOCUMENTED_LABEL, (0, (1, 2)))):
        ax.axhline(height, color=GREY, linewidth=1.1, linestyle=dashes, label=told)
    draw_line(ax, dict(enumerate(ratios.values())), styles(1)[0], "measured here")
    for place, spread in enumerate(ratios.values()):
        ax.annotate(
            _times(spread).replace(" ", "\n"),
            (place, spread.high),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
        )
    ax.set_xticks(range(len(ratios)), [f"{rate:.3g}" for rate in ratios])
    ax.set_xlim(-0.5, len(ratios) - 0.5)
    ax.set_ylim(0, 1.3 * max(DOCUMENTED, *(spread.high for spread in ratios.values())))
    ax.set_xlabel(HIT_RATE_AXIS.replace(")", "; evenly spaced)"))
    ax.set_ylabel("throughput at 2N-1 ÷ at N (times)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8.5, handlelength=3.5, frameon=False)
    return figure


def batch_size(run: RunData) -> Figure:
    """Running requests over the warm pass at N and at 2N-1, at the lowest hit rate that both have: why N is slow.

    Raises:
        NothingToDraw: no hit rate was measured at both budgets, or a timeline is missing.
    """
    pair = _pair(run)
    title = f"Running requests over the warm pass at hit rate {target(pair[0]):.3g}"
    note = (
        f"{run.concurrency} requests in flight; repeat {pair[0]['repeat']}; dashed: mean over looks that saw a request"
    )
    figure, axes = new_figure(run, title, note, rows=2, height=4.8)
    for ax, cell, style in zip(axes, pair, styles(2), strict=True):
        looks, warm = run.timeline(cell, "warm"), cell["passes"]["warm"]
        ax.plot(looks["t_s"], looks["running"], color=style.color, drawstyle="steps-post", linewidth=1.2)
        told = f"budget {budget_words(budget(cell), run.block_size)}: done after {warm['wall_s']:.1f} s"
        if (mean := warm["running"]["mean"]) is not None:
            told += f", mean {mean:.1f}, at most {warm['running']['max']:.0f}"
            ax.plot([0, warm["wall_s"]], [mean, mean], color=GREY, linestyle=(0, (4, 2)), linewidth=1.0)
        ax.set_title(told, fontsize=9.5, loc="left")
        ax.set_ylabel("running requests")
    axes[0].set_ylim(0, None)
    axes[0].set_xlim(0, None)
    axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes[-1].set_xlabel("time since the pass began (s)")
    return figure


def hit_rate(run: RunData) -> Figure:
    """Measured against target hit rate, a marker per budget, with the line on which they are equal.

    Raises:
        NothingToDraw: fewer than two target hit rates were measured.
    """
    cells = [cell for cell in run.cells if not cell.get("reuse")]
    lines = grouped(cells, target, budget, lambda cell: cell["hit_rate"]["measured"])
    rates = {rate for points in lines.values() for rate in points}
    if len(rates) < 2:
        raise NothingToDraw("fewer than two target hit rates were measured")
    every = [spread for points in lines.values() for spread in points.values()]
    note = f"{repeats_note(every)}; cells with verdict invalid included"
    figure, (ax,) = new_figure(run, "Hit rate: target and measured", note)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, label="measured = target")
    for number, ((tokens, points), style) in enumerate(zip(lines.items(), styles(len(lines)), strict=True)):
        line = draw_line(ax, points, style, budget_words(int(tokens), run.block_size))
        line.set_linestyle("none")
        nest(line, number)
    ax.set_xlabel(HIT_RATE_AXIS)
    ax.set_ylabel("measured hit rate (fraction of prompt tokens)")
    ax.set_xlim(-0.05, 1.05)
    ax.set_ylim(-0.05, 1.05)
    legend(ax, "budget")
    return figure


def reuse(run: RunData) -> Figure:
    """Blocks that were reused of prompts that diverge from a stored one after k blocks, a line per budget.

    Raises:
        NothingToDraw: the run has no cells of a divergence workload.
    """
    cells = [cell for cell in run.cells if cell.get("reuse") and cell["verdict"] != "invalid"]
    lines = grouped(cells, lambda cell: cell["reuse"]["diverges_after_blocks"], budget, reused_blocks)
    if not lines:
        raise NothingToDraw("the run has no valid cells of a divergence workload")
    every = [spread for points in lines.values() for spread in points.values()]
    figure, (ax,) = new_figure(run, "Reuse of a stored prompt by the point of divergence", _note(run, every))
    furthest = max(k for points in lines.values() for k in points)
    ax.plot([0, furthest], [0, furthest], color=GREY, linewidth=0.9, label="ideal: all k blocks")
    for number, ((tokens, points), style) in enumerate(zip(lines.items(), styles(len(lines)), strict=True)):
        nest(draw_line(ax, points, style, budget_words(int(tokens), run.block_size)), number)
    ax.set_xlabel("shared before the divergence, k (blocks of N tokens)")
    ax.set_ylabel("reused per prompt, mean (blocks of N tokens)")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlim(-0.3, furthest + 0.5)
    ax.set_ylim(-0.3, furthest + 0.5)
    legend(ax, "budget")
    return figure


FIGURES: Mapping[str, Callable[[RunData], Figure]] = {
    "throughput": throughput,
    "slowdown": slowdown_figure,
    "ttft": ttft,
    "batch_size": batch_size,
    "hit_rate": hit_rate,
    "reuse": reuse,
    "score": score,
    "drift": drift,
    "latency": latency,
    "selftest": selftest,
}
"""File name without its ending -> what draws it."""


def _by_budget(
    run: RunData,
    value: Callable[[Cell], float | None],
    title: str,
    told: Mapping[float, str] | None = None,
    legend_title: str | None = None,
) -> tuple[Figure, Axes]:
    """A value against budget with a line per hit rate, or against hit rate where there is one budget.

    Args:
        run: what was measured.
        value: of a cell, or None.
        title: of the figure.
        told: hit rate -> what its line's label says besides.
        legend_title: where it is not just what the lines are.

    Raises:
        NothingToDraw: fewer than two points.
    """
    several = len({budget(cell) for cell in run.speed_cells}) > 1
    x, by = (budget, target) if several else (target, budget)
    lines = grouped(run.speed_cells, x, by, value)
    every = [spread for points in lines.values() for spread in points.values()]
    if len(every) < 2:
        raise NothingToDraw(f"it needs two points of budget and hit rate, and {len(every)} was measured validly")
    figure, (ax,) = new_figure(run, title, f"{run.concurrency} requests in flight; {_note(run, every)}")
    places = sorted({place for points in lines.values() for place in points})
    for (name, points), style in zip(lines.items(), styles(len(lines)), strict=True):
        label = f"{name:.3g}{(told or {}).get(name, '')}" if several else budget_words(int(name), run.block_size)
        at = {place: float(places.index(place)) if several else place for place in points}
        draw_line(ax, {at[place]: spread for place, spread in points.items()}, style, label)
    if several:
        budget_axis(ax, [int(place) for place in places], run.block_size)
    else:
        ax.set_xlabel(HIT_RATE_AXIS)
        ax.set_xlim(-0.05, 1.05)
    log_axis(ax, [bound for spread in every for bound in (spread.low, spread.high)])
    legend(ax, legend_title or ("hit rate" if several else "budget"))
    return figure, ax


def _pair(run: RunData) -> tuple[Cell, Cell]:
    """The cells at N and at 2N-1 of the lowest hit rate and first repeat that have both.

    Raises:
        NothingToDraw: there are none.
    """
    found: dict[tuple[float, int], dict[int, Cell]] = {}
    for cell in run.speed_cells:
        found.setdefault((target(cell), cell["repeat"]), {})[budget(cell)] = cell
    n, wider = run.block_size, 2 * run.block_size - 1
    for _, by_budget in sorted(found.items(), key=lambda item: item[0]):
        if n in by_budget and wider in by_budget:
            return by_budget[n], by_budget[wider]
    raise NothingToDraw(_no_pair(run))


def _no_pair(run: RunData) -> str:
    """Why nothing can be said about N against 2N-1."""
    budgets = ", ".join(
        budget_words(tokens, run.block_size) for tokens in sorted({budget(cell) for cell in run.speed_cells})
    )
    return f"it needs budgets N and 2N-1 at one hit rate; validly measured budgets: {budgets or 'none'}"


def _times(spread: Spread) -> str:
    """``4.9x``, with the range over repeats where there were any."""
    ratios = (spread.median, spread.low, spread.high)
    median, low, high = (f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}" for ratio in ratios)
    return f"{median}x ({low}-{high})" if spread.repeats > 1 else f"{median}x"


def _note(run: RunData, spreads: Sequence[Spread]) -> str:
    left_out = f"; cells with verdict invalid left out: {run.left_out}" if run.left_out else ""
    return repeats_note(list(spreads)) + left_out
