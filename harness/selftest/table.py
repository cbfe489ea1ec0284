"""The summary of a selftest on a terminal, in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.forms import STYLES
from harness.selftest.expectations import State
from harness.selftest.kinds import NONE, words
from harness.selftest.mixing import MixingCheck
from harness.selftest.rates import CONFIDENCE, Rate
from harness.selftest.summary import MIXED, REAL, Summary, verdicts_of

SHOWN = {"score": "score alone", "drift": "drift", "lmcache_ci": "LMCache"}


def print_summary(console: Console, summary: Summary) -> None:
    """Prints rates, false alarms, how far mixing can be trusted, and what was not as expected."""
    unwrapped = not console.is_terminal
    console.print(rates_table(summary))
    console.print()
    for line in sentences(summary):
        console.print(Text(line), soft_wrap=unwrapped)
    word, style = {0: ("PASS", "pass"), 1: ("FAIL", "fail")}.get(summary.exit_code, ("INCOMPLETE", "inconclusive"))
    told = Text(f"selftest {word}", style=STYLES[style]).append(f": {conclusion(summary)}", style="default not bold")
    console.print(told, soft_wrap=unwrapped)


def rates_table(summary: Summary) -> Table:
    """One row per kind, dose and source: detection rates with their intervals, and the verdicts of real cells."""
    table = Table(
        title=f"detection rate over launches, {CONFIDENCE:.0%} intervals (~: mixed from stored answers)",
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("damage", no_wrap=True)
    table.add_column("dose", justify="right", no_wrap=True)
    for heading in SHOWN.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("the gate", overflow="fold")
    found: dict[tuple[str, float, str], dict[str, Rate]] = {}
    for point in summary.points:
        found.setdefault((point.kind, point.dose, point.source), {})[point.detector] = point.rate
    before = None
    for (kind, dose, source), rates in found.items():
        verdicts = verdicts_of(summary.rows, kind, dose) if source == REAL else Counter()
        table.add_row(
            words(kind) if kind != before else "",
            f"{'~' if source == MIXED else ''}{dose:.0%}",
            *(_rate(rates[name], source) for name in SHOWN),
            ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()),
        )
        before = kind
    return table


def sentences(summary: Summary) -> Iterator[str]:
    """What stands below the table."""
    alarms = summary.false_alarms
    if alarms:
        others = ", ".join(f"{name} {alarms[key].count:g}" for key, name in SHOWN.items())
        yield f"false alarms (undamaged and fail): {spelled(alarms['fail'])}; by itself: {others}"
    for check in summary.mixing:
        if not check.holds:
            yield mixing_sentence(check)
    if summary.mixing:
        held = sum(check.holds for check in summary.mixing)
        yield (
            f"mixing holds in {held} of {len(summary.mixing)} kinds and doses that were measured both ways: as many "
            "answers beyond the drift margin as in mixtures of the same documents"
        )
    for told in summary.disagreements:
        yield f"mixing and measurement differ: {told}"
    for row in summary.rows:
        if row.expectation.state in (State.NOT_MET, State.UNDECIDED):
            yield row.expectation.sentence
    for told in summary.incomplete:
        yield f"incomplete: {told}"
    left_out = sum(run["left_out"] for run in summary.runs.values())
    if left_out:
        yield f"{left_out} cells tell nothing here and were left out: of another check, or with nothing to compare"


def mixing_sentence(check: MixingCheck) -> str:
    """A real cell of a low dose against the mixture of the same documents."""
    return (
        f"mixing {'holds' if check.holds else 'does NOT hold'} for {words(check.kind)} at {check.dose:.0%}: beyond the "
        f"drift margin are {check.real_beyond} of {check.damaged} damaged answers ({check.mixed_beyond} if mixed), and "
        f"{check.real_bystanders_beyond} of {check.bystanders} others ({check.mixed_bystanders_beyond} if mixed)"
    )


def conclusion(summary: Summary) -> str:
    """The whole in one sentence."""
    states = [row.expectation.state for row in summary.rows if row.outcome.kind != NONE]
    demanded = [state for state in states if state is not State.NO_DEMAND]
    met = sum(state is State.MET for state in demanded)
    undamaged = [row.expectation.state for row in summary.rows if row.outcome.kind == NONE]
    passed = sum(state is State.MET for state in undamaged)
    told = f"{met} of {len(demanded)} damaged cells ended as they must"
    if len(states) > len(demanded):
        told += f" ({len(states) - len(demanded)} more were damaged too little to demand it)"
    return f"{told}, and {passed} of {len(undamaged)} undamaged ones passed"


def spelled(rate: Rate) -> str:
    """A rate over launches in words."""
    return f"{rate.count:g} of {rate.launches} launches, {CONFIDENCE:.0%} interval {rate.low:.2f} to {rate.high:.2f}"


def _rate(rate: Rate, source: str) -> str:
    value = f"{rate.count:g}/{rate.launches}" if source == REAL else f"{rate.rate:.2f}"
    low, high = (f"{end:.2f}".removeprefix("0") for end in (rate.low, rate.high))
    return f"{value} {low}-{high}"
