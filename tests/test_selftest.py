"""The selftest's arithmetic: what detectors say, mixed and real rates, their intervals, and what is expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evidence import QUESTIONS, healthy, pass_of, record, right_by_default, with_flow, with_pass
from scipy.stats import binomtest, hypergeom
from selftest_support import GATE, damaged_evidence, documents, measured, outcome

from harness.config import GateConfig
from harness.equivalence.divergence import departures
from harness.equivalence.evidence import Evidence
from harness.equivalence.judge import judge_cell
from harness.errors import UsageError
from harness.selftest.detectors import DETECTORS, detect
from harness.selftest.expectations import State, judge_outcome
from harness.selftest.kinds import EXPECTED, expected_verdict
from harness.selftest.mixing import DOSES, Pair, agrees, check_mixing, damaged_count, mixed_detection, pairs_of
from harness.selftest.outcomes import documents_of
from harness.selftest.rates import rate_of
from harness.selftest.summary import MIXED, REAL, Summary, summarize

# --- detectors ---------------------------------------------------------------------------------------------


def drifted(count: int) -> Evidence:
    """A cell in which so many answers moved and none broke."""
    records = [record("warm", doc_id) for doc_id in range(QUESTIONS)]
    for doc_id in range(count):
        records[doc_id] = replace(records[doc_id], logprobs=[value - 3.0 for value in records[doc_id].logprobs])
    return with_pass(healthy(), "warm", requests=pass_of("warm", records=records).requests)


def broken(count: int) -> Evidence:
    """A cell in which so many answers broke and none moved."""
    right = pass_of("warm", right=lambda doc_id: right_by_default(doc_id) and doc_id >= count)
    return with_pass(healthy(), "warm", samples=right.samples)


@pytest.mark.parametrize(
    "evidence",
    [
        healthy(),
        drifted(5),
        drifted(6),
        broken(4),
        broken(5),
        broken(7),
        broken(30),
        damaged_evidence("flipped_bytes", 1.0, 1),
        damaged_evidence("flipped_bytes", 0.2, 1),
        with_flow(healthy(), "warm", retrieves_finished=0.0),
    ],
)
def test_detectors_say_what_the_verdict_of_the_same_cell_says(evidence: Evidence) -> None:
    """The same numbers by the way of cell.json."""
    cell = judge_cell(evidence, GATE)
    null = departures(evidence.passes["cold"].requests, evidence.passes["local_warm"].requests)["max_nats"]
    found = detect(documents_of(evidence, null), cell["lmcache_ci"]["retrieves"], GATE)
    assert found.drift == cell["drift"]["fails"]
    assert found.lmcache_ci == (cell["lmcache_ci"]["verdict"] == "fail")
    paired = cell["paired"]
    assert found.score == (paired["tost_p"] >= 0.05 and min(paired["mcnemar_p"], paired["loss_p"]) < 0.05)
    if cell["verdict"] != "invalid":
        assert found.gate == (cell["verdict"] != "pass")


def test_each_detector_can_fire_alone() -> None:
    assert detect(documents(), 300, GATE) == (False, False, False, False)
    assert detect(documents(beyond=range(5)), 300, GATE) == (False, False, False, False)
    assert detect(documents(beyond=range(6)), 300, GATE) == (False, True, False, True)
    # 12 of 300: McNemar 2^-12, while 0.04 is within LMCache's 0.05.
    assert detect(documents(wrong=range(12)), 300, GATE) == (True, False, False, True)
    assert detect(documents(wrong=range(16)), 300, GATE) == (True, False, True, True)
    assert detect(documents(), None, GATE) == (False, False, True, False)
    assert detect(documents(0), 300, GATE) == (False, False, False, True)
    # Too few questions to tell: not a fail, and not a pass.
    assert detect(documents(80), 80, GATE) == (False, False, False, True)


def test_without_local_warm_drift_cannot_fire() -> None:
    rows = documents(beyond=range(300))
    assert not detect(replace(rows, null_nats=np.full(300, np.nan)), 300, GATE).drift


# --- intervals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("caught", "launches"), [(0, 5), (3, 5), (5, 5), (1, 1), (0, 20), (19, 20)])
def test_intervals_of_whole_launches_are_clopper_pearson(caught: int, launches: int) -> None:
    rate = rate_of([1.0] * caught + [0.0] * (launches - caught))
    exact = binomtest(caught, launches).proportion_ci(0.95, method="exact")
    assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high))
    assert (rate.rate, rate.count, rate.launches) == (caught / launches, caught, launches)


def test_five_of_five_by_hand() -> None:
    """0.025^(1/5) = 0.478: the smallest rate at which 5 of 5 is not too unlikely."""
    assert rate_of([1.0] * 5).low == pytest.approx(0.025 ** (1 / 5))
    assert rate_of([0.0] * 5).high == pytest.approx(1 - 0.025 ** (1 / 5))


def test_draws_of_a_launch_do_not_make_an_interval_shorter() -> None:
    """A thousand draws that agree within each of five launches tell about five launches."""
    draws = rate_of([0.9, 0.95, 0.85, 0.9, 0.9])
    pooled = binomtest(900, 1000).proportion_ci(0.95, method="exact")
    assert draws.rate == pytest.approx(0.9)
    assert draws.high - draws.low > 10 * (pooled.high - pooled.low)
    lower, upper = rate_of([1.0] * 4 + [0.0]), rate_of([1.0] * 5)
    assert lower.low < draws.low < upper.low and draws.low < 0.9 < draws.high


# --- mixing ------------------------------------------------------------------------------------------------


def pair(moving: int, *, wrong: int = 0, launch: str = "budget127-r1") -> Pair:
    """Damage at full dose that moves the first ``moving`` of 300 answers, and breaks ``wrong``."""
    full = documents(beyond=range(moving), wrong=range(wrong))
    return Pair(outcome(launch=launch), outcome("flipped_bytes", 1.0, "fail", rows=full, launch=launch))


def test_mixtures_of_damage_that_always_shows() -> None:
    """3 documents are too few for drift, whose least is 6; 15 are enough."""
    assert [mixed_detection(pair(300), dose)["drift"] for dose in DOSES] == [0.0, 1.0, 1.0]
    # 1 % breaks 3 (McNemar 1/8), 5 % breaks 15 of 300: exactly 0.05, which LMCache accepts; 20 % is 0.2.
    found = [mixed_detection(pair(300, wrong=300), dose) for dose in DOSES]
    assert [each["score"] for each in found] == [0.0, 1.0, 1.0]
    assert [each["lmcache_ci"] for each in found] == [0.0, 0.0, 1.0]
    assert [each["gate"] for each in found] == [0.0, 1.0, 1.0]


def test_mixtures_of_damage_that_shows_in_half_the_answers() -> None:
    """Of 15 drawn from 300, at least 6 of the 150 that move: hypergeometric."""
    expected = float(hypergeom(300, 150, 15).sf(5))
    found = mixed_detection(pair(150), 0.05, draws=2000)["drift"]
    assert 0.8 < expected < 0.9
    assert found == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 2000) ** 0.5)


def test_mixtures_are_drawn_by_name() -> None:
    assert mixed_detection(pair(150), 0.05) == mixed_detection(pair(150), 0.05)
    assert mixed_detection(pair(150), 0.05) != mixed_detection(pair(150, launch="budget127-r2"), 0.05)


def test_a_mixture_takes_whole_rows() -> None:
    clean, damaged = documents(4), documents(4, beyond=range(4), wrong=range(4), noisy=4)
    mixed = damaged.where(np.array([True, False, False, True]), clean)
    assert mixed.nats.tolist() == mixed.null_nats.tolist() == [2.0, 0.0, 0.0, 2.0]
    assert mixed.warm.tolist() == [False, True, True, False]


def test_damaged_counts() -> None:
    assert [damaged_count(300, dose) for dose in DOSES] == [3, 15, 60]
    assert damaged_count(40, 0.01) == 1


def test_pairs_are_of_one_launch() -> None:
    cells = [
        outcome(launch="a"),
        outcome(launch="a", cell="second"),
        outcome("flipped_bytes", 1.0, "fail", launch="a"),
        outcome("flipped_bytes", 0.2, "fail", launch="a"),
        outcome("flipped_bytes", 1.0, "fail", launch="b"),
        outcome("flipped_bytes", 1.0, "fail", launch="a", run="another"),
    ]
    found = pairs_of(cells)
    assert list(found) == ["flipped_bytes"]
    assert [(each.undamaged.cell, each.full.launch) for each in found["flipped_bytes"]] == [("a-none-0", "a")]


def mixing_checks(real: range) -> bool:
    """Whether mixing holds for a real cell of 20 % in which these answers moved; all 60 damaged ones should."""
    cell = outcome("flipped_bytes", 0.2, "fail", rows=documents(beyond=real))
    (check,) = check_mixing({"flipped_bytes": [pair(300)]}, [cell])
    assert (check.damaged, check.mixed_beyond, check.bystanders, check.mixed_bystanders_beyond) == (60, 60, 240, 0)
    assert check.real_beyond == len([doc for doc in real if doc < 60])
    assert check.real_bystanders_beyond == len([doc for doc in real if doc >= 60])
    return check.holds


def test_mixing_holds_where_real_cells_show_the_same() -> None:
    assert mixing_checks(range(60))
    assert mixing_checks(range(5, 60))  # 5 fewer: 2 x 1/2^5 = 0.0625
    assert not mixing_checks(range(6, 60))  # 2 x 1/2^6 = 0.031
    assert not mixing_checks(range(66)), "six bystanders moved: prompts do touch each other"


def test_real_and_mixed_rates_are_compared() -> None:
    assert agrees(rate_of([1.0] * 5), rate_of([0.9] * 5))
    assert not agrees(rate_of([0.0] * 5), rate_of([0.9] * 5))
    assert not agrees(rate_of([1.0, 0.0]), rate_of([1.0] * 5))


# --- expectations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dose", "verdict", "state"),
    [
        ("none", 0.0, "pass", State.MET),
        ("none", 0.0, "fail", State.NOT_MET),
        ("none", 0.0, "inconclusive", State.UNDECIDED),
        ("none", 0.0, "invalid", State.UNDECIDED),
        ("flipped_bytes", 1.0, "fail", State.MET),
        ("flipped_bytes", 1.0, "pass", State.NOT_MET),
        ("flipped_bytes", 1.0, "invalid", State.NOT_MET),
        ("flipped_bytes", 1.0, "inconclusive", State.NOT_MET),
        ("flipped_bytes", 0.05, "pass", State.NOT_MET),  # 15 of 300, and 6 can be seen
        ("flipped_bytes", 0.03, "pass", State.NO_DEMAND),  # 9
        ("flipped_bytes", 0.01, "pass", State.NO_DEMAND),
        ("truncated", 1.0, "invalid", State.MET),
        ("truncated", 1.0, "pass", State.NOT_MET),
        ("truncated", 1.0, "fail", State.NOT_MET),
        ("failed_loads", 0.05, "pass", State.NOT_MET),  # 0.045 of the tokens, 0.02 are tolerated
        ("failed_loads", 0.03, "pass", State.NO_DEMAND),
        ("failed_loads", 0.01, "fail", State.NOT_MET),  # recomputed answers can't be wrong, however few
    ],
)
def test_what_is_expected(kind: str, dose: float, verdict: str, state: State) -> None:
    found = judge_outcome(outcome(kind, dose, verdict))
    assert found.state is state
    assert (found.expected is None) == (state is State.NO_DEMAND)


def test_expectations_in_words() -> None:
    told = judge_outcome(outcome("flipped_bytes", 0.05, "pass")).sentence
    assert "flipped bytes, 15 of 300 prompts: fail was expected and it is pass, THE GATE DID NOT BITE" in told
    assert "15 prompts were damaged and drift sees 6 at best" in told
    told = judge_outcome(outcome("truncated", 0.02, "pass")).sentence
    assert "nothing is demanded, since 0.018 of the prompt tokens at most are recomputed and 0.02 are tolerated" in told
    assert "FALSE ALARM: because" in judge_outcome(outcome("none", 0.0, "fail")).sentence


def test_little_is_demanded_where_noise_hides_damage() -> None:
    """With 30 documents of noise drift needs 20, so that 15 damaged ones may be missed, and 60 may not."""
    noisy = documents(noisy=30)
    assert judge_outcome(outcome("other_prompt", 0.05, "pass", rows=noisy)).state is State.NO_DEMAND
    assert judge_outcome(outcome("other_prompt", 0.2, "pass", rows=noisy)).state is State.NOT_MET


def test_kinds_of_the_issue() -> None:
    assert {kind for kind in EXPECTED if expected_verdict(kind).value == "invalid"} == {"truncated", "failed_loads"}
    assert len(EXPECTED) == 8
    with pytest.raises(UsageError, match="'melted' is not known"):
        expected_verdict("melted")


# --- the summary -------------------------------------------------------------------------------------------


def launch(number: int, *, seen: str = "fail", undamaged: str = "pass") -> list:  # type: ignore[type-arg]
    name = f"budget127-r{number}"
    return [
        outcome("none", 0.0, undamaged, launch=name),
        outcome("flipped_bytes", 1.0, seen, rows=documents(beyond=range(300)), launch=name),
        outcome("truncated", 1.0, "invalid", launch=name),
    ]


def summary_of(*launches: list, status: str = "complete") -> Summary:  # type: ignore[type-arg]
    return summarize([measured([cell for cells in launches for cell in cells], status=status)])


def test_exit_codes() -> None:
    assert summary_of(launch(1), launch(2)).exit_code == 0
    assert summary_of(launch(1), launch(2, seen="pass")).exit_code == 1
    assert summary_of(launch(1), launch(2, undamaged="fail")).exit_code == 1
    assert summary_of(launch(1), launch(2, undamaged="inconclusive")).exit_code == 4
    assert summary_of(launch(1), status="interrupted").exit_code == 4
    assert summary_of(launch(1, seen="pass"), status="interrupted").exit_code == 1
    assert summary_of(launch(1)[:1]).exit_code == 4
    assert summary_of(launch(1)[1:]).exit_code == 4
    assert summary_of([]).exit_code == 4


def test_points_of_real_and_mixed() -> None:
    summary = summary_of(*(launch(number, seen="pass" if number == 3 else "fail") for number in range(1, 6)))
    found = {(each.kind, each.dose, each.source, each.detector): each.rate for each in summary.points}
    assert found["flipped_bytes", 1.0, REAL, "gate"].count == 4
    assert found["flipped_bytes", 1.0, REAL, "drift"].count == 5
    assert found["truncated", 1.0, REAL, "gate"].count == 5
    assert found["truncated", 1.0, REAL, "drift"].count == 0
    assert found["flipped_bytes", 0.05, MIXED, "drift"].rate == 1
    assert found["flipped_bytes", 0.01, MIXED, "drift"].rate == 0
    assert ("truncated", 0.05, MIXED, "drift") in found
    assert ("truncated", 0.05, MIXED, "gate") not in found, "validity is no sum over documents"
    assert {each.detector for each in summary.points} == set(DETECTORS)
    assert summary.points[0].kind == "none"


def test_false_alarms_count_launches() -> None:
    """Two undamaged cells of a launch are one observation: one alarm of them is half."""
    cells = [*launch(1), outcome("none", 0.0, "fail", cell="second"), *launch(2)]
    alarms = summary_of(cells).false_alarms
    assert (alarms["fail"].count, alarms["fail"].launches) == (0.5, 2)
    assert alarms["drift"].count == alarms["score"].count == alarms["lmcache_ci"].count == 0
    assert summary_of(launch(1)[1:]).false_alarms == {}


def test_real_rates_that_contradict_mixtures_are_told() -> None:
    cells = [*launch(1), outcome("flipped_bytes", 0.2, "pass")]
    (told, also) = summary_of(cells).disagreements
    assert told == "flipped_bytes at 20%: drift fired in 0 of 1 real launches, and in 100% of the mixtures"
    assert "gate" in also


def test_a_gate_that_ignores_drift_does_not_bite() -> None:
    """The selftest fails if the verdict stops being what the detectors say, and says where."""
    blind = replace(outcome("other_prompt", 1.0, "pass"), gate=GateConfig(name="blind", drift_margin_nats=9.0))
    summary = summarize([measured([*launch(1), blind])])
    assert summary.exit_code == 1
    (row,) = (row for row in summary.rows if row.expectation.state is State.NOT_MET)
    assert row.outcome.kind == "other_prompt"
