"""Drift: the test by hand, its false-alarm and detection rates by simulation, and what the judge makes of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evidence import evidence_of, failed, healthy, pass_of, record, right_by_default, with_pass, with_records
from numpy.typing import NDArray
from statsmodels.stats.contingency_tables import mcnemar

from harness.config import GateConfig
from harness.equivalence.drift import LEVELS, Excess, detectable, excess, measure_drift
from harness.equivalence.evidence import Evidence
from harness.equivalence.judge import judge_cell
from harness.workload.stream import RequestRecord

GATE = GateConfig(name="test")
MARGIN = GATE.drift_margin_nats
QUESTIONS = 300

Nats = NDArray[np.float64]


def excess_over(judged: Nats, null: Nats) -> Excess:
    return excess(judged, null, MARGIN, GATE.alpha)


# --- the test ----------------------------------------------------------------------------------------------


def test_levels_by_hand() -> None:
    """Six documents: equal; beyond 0.1 in both; only judged, at every level; twice only null; only judged at 0.4."""
    judged = np.array([0.0, 0.2, 2.0, 0.0, 0.05, 0.5])
    null = np.array([0.0, 0.3, 0.0, 0.2, 0.50, 0.3])
    found = excess_over(judged, null)
    assert [level.nats for level in found.levels] == pytest.approx([0.1, 0.4, 1.6])
    counts = [(level.beyond, level.null_beyond, level.only, level.only_null) for level in found.levels]
    assert counts == [(3, 4, 1, 2), (2, 1, 2, 1), (1, 0, 1, 0)]
    # P(at least b heads of b + c): (3 + 3 + 1)/8, (3 + 1)/8, 1/2.
    assert [level.p for level in found.levels] == pytest.approx([7 / 8, 1 / 2, 1 / 2])
    assert found.p == 1.0
    assert found.clearest.nats == pytest.approx(0.4)


def test_every_level_agrees_with_statsmodels() -> None:
    """Their two-sided p is twice the smaller one-sided one, at most 1."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        judged, null = np.exp(rng.normal(-1, 1, (2, 60)))
        one, other = excess_over(judged, null), excess_over(null, judged)
        for level, mirrored in zip(one.levels, other.levels, strict=True):
            theirs = mcnemar([[0, level.only], [level.only_null, 0]], exact=True).pvalue
            assert min(1.0, 2 * min(level.p, mirrored.p)) == pytest.approx(theirs, abs=1e-9)


def test_the_smallest_p_counts_once_for_every_level() -> None:
    null = np.zeros(50)
    judged = np.where(np.arange(50) < 7, 0.2, 0.0)
    assert excess_over(judged, null).p == pytest.approx(3 * 0.5**7)
    assert excess_over(judged, null).clearest.nats == MARGIN


def test_exactly_the_margin_is_within_it() -> None:
    assert excess_over(np.full(20, MARGIN), np.zeros(20)).p == 1.0
    assert excess_over(np.full(20, np.nextafter(MARGIN, 1)), np.zeros(20)).p < 0.001


def test_differences_within_the_margin_never_drift_however_many() -> None:
    """Significant by any rank test, and no effect."""
    assert excess_over(np.full(1319, 0.9 * MARGIN), np.zeros(1319)).p == 1.0


def test_less_than_the_null_is_no_drift() -> None:
    assert excess_over(np.zeros(300), np.full(300, 5.0)).p == 1.0


def test_the_same_damage_in_both_passes_drops_out() -> None:
    both = np.where(np.arange(300) < 60, 3.0, 0.0)
    found = excess_over(both, both)
    assert found.p == 1.0
    assert (found.levels[0].beyond, found.levels[0].only) == (60, 0)


@pytest.mark.parametrize("n", [20, 300, 1319])
def test_without_noise_six_documents_are_seen_and_five_are_not(n: int) -> None:
    """3 levels x 2^-6 = 0.047 and 3 x 2^-5 = 0.094, whatever n."""
    assert detectable(n, 0, 0.05) == 6
    for damaged, seen in ((5, False), (6, True)):
        found = excess_over(np.where(np.arange(n) < damaged, 2.0, 0.0), np.zeros(n))
        assert (found.p < 0.05) is seen


def test_noise_and_few_documents_hide_damage() -> None:
    needed = [detectable(300, beyond, 0.05) for beyond in (0, 1, 3, 30, 100)]
    assert needed == sorted(needed, key=lambda k: k or math.inf) and None not in needed
    assert detectable(300, 300, 0.05) is None, "where local_warm is always beyond, warm can't be more often"
    assert detectable(5, 0, 0.05) is None, "five documents can't be significant over three levels"


