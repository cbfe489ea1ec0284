"""The decision table of a cell, the order of a run's verdicts, and what a CI job sees of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from harness.config import GateConfig
from harness.equivalence.drift import Drift, excess
from harness.equivalence.lmcache_ci import LMCacheRule
from harness.equivalence.paired import PairedTable, loss_p, mcnemar_p, needed_n, tost_p
from harness.equivalence.score import score_tests
from harness.equivalence.validity import ValidityCheck
from harness.equivalence.verdict import (
    Decision,
    Verdict,
    decide,
    decide_uncompared,
    exit_code,
    judge_run,
    run_verdict,
)

GATE = GateConfig(name="test")
THRESHOLD = GateConfig(name="test", mode="threshold", tolerance=0.05)
HELD = ValidityCheck("a", True, "3", "3", "never shown")
MISSED = ValidityCheck("b", False, "0 tokens", "above 0", "nothing was retrieved")


EXACT, BROKEN = np.zeros(300), np.where(np.arange(300) < 30, 2.0, 0.0)


def drift_of(warm: Any = EXACT, local_warm: Any = EXACT, control: Any = EXACT) -> Drift:
    """Drift with these largest differences per document, in nats."""
    judged, own = (excess(one, other, 0.1, 0.05) for one, other in ((warm, local_warm), (local_warm, control)))
    return Drift(0.1, 0.05, judged, "local_warm", own, null_against="control", flips=None, passes={})


NO_DRIFT, DRIFTING = drift_of(), drift_of(BROKEN)
RULE = LMCacheRule(passes=False, n=300, difference=0.2, retrieves=7, reason="LMCache says so")


def reached(
    table: PairedTable | None,
    gate: GateConfig = GATE,
    *,
    drift: Drift = NO_DRIFT,
    checks: tuple[ValidityCheck, ...] = (HELD,),
) -> Decision:
    return decide(checks, score_tests(table, gate) if table else None, drift, RULE, gate)


def decided(n: int, b: int, c: int, gate: GateConfig = GATE) -> Decision:
    """What the score alone comes to: without the sentence on drift that every other verdict ends with."""
    decision = reached(PairedTable(n, b, c), gate)
    if gate.mode != "tost":
        return decision
    assert decision.reasons[-1].startswith("warm does not drift from cold")
    return replace(decision, reasons=decision.reasons[:-1])


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
    decision = decided(1319, 34, 6)
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
    assert len(decided(300, 12, 2).reasons) == 1
    loss = PairedTable(4, 4, 0)
    assert loss_p(loss, GATE.margin) < 0.05 < mcnemar_p(loss)
    assert len(decided(4, 4, 0).reasons) == 1


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
        for c in range(0, 30, 3):
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
    decision = reached(table, gate, checks=(HELD, MISSED, HELD))
    assert decision == Decision(Verdict.INVALID, ("nothing was retrieved: 0 tokens (required: above 0)",))


def test_every_miss_is_told() -> None:
    assert len(reached(PairedTable(300, 0, 0), checks=(MISSED, HELD, MISSED)).reasons) == 2


def test_passes_that_cannot_be_paired_are_invalid() -> None:
    assert reached(None) == Decision(Verdict.INVALID, ("the passes can't be paired",))


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


# --- drift -------------------------------------------------------------------------------------------------


def test_drift_fails_an_equal_score_and_is_told_first() -> None:
    decision = reached(PairedTable(300, 0, 0), drift=DRIFTING)
    assert decision.verdict is Verdict.FAIL
    assert decision.reasons == (
        "warm drifts from cold: 30 of 300 answers differ by more than 0.1 nats in some token, and 0 in local_warm "
        "(exact McNemar over 3 levels p = 2.8e-09; damage beyond 0.1 nats to 6 or more would be seen)",
        *decided(300, 0, 0).reasons,
    )


@pytest.mark.parametrize("table", [PairedTable(300, 8, 4), PairedTable(300, 12, 2)])
def test_drift_fails_whatever_the_score_comes_to(table: PairedTable) -> None:
    assert reached(table, drift=DRIFTING).verdict is Verdict.FAIL


def test_without_drift_the_score_decides() -> None:
    for table in (PairedTable(300, 0, 0), PairedTable(300, 8, 4), PairedTable(300, 12, 2)):
        assert reached(table).verdict is decided(table.n, table.b, table.c).verdict


def test_drift_is_named_at_the_level_that_shows_it() -> None:
    """At the margin 300 against 299 say nothing; beyond 1.6 nats 30 against none do."""
    noise = np.full(300, 0.2)
    decision = reached(PairedTable(300, 0, 0), drift=drift_of(np.where(BROKEN > 0, 2.0, noise), noise))
    assert decision.verdict is Verdict.FAIL
    assert "30 of 300 answers differ by more than 0.4 nats in some token, and 0 in local_warm" in told(decision)


def test_a_null_that_is_always_beyond_is_said_to_show_nothing() -> None:
    everywhere = np.full(300, 9.0)
    decision = reached(PairedTable(300, 0, 0), drift=drift_of(everywhere, everywhere, everywhere))
    assert "no damage could be seen" in told(decision)


def test_local_warms_own_drift_is_told_beside_a_failure() -> None:
    worse = np.where(np.arange(300) < 60, 2.0, 0.0)
    decision = reached(PairedTable(300, 0, 0), drift=drift_of(worse, BROKEN))
    assert decision.verdict is Verdict.FAIL
    assert "60 of 300 answers" in decision.reasons[0] and "30 in local_warm" in decision.reasons[0]
    assert decision.reasons[1].startswith("local_warm itself drifts from cold: 30 of 300 answers")


def test_threshold_knows_no_drift_and_lmcaches_rule_nothing_but_itself() -> None:
    assert reached(PairedTable(300, 0, 0), THRESHOLD, drift=DRIFTING).verdict is Verdict.PASS
    own = GateConfig(name="test", mode="lmcache_ci")
    assert reached(None, own, checks=(MISSED,)) == Decision(Verdict.FAIL, ("LMCache says so",))


# --- runs --------------------------------------------------------------------------------------------------


def cell(name: str, table: PairedTable | None, *, drift: Drift = NO_DRIFT, gate: GateConfig = GATE) -> dict[str, Any]:
    """What judge_run reads of cell.json."""
    score = score_tests(table, gate) if table else None
    return {
        "cell": name,
        "verdict": reached(table, gate, drift=drift).verdict.value,
        "paired": {kind: getattr(score, kind) for kind in ("tost_p", "mcnemar_p", "loss_p")} if score else None,
        "drift": drift.numbers(),
        "gate": {"alpha": gate.alpha, "mode": gate.mode},
    }


GOOD = PairedTable(300, 0, 0)
MARGINAL = PairedTable(300, 8, 1)
"""McNemar p = 0.0195, and not equivalent: fails alone, and not among three."""


def test_one_cell_is_a_run_of_its_own() -> None:
    for table in (GOOD, MARGINAL, PairedTable(300, 8, 4), PairedTable(300, 60, 0), None):
        alone = cell("a", table)
        assert judge_run([alone]).verdict.value == alone["verdict"]


def test_a_marginal_failure_needs_to_hold_among_all_cells() -> None:
    assert mcnemar_p(MARGINAL) == pytest.approx(10 / 512)
    pair = judge_run([cell("a", MARGINAL), cell("b", GOOD)])
    assert pair.verdict is Verdict.FAIL
    assert pair.reasons == ("a: McNemar p = 0.020, Holm-adjusted over 2 cells 0.039: fail",)
    three = judge_run([cell("a", MARGINAL), cell("b", GOOD), cell("c", GOOD)])
    assert three.verdict is Verdict.INCONCLUSIVE
    assert three.reasons == (
        "a: McNemar p = 0.020, Holm-adjusted over 3 cells 0.059: not below 0.05 among so many, so it does not fail "
        "the run",
    )


def test_a_clear_failure_holds_among_many_cells() -> None:
    cells = [cell(f"good{i}", GOOD) for i in range(20)]
    assert judge_run([*cells, cell("bad", PairedTable(300, 60, 0))]).verdict is Verdict.FAIL
    drifting = judge_run([*cells, cell("drift", GOOD, drift=DRIFTING)])
    assert drifting.verdict is Verdict.FAIL
    assert drifting.reasons == ("drift: drift p = 2.8e-09, Holm-adjusted over 21 cells 5.9e-08: fail",)


def test_a_real_loss_within_the_margin_is_no_reason_to_fail_a_run() -> None:
    """The cell fails by drift that does not hold among three; its McNemar p holds, and its score is equivalent."""
    faint = drift_of(np.where(np.arange(300) < 6, 2.0, 0.0))
    small = PairedTable(1319, 34, 6)
    assert mcnemar_p(small) < 0.001 and faint.fails
    run = judge_run([cell("a", small, drift=faint), cell("b", GOOD), cell("c", GOOD)])
    assert run.verdict is Verdict.INCONCLUSIVE
    assert "a: drift p = 0.047" in told(run)


def test_invalid_cells_are_in_no_family_and_make_the_run_invalid() -> None:
    run = judge_run([cell("a", MARGINAL), cell("b", None), cell("c", None), cell("d", GOOD)])
    assert run.verdict is Verdict.FAIL, "among the two that are valid"
    speed_only = cell("c", None) | {"verdict": "pass", "drift": None}
    assert judge_run([cell("a", MARGINAL), cell("d", GOOD), speed_only]) == judge_run(
        [cell("a", MARGINAL), cell("d", GOOD)]
    ), "it is in no family"
    assert judge_run([speed_only]).verdict is Verdict.PASS
    assert judge_run([cell("a", GOOD), cell("b", None)]) == Decision(Verdict.INVALID, ("b: invalid",))


def test_cells_of_other_gates_need_no_holm() -> None:
    cells = [cell(name, PairedTable(300, 16, 0), gate=THRESHOLD) for name in "abc"]
    assert judge_run(cells) == Decision(Verdict.FAIL, ("a: fail", "b: fail", "c: fail"))


def test_a_run_that_passes_says_of_how_many_cells() -> None:
    assert judge_run([cell("a", GOOD), cell("b", GOOD)]) == Decision(Verdict.PASS, ("2 cells: all pass",))
    assert judge_run([]) == Decision(Verdict.INVALID, ("no cell is complete",))


def test_healthy_runs_of_many_cells_rarely_fail() -> None:
    """Twelve cells at a true loss of 0 and a flip rate of 0.1 each, 100 runs: alone, every fourth run would fail."""
    of_table = cache(lambda table: cell("one of twelve", table))
    rng = np.random.default_rng(6)
    failed = alone = 0
    for _ in range(100):
        flips = rng.binomial(300, 0.1, 12)
        tables = [PairedTable(300, int(b), int(m - b)) for m, b in zip(flips, rng.binomial(flips, 0.5), strict=True)]
        cells = [of_table(table) for table in tables]
        failed += judge_run(cells).verdict is Verdict.FAIL
        alone += any(each["verdict"] == "fail" for each in cells)
    assert failed <= 5 < 25 <= alone


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


def test_what_retrieved_nothing_is_valid_or_not() -> None:
    assert decide_uncompared([HELD], "speed only") == Decision(Verdict.PASS, ("speed only",))
    decision = decide_uncompared([HELD, MISSED], "speed only")
    assert decision.verdict is Verdict.INVALID
    assert decision.reasons == ("nothing was retrieved: 0 tokens (required: above 0)",)
