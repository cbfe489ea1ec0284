"""Detection at low doses by mixing stored answers, and whether real cells of low doses bear that out.

Of a launch's undamaged cell and of its cell at full dose, every document is known both ways. A run at a dose of 5 % is
imitated by taking 5 % of the documents, at random, from the one and the rest from the other. Nothing is simulated but
the choice of documents. It assumes that documents do not touch each other: what is damaged in one prompt's cache
changes no other prompt's answer, by scheduling, batching or a shared block, and damage to one prompt is the same
whether others are damaged or not. :func:`check_mixing` looks at whether that holds in cells that were really measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from harness.equivalence.drift import LEVELS
from harness.selftest.detectors import DETECTORS, detect
from harness.selftest.outcomes import BoolArray, Documents, Outcome
from harness.selftest.rates import Rate

DOSES = (0.01, 0.05, 0.20)
"""Shares of the prompts that are damaged in a mixture."""

DRAWS = 200
"""Mixtures of each launch, kind and dose: the standard error of a launch's rate is 0.035 at most."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An undamaged cell and one at full dose, of one kind and of the same launch."""

    undamaged: Outcome
    full: Outcome

    def documents(self) -> tuple[Documents, Documents]:
        """Their rows, undamaged first, of the documents that both have."""
        both = np.intersect1d(self.undamaged.documents.doc_id, self.full.documents.doc_id)
        first, second = (
            Documents.of_frame(rows[rows["doc_id"].isin(both)])
            for rows in (self.undamaged.documents.frame(), self.full.documents.frame())
        )
        return first, second


@dataclass(frozen=True, slots=True)
class MixingCheck:
    """A real cell of a low dose against the mixture of the same documents, over all launches that have it.

    Counts are documents beyond the drift margin, of ``damaged`` and of ``bystanders`` documents.
    """

    kind: str
    dose: float
    cells: int
    damaged: int
    mixed_beyond: int
    """Of the damaged: beyond in the cell at full dose."""
    real_beyond: int
    """Of the damaged: beyond in the cell of this dose."""
    bystanders: int
    mixed_bystanders_beyond: int
    """Of the others: beyond in the undamaged cell."""
    real_bystanders_beyond: int
    p: float
    """Exact two-sided McNemar over all documents: as many beyond in the real cells as in their mixtures?"""
    bystanders_p: float
    """The same over those that were not damaged."""

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against mixing, at 0.05."""
        return min(self.p, self.bystanders_p) >= 0.05


def pairs_of(outcomes: Sequence[Outcome]) -> dict[str, list[Pair]]:
    """Kind -> pairs of every launch that has an undamaged cell and one of that kind at full dose; the first of each."""
    undamaged: dict[tuple[str, str], Outcome] = {}
    full: dict[tuple[str, tuple[str, str]], Outcome] = {}
    for each in outcomes:
        if not len(each.documents):
            continue
        if each.undamaged:
            undamaged.setdefault(each.key, each)
        elif each.dose == 1:
            full.setdefault((each.kind, each.key), each)
    pairs: dict[str, list[Pair]] = {}
    for (kind, key), outcome in full.items():
        if key in undamaged:
            pairs.setdefault(kind, []).append(Pair(undamaged[key], outcome))
    return pairs


def mixed_detection(pair: Pair, dose: float, draws: int = DRAWS) -> dict[str, float]:
    """Share of mixtures in which each detector fires; the same launch id, kind and dose give the same draws.

    Args:
        pair: what is mixed.
        dose: share of the documents that are damaged, rounded to whole documents and at least one.
        draws: how many mixtures.
    """
    clean, broken = pair.documents()
    seed = hashlib.sha256(f"{pair.full.launch}/{pair.full.kind}/{dose}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:8], "big"))
    fired = np.zeros(len(DETECTORS))
    for _ in range(draws):
        chosen = np.zeros(len(clean), dtype=bool)
        chosen[rng.choice(len(clean), damaged_count(len(clean), dose), replace=False)] = True
        mixture = broken.where(chosen, clean)
        fired += detect(mixture, pair.undamaged.retrieves, pair.undamaged.gate)
    return dict(zip(DETECTORS, (fired / draws).tolist(), strict=True))


def damaged_count(n: int, dose: float) -> int:
    """How many of ``n`` documents a dose is."""
    return max(1, round(dose * n))


def check_mixing(pairs: Mapping[str, Sequence[Pair]], outcomes: Sequence[Outcome]) -> list[MixingCheck]:
    """Real cells of doses between 0 and 1 against mixtures of exactly the documents that were damaged in them."""
    by_launch = {(kind, pair.full.key): pair for kind, found in pairs.items() for pair in found}
    groups: dict[tuple[str, float], list[tuple[Outcome, Pair]]] = {}
    for each in outcomes:
        if not each.undamaged and each.dose < 1 and (pair := by_launch.get((each.kind, each.key))):
            groups.setdefault((each.kind, each.dose), []).append((each, pair))
    return [_check(kind, dose, found) for (kind, dose), found in groups.items()]


def agrees(real: Rate, mixed: Rate) -> bool:
    """Whether so many real detections are likely, at 0.05, if the mixed rate is the true one: exact binomial test.

    The mixed rate is taken as known, so where it is uncertain this says "no" too often rather than too rarely.
    """
    return bool(binomtest(round(real.count), real.launches, mixed.rate).pvalue >= 0.05)


def _check(kind: str, dose: float, found: Sequence[tuple[Outcome, Pair]]) -> MixingCheck:
    columns: list[tuple[BoolArray, BoolArray, BoolArray]] = []
    for real, pair in found:
        clean, broken = pair.documents()
        rows = real.documents.frame()
        rows = rows[rows["doc_id"].isin(clean.doc_id)]
        mine = Documents.of_frame(rows)
        kept = np.isin(clean.doc_id, mine.doc_id)
        damaged = np.isin(clean.doc_id, sorted(real.damaged))
        mixture = broken.where(damaged, clean)
        nats = real.gate.drift_margin_nats * LEVELS[0]
        columns.append((damaged[kept], mixture.nats[kept] > nats, mine.nats > nats))
    damaged, mixed, measured = (np.concatenate(each) for each in zip(*columns, strict=True))
    return MixingCheck(
        kind=kind,
        dose=dose,
        cells=len(found),
        damaged=int(damaged.sum()),
        mixed_beyond=int(mixed[damaged].sum()),
        real_beyond=int(measured[damaged].sum()),
        bystanders=int((~damaged).sum()),
        mixed_bystanders_beyond=int(mixed[~damaged].sum()),
        real_bystanders_beyond=int(measured[~damaged].sum()),
        p=_two_sided(mixed, measured),
        bystanders_p=_two_sided(mixed[~damaged], measured[~damaged]),
    )


def _two_sided(one: BoolArray, other: BoolArray) -> float:
    only, only_other = int((one & ~other).sum()), int((other & ~one).sum())
    return float(binomtest(only, only + only_other, 0.5).pvalue) if only + only_other else 1.0
