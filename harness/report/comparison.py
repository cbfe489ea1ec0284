"""What ``compare`` found, for people: on a terminal and as Markdown, from the same sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from harness.compare.changes import Change
from harness.compare.compare import CellChange, Comparison
from harness.compare.match import Key
from harness.compare.score import ScoreChange
from harness.compare.speed import TTFT, SpeedChange
from harness.report.forms import counted, p_value
from harness.report.many import some_lines
from harness.report.markdown import SYMBOLS, escaped, table_lines
from harness.report.table import Column, Table, Value, numbers, without_empty_columns, word_columns, words
from harness.report.tables.terminal import print_table

LAUNCHES = (
    "Intervals are over documents, and do not hold how much one launch differs from the next: with sweep.repeats, a "
    "slowdown counts where most repeats and the medians of all repeats have it."
)

JSON_HAS_ALL = "format=json has all"


def print_comparison(console: Console, found: Comparison) -> None:
    """Prints differences first, then cells, then what got worse."""
    unwrapped = not console.is_terminal
    console.print(Text(title(found), style="bold"), soft_wrap=True)
    console.print()
    for sentence in difference_sentences(found):
        console.print(Text(sentence), soft_wrap=unwrapped)
    for table in tables(found):
        print_table(console, table)
    for sentence in notes(found):
        console.print(Text(sentence, style="dim"), soft_wrap=unwrapped)
    style = "bold red" if found.regressions else "bold green"
    console.print(Text(conclusion(found), style=style), soft_wrap=unwrapped)
    for regression in some_lines(found.regressions, JSON_HAS_ALL):
        console.print(Text(f"  {regression}"), soft_wrap=unwrapped)


def comparison_markdown(found: Comparison) -> str:
    """The same for a job's summary: what got worse first."""
    return "\n".join(_lines(found)) + "\n"


def title(found: Comparison) -> str:
    """Which runs."""
    return f"A = {found.a.path}   B = {found.b.path}"


def conclusion(found: Comparison) -> str:
    """The first and the last thing to read."""
    if found.regressions:
        return f"{counted(len(found.regressions), 'regression')} from A to B:"
    margins = found.margins
    judged = "score and speed" if any(not cell.speed_not_judged for cell in found.cells) else "score alone"
    return (
        f"No regression from A to B, judged by {judged} ({counted(len(found.cells), 'cell')}; margins: score "
        f"{margins.score_margin:g}, speed {margins.speed_margin:g})."
    )


def difference_sentences(found: Comparison) -> list[str]:
    """Where nothing differs, that is worth a sentence."""
    told = []
    if not found.config:
        told.append("The configurations are the same.")
    if not found.provenance:
        told.append("Versions, machine and environment are the same.")
    return told


def notes(found: Comparison) -> list[str]:
    """What a reader has to know of the tables."""
    told = []
    if len(found.telling) < len(found.cells):
        told.append(
            f"Of {len(found.cells):,} cells the tables show the {len(found.telling)} that changed most for the worse; "
            f"{JSON_HAS_ALL}. All of them are judged."
        )
    if found.speed_not_judged:
        told.append(f"Speed is shown and not judged: {found.speed_not_judged}.")
    else:
        reasons = dict.fromkeys(cell.speed_not_judged for cell in found.cells if cell.speed_not_judged)
        for reason in reasons:
            of = [str(cell.key) for cell in found.cells if cell.speed_not_judged == reason]
            which = "" if len(of) == len(found.cells) else f" of {_some(of)}"
            told.append(f"Speed{which} is shown and not judged: {reason}.")
        if len(reasons) == 0 or any(not cell.speed_not_judged for cell in found.cells):
            told.append(LAUNCHES)
    for only, name in ((found.only_a, "A"), (found.only_b, "B")):
        if only:
            told.append(f"{counted(len(only), 'cell')} of {name} alone: {_some([str(key) for key in only])}.")
    return told


def tables(found: Comparison) -> list[Table]:
    """Differences, score and speed."""
    shown = [changes_table("Configuration", found.config), changes_table("Versions and machine", found.provenance)]
    cells, names = found.telling, _names(found)
    shown += [_verdict_table(cells, names), _score_table(found, cells, names), _speed_table(found, cells, names)]
    return [table for table in shown if table.rows]


def changes_table(name: str, changes: Sequence[Change]) -> Table:
    """One row per field."""
    rows = tuple((words(each.field), words(each.before), words(each.after)) for each in changes)
    return Table(f"{name}: what differs", word_columns("field", "A", "B"), rows)


