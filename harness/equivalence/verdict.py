"""The verdict of a cell and of a run, as frozen values with their reasons in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.config import GateConfig
from harness.equivalence.drift import Drift
from harness.equivalence.holm import holm
from harness.equivalence.lmcache_ci import LMCacheRule
from harness.equivalence.paired import PairedTable
from harness.equivalence.score import ScoreTests
from harness.equivalence.validity import ValidityCheck


class Verdict(StrEnum):
    """What a comparison came to."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 4, Verdict.INVALID: 4}

WORST_FIRST = (Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS)

FAILING: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "McNemar": lambda cell: of_alpha(cell, cell["paired"]["mcnemar_p"]),
    "loss": lambda cell: of_alpha(cell, cell["paired"]["loss_p"]),
    "drift": lambda cell: of_alpha(cell, cell["drift"]["p"]),
}
"""Kinds of tests that a cell can fail by, and where cell.json holds their p-values (null: not judged)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and why."""

    verdict: Verdict
    reasons: tuple[str, ...]


def decide(
    validity: Sequence[ValidityCheck], score: ScoreTests | None, drift: Drift, lmcache: LMCacheRule, gate: GateConfig
) -> Decision:
    """The verdict of one cell, by the rules of docs/verdict.md.

    Validity first: a comparison that proves nothing is ``invalid``, whatever the scores.  ``score`` is None when
    the passes can't be paired, which a failed validity check explains.  LMCache's own rule knows neither.
    """
    if gate.mode == "lmcache_ci":
        return Decision(Verdict.PASS if lmcache.passes else Verdict.FAIL, (lmcache.reason,))
    missed = [check.sentence for check in validity if not check.ok]
    if missed or score is None:
        return Decision(Verdict.INVALID, tuple(missed) or ("the passes can't be paired",))
    if gate.mode == "threshold":
        return _by_threshold(score.table, gate)
    by_score = judge_score(score)
    told = drift_reasons(drift)
    if drift.fails:
        return Decision(Verdict.FAIL, (*told, *by_score.reasons))
    return Decision(by_score.verdict, (*by_score.reasons, *told))


def judge_run(cells: Sequence[Mapping[str, Any]]) -> Decision:
    """The verdict of a run: it passes if all its cells do, and otherwise it is the worst of them.

    A cell that fails by a test fails the run only if its p-value is still below alpha after Holm's correction over
    the run's valid cells, each kind of test for itself; else it counts as inconclusive. Passing needs no correction:
    every cell must pass, so the chance to pass wrongly is at most that of one cell (intersection-union test, Berger
    1982, Technometrics 24:295-300). Repeats of the same documents are never pooled, so they need no model of how
    they depend on each other.

    Args:
        cells: contents of every complete cell's cell.json.
    """
    if not cells:
        return Decision(run_verdict([]), ("no cell is complete",))
    judged = counted_cells(cells)
    reasons = tuple(reason for _, reason in judged if reason)
    return Decision(run_verdict(verdict for verdict, _ in judged), reasons or (f"{_cells(len(cells))}: all pass",))


def counted_cells(cells: Sequence[Mapping[str, Any]]) -> list[tuple[Verdict, str]]:
    """What every cell counts as in its run, after Holm's correction, and the sentence about it, empty if it passes."""
    adjusted = _adjusted(cells)
    tested = sum(map(bool, adjusted))
    return [_among(cell, each, tested) for cell, each in zip(cells, adjusted, strict=True)]


def decide_uncompared(validity: Sequence[ValidityCheck], reason: str) -> Decision:
    """The verdict of a cell that retrieved nothing: it takes no part in equivalence, and may only be invalid or not.

    Args:
        validity: its checks.
        reason: why there is nothing to compare.
    """
    missed = tuple(check.sentence for check in validity if not check.ok)
    if missed:
        return Decision(Verdict.INVALID, missed)
    return Decision(Verdict.PASS, (reason,))


def run_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """A run passes if all its cells do; otherwise it is the worst of them, and invalid without any."""
    seen = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in seen), Verdict.INVALID)


def of_alpha(cell: Mapping[str, Any], p: float | None) -> float | None:
    """A p-value that alpha can be compared with: divided by the share of alpha that its look has, at most 1.

    The weights are the same for every alpha, so that it is a p-value over all looks: P(p_k / w_k <= u at the look k
    that ends the cell) <= w_1 u + ... + w_K u = u (weighted Bonferroni; Holm 1979).
    """
    looks = cell.get("looks")
    return p if p is None or not looks else min(1.0, p / float(looks["share"]))


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


