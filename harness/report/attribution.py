"""The attribution table that a run of several arms ends with: one row per arm, and what they mean together.

Pure: records of arms in (`harness.equivalence.attribution.outcomes_of` says which), table, sentences and the content of
attribution.json out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.equivalence.attribution import (
    COMPLETE,
    NOT_RUN,
    Attribution,
    Row,
    Symptom,
    Undecided,
    attribute,
    by_outcome,
    outcomes_of,
)
from harness.equivalence.verdict import WORST_FIRST
from harness.report.forms import NOT_MEASURED, STYLES, number, share

Record = Mapping[str, Any]


def print_attribution(console: Console, records: Sequence[Record]) -> None:
    """Prints a row for every arm, and what the pattern means."""
    unwrapped = not console.is_terminal
    found = _attribution(records)
    console.print(arm_table(records))
    console.print()
    for sentence in sentences(found):
        console.print(sentence, soft_wrap=unwrapped)
    for line in undecided_lines(found):
        console.print(Text(line, style="dim"), soft_wrap=unwrapped)


def arm_table(records: Sequence[Record]) -> Table:
    """One row per arm, in 80 columns; of an arm with several cells the numbers are those of its worst."""
    table = Table(
        title="arms", title_justify="left", title_style="", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("arm", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for heading in ("score\ncold→warm", "broke/\nmended", "drift\ndocs", "LMCache\nhits", "vLLM\nhits"):
        table.add_column(heading, justify="right", overflow="fold")
    for each in map(arm_numbers, by_outcome(records)):
        label = str(each["verdict"] or each["status"])
        scores = (each["score_cold"], each["score_warm"])
        table.add_row(
            Text(str(each["arm"])),
            Text(label, style=STYLES.get(label, "")),
            NOT_MEASURED if None in scores else "→".join(number(score, ".3f") for score in scores),
            _of(each["broke"], each["mended"]),
            _of(each["drifting"], each["drift_documents"]),
            share(each["external_hit_tokens"], each["prompt_tokens"]),
            share(each["local_hit_tokens"], each["prompt_tokens"]),
        )
    return table


def arm_numbers(record: Record) -> dict[str, Any]:
    """The numbers of one arm, None where they were not measured: those of its worst cell."""
    cells: Sequence[Mapping[str, Any]] = record.get("cells") or ()
    cell = min(cells, key=_worst_first) if cells else {}
    passes = cell.get("passes") or {}
    cold, warm = passes.get("cold") or {}, passes.get("warm") or {}
    paired = cell.get("paired") or {}
    drift = ((cell.get("drift") or {}).get("passes") or {}).get("warm") or {}
    return {
        "arm": record["arm"],
        "status": record["status"],
        "verdict": record.get("verdict") if record["status"] == COMPLETE else None,
        "reason": record.get("reason"),
        "cells": len(cells),
        "score_cold": cold.get("score"),
        "score_warm": warm.get("score"),
        "questions": paired.get("n"),
        "broke": paired.get("b"),
        "mended": paired.get("c"),
        "drifting": drift.get("beyond"),
        "drift_documents": drift.get("n"),
        "prompt_tokens": warm.get("prompt_tokens"),
        "external_hit_tokens": warm.get("external_hit_tokens"),
        "local_hit_tokens": warm.get("local_hit_tokens"),
    }


def sentences(found: Attribution) -> list[Text]:
    """What the pattern means, what to do next, what it resembles, and which other rows hold."""
    decided = f" (decided by {', '.join(found.decided_by)})" if found.decided_by else ""
    told = [Text(found.row, style="bold").append(f"{decided}: {found.meaning}", style="not bold")]
    told.append(Text(f"next: {found.next_step}"))
    if found.resembles:
        told.append(Text(f"resembles: {_cited(found.resembles)}"))
    told.extend(Text(f"also {row.name}: {row.meaning}") for row in found.also)
    return told


def undecided_lines(found: Attribution) -> list[str]:
    """One line for each arm that says nothing, and one for all that were not run."""
    told = []
    for each in found.not_exercised:
        if each.status == NOT_RUN:
            continue
        line = f"not exercised: {each.arm}, {each.status}{each.reason and f': {each.reason}'}"
        if each.hint:
            line += f" — {each.hint}"
        if each.resembles:
            line += f" Resembles: {_cited(each.resembles)}"
        told.append(line)
    if not_run := [each.arm for each in found.not_exercised if each.status == NOT_RUN]:
        told.append(f"not run: {', '.join(not_run)}")
    return told


def attribution_json(records: Sequence[Record]) -> dict[str, Any]:
    """What attribution.json holds."""
    found = _attribution(records)
    return {
        "arms": [arm_numbers(record) for record in by_outcome(records)],
        "row": found.row,
        "decided_by": list(found.decided_by),
        "meaning": found.meaning,
        "next_step": found.next_step,
        "resembles": _symptom(found.resembles),
        "also": [_row(row) for row in found.also],
        "not_exercised": [_undecided(each) for each in found.not_exercised],
    }


def _attribution(records: Sequence[Record]) -> Attribution:
    alphas = [cell["gate"]["alpha"] for record in records for cell in record.get("cells") or () if cell.get("gate")]
    outcomes = outcomes_of(records)
    return attribute(outcomes, alpha=alphas[0]) if alphas else attribute(outcomes)


def _worst_first(cell: Mapping[str, Any]) -> tuple[int, float]:
    order = [verdict.value for verdict in WORST_FIRST]
    loss = (cell.get("paired") or {}).get("difference") or 0.0
    return order.index(str(cell["verdict"])), -float(loss)


def _of(part: int | None, other: int | None) -> str:
    return NOT_MEASURED if part is None or other is None else f"{part}/{other}"


def _cited(symptom: Symptom) -> str:
    return f"{symptom.title} ({symptom.link})"


def _symptom(symptom: Symptom | None) -> dict[str, str] | None:
    return {"title": symptom.title, "link": symptom.link} if symptom else None


def _row(row: Row) -> dict[str, Any]:
    return {"row": row.name, "meaning": row.meaning, "resembles": _symptom(row.resembles)}


def _undecided(each: Undecided) -> dict[str, Any]:
    return {
        "arm": each.arm,
        "status": each.status,
        "reason": each.reason,
        "hint": each.hint,
        "resembles": _symptom(each.resembles),
    }
