"""Looks: the gate asked after every block of documents, so that what is clear early ends a run early.

The method is that of Haybittle (1971, British Journal of Radiology 44:793-797) and Peto et al. (1976, British Journal
of Cancer 34:585-612): the looks before the last demand much more than the last one, which therefore decides almost as
if nobody had looked. Error is spent by look and not by data (Lan and DeMets 1983, Biometrika 70:659-663): look k of K
has the level a_k, fixed before the run, with a_1 + ... + a_K = alpha; ``gate.interim_alpha`` of alpha is divided evenly
among the looks before the last. Each look is the ordinary gate at level a_k, on all documents so far. By Boole's
inequality the chance that any look errs is at most the sum of what each one may err by,

    P(any look errs) <= P(look 1 errs) + ... + P(look K errs) <= a_1 + ... + a_K = alpha,

whatever the dependence between looks, why a look ends the run, and which test it was. So it holds for each kind of
error by itself, as it does for the ordinary gate: failing by the score (exact McNemar: given the number of discordant
pairs, the broken ones are Binomial(m, 1/2) if nothing is damaged, however many blocks they came from), failing by drift
(McNemar over three levels), and passing (TOST). Boundaries that use the correlation of looks (O'Brien-Fleming,
Jennison and Turnbull 2000, Group Sequential Methods, chapters 2 and 7) rest on normal scores, or on a recursion for one
test at a time; all that they could give back is part of the difference between 0.8 alpha and alpha at the last look.

An early end asks for more than its level, since the ordinary gate's rules weigh more documents than an early look has:

* an early ``fail`` by the score needs a loss *beyond the margin* (McNemar p and loss p below a_k). A smaller loss that
  is merely real would fail now, and pass as equivalent with more documents;
* an early ``pass`` needs that nothing at all points the other way: not one answer more broke than mended, and at no
  level of drift one more is beyond it in warm only than in the null only. Otherwise a pass would come before the few
  damaged documents that all questions would have shown (1 % of 1,319 damaged: passed by 56 % of runs instead of 9 %);
* ``invalid`` ends the run, since counters only add up; but a cold score at the floor may yet rise.

Each of these makes an early end rarer, so no error grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.config import GateConfig

MAY_RECOVER = ("competence",)
"""Validity checks that a miss at an early look does not decide."""


def levels(gate: GateConfig) -> tuple[float, ...]:
    """The level of every look; they add up to ``gate.alpha``."""
    interim = gate.looks - 1
    if not interim:
        return (gate.alpha,)
    return (*[gate.alpha * gate.interim_alpha / interim] * interim, gate.alpha * (1 - gate.interim_alpha))


def gate_at(gate: GateConfig, number: int) -> GateConfig:
    """The ordinary gate that look ``number``, from 1, is."""
    return replace(gate, alpha=levels(gate)[number - 1], looks=1)


def questions_at(count: int, looks: int) -> list[int]:
    """How many of so many questions were asked at each look."""
    return [number * count // looks for number in range(1, looks + 1)]


def look_of(judged: Mapping[str, Any], number: int, gate: GateConfig) -> dict[str, Any]:
    """What cell.json holds of one look.

    Args:
        judged: contents of a cell.json, of all documents so far, judged at the look's level.
        number: of the look, from 1.
        gate: of the run.
    """
    paired, drift, level = judged["paired"] or {}, judged["drift"] or {}, levels(gate)[number - 1]
    judged_levels = drift.get("levels") or ()
    excess = max((each["only"] - each["only_null"] for each in judged_levels), default=None)
    look = {
        "look": number,
        "n": judged["passes"]["cold"]["n"],
        "level": level,
        "b": paired.get("b"),
        "c": paired.get("c"),
        "mcnemar_p": paired.get("mcnemar_p"),
        "loss_p": paired.get("loss_p"),
        "tost_p": paired.get("tost_p"),
        "drift_excess": excess,
        "drift_p": drift.get("p"),
        "verdict": judged["verdict"],
    }
    missed = [check["check"] for check in judged["validity"] if not check["ok"]]
    return look | {"ends": ends(look, missed, gate)}


def stop_reason(look: Mapping[str, Any], asked: int, gate: GateConfig) -> str:
    """At which look a cell ended and on what, in words.

    Args:
        look: its last one.
        asked: questions that would have been asked in all.
        gate: of the run.
    """
    where = f"look {look['look']} of {gate.looks}, after {look['n']} of {asked} questions"
    if not look["ends"]:
        return f"cut short at {where}: nothing was decided before"
    if _last(int(look["look"]), gate):
        return f"judged at the last look, at level {look['level']:.4g} of alpha = {gate.alpha:g}"
    return f"stopped early, at {where}: {_what_is_clear(look)}"


def ends(look: Mapping[str, Any], missed: Sequence[str], gate: GateConfig) -> bool:
    """Whether a look ends the run: the last one does, an earlier one by the rules above.

    Args:
        look: as cell.json has it.
        missed: names of validity checks that missed.
        gate: of the run.
    """
    if _last(look["look"], gate):
        return True
    match look["verdict"]:
        case "invalid":
            return not missed or not set(missed) <= set(MAY_RECOVER)
        case "fail":
            return _loses(look) or _drifts(look)
        case "pass":
            return gate.early_pass and bool(look["b"] <= look["c"]) and (look["drift_excess"] or 0) <= 0
    return False


def _what_is_clear(look: Mapping[str, Any]) -> str:
    at_level = f"at level {look['level']:.4g}"
    match look["verdict"]:
        case "invalid":
            return "the comparison proves nothing"
        case "pass":
            return f"equivalence is clear {at_level}, and nothing points to damage"
    clear = ["drift"] * _drifts(look) + ["a loss beyond the margin"] * _loses(look)
    return f"{' and '.join(clear)} {'are' if len(clear) > 1 else 'is'} clear {at_level}"


def _last(number: int, gate: GateConfig) -> bool:
    return number == gate.looks


def _loses(look: Mapping[str, Any]) -> bool:
    return look["verdict"] == "fail" and bool(max(look["mcnemar_p"], look["loss_p"]) < look["level"])


def _drifts(look: Mapping[str, Any]) -> bool:
    return look["drift_p"] is not None and bool(look["drift_p"] < look["level"])
