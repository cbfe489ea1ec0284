"""The verdict of a cell and of a run, as frozen values with their reasons in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.config import GateConfig
from harness.equivalence.paired import PairedTable, loss_p, mcnemar_p, needed_n, score_interval, tost_p
from harness.equivalence.validity import ValidityCheck


class Verdict(StrEnum):
    """What a comparison came to."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 4, Verdict.INVALID: 4}

WORST_FIRST = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and why."""

    verdict: Verdict
    reasons: tuple[str, ...]


def decide(validity: Sequence[ValidityCheck], table: PairedTable | None, gate: GateConfig) -> Decision:
    """The verdict of one cell, by the rules of docs/verdict.md.

    Validity first: a comparison that proves nothing is ``invalid``, whatever the scores.  ``table`` is None when
    the passes can't be paired, which a failed validity check explains.
    """
    missed = [check.sentence for check in validity if not check.ok]
    if missed or table is None:
        return Decision(Verdict.INVALID, tuple(missed) or ("the passes can't be paired",))
    if gate.mode == "threshold":
        return _by_threshold(table, gate)
    return _by_tests(table, gate)


def decide_speed_only(validity: Sequence[ValidityCheck]) -> Decision:
    """The verdict of a cell at hit rate 0: it takes no part in equivalence, and may only be invalid or not."""
    missed = tuple(check.sentence for check in validity if not check.ok)
    if missed:
        return Decision(Verdict.INVALID, missed)
    return Decision(Verdict.PASS, ("speed only: nothing is retrieved at hit rate 0",))


def run_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """A run passes if all its cells do; otherwise it is the worst of them, and invalid without any."""
    seen = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in seen), Verdict.INVALID)


def exit_code(verdict: Verdict, on_inconclusive: str) -> int:
    """0 pass, 1 fail, 4 inconclusive or invalid; an inconclusive run may be let through with a warning."""
    if verdict is Verdict.INCONCLUSIVE and on_inconclusive == "warn":
        return 0
    return EXIT_CODES[verdict]


def _by_threshold(table: PairedTable, gate: GateConfig) -> Decision:
    within = abs(table.difference) <= gate.tolerance
    reason = (
        f"the score {_moved(table)}, {'within' if within else 'beyond'} the tolerance of {gate.tolerance:g} "
        "(threshold rule: no error rate is controlled)"
    )
    return Decision(Verdict.PASS if within else Verdict.FAIL, (reason,))


def _by_tests(table: PairedTable, gate: GateConfig) -> Decision:
    equivalence, damage, loss = tost_p(table, gate.margin), mcnemar_p(table), loss_p(table, gate.margin)
    low, high = score_interval(table, 1 - 2 * gate.alpha)
    percent = f"{100 * (1 - 2 * gate.alpha):.0f} %"
    interval = f"{percent} interval of the loss {low:+.4f} to {high:+.4f}, margin ±{gate.margin:g}"
    if equivalence < gate.alpha:
        reasons = [f"the score {_moved(table)}; {interval}: equivalent (TOST p = {_p(equivalence)})"]
        if damage < gate.alpha:
            reasons.append(f"a small real loss: McNemar p = {_p(damage)}, {table.b} broke and {table.c} mended")
        return Decision(Verdict.PASS, tuple(reasons))
    reasons = []
    if damage < gate.alpha:
        reasons.append(
            f"warm answers are worse: {table.b} of {table.n} questions broke and {table.c} mended "
            f"(exact McNemar p = {_p(damage)}); the score {_moved(table)}"
        )
    if loss < gate.alpha:
        reasons.append(f"the loss exceeds the margin: {interval} (p = {_p(loss)})")
    if reasons:
        return Decision(Verdict.FAIL, tuple(reasons))
    if (gain := mcnemar_p(PairedTable(table.n, table.c, table.b))) < gate.alpha:
        return Decision(
            Verdict.INCONCLUSIVE,
            (
                f"warm answers are better, by more than can be called the same: {table.c} of {table.n} questions "
                f"mended and {table.b} broke (exact McNemar p = {_p(gain)}); {interval}. Something differs between "
                "the passes: look at control and local_warm",
            ),
        )
    needed = needed_n(table.flip_rate, gate.margin, alpha=gate.alpha)
    advice = (
        f"at the observed flip rate of {table.flip_rate:.3f} about {needed} are needed"
        if needed > table.n
        else f"they would do for a true difference of 0, but the score {_moved(table)}: ask more of them"
    )
    return Decision(
        Verdict.INCONCLUSIVE,
        (f"{table.n} questions are too few to tell: {interval} (TOST p = {_p(equivalence)}); {advice}",),
    )


def _moved(table: PairedTable) -> str:
    if table.difference == 0:
        return f"is unchanged over {table.n} questions ({table.b} broke, {table.c} mended)"
    direction = "fell" if table.difference > 0 else "rose"
    return f"{direction} by {abs(table.difference):.3f} over {table.n} questions"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
