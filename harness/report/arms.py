"""What several arms say about where a fault lies: the contents of attribution.json, as a table and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report.forms import number, share
from harness.report.runs import find
from harness.report.table import Column, Table, Value, measured, numbers, words

COLUMNS = (
    Column("arm", words=True),
    Column("verdict", words=True),
    Column("questions"),
    Column("score cold"),
    Column("score warm"),
    Column("broke", "questions"),
    Column("mended", "questions"),
    Column("drift", "answers"),
    Column("LMCache hits", "of prompt tokens"),
    Column("vLLM hits", "of prompt tokens"),
    Column("why", words=True),
)


def arms_table(attribution: Mapping[str, Any]) -> Table:
    """One row per arm; of one with several cells the numbers are those of its worst."""
    arms = attribution.get("arms")
    return Table("Arms", COLUMNS, tuple(_row(arm) for arm in (arms if isinstance(arms, list) else [])))


def arms_sentences(attribution: Mapping[str, Any]) -> list[str]:
    """What the arms come to together."""
    told = []
    if attribution.get("row"):
        told.append(f"{attribution['row']}: {attribution.get('meaning')}")
    if attribution.get("next_step"):
        told.append(f"What to do: {attribution['next_step']}")
    if symptom := find(attribution, "resembles"):
        told.append(f"It resembles: {find(symptom, 'title')} ({find(symptom, 'link')})")
    for each in _listed(attribution, "not_exercised"):
        hint = find(each, "hint")
        told.append(f"Not exercised: {find(each, 'arm')}, {find(each, 'status')}" + (f". {hint}" if hint else "."))
    return told


def _row(arm: Mapping[str, Any]) -> tuple[Value, ...]:
    verdict = str(find(arm, "verdict") or find(arm, "status") or "-")
    prompt = find(arm, "prompt_tokens")
    return (
        words(find(arm, "arm")),
        Value(verdict, tone=verdict),
        *(measured(arm, ".0f", name) for name in ("questions",)),
        *(measured(arm, ".3f", name) for name in ("score_cold", "score_warm")),
        *(measured(arm, ".0f", name) for name in ("broke", "mended", "drifting")),
        *(_share(find(arm, name), prompt) for name in ("external_hit_tokens", "local_hit_tokens")),
        words(find(arm, "reason")),
    )


def _share(part: Any, whole: Any) -> Value:
    if not isinstance(part, int | float) or not isinstance(whole, int | float) or not whole:
        return numbers(None, number(None, ".3f"))
    return numbers(part / whole, share(part, whole))


def _listed(attribution: Mapping[str, Any], name: str) -> list[Any]:
    listed = attribution.get(name)
    return listed if isinstance(listed, list) else []
