"""What each cell of a selftest must end in, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.equivalence.verdict import Verdict
from harness.selftest.detectors import drift_excess
from harness.selftest.kinds import expected_verdict, words
from harness.selftest.outcomes import Outcome

CLEARLY = 2.0
"""A verdict is demanded where a cell is damaged by this factor beyond what can be seen at all: not every damaged
document moves (measured: 54 of 100 with 1 % of the recurrent state's bytes inverted), and damage to exactly as many as
can be seen is missed in every other run."""


class State(StrEnum):
    """How a cell stands to what was expected of it."""

    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"
    """An undamaged cell that neither passed nor failed: it shows no false alarm, and nothing else."""
    NO_DEMAND = "no demand"
    """The dose is too small for a verdict to be demanded."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What was expected of one cell and what came."""

    expected: Verdict | None
    """None: nothing is demanded."""
    state: State
    sentence: str


def judge_outcome(cell: Outcome) -> Expectation:
    """Compares the verdict of a cell with what its damage must lead to."""
    return _undamaged(cell) if cell.undamaged else _damaged(cell)


def _undamaged(cell: Outcome) -> Expectation:
    state, told = {
        Verdict.PASS: (State.MET, "pass, as expected"),
        Verdict.FAIL: (State.NOT_MET, f"a FALSE ALARM: {cell.reason}"),
    }.get(cell.verdict, (State.UNDECIDED, f"{cell.verdict.value}, so that it shows nothing: {cell.reason}"))
    return Expectation(Verdict.PASS, state, f"{cell.cell}, undamaged: {told}")


def _damaged(cell: Outcome) -> Expectation:
    expected = expected_verdict(cell.kind)
    demanded, why = _demand(cell, expected)
    about = f"{cell.cell}, {words(cell.kind)}, {len(cell.damaged)} of {len(cell.documents)} prompts"
    seen = cell.verdict
    if expected is Verdict.INVALID and seen is Verdict.FAIL:
        # Recomputed prompts are right whatever their number, so here wrong state was served.
        return Expectation(expected, State.NOT_MET, f"{about}: invalid was expected and it is fail: {cell.reason}")
    if not demanded:
        return Expectation(None, State.NO_DEMAND, f"{about}: {seen.value}; nothing is demanded, since {why}")
    if seen is expected:
        return Expectation(expected, State.MET, f"{about}: {seen.value}, as expected")
    bite = "THE GATE DID NOT BITE" if seen is Verdict.PASS else "caught, but otherwise than expected"
    return Expectation(
        expected,
        State.NOT_MET,
        f"{about}: {expected.value} was expected and it is {seen.value}, {bite} ({why}): {cell.reason}",
    )


def _demand(cell: Outcome, expected: Verdict) -> tuple[bool, str]:
    """Whether the dose is large enough to demand a verdict, and the numbers that say so."""
    if cell.dose == 1:
        return True, "every prompt was damaged"
    if expected is Verdict.INVALID:
        lost, tolerated = cell.dose * cell.reachable, cell.gate.hit_rate_tolerance
        return (
            lost >= CLEARLY * tolerated,
            f"{lost:.3f} of the prompt tokens at most are recomputed and {tolerated:g} are tolerated",
        )
    found = drift_excess(cell.documents, cell.gate)
    fewest = found.most_sensitive.detectable if found else None
    if fewest is None:
        return False, "drift can see nothing here: local_warm is as far from cold as damage would be, or is missing"
    return (
        len(cell.damaged) >= CLEARLY * fewest,
        f"{len(cell.damaged)} prompts were damaged and drift sees {fewest} at best",
    )
