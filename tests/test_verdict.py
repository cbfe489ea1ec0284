"""The decision table of a cell, the order of a run's verdicts, and what a CI job sees of them."""

from __future__ import annotations

from itertools import permutations

import pytest

from harness.config import GateConfig
from harness.equivalence.paired import PairedTable, loss_p, mcnemar_p, needed_n, tost_p
from harness.equivalence.validity import ValidityCheck
from harness.equivalence.verdict import Decision, Verdict, decide, decide_speed_only, exit_code, run_verdict

GATE = GateConfig(name="test")
THRESHOLD = GateConfig(name="test", mode="threshold", tolerance=0.05)
HELD = ValidityCheck("a", True, "3", "3", "never shown")
MISSED = ValidityCheck("b", False, "0 tokens", "above 0", "nothing was retrieved")


def decided(n: int, b: int, c: int, gate: GateConfig = GATE) -> Decision:
    return decide([HELD], PairedTable(n, b, c), gate)


def told(decision: Decision) -> str:
    return "; ".join(decision.reasons)


@pytest.mark.parametrize(
    ("n", "b", "c", "verdict", "words"),
    [
        pytest.param(300, 0, 0, Verdict.PASS, "unchanged over 300 questions (0 broke, 0 mended)", id="no flips"),
        pytest.param(88, 0, 0, Verdict.PASS, "equivalent", id="fewest questions that pass without a flip"),
        pytest.param(87, 0, 0, Verdict.INCONCLUSIVE, "about 88 are needed", id="one question fewer"),
        pytest.param(300, 6, 3, Verdict.PASS, "fell by 0.010 over 300 questions", id="flips, equivalent"),
        pytest.param(300, 3, 6, Verdict.PASS, "rose by 0.010 over 300 questions", id="flips the other way"),
        pytest.param(1319, 20, 20, Verdict.PASS, "unchanged over 1319 questions (20 broke, 20 mended)", id="symmetric"),
        pytest.param(300, 12, 2, Verdict.FAIL, "12 of 300 questions broke and 2 mended", id="McNemar"),
        pytest.param(300, 5, 0, Verdict.FAIL, "5 of 300 questions broke and 0 mended", id="few, all one way"),
        pytest.param(300, 4, 0, Verdict.PASS, "fell by 0.013", id="one fewer"),
        pytest.param(300, 60, 5, Verdict.FAIL, "the loss exceeds the margin", id="loss beyond the margin"),
        pytest.param(4, 4, 0, Verdict.FAIL, "the loss exceeds the margin", id="loss, where McNemar can't tell"),
        pytest.param(300, 8, 4, Verdict.INCONCLUSIVE, "about 566 are needed", id="too few to tell"),
        pytest.param(1319, 5, 100, Verdict.INCONCLUSIVE, "warm answers are better", id="a gain beyond the margin"),
    ],
)
def test_decision_table(n: int, b: int, c: int, verdict: Verdict, words: str) -> None:
    decision = decided(n, b, c)
    assert decision.verdict is verdict
    assert words in told(decision)


def test_reasons_of_a_pass_hold_its_numbers() -> None:
    assert decided(300, 6, 3).reasons == (
        "the score fell by 0.010 over 300 questions; 90 % interval of the loss -0.0074 to +0.0295, margin ±0.03: "
        "equivalent (TOST p = 0.047)",
    )


def test_a_small_real_loss_passes_and_is_reported() -> None:
    table = PairedTable(1319, 34, 6)
    assert tost_p(table, GATE.margin) < 0.05 and mcnemar_p(table) < 0.05
    decision = decide([HELD], table, GATE)
    assert decision.verdict is Verdict.PASS
    assert decision.reasons[1] == "a small real loss: McNemar p = 4.2e-06, 34 broke and 6 mended"


def test_a_pass_without_a_real_loss_does_not_speak_of_one() -> None:
    assert len(decided(300, 6, 3).reasons) == 1


def test_both_reasons_to_fail_are_told() -> None:
    decision = decided(300, 60, 5)
    assert [reason.split(":")[0] for reason in decision.reasons] == [
        "warm answers are worse",
        "the loss exceeds the margin",
    ]
    assert "the score fell by 0.183 over 300 questions" in decision.reasons[0]


def test_mcnemar_alone_and_loss_alone_fail() -> None:
    damage = PairedTable(300, 12, 2)
    assert mcnemar_p(damage) < 0.05 < loss_p(damage, GATE.margin)
    assert len(decide([], damage, GATE).reasons) == 1
    loss = PairedTable(4, 4, 0)
    assert loss_p(loss, GATE.margin) < 0.05 < mcnemar_p(loss)
    assert len(decide([], loss, GATE).reasons) == 1


def test_inconclusive_says_how_many_questions_are_needed() -> None:
    needed = needed_n(12 / 300, GATE.margin)
    decision = decided(300, 8, 4)
    assert f"at the observed flip rate of 0.040 about {needed} are needed" in told(decision)
    assert "300 questions are too few to tell" in told(decision)
    assert "TOST p = 0.096" in told(decision)


def test_a_gain_is_not_called_too_few_questions() -> None:
    decision = decided(1319, 5, 100)
    assert "100 of 1319 questions mended and 5 broke" in told(decision)
    assert "too few" not in told(decision)


@pytest.mark.parametrize(("n", "alpha"), [(300, 0.05), (500, 0.01)])
def test_questions_needed_are_never_fewer_than_were_asked(n: int, alpha: float) -> None:
    """Nobody is told that 300 questions are too few and 250 would do."""
    gate = GateConfig(name="test", alpha=alpha)
    for b in range(30):
        for c in range(30):
            decision = decided(n, b, c, gate)
            if "are needed" in told(decision):
                assert decision.verdict is Verdict.INCONCLUSIVE
                assert needed_n((b + c) / n, gate.margin, alpha=alpha) > n


