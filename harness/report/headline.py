"""The first thing a report says: the verdict, in a sentence with its reasons and what to do.

Pure: contents of run.json and cell.json in, words and numbers out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.report.advice import Advice, advice
from harness.report.forms import counted, milliseconds, number, p_value
from harness.report.many import MOST_CELLS, MOST_LINES, some_lines
from harness.report.runs import Run, as_counted, find, most_telling, telling_rank
from harness.report.terminal import damage, replay_line

MEANINGS = {
    "pass": "The cache was used, and warm answers are equivalent to cold ones.",
    "fail": "The cache was used, and warm answers are not equivalent to cold ones.",
    "inconclusive": "The cache was used, but the answers do not decide whether they are equivalent.",
    "invalid": "The comparison proves nothing, whatever the scores.",
}

NO_VERDICT = {
    "failed": "The run failed, so there is no verdict.",
    "interrupted": "The run was interrupted, so there is no verdict.",
    "running": "The run still goes on, or was killed: there is no verdict yet.",
}

MOST_REASONS = 3
"""Of so many cells that did not pass the reasons are told in full; the others are in the tables."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number worth seeing at once."""

    label: str
    value: str
    """With its unit."""
    note: str
    """What it is of, with n."""


@dataclass(frozen=True, slots=True)
class Headline:
    """What a report begins with."""

    verdict: str
    """A verdict, or the status of a run that has none."""
    sentence: str
    reasons: tuple[str, ...]
    advice: tuple[Advice, ...]
    numbers: tuple[Figure, ...]
    of_cell: str
    """The cell that the numbers are from; empty where there is only one."""


def headline(run: Run) -> Headline:
    """Verdict, reasons, advice and key numbers of a run."""
    telling, counting = most_telling(run.cells), as_counted(run)
    counted_as = {str(cell.get("cell")): verdict for cell, (verdict, _) in zip(run.cells, counting, strict=True)}
    doubtful = [cell for cell in run.cells if cell.get("verdict") != "pass"]
    doubtful.sort(key=lambda cell: cell is not telling)
    return Headline(
        verdict=run.verdict or run.status,
        sentence=_sentence(run, list(counted_as.values())),
        reasons=tuple(_reasons(run, telling, doubtful)),
        advice=tuple(_advice(run, doubtful, counted_as)),
        numbers=tuple(key_numbers(telling)) if telling else (),
        of_cell=str(telling.get("cell")) if telling and len(run.cells) > 1 else "",
    )


def compared(cell: Mapping[str, Any]) -> bool:
    """Whether a cell's cold and warm answers were compared."""
    return bool(cell.get("paired"))


def key_numbers(cell: Mapping[str, Any]) -> list[Figure]:
    """Score, loss, drift, hit rate and, where the comparison was valid, speed of one cell, each with its n."""
    n, found = find(cell, "passes", "cold", "n"), []
    cold, warm = find(cell, "passes", "cold"), find(cell, "passes", "warm")
    if find(cold, "score") is not None:
        change = f"{number(find(cold, 'score'), '.3f')} → {number(find(warm, 'score'), '.3f')}"
        found.append(Figure("score", change, f"share of right answers, cold → warm, n\u00a0=\u00a0{n}"))
    if paired := cell.get("paired"):
        low, high = find(paired, "interval", "low"), find(paired, "interval", "high")
        interval = f"{number(low, '+.4f')} to {number(high, '+.4f')}, margin ±{number(find(paired, 'margin'), 'g')}"
        found.append(
            Figure(
                "loss of score",
                number(find(paired, "difference"), "+.3f"),
                f"{_confidence(paired)} interval {interval}, n\u00a0=\u00a0{find(paired, 'n')}",
            )
        )
    if (beyond := find(cell, "drift", "passes", "warm", "beyond")) is not None:
        null = find(cell, "drift", "passes", "local_warm")
        told = f"further from cold than {number(find(cell, 'drift', 'margin_nats'), 'g')} nats"
        if null:
            told += f"; local_warm: {find(null, 'beyond')} of {find(null, 'n')}"
        of = find(cell, "drift", "passes", "warm", "n")
        found.append(
            Figure("answers that drift", f"{beyond} of {of}", f"{told}; p = {p_value(find(cell, 'drift', 'p'))}")
        )
    if (measured := find(cell, "hit_rate", "measured")) is not None:
        counted_tokens = find(warm, "prompt_tokens")
        tokens = "the" if counted_tokens is None else f"{counted_tokens:,.0f}"
        reachable = number(find(cell, "hit_rate", "reachable"), ".3f")
        found.append(
            Figure("served by LMCache", f"{measured:.3f}", f"of {tokens} prompt tokens in warm; reachable {reachable}")
        )
    if cell.get("verdict") != "invalid":
        found += _speed(cold, warm, n)
    return found


