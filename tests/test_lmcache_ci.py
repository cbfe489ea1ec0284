"""LMCache's own rule, beside ours on the same evidence and as a gate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence import evidence_of, failed, healthy, pass_of, with_flow, with_records
from stack_support import composed

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence
from harness.equivalence.judge import judge_cell
from harness.equivalence.lmcache_ci import QUESTIONS, TOLERANCE, lmcache_rule

GATES = [GateConfig(name="g", mode=mode) for mode in ("tost", "threshold", "lmcache_ci")]


def broken(questions: int, count: int, first: int = 0) -> Evidence:
    """Cold is right everywhere; warm is wrong in ``count`` documents from ``first`` on."""
    warm = pass_of("warm", questions, right=lambda doc: not first <= doc < first + count)
    return evidence_of([pass_of("cold", questions, right=lambda _: True), warm])


@pytest.mark.parametrize(("count", "passes"), [(0, True), (15, True), (16, False)])
def test_five_points_of_300_questions(count: int, passes: bool) -> None:
    rule = lmcache_rule(broken(300, count))
    assert (rule.passes, rule.n) == (passes, 300)
    assert rule.difference == pytest.approx(count / 300)


def test_a_gain_beyond_the_tolerance_fails_as_well() -> None:
    cold, warm = pass_of("cold", 300, right=lambda doc: doc > 15), pass_of("warm", 300, right=lambda _: True)
    rule = lmcache_rule(evidence_of([cold, warm]))
    assert not rule.passes and rule.difference == pytest.approx(-16 / 300)


def test_only_the_first_300_questions_count() -> None:
    assert lmcache_rule(broken(400, 16, first=300)).difference == 0.0
    assert not lmcache_rule(broken(400, 16, first=284)).passes
    shuffled = broken(400, 16, first=300)
    warm = shuffled.passes["warm"]
    mixed = replace(warm, samples=warm.samples.sample(frac=1, random_state=1))
    assert lmcache_rule(replace(shuffled, passes={**shuffled.passes, "warm": mixed})).difference == 0.0


@pytest.mark.parametrize(("retrieves", "passes"), [(1, True), (0, False), (None, False)])
def test_any_retrieve_counts(retrieves: int | None, passes: bool) -> None:
    """One prompt of 120 was retrieved: LMCache is content, the harness is not."""
    hardly = with_flow(healthy(), "warm", retrieves_finished=retrieves, retrieves_submitted=retrieves, external_hit=384)
    assert lmcache_rule(hardly).passes is passes
    judged = judge_cell(hardly, GateConfig(name="g"))
    assert (judged["verdict"], judged["lmcache_ci"]["verdict"]) == ("invalid", "pass" if passes else "fail")


@pytest.mark.parametrize("gate", GATES)
def test_it_stands_beside_every_gate(gate: GateConfig) -> None:
    told = judge_cell(broken(120, 7), gate)["lmcache_ci"]
    assert (told["verdict"], told["tolerance"], told["n"], told["retrieves"]) == ("fail", TOLERANCE, 120, 120)
    assert told["difference"] == pytest.approx(7 / 120)
    assert "scores differ by 0.058 over 120 questions, beyond 0.05" in told["reason"]


def test_as_a_gate_it_is_the_verdict_and_validity_is_only_recorded() -> None:
    """Failed requests, and a model that knows nothing: none of LMCache's business."""
    some = with_records(healthy(), "warm", {0: failed("warm", 0)})
    ignorant = replace(some, facts=replace(some.facts, floor=0.99))
    judged = judge_cell(ignorant, GateConfig(name="g", mode="lmcache_ci"))
    assert judged["verdict"] == judged["lmcache_ci"]["verdict"] == "pass"
    assert judged["reasons"] == [judged["lmcache_ci"]["reason"]]
    assert not all(check["ok"] for check in judged["validity"])
    assert judge_cell(ignorant, GateConfig(name="g", mode="threshold"))["verdict"] == "invalid"


def test_its_numbers_are_lmcaches_whatever_the_gate_says() -> None:
    told = judge_cell(broken(300, 16), GateConfig(name="g", mode="lmcache_ci", tolerance=0.5))
    assert told["verdict"] == "fail"


def test_passes_over_different_documents_have_a_difference_of_means() -> None:
    cold, warm = pass_of("cold", 10, right=lambda doc: doc < 5), pass_of("warm", 8, right=lambda doc: doc < 4)
    assert lmcache_rule(evidence_of([cold, warm])).difference == 0.0


def test_the_gate_is_a_config() -> None:
    assert composed("gate=lmcache_ci").gate.mode == "lmcache_ci"
    assert QUESTIONS == 300