def test_a_difference_that_makes_the_usual_number_too_few() -> None:
    gate = GateConfig(name="test", alpha=0.01)
    assert needed_n(8 / 500, gate.margin, alpha=gate.alpha) < 500
    assert "500 questions are too few to tell" in told(decided(500, 7, 1, gate))
    assert "the score fell by 0.012 over 500 questions: ask more of them" in told(decided(500, 7, 1, gate))


@pytest.mark.parametrize("n", [20, 88, 300])
def test_no_table_with_more_damage_gets_a_better_verdict(n: int) -> None:
    rank = {Verdict.PASS: 0, Verdict.INCONCLUSIVE: 1, Verdict.FAIL: 2}
    for c in (0, 3):
        ranks = [rank[decided(n, b, c).verdict] for b in range(c, n - c + 1)]
        assert ranks == sorted(ranks)


def test_alpha_and_margin_come_from_the_gate() -> None:
    assert decided(300, 6, 3, GateConfig(name="g", alpha=0.04)).verdict is Verdict.INCONCLUSIVE
    assert "92 % interval" in told(decided(300, 6, 3, GateConfig(name="g", alpha=0.04)))
    assert decided(300, 12, 2, GateConfig(name="g", alpha=0.001)).verdict is Verdict.INCONCLUSIVE
    assert decided(300, 12, 2, GateConfig(name="g", margin=0.1)).verdict is Verdict.PASS
    assert decided(300, 0, 0, GateConfig(name="g", margin=0.005)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("gate", [GATE, THRESHOLD])
@pytest.mark.parametrize("table", [PairedTable(300, 0, 0), PairedTable(300, 60, 0), PairedTable(10, 1, 1), None])
def test_invalid_beats_everything(gate: GateConfig, table: PairedTable | None) -> None:
    decision = decide([HELD, MISSED, HELD], table, gate)
    assert decision == Decision(Verdict.INVALID, ("nothing was retrieved: 0 tokens (required: above 0)",))


def test_every_miss_is_told() -> None:
    assert len(decide([MISSED, HELD, MISSED], PairedTable(300, 0, 0), GATE).reasons) == 2


def test_passes_that_cannot_be_paired_are_invalid() -> None:
    assert decide([HELD], None, GATE) == Decision(Verdict.INVALID, ("the passes can't be paired",))


@pytest.mark.parametrize(
    ("n", "b", "c", "verdict", "words"),
    [
        (300, 15, 0, Verdict.PASS, "fell by 0.050 over 300 questions, within the tolerance of 0.05"),
        (300, 16, 0, Verdict.FAIL, "fell by 0.053 over 300 questions, beyond the tolerance of 0.05"),
        (300, 0, 15, Verdict.PASS, "rose by 0.050 over 300 questions, within"),
        (300, 0, 16, Verdict.FAIL, "rose by 0.053 over 300 questions, beyond"),
        (20, 1, 0, Verdict.PASS, "within"),
        (20, 2, 0, Verdict.FAIL, "beyond"),
        (20, 0, 0, Verdict.PASS, "unchanged"),
        (300, 100, 100, Verdict.PASS, "unchanged over 300 questions (100 broke, 100 mended)"),
    ],
)
def test_threshold_mode_is_lmcaches_own_rule(n: int, b: int, c: int, verdict: Verdict, words: str) -> None:
    decision = decided(n, b, c, THRESHOLD)
    assert decision.verdict is verdict
    assert words in told(decision)
    assert "no error rate is controlled" in told(decision)


def test_the_tolerance_is_included_whatever_the_number_of_questions() -> None:
    """0.05 is no exact binary fraction; n/20 of n questions must still be within it."""
    for n in range(20, 2000, 20):
        assert decided(n, n // 20, 0, THRESHOLD).verdict is Verdict.PASS
        assert decided(n, 0, n // 20, THRESHOLD).verdict is Verdict.PASS
        assert decided(n, n // 20 + 1, 0, THRESHOLD).verdict is Verdict.FAIL


def test_a_run_is_the_worst_of_its_cells() -> None:
    worst_first = [Verdict.FAIL, Verdict.INVALID, Verdict.INCONCLUSIVE, Verdict.PASS]
    for size in range(1, 5):
        for verdicts in permutations(worst_first, size):
            assert run_verdict(verdicts) is min(verdicts, key=worst_first.index)
    assert run_verdict([Verdict.PASS, Verdict.PASS]) is Verdict.PASS
    assert run_verdict([]) is Verdict.INVALID, "a run without a cell proves nothing"


@pytest.mark.parametrize(
    ("verdict", "fail", "warn"),
    [(Verdict.PASS, 0, 0), (Verdict.FAIL, 1, 1), (Verdict.INCONCLUSIVE, 4, 0), (Verdict.INVALID, 4, 4)],
)
def test_exit_codes(verdict: Verdict, fail: int, warn: int) -> None:
    assert exit_code(verdict, "fail") == fail
    assert exit_code(verdict, "warn") == warn


def test_speed_only_is_valid_or_not() -> None:
    assert decide_speed_only([HELD]).verdict is Verdict.PASS
    decision = decide_speed_only([HELD, MISSED])
    assert decision.verdict is Verdict.INVALID
    assert decision.reasons == ("nothing was retrieved: 0 tokens (required: above 0)",)
