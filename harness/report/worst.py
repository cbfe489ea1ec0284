"""The answers of a cell that differ most, side by side: what a reader needs to see why a run failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.equivalence.divergence import answers, departure
from harness.equivalence.documents import compare_documents
from harness.equivalence.evidence import Evidence, read_evidence
from harness.errors import HarnessError
from harness.report.runs import Run
from harness.repro.bundle import StoredPrompt, read_bundle
from harness.repro.side_by_side import MARK, SHOWN, marked, place, telling_token

MOST = 5
"""Documents that are shown; the bundle's README has up to 20."""

PROMPT_END = 320
"""Characters of a prompt that are shown, from its end: the question stands there."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What one pass answered."""

    name: str
    right: bool | None
    """None where it was not scored."""
    same: str
    """Text up to where it parts from cold (cold's: from warm); all of it where it does not."""
    parted: str
    """The rest."""
    against: str
    """How it compares with cold, in words; empty for cold."""


@dataclass(frozen=True, slots=True)
class WorstDocument:
    """One question whose answers differ."""

    doc_id: int
    prompt_end: str
    prompt_tokens: int
    expected: str
    where: str
    """The first divergence, or the token that is furthest off, in words."""
    needed: tuple[str, ...]
    """Facts that the answer needs, and where in the prompt they start."""
    passes: tuple[Shown, ...]


def worst_documents(run: Run, cell: Mapping[str, Any]) -> tuple[WorstDocument, ...]:
    """The worst documents of a cell that has a repro bundle, worst first; at most :data:`MOST`.

    Raises:
        HarnessError: there is no bundle, or its cell's tables can't be read.
    """
    path = run.repro(cell)
    if path is None:
        raise HarnessError(f"{cell.get('cell')} has no repro bundle.")
    folder: Path = path.parent
    try:
        prompts, evidence = read_bundle(path).prompts[:MOST], read_evidence(folder)
        margin = float(cell["gate"]["drift_margin_nats"])
        compared = compare_documents(evidence.passes["cold"], evidence.passes["warm"], margin)
        return tuple(_document(each, evidence, compared) for each in prompts)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise HarnessError(f"the answers in {folder} can't be read ({type(error).__name__}: {error}).") from error


def _document(stored: StoredPrompt, evidence: Evidence, compared: pd.DataFrame) -> WorstDocument:
    prompt, size = stored.prompt, evidence.facts.block_size
    found = {name: answers(evidence.passes[name].requests) for name in SHOWN if name in evidence.passes}
    cold, warm = (found.get(name, {}).get(prompt.doc_id) for name in ("cold", "warm"))
    where = "One of the two passes has no answer."
    if cold is not None and warm is not None:
        index, diverged = telling_token(cold, warm)
        what = "The first other token of warm" if diverged else "Warm has the same tokens; the one furthest off"
        nats = f"{float(compared['max_nats'][prompt.doc_id]):.3g}"
        at = f"token {index} of the answer ({place(len(prompt.token_ids) + index, size)})"
        where = f"{what} is {at}; up to there log-probabilities are at most {nats} nats off."
    return WorstDocument(
        doc_id=prompt.doc_id,
        prompt_end=prompt.text[-PROMPT_END:],
        prompt_tokens=len(prompt.token_ids),
        expected=stored.target.split("\n")[-1],
        where=where,
        needed=tuple(f"{fact} ({place(start, size)})" for fact, start in prompt.needed),
        passes=tuple(_shown(prompt.doc_id, evidence, found)),
    )


def _shown(doc_id: int, evidence: Evidence, found: Mapping[str, Mapping[int, Any]]) -> Iterator[Shown]:
    texts = {name: _text(evidence, name, doc_id) for name in found}
    cold = found["cold"].get(doc_id)
    for name, answered in found.items():
        other = texts.get("warm" if name == "cold" else "cold")
        text = texts[name]
        split = marked(text or "", text or "" if other is None else other).partition(MARK)
        answer, against = answered.get(doc_id), ""
        if name != "cold" and cold is not None and answer is not None:
            parts = departure(cold, answer)
            told = f"other tokens from token {parts.shared} on" if parts.diverged else "the same tokens"
            against = f"{told}, up to {parts.max_nats:.2g} nats off" if parts.max_nats else f"{told}, exactly"
        scores = evidence.passes[name].scores
        yield Shown(
            name=name,
            right=bool(scores[doc_id]) if doc_id in scores.index else None,
            same=split[0] if text is not None else "(no answer)",
            parted=split[2],
            against=against,
        )


def _text(evidence: Evidence, name: str, doc_id: int) -> str | None:
    requests = evidence.passes[name].requests
    row = requests[(requests["doc_id"] == doc_id) & requests["error"].isna()][:1]
    return None if row.empty else str(row["text"].iloc[0])