def judge_score(score: ScoreTests) -> Decision:
    """What TOST, McNemar and the loss beyond the margin come to, without drift."""
    table, alpha = score.table, score.alpha
    interval = (
        f"{100 * score.confidence:.4g} % interval of the loss {score.low:+.4f} to {score.high:+.4f}, "
        f"margin ±{score.margin:g}"
    )
    if score.tost_p < alpha:
        reasons = [f"the score {_moved(table)}; {interval}: equivalent (TOST p = {_p(score.tost_p)})"]
        if score.mcnemar_p < alpha:
            reasons.append(
                f"a small real loss: McNemar p = {_p(score.mcnemar_p)}, {table.b} broke and {table.c} mended"
            )
        return Decision(Verdict.PASS, tuple(reasons))
    reasons = []
    if score.mcnemar_p < alpha:
        reasons.append(
            f"warm answers are worse: {table.b} of {table.n} questions broke and {table.c} mended "
            f"(exact McNemar p = {_p(score.mcnemar_p)}); the score {_moved(table)}"
        )
    if score.loss_p < alpha:
        reasons.append(f"the loss exceeds the margin: {interval} (p = {_p(score.loss_p)})")
    if reasons:
        return Decision(Verdict.FAIL, tuple(reasons))
    return Decision(Verdict.INCONCLUSIVE, (_undecided(score, interval),))


def _undecided(score: ScoreTests, interval: str) -> str:
    table = score.table
    if score.gain_p < score.alpha:
        return (
            f"warm answers are better, by more than can be called the same: {table.c} of {table.n} questions "
            f"mended and {table.b} broke (exact McNemar p = {_p(score.gain_p)}); {interval}. Something differs between "
            "the passes: look at control and local_warm"
        )
    advice = (
        f"at the observed flip rate of {table.flip_rate:.3f} about {score.needed_n} are needed, and an unchanged model "
        f"passes with {table.n} in {score.power:.0%} of runs"
        if score.needed_n > table.n
        else f"they would do for a true difference of 0, but the score {_moved(table)}: ask more of them"
    )
    return f"{table.n} questions are too few to tell: {interval} (TOST p = {_p(score.tost_p)}); {advice}"


def drift_reasons(drift: Drift) -> tuple[str, ...]:
    """What drift comes to, in words: first warm against the null, then the null's own."""
    found = drift.excess
    if found is None:
        return ("drift is not judged: there is no answer of a local_warm pass to judge it against",)
    level, finest = found.clearest if drift.fails else found.levels[0], found.most_sensitive
    seen = (
        "no damage could be seen"
        if finest.detectable is None
        else f"damage beyond {finest.nats:g} nats to {finest.detectable} or more would be seen"
    )
    told = [
        f"warm {'drifts from cold' if drift.fails else 'does not drift from cold'}: {level.beyond} of {found.n} "
        f"answers differ by more than {level.nats:g} nats in some token, and {level.null_beyond} in {drift.null} "
        f"(exact McNemar over {len(found.levels)} levels p = {_p(found.p)}; {seen})"
    ]
    if drift.null_drifts and drift.null_excess is not None:
        own = drift.null_excess.clearest
        told.append(
            f"{drift.null} itself drifts from cold: {own.beyond} of {drift.null_excess.n} answers differ by more than "
            f"{own.nats:g} nats, and {own.null_beyond} in {_null_name(drift)} (p = {_p(drift.null_excess.p)}): "
            + ("computing anew" if drift.null == "control" else "vLLM's own prefix cache")
            + " does this, not LMCache"
        )
    return tuple(told)


def _null_name(drift: Drift) -> str:
    return "a pass that repeats cold exactly" if drift.null_against == "exactness" else drift.null_against


def _adjusted(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Holm-adjusted p-values of every cell by kind of test; cells that test nothing (invalid, or nothing
    retrieved) are in no family.
    """
    adjusted: list[dict[str, float]] = [{} for _ in cells]
    valid = [i for i, cell in enumerate(cells) if cell["verdict"] != Verdict.INVALID.value and cell["paired"]]
    for kind, p_of in FAILING.items():
        family = [(index, p) for index in valid if (p := p_of(cells[index])) is not None]
        for (index, _), corrected in zip(family, holm([p for _, p in family]), strict=True):
            adjusted[index][kind] = corrected
    return adjusted


def _among(cell: Mapping[str, Any], adjusted: Mapping[str, float], cells: int) -> tuple[Verdict, str]:
    """What a cell counts as in its run, and the sentence about it, empty if it passes."""
    verdict = Verdict(cell["verdict"])
    if verdict is Verdict.PASS:
        return verdict, ""
    if verdict is not Verdict.FAIL or cell["gate"]["mode"] != "tost":
        return verdict, f"{cell['cell']}: {verdict.value}"
    alpha = cell["gate"]["alpha"]
    # An equivalent score can't fail, however significant the loss: then it was drift.
    equivalent = (of_alpha(cell, cell["paired"]["tost_p"]) or 0.0) < alpha
    kind, p = min(
        ((kind, p) for kind, p in adjusted.items() if kind == "drift" or not equivalent), key=lambda item: item[1]
    )
    told = f"{cell['cell']}: {kind} p = {_p(FAILING[kind](cell))}, Holm-adjusted over {_cells(cells)} {_p(p)}"
    if p < alpha:
        return Verdict.FAIL, f"{told}: fail"
    return Verdict.INCONCLUSIVE, f"{told}: not below {alpha:g} among so many, so it does not fail the run"


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def _moved(table: PairedTable) -> str:
    if table.difference == 0:
        return f"is unchanged over {table.n} questions ({table.b} broke, {table.c} mended)"
    direction = "fell" if table.difference > 0 else "rose"
    return f"{direction} by {abs(table.difference):.3f} over {table.n} questions"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