def _speed(cold: Any, warm: Any, n: Any) -> list[Figure]:
    found = []
    first = [find(each, "ttft_s", "p50") for each in (cold, warm)]
    if None not in first:
        change = " → ".join(milliseconds(each) for each in first)
        found.append(Figure("median time to first token", f"{change} ms", f"cold → warm, n\u00a0=\u00a0{n}"))
    output = [find(each, "output_tokens_per_s") for each in (cold, warm)]
    if None not in output:
        change = " → ".join(number(each, ",.0f") for each in output)
        found.append(Figure("output throughput", f"{change} tok/s", f"cold → warm, {n} requests each"))
    return found


def _sentence(run: Run, counted_as: list[str]) -> str:
    if run.verdict is None:
        return NO_VERDICT.get(run.status, f"The run is {run.status}, and has no verdict.")
    if not run.cells:
        return "No cell is complete, so nothing was compared."
    if any(find(cell, "gate", "mode") == "lmcache_ci" for cell in run.cells):
        return f"LMCache's own rule {'holds' if run.verdict == 'pass' else 'does not hold'}; nothing else was judged."
    if run.verdict == "pass" and not any(map(compared, run.cells)):
        return "Nothing was compared: only speed, or how much is found again, was measured."
    told = MEANINGS.get(run.verdict, f"The verdict is {run.verdict}.")
    counts = Counter(counted_as)
    if len(counts) > 1:
        told += f" {counted(len(run.cells), 'cell')}: {', '.join(f'{n} {name}' for name, n in counts.items())}."
    return told


def _advice(run: Run, doubtful: list[Mapping[str, Any]], counted_as: Mapping[str, str]) -> list[Advice]:
    """What to do, about the worst cells where there are very many."""
    if len(doubtful) > MOST_CELLS:
        doubtful = sorted(doubtful, key=telling_rank)[:MOST_CELLS]
    told = advice(run, doubtful, counted_as)
    more = len(told) - MOST_LINES
    return told if more <= 0 else [*told[:MOST_LINES], Advice(f"Then {more:,} more things, about cells less bad.")]


def _reasons(run: Run, telling: Mapping[str, Any] | None, doubtful: list[Mapping[str, Any]]) -> list[str]:
    told = []
    error = run.record.get("error")
    if error and error != run.status:
        told.append(f"Error: {error}")
    if len(run.cells) == 1:
        told += run.cells[0].get("reasons") or []
    else:
        told += some_lines(run.record.get("reasons") or [], "run.json has all")
        bare = sum(not compared(cell) for cell in run.cells if cell.get("verdict") == "pass")
        if 0 < bare < len(run.cells):
            told.append(f"{bare} of {len(run.cells)} cells compare nothing: they measure speed or reuse only")
        shown = doubtful[:MOST_REASONS] or [cell for cell in [telling] if cell is not None]
        told += [f"{cell.get('cell')}: {reason}" for cell in shown for reason in cell.get("reasons") or []]
        if len(doubtful) > MOST_REASONS:
            told.append(f"{counted(len(doubtful) - MOST_REASONS, 'more cell')} did not pass: see the table of cells.")
    told += some_lines(
        [line for cell in run.cells for line in _beside(run, cell)], "cell.json of each cell has its own"
    )
    return told


def _beside(run: Run, cell: Mapping[str, Any]) -> list[str]:
    """What is told of a cell whatever its verdict: what a replay saw again, and what was damaged on purpose."""
    replayed = [replay_line(cell)] if cell.get("replay") else []
    return replayed + [line if len(run.cells) == 1 else f"{cell.get('cell')}: {line}" for line in damage(cell)]


def _confidence(paired: Any) -> str:
    confidence = find(paired, "interval", "confidence")
    return "" if confidence is None else f"{100 * confidence:.4g} %"
