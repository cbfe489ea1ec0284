"""What ``trend`` found, for people: on a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from harness.report.forms import counted, number
from harness.report.many import MOST_SERIES
from harness.report.markdown import escaped, table_lines
from harness.report.table import Column, Table, Value, numbers, without_empty_columns, word_columns, words
from harness.report.tables.terminal import print_table
from harness.trend.series import METRICS, RunPoint, Series
from harness.trend.steps import FEWEST
from harness.trend.trend import WORSE, Trend, Turn


def print_trend(console: Console, trend: Trend) -> None:
    """Prints every series, then what stepped, last since it is what one looks for."""
    unwrapped = not console.is_terminal
    for series in shown_series(trend):
        print_table(console, series_table(series))
    for line in notes(trend):
        console.print(Text(line, style="dim"), soft_wrap=True)
    console.print(Text(conclusion(trend), style="bold"), soft_wrap=unwrapped)
    for turn in trend.turns:
        console.print()
        console.print(Text(turn_title(turn), style="bold"), soft_wrap=unwrapped)
        for step in turn.steps:
            style = "red" if step.direction == WORSE else ""
            console.print(Text(f"  {step.words} ({step.direction})", style=style), soft_wrap=unwrapped)
        for line in change_lines(turn):
            console.print(Text(f"  {line}"), soft_wrap=unwrapped)


def trend_markdown(trend: Trend, figure: str | None = None) -> str:
    """The same as Markdown: what stepped first.

    Args:
        trend: what was found.
        figure: path or address of the figure.
    """
    return "\n".join(_lines(trend, figure)) + "\n"


def conclusion(trend: Trend) -> str:
    """How much was looked at, and what came of it."""
    told = f"{counted(len(trend.runs), 'run')} in {len(trend.series)} series"
    if not trend.searched:
        return f"{told}: none has {FEWEST} runs, so no step was looked for."
    what = counted(len(trend.turns), "step") if trend.turns else "no step"
    return f"{told}, {trend.searched} of them with {FEWEST} runs or more: {what}."


def turn_title(turn: Turn) -> str:
    """Which run is the first behind the step."""
    return f"step at {turn.point.name} ({_time(turn.point)}): {turn.series.key}"


def change_lines(turn: Turn) -> list[str]:
    """What had changed since the run before."""
    since = f"since {turn.previous.name}"
    changes = [*turn.config, *turn.provenance]
    if not changes:
        return [f"{since} neither configuration nor versions nor machine changed: look at what ran beside it"]
    return [f"changed {since}:", *(f"  {each}" for each in changes)]


def shown_series(trend: Trend) -> list[Series]:
    """The series of several runs, in their order; of more than :data:`MOST_SERIES` those that stepped before others."""
    stepped = {turn.series.key for turn in trend.turns}
    kept = {series.key for series in sorted(trend.several, key=lambda each: each.key not in stepped)[:MOST_SERIES]}
    return [series for series in trend.several if series.key in kept]


def notes(trend: Trend) -> list[str]:
    """What is not shown, and where it is."""
    shown, several = len(shown_series(trend)), len(trend.several)
    bound = f"of {several:,} series {shown} are shown, those with a step first (format=json has all)"
    return [*([bound] if shown < several else []), *alone_lines(trend), *left_out_lines(trend)]


def alone_lines(trend: Trend) -> list[str]:
    """Series of one run, which show no trend."""
    alone = [series for series in trend.series if len(series.points) == 1]
    if not alone:
        return []
    names = ", ".join(dict.fromkeys(series.points[0].name for series in alone))
    return [f"{len(alone)} series of one run are not shown (format=json has them); their runs: {names}"]


def left_out_lines(trend: Trend) -> list[str]:
    """Folders that could not be used."""
    return [f"left out {path}: {why}" for path, why in trend.left_out.items()]


def series_table(series: Series) -> Table:
    """A row per run, oldest first."""
    columns = (
        *word_columns("began UTC", "run", "verdict"),
        Column("score", "cold→warm"),
        Column("TTFT p50", "ms"),
        Column("output", "tok/s"),
        Column("flips", "/drift"),
        Column("hits", "share"),
    )
    note = (
        "Cold→warm; flips are a share of the questions, drift a number of answers, hits LMCache's share of the tokens."
    )
    return without_empty_columns(Table(str(series.key), columns, tuple(map(_row, series.points)), note))


def _row(point: RunPoint) -> tuple[Value, ...]:
    pairs = [_joined(point, "→", f"{name}_cold", f"{name}_warm") for name in ("score", "ttft", "throughput")]
    other = [_joined(point, "/", "flip_rate", "drift_beyond"), _joined(point, "", "hit_rate")]
    return (words(_time(point)), words(point.name), Value(point.verdict, tone=point.verdict), *pairs, *other)


def _joined(point: RunPoint, between: str, *names: str) -> Value:
    """Values of metrics in one entry, in the metrics' order; a dash where none was measured."""
    values = [(point.values[metric.name], metric.form) for metric in METRICS if metric.name in names]
    if all(value is None for value, _ in values):
        return words(None)
    return numbers(values[-1][0], between.join(number(value, form) for value, form in values))


def _time(point: RunPoint) -> str:
    """``11-30 00:42``."""
    return point.time[5:16].replace("T", " ")


def _lines(trend: Trend, figure: str | None) -> Iterator[str]:
    yield f"# Trend of {escaped(str(trend.folder))}"
    yield ""
    yield f"**{escaped(conclusion(trend))}**"
    yield ""
    for turn in trend.turns:
        yield f"## {escaped(turn_title(turn))}"
        yield ""
        for step in turn.steps:
            yield f"- {escaped(step.words)} ({step.direction})"
        for line in change_lines(turn):
            yield f"{'  ' if line.startswith('  ') else ''}- {escaped(line)}"
        yield ""
    if figure:
        yield f"![numbers over time]({figure})"
        yield ""
    for series in shown_series(trend):
        yield from table_lines(series_table(series))
    for line in notes(trend):
        yield f"- {escaped(line)}"