def _verdict_table(shown: Sequence[CellChange], names: Mapping[Key, str]) -> Table:
    """Cells whose verdict is not the same."""
    rows = tuple(
        (
            words(names[cell.key]),
            Value(cell.verdict_a, tone=cell.verdict_a),
            Value(cell.verdict_b, tone=cell.verdict_b),
        )
        for cell in shown
        if cell.verdict_a != cell.verdict_b
    )
    return Table("Verdicts: what differs", word_columns("cell", "A", "B"), rows)


def _score_table(found: Comparison, shown: Sequence[CellChange], names: Mapping[Key, str]) -> Table:
    columns = (
        *word_columns("cell", "pass"),
        Column("n"),
        Column("score", "A → B"),
        Column("loss", "A - B"),
        Column("interval", f"{found.margins.confidence:.0%}"),
        Column("flips"),
        Column("p", f"> {found.margins.score_margin:g}"),
    )
    rows = tuple(_score_row(names, cell, change) for cell in shown for change in cell.scores)
    note = "Flips: right in A and wrong in B / the other way round. p: of a loss beyond the margin, of each test alone."
    if not all(change.paired for cell in shown for change in cell.scores):
        note += " Two n: unpaired, since the questions are not the same, which sees much less."
    return without_empty_columns(Table("Score", columns, rows, note))


def _score_row(names: Mapping[Key, str], cell: CellChange, change: ScoreChange) -> tuple[Value, ...]:
    n = f"{change.n_a:,}" if change.paired else f"{change.n_a:,} / {change.n_b:,}"
    flips = None if change.broke is None else f"{change.broke}/{change.mended}"
    return (
        words(names[cell.key]),
        words(change.name),
        numbers(change.n_a, n),
        numbers(change.score_b, f"{change.score_a:.3f} → {change.score_b:.3f}"),
        numbers(change.loss, f"{change.loss:+.3f}"),
        numbers(change.low, f"{change.low:+.3f} to {change.high:+.3f}"),
        words(flips),
        numbers(change.p, p_value(change.p)),
    )


def _speed_table(found: Comparison, shown: Sequence[CellChange], names: Mapping[Key, str]) -> Table:
    columns = (
        *word_columns("cell", "pass", "measure"),
        Column("A"),
        Column("B"),
        Column("B ÷ A"),
        Column("interval", f"{found.margins.confidence:.0%}"),
        Column("n"),
        *word_columns("judged"),
    )
    rows = tuple(_speed_row(names, cell, change) for cell in shown for change in cell.speeds)
    return without_empty_columns(Table("Speed", columns, rows))


def _speed_row(names: Mapping[Key, str], cell: CellChange, change: SpeedChange) -> tuple[Value, ...]:
    ttft = change.measure == TTFT
    form, scale = (".0f", 1000.0) if ttft else (",.0f", 1.0)
    interval = None if change.low is None or change.high is None else f"{change.low:.2f} to {change.high:.2f}"
    judged = "slower" if change.worse else "ok"
    return (
        words(names[cell.key]),
        words(change.name),
        words("median TTFT, ms" if ttft else "output, tok/s"),
        numbers(change.a, format(change.a * scale, form)),
        numbers(change.b, format(change.b * scale, form)),
        numbers(change.ratio, f"{change.ratio:.2f}"),
        words(interval),
        numbers(change.n, f"{change.n:,}") if change.n else words(None),
        words("no") if cell.speed_not_judged else Value(judged, tone="missed" if change.worse else "ok"),
    )


def _names(found: Comparison) -> dict[Key, str]:
    """Every cell by what tells it from the others of the comparison."""
    keys = [cell.key for cell in found.cells]
    one_model, one_repeat = len({key.point.model for key in keys}) == 1, {key.repeat for key in keys} == {1}
    told = {key: f"{key.point.budget}, {key.point.target}" if one_model else str(key.point) for key in keys}
    return told if one_repeat else {key: f"{name}, r{key.repeat}" for key, name in told.items()}


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{' · '.join(names[:most])}{more}"


def _lines(found: Comparison) -> Iterator[str]:
    symbol = SYMBOLS["fail" if found.regressions else "pass"]
    yield f"# {symbol} compare: {escaped(found.b.path.name)} against {escaped(found.a.path.name)}"
    yield ""
    yield f"**{escaped(conclusion(found))}**"
    yield ""
    for regression in some_lines(found.regressions, JSON_HAS_ALL):
        yield f"- {escaped(regression)}"
    yield ""
    yield escaped(title(found))
    yield ""
    for sentence in difference_sentences(found):
        yield f"- {escaped(sentence)}"
    yield ""
    for table in tables(found):
        yield from table_lines(table)
    for sentence in notes(found):
        yield f"- {escaped(sentence)}"