@pytest.mark.parametrize(("n", "beyond"), [(300, 0), (300, 3), (300, 30), (300, 150), (1319, 60)])
def test_detectable_is_where_the_test_turns(n: int, beyond: int) -> None:
    """With the expected background on both sides, and one document fewer or not."""
    background = math.ceil(beyond * (n - beyond) / n)
    needed = detectable(n, beyond, 0.05)
    assert needed is not None
    for damaged, seen in ((needed - 1, False), (needed, True)):
        judged, null = np.zeros(n), np.zeros(n)
        null[:background] = 1e3
        judged[background : 2 * background + damaged] = 1e3
        assert (excess_over(judged, null).p < 0.05) is seen


def test_with_noise_detectable_is_seen_in_about_half_of_all_runs() -> None:
    """30 of 300 documents beyond by noise, at every level alike: 20 damaged ones are seen in 40 to 65 % of runs."""
    rng = np.random.default_rng(8)
    needed = detectable(300, 30, GATE.alpha)
    assert needed == 20
    seen = 0
    for _ in range(300):
        warm, null = (np.where(rng.random(300) < 0.1, 9.0, 0.0) for _ in range(2))
        warm[np.flatnonzero(warm == 0.0)[:needed]] = 9.0
        seen += excess_over(warm, null).p < GATE.alpha
    assert 0.4 < seen / 300 < 0.65


# --- error rates, by simulation ----------------------------------------------------------------------------


def cpu_noise(rng: np.random.Generator) -> Nats:
    """Healthy passes at concurrency 8 on the CPU engine: exact in 97 %, else 7e-6 nats (measured)."""
    return np.where(rng.random(QUESTIONS) < 0.97, 0.0, np.abs(rng.normal(0, 7e-6, QUESTIONS)))


def gpu_noise(rng: np.random.Generator) -> Nats:
    """A guess at half precision and long answers: the largest difference has median 0.15 nats, 95 % below 0.56."""
    return np.exp(rng.normal(math.log(0.15), 0.8, QUESTIONS))


def alarms(noise: Any, damaged: int, *, nats: float = 2.0, runs: int = 300) -> float:
    """Share of runs that drift, with this many of 300 documents pushed away from cold by about 2 nats."""
    rng = np.random.default_rng(20261129)
    seen = 0
    for _ in range(runs):
        null, warm = noise(rng), noise(rng)
        hit = rng.choice(QUESTIONS, damaged, replace=False)
        warm[hit] += np.abs(rng.normal(nats, nats / 4, damaged))
        seen += excess_over(warm, null).p < GATE.alpha
    return seen / runs


@pytest.mark.parametrize("noise", [cpu_noise, gpu_noise])
def test_false_alarms_stay_below_alpha(noise: Any) -> None:
    """Measured over 2,000 runs: 0.000 (CPU) and 0.026 (GPU); exact tests of levels that overlap are conservative."""
    assert alarms(noise, 0, runs=600) <= GATE.alpha


@pytest.mark.parametrize(
    ("noise", "percent", "low", "high"),
    [
        (cpu_noise, 1, 0.0, 0.0),
        (cpu_noise, 5, 1.0, 1.0),
        (cpu_noise, 20, 1.0, 1.0),
        (gpu_noise, 1, 0.0, 0.1),
        (gpu_noise, 5, 0.95, 1.0),
        (gpu_noise, 20, 1.0, 1.0),
    ],
)
def test_detection_of_damaged_documents(noise: Any, percent: int, low: float, high: float) -> None:
    """5 % of 300 prompts are 15; 1 % are 3, fewer than the 6 that can be seen. GPU measured: 0.04, 0.997, 1."""
    assert low <= alarms(noise, QUESTIONS * percent // 100) <= high


def test_the_higher_levels_see_what_noise_hides_at_the_margin() -> None:
    """With the margin alone, 5 % of damaged documents would drown in the noise of a GPU."""
    rng = np.random.default_rng(3)
    at_margin = at_any = 0
    for _ in range(100):
        null, warm = gpu_noise(rng), gpu_noise(rng)
        warm[:15] += 2.0
        found = excess_over(warm, null)
        at_margin += found.levels[0].p < GATE.alpha
        at_any += found.p < GATE.alpha
    assert at_margin < 40 < 95 <= at_any


def test_a_mean_would_hide_what_the_share_shows() -> None:
    """15 of 300 documents off by 0.5 nats: the mean is 0.025, well within the margin."""
    damaged = np.where(np.arange(QUESTIONS) < 15, 0.5, 0.0)
    assert damaged.mean() < MARGIN / 3
    assert excess_over(damaged, np.zeros(QUESTIONS)).p < 1e-3


# --- on evidence -------------------------------------------------------------------------------------------


def moved(doc_id: int, token: int, nats: float, name: str = "warm") -> RequestRecord:
    """An answer whose logprob differs from cold at one token."""
    healthy_one = record(name, doc_id)
    logprobs = [value - nats * (index == token) for index, value in enumerate(healthy_one.logprobs)]
    return replace(healthy_one, logprobs=logprobs)


def damaged(count: int, token: int = 4, nats: float = 2.4, questions: int = QUESTIONS) -> Evidence:
    """Documents whose state was damaged before warm, in a way that only one token shows; every score is equal."""
    return with_records(healthy(questions), "warm", {doc_id: moved(doc_id, token, nats) for doc_id in range(count)})


@pytest.mark.parametrize("token", [0, 4, 16])
def test_five_percent_of_damaged_prompts_fail_with_an_equal_score(token: int) -> None:
    """State that only one token reads, wherever it is: the recurrent state shows in token 0, attention in token 4."""
    judged = judge_cell(damaged(15, token), GATE)
    assert judged["verdict"] == "fail"
    assert judged["paired"]["b"] == 0
    assert judged["reasons"][0].startswith("warm drifts from cold: 15 of 300 answers differ by more than 0.1 nats")
    assert "equivalent" in judged["reasons"][1], "what the score came to is told as well"
    assert judged["lmcache_ci"]["verdict"] == "pass", "LMCache's own rule does not see it"


def test_no_damage_passes_and_says_what_would_have_been_seen() -> None:
    judged = judge_cell(damaged(0), GATE)
    assert judged["verdict"] == "pass"
    assert "warm does not drift from cold: 0 of 300 answers" in judged["reasons"][1]
    assert "damage beyond 0.1 nats to 6 or more would be seen" in judged["reasons"][1]
    assert judged["drift"]["detectable"] == 6


def test_damage_to_fewer_documents_than_detectable_passes() -> None:
    assert judge_cell(damaged(5), GATE)["verdict"] == "pass"
    assert judge_cell(damaged(6), GATE)["verdict"] == "fail"


def test_drift_within_the_margin_passes() -> None:
    assert judge_cell(damaged(QUESTIONS, nats=0.09), GATE)["verdict"] == "pass"
    assert judge_cell(damaged(QUESTIONS, nats=0.09), GateConfig(name="t", drift_margin_nats=0.05))["verdict"] == "fail"


def test_drift_that_local_warm_shares_is_not_lmcaches() -> None:
    both = with_records(damaged(30), "local_warm", {doc: moved(doc, 4, 2.4, "local_warm") for doc in range(30)})
    judged = judge_cell(both, GATE)
    assert judged["verdict"] == "pass"
    assert judged["drift"]["local_warm"]["drifts"] is True
    assert (
        "local_warm itself drifts from cold: 30 of 300 answers differ by more than 0.1 nats, and 0 in control "
        in judged["reasons"][-1]
    )
    assert judged["reasons"][-1].endswith("vLLM's own prefix cache does this, not LMCache")


def test_noise_that_control_shares_is_no_drift_of_local_warm() -> None:
    noisy = healthy(QUESTIONS)
    for name in ("control", "local_warm"):
        noisy = with_records(noisy, name, {doc: moved(doc, 4, 2.4, name) for doc in range(30)})
    drift = measure_drift(noisy, GATE)
    assert not drift.null_drifts and not drift.fails


def test_without_control_local_warm_is_held_against_exactness() -> None:
    drifting = with_records(healthy(QUESTIONS), "local_warm", {d: moved(d, 4, 2.4, "local_warm") for d in range(6)})
    passes = {name: each for name, each in drifting.passes.items() if name != "control"}
    judged = judge_cell(replace(drifting, passes=passes), GATE)
    assert judged["drift"]["local_warm"]["against"] == "exactness"
    assert "and 0 in a pass that repeats cold exactly" in judged["reasons"][-1]


def test_without_local_warm_control_is_the_null() -> None:
    passes = {name: each for name, each in damaged(30).passes.items() if name != "local_warm"}
    judged = judge_cell(replace(damaged(30), passes=passes), GATE)
    assert judged["verdict"] == "fail"
    assert judged["drift"]["null"] == "control"
    assert "and 0 in control (exact McNemar" in judged["reasons"][0]
    noisy = with_records(healthy(QUESTIONS), "control", {d: moved(d, 4, 2.4, "control") for d in range(6)})
    passes = {name: each for name, each in noisy.passes.items() if name != "local_warm"}
    judged = judge_cell(replace(noisy, passes=passes), GATE)
    assert judged["reasons"][-1].startswith("control itself drifts from cold: 6 of 300 answers")
    assert judged["reasons"][-1].endswith("computing anew does this, not LMCache")


def test_without_a_null_drift_is_not_judged_and_says_so() -> None:
    passes = {name: each for name, each in damaged(30).passes.items() if name in ("cold", "warm")}
    judged = judge_cell(replace(damaged(30), passes=passes), GATE)
    assert judged["verdict"] == "pass"
    assert judged["reasons"][-1].startswith("drift is not judged: there is no answer of a local_warm pass")
    assert (judged["drift"]["p"], judged["drift"]["n"], judged["drift"]["flips"]) == (None, 0, None)
    assert judged["drift"]["passes"]["warm"]["max_nats"]["max"] == pytest.approx(2.4)


def test_documents_that_local_warm_did_not_answer_are_left_out() -> None:
    partial = with_records(damaged(15), "local_warm", {doc: failed("local_warm", doc) for doc in range(10)})
    drift = measure_drift(partial, GATE)
    assert drift.excess is not None
    assert (drift.excess.n, drift.excess.levels[0].beyond) == (290, 5)
    assert not drift.fails


def test_numbers_of_a_pass_by_hand() -> None:
    """Ten documents of 17 tokens; 0 is off by 0.2 at token 0; 1 diverges at token 3 over a gap of 8.49 nats."""
    other = record("warm", 1)
    other = replace(
        other,
        token_ids=[*other.token_ids[:3], 300, *other.token_ids[4:]],
        runner_up_ids=[*other.runner_up_ids[:3], 3, *other.runner_up_ids[4:]],
        runner_up_logprobs=[-1.0] * 17,
        logprobs=[*other.logprobs[:3], -0.3, *other.logprobs[4:]],
    )
    evidence = with_records(
        evidence_of([pass_of("cold", 10), pass_of("warm", 10)]), "warm", {0: moved(0, 0, 0.2), 1: other}
    )
    told = measure_drift(evidence, GATE).passes["warm"]
    assert (told["n"], told["diverged"], told["near_ties"], told["first_divergence_p50"]) == (10, 1, 0, 3.0)
    assert (told["shared_tokens"], told["beyond"]) == (9 * 17 + 3, 2)
    assert told["first_token_nats"]["max"] == pytest.approx(0.2)
    # Token 300 had -9.0 in cold, and -0.3 now; token 3 fell from -0.51 to -1.0.
    assert told["max_nats"]["max"] == pytest.approx(8.7)
    assert told["mean_nats"] == pytest.approx(0.2 / (9 * 17 + 3))
    assert told["mean_kl_nats"] > 0


@pytest.mark.parametrize(("gap", "near_ties"), [(0.19, 1), (0.21, 0)])
def test_a_near_tie_is_what_differences_within_the_margin_can_turn(gap: float, near_ties: int) -> None:
    cold = replace(record("cold", 0), runner_up_logprobs=[-0.5 - gap] * 17)
    warm = record("warm", 0)
    warm = replace(warm, token_ids=[300, *warm.token_ids[1:]], runner_up_ids=[462] * 17, runner_up_logprobs=[-0.6] * 17)
    evidence = with_records(evidence_of([pass_of("cold", 1), pass_of("warm", 1)]), "warm", {0: warm})
    evidence = with_records(evidence, "cold", {0: cold})
    told = measure_drift(evidence, GATE).passes["warm"]
    assert (told["diverged"], told["near_ties"]) == (1, near_ties)


def test_excess_flips_by_hand() -> None:
    """Warm flips 0 to 3, local_warm 3 and 4: three against one, p = (4 + 1)/16."""
    evidence = healthy()
    for name, flipped in (("warm", (0, 1, 2, 3)), ("local_warm", (3, 4))):
        right = [right_by_default(doc) != (doc in flipped) for doc in range(120)]
        evidence = with_pass(evidence, name, samples=evidence.passes[name].samples.assign(score=np.array(right, float)))
    flips = measure_drift(evidence, GATE).numbers()["flips"]
    assert flips == pytest.approx({"warm": 4, "local_warm": 2, "only_warm": 3, "only_local_warm": 1, "p": 5 / 16})


def test_the_levels_start_at_the_margin() -> None:
    assert LEVELS[0] == 1.0 and list(LEVELS) == sorted(LEVELS)
