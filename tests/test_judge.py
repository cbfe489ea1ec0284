"""From files to cell.json: the contract of the result, with numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence import (
    EVENTS,
    FACTS,
    PASSES,
    QUESTIONS,
    N,
    evidence_of,
    failed,
    flow,
    healthy,
    pass_of,
    prompt_tokens,
    reachable,
    record,
    right_by_default,
    with_flow,
    with_pass,
    with_record,
    with_records,
    write_cell,
    write_passes,
)

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence, gather_cell, read_evidence
from harness.equivalence.judge import agreement, judge_cell
from harness.equivalence.validity import CHECKS
from harness.errors import HarnessError
from harness.store import read_json, write_json

GATE = GateConfig(name="test")

PASS_KEYS = {
    "score", "n", "wall_s", "ttft_s", "output_tokens_per_s", "prompt_tokens_per_s", "running", "prompt_tokens",
    "external_hit_tokens", "local_hit_tokens", "errors", "retries",
}  # fmt: skip
PAIRED_KEYS = {"n", "b", "c", "difference", "se", "tost_p", "mcnemar_p", "gain_p", "loss_p", "needed_n", "power"}
DRIFT_KEYS = {"margin_nats", "fails", "n", "p", "detectable", "levels", "null", "local_warm", "flips", "passes"}
RULE_KEYS = {"verdict", "tolerance", "n", "difference", "retrieves", "reason"}


@pytest.fixture(scope="module")
def from_files(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Healthy evidence that has been through real files."""
    folder = tmp_path_factory.mktemp("cell")
    return read_evidence(write_cell(folder / "cell", healthy(), folder / "passes"))


@pytest.fixture(scope="module")
def cell(from_files: Evidence) -> dict[str, Any]:
    return judge_cell(from_files, GATE)


def through_files(evidence: Evidence, folder: Path) -> dict[str, Any]:
    """cell.json of this evidence, written and read again as a run does it."""
    judged = judge_cell(read_evidence(write_cell(folder / "cell", evidence, folder / "passes")), GATE)
    write_json(folder / "cell" / "cell.json", judged)
    return read_json(folder / "cell" / "cell.json")


def no_infinities(value: Any) -> bool:
    if isinstance(value, dict):
        return all(no_infinities(each) for each in value.values())
    if isinstance(value, list):
        return all(no_infinities(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


# --- evidence ----------------------------------------------------------------------------------------------


def test_evidence_survives_the_disk(from_files: Evidence) -> None:
    assert from_files.facts == FACTS
    assert tuple(from_files.passes) == PASSES, "passes keep the order in which they ran"
    assert [dict(event) for event in from_files.events] == list(EVENTS)
    for name, each in from_files.passes.items():
        built = healthy().passes[name]
        assert (each.name, each.wall_s, each.started_at) == (name, built.wall_s, built.started_at)
        assert each.flow == flow(name)
        assert each.samples.to_dict("list") == built.samples.to_dict("list")
        assert each.timeline.to_dict("list") == built.timeline.to_dict("list")
        for column in built.requests.columns:
            read = [list(v) if hasattr(v, "__len__") and not isinstance(v, str) else v for v in each.requests[column]]
            assert read == built.requests[column].tolist(), column


def test_counters_are_kept_apart_from_the_rest(tmp_path: Path) -> None:
    folder = write_cell(tmp_path / "cell", healthy(), tmp_path / "passes")
    assert sorted(path.name for path in folder.iterdir()) == [
        "counters.json",
        "evidence.json",
        "requests.parquet",
        "samples.parquet",
        "timeline.parquet",
    ]
    warm = read_json(folder / "counters.json")["warm"]
    name = 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'
    assert warm["after"]["vllm"][name] - warm["before"]["vllm"][name] == reachable()
    assert "vllm:corrupted_requests_total" not in warm["after"]["vllm"], "what is not reported is not there"
    assert "counters" not in read_json(folder / "evidence.json")["passes"]["warm"]


def test_a_cell_takes_only_the_passes_it_is_given(tmp_path: Path) -> None:
    folders = write_passes(tmp_path, healthy())
    (tmp_path / "cell").mkdir()
    gather_cell(tmp_path / "cell", FACTS, [folders[1], folders[3]], [])
    read = read_evidence(tmp_path / "cell")
    assert list(read.passes) == ["cold", "warm"]
    assert all(len(each.requests) == QUESTIONS for each in read.passes.values())


def test_files_and_memory_are_judged_alike(cell: dict[str, Any]) -> None:
    assert judge_cell(healthy(), GATE) == cell


# --- the contract ------------------------------------------------------------------------------------------


def test_contract(cell: dict[str, Any]) -> None:
    assert cell["verdict"] == "pass"
    assert cell["reasons"] and all(isinstance(reason, str) for reason in cell["reasons"])
    assert cell["budget"] == 127
    assert set(cell["hit_rate"]) == {"target", "reachable", "measured"}
    assert set(cell["passes"]) == set(PASSES)
    for each in cell["passes"].values():
        assert set(each) >= PASS_KEYS
        assert set(each["ttft_s"]) == {"p50", "p95", "p99"}
        assert set(each["running"]) >= {"mean", "max"}
    assert set(cell["paired"]) >= PAIRED_KEYS
    assert set(cell["drift"]) == DRIFT_KEYS
    assert set(cell["drift"]["passes"]) == set(PASSES) - {"cold"}
    assert set(cell["lmcache_ci"]) == RULE_KEYS
    assert [check["check"] for check in cell["validity"]] == [check.__name__ for check in CHECKS]
    for check in cell["validity"]:
        assert set(check) >= {"check", "ok", "observed", "required"}
        assert check["ok"] is True
    assert (cell["cell"], cell["launch"], cell["repeat"]) == ("budget127-full-r1", "budget127-r1", 1)
    assert (cell["unified_block_size"], cell["chunk_size"]) == (N, N)
    assert cell["prompt_set_sha256"] == FACTS.prompt_set_sha256
    assert cell["measured_at"] == "2026-11-29T20:43:00.000+00:00", "when warm began"
    assert cell["events"] == list(EVENTS)
    assert cell["gate"]["margin"] == 0.03


def test_a_cell_at_hit_rate_0_takes_no_part_in_equivalence(tmp_path: Path) -> None:
    """However the scores differ, nothing was retrieved that could be to blame."""
    worse = evidence_of([pass_of("cold"), pass_of("warm", right=lambda _: False)], target=0.0)
    nothing = with_flow(worse, "warm", external_hit=0, lookup_hit=0, retrieves_submitted=0, retrieves_finished=0)
    cell = through_files(nothing, tmp_path)
    assert (cell["verdict"], cell["paired"]) == ("pass", None)
    assert cell["reasons"] == ["speed only: nothing is retrieved at hit rate 0"]
    assert cell["hit_rate"] == {"target": 0.0, "reachable": 0.0, "measured": 0.0}
    assert cell["speed"]["ttft_p50_cold_over_warm"] is not None
    served = through_files(worse, tmp_path / "served")
    assert served["verdict"] == "invalid" and "46,080 tokens" in served["reasons"][0]


def test_cell_json_is_plain_json(cell: dict[str, Any], tmp_path: Path) -> None:
    json.dumps(cell, allow_nan=False)
    write_json(tmp_path / "cell.json", cell)
    assert read_json(tmp_path / "cell.json") == cell


def test_numbers_of_a_pass_by_hand(cell: dict[str, Any]) -> None:
    warm = cell["passes"]["warm"]
    assert warm["score"] == 108 / 120
    assert (warm["n"], warm["wall_s"]) == (120, 2.0)
    # TTFT runs from 0.200 to 0.319 in steps of a millisecond: percentile p is at 0.2 + 0.119 p.
    assert warm["ttft_s"] == pytest.approx({"p50": 0.2595, "p95": 0.31305, "p99": 0.31781})
    assert warm["inter_token_s"] == pytest.approx({"p50": 0.02, "p95": 0.02, "p99": 0.02}, abs=1e-5)
    assert warm["output_tokens"] == 120 * 17
    assert warm["output_tokens_per_s"] == 120 * 17 / 2.0
    assert warm["prompt_tokens_per_s"] == prompt_tokens() / 2.0
    assert warm["requests_per_s"] == 60.0
    # Looks that saw a request: (1, 7), (4, 4), (4, 0), (3, 1).
    assert warm["running"] == {"mean": 3.0, "max": 4.0, "waiting_mean": 3.0}
    assert warm["prompt_tokens"] == prompt_tokens() == 30 * (411 + 419 + 427 + 435)
    assert (warm["external_hit_tokens"], warm["local_hit_tokens"]) == (46080, 0)
    assert (warm["errors"], warm["retries"], warm["ended_by_length"]) == (0, 0, 0)
    assert cell["passes"]["cold"]["external_hit_tokens"] == 0
    assert cell["passes"]["local_warm"]["local_hit_tokens"] == 46080


def test_speed_by_hand(cell: dict[str, Any]) -> None:
    assert cell["speed"]["ttft_p50_cold_over_warm"] == pytest.approx(0.4595 / 0.2595)
    assert cell["speed"]["throughput_warm_over_cold"] == pytest.approx(6.0 / 2.0)


def test_paired_numbers_by_hand() -> None:
    """Cold is right but for documents 9, 19, …; warm breaks 0, 1, 2 and mends 9."""
    warm = pass_of("warm", right=lambda doc_id: doc_id == 9 or (right_by_default(doc_id) and doc_id > 2))
    judged = judge_cell(evidence_of([pass_of("cold"), warm]), GATE)
    paired = judged["paired"]
    assert (paired["n"], paired["b"], paired["c"]) == (120, 3, 1)
    assert paired["difference"] == 2 / 120
    assert paired["flip_rate"] == 4 / 120
    assert paired["se"] == pytest.approx(math.sqrt(4 - 4 / 120) / 120)
    assert paired["mcnemar_p"] == pytest.approx((4 + 1) / 16)
    assert paired["interval"]["confidence"] == pytest.approx(0.9)
    assert paired["interval"]["low"] < 2 / 120 < paired["interval"]["high"]
    assert paired["tost_p"] > 0.05
    assert judged["verdict"] == "inconclusive"
    assert f"about {paired['needed_n']} are needed" in judged["reasons"][0]
    assert judged["passes"]["cold"]["score"] - judged["passes"]["warm"]["score"] == pytest.approx(2 / 120)


def test_no_flips_by_hand(cell: dict[str, Any]) -> None:
    paired = cell["paired"]
    assert (paired["b"], paired["c"], paired["difference"], paired["se"]) == (0, 0, 0.0, 0.0)
    z = 1.6448536269514722
    assert paired["interval"]["high"] == pytest.approx(z**2 / (120 + z**2))
    assert (paired["mcnemar_p"], paired["needed_n"], paired["power"]) == (1.0, 88, 1.0)


def test_reasons_and_numbers_are_the_same_values() -> None:
    """Every p-value in a reason is the one that is stored."""
    warm = pass_of("warm", right=lambda doc_id: right_by_default(doc_id) and doc_id > 12)
    judged = judge_cell(evidence_of([pass_of("cold"), pass_of("local_warm"), warm]), GATE)
    paired = judged["paired"]
    assert f"exact McNemar p = {paired['mcnemar_p']:.1e}" in judged["reasons"][0]
    assert (
        f"interval of the loss {paired['interval']['low']:+.4f} to {paired['interval']['high']:+.4f}"
        in judged["reasons"][1]
    )
    assert (
        f"(p = {paired['loss_p']:.3f})" in judged["reasons"][1]
        or f"(p = {paired['loss_p']:.1e})" in judged["reasons"][1]
    )
    assert f"levels p = {judged['drift']['p']:.3f}" in judged["reasons"][-1]


def test_threshold_gate_judges_the_same_evidence() -> None:
    judged = judge_cell(healthy(), GateConfig(name="threshold", mode="threshold"))
    assert judged["verdict"] == "pass"
    assert "threshold rule" in judged["reasons"][0]
    assert judged["gate"]["mode"] == "threshold"


# --- passes that went wrong --------------------------------------------------------------------------------


def test_all_requests_failed_is_a_cell_all_the_same(tmp_path: Path) -> None:
    dead = evidence_of(
        pass_of(name, right=lambda _: False, records=[failed(name, doc_id) for doc_id in range(QUESTIONS)])
        for name in PASSES
    )
    for name in PASSES:
        dead = with_flow(dead, name, prompt=0, external_hit=0, local_hit=0)
    assert no_infinities(judge_cell(dead, GATE)), "what has no value is None, not NaN"
    cell = through_files(dead, tmp_path)
    assert cell["verdict"] == "invalid"
    assert any("120 cold and 120 warm requests failed; first: HTTP 500: no room" in each for each in cell["reasons"])
    warm = cell["passes"]["warm"]
    assert (warm["score"], warm["n"], warm["errors"], warm["output_tokens"]) == (0.0, 120, 120, 0)
    assert warm["ttft_s"] == {"p50": None, "p95": None, "p99": None}
    assert warm["inter_token_s"] == {"p50": None, "p95": None, "p99": None}
    assert cell["hit_rate"]["measured"] is None
    assert cell["speed"] == {"ttft_p50_cold_over_warm": None, "throughput_warm_over_cold": None}
    assert cell["agreement"]["warm"]["n"] == 0
    assert {value for key, value in cell["agreement"]["warm"].items() if key != "n"} == {None}
    assert no_infinities(cell)


def test_some_requests_failed(tmp_path: Path) -> None:
    """Numbers of a pass with failures come from the answered requests alone."""
    some = with_records(healthy(), "warm", {doc_id: failed("warm", doc_id) for doc_id in range(60)})
    cell = through_files(some, tmp_path)
    assert cell["verdict"] == "invalid"
    warm = cell["passes"]["warm"]
    assert (warm["errors"], warm["output_tokens"], warm["requests_per_s"]) == (60, 60 * 17, 30.0)
    assert warm["ttft_s"]["p50"] == pytest.approx(0.2 + 0.0895)
    assert warm["prompt_tokens_per_s"] == pytest.approx(prompt_tokens() / 2 / 2.0)
    assert cell["agreement"]["warm"]["n"] == 60


def test_every_question_flipped() -> None:
    cold, warm = pass_of("cold", right=lambda _: True), pass_of("warm", right=lambda _: False)
    judged = judge_cell(evidence_of([cold, warm]), GATE)
    assert judged["verdict"] == "fail"
    paired = judged["paired"]
    assert (paired["b"], paired["c"], paired["flip_rate"], paired["difference"], paired["se"]) == (120, 0, 1.0, 1.0, 0)
    assert paired["needed_n"] > 10_000
    assert no_infinities(judged)


def test_different_documents_cannot_be_paired(tmp_path: Path) -> None:
    judged = through_files(evidence_of([pass_of("cold"), pass_of("warm", 119)]), tmp_path)
    assert judged["verdict"] == "invalid"
    assert judged["paired"] is None
    assert "119 of 120 cold and 119 warm" in judged["reasons"][0]


def test_counters_that_are_not_reported_are_null(tmp_path: Path) -> None:
    silent = with_flow(healthy(), "warm", external_hit=None, local_hit=None, lookup_hit=None, preemptions=None)
    warm = through_files(silent, tmp_path)["passes"]["warm"]
    assert warm["external_hit_tokens"] is None
    assert warm["local_hit_tokens"] is None
    assert warm["lmcache_hit_tokens"] is None
    assert warm["preemptions"] is None


def test_an_empty_timeline_has_no_batch_size(tmp_path: Path) -> None:
    blind = with_pass(healthy(), "warm", timeline=healthy().passes["warm"].timeline.iloc[:0])
    assert through_files(blind, tmp_path)["passes"]["warm"]["running"]["mean"] is None


@pytest.mark.parametrize("score", [0.5, -1.0, 2.0, math.nan])
def test_scores_that_are_neither_right_nor_wrong_are_refused(score: float) -> None:
    samples = healthy().passes["warm"].samples
    odd = with_pass(healthy(), "warm", samples=samples.assign(score=[score, *samples["score"][1:]]))
    with pytest.raises(HarnessError, match=rf"this task gives {score:g}: choose another task\.metric"):
        judge_cell(odd, GATE)


# --- agreement ---------------------------------------------------------------------------------------------


def test_agreement_by_hand(tmp_path: Path) -> None:
    """Six documents: the same; another ending; failed; empty twice; another first token, twice."""
    ending = record("warm", 1)
    ending = replace(
        ending,
        text=ending.text + "0",
        token_ids=[*ending.token_ids[:-1], 99],
        logprobs=[ending.logprobs[0] - 0.25, *ending.logprobs[1:]],
    )
    # As likely as the cold one, and another token all the same.
    beginning = replace(record("warm", 4), text="No.", token_ids=[7], logprobs=record("cold", 4).logprobs[:1])
    unlikely = replace(record("warm", 5), text="No.", token_ids=[7], logprobs=[-5.0])
    empty: dict[str, Any] = {"text": "", "output_tokens": 0, "token_ids": [], "logprobs": [], "token_times_s": []}
    cold = evidence_of([pass_of("cold", 6), pass_of("warm", 6)])
    cold = with_record(cold, "cold", replace(record("cold", 3), **empty))
    both = with_records(
        cold,
        "warm",
        {1: ending, 2: failed("warm", 2), 3: replace(record("warm", 3), **empty), 4: beginning, 5: unlikely},
    )
    assert through_files(both, tmp_path)["agreement"]["warm"] == pytest.approx(
        {
            "n": 5,
            "same_text": 2 / 5,
            "same_tokens": 2 / 5,
            # Of the four that have a first token in both passes.
            "same_first_token": 2 / 4,
            "first_token_logprob_exact": 1 / 4,
            "first_token_logprob_max_difference": 0.25,
        }
    )


def test_a_pass_agrees_with_itself(cell: dict[str, Any]) -> None:
    assert set(cell["agreement"]) == {"control", "local_warm", "warm"}
    assert cell["agreement"]["control"] == {
        "n": 120,
        "same_text": 1.0,
        "same_tokens": 1.0,
        "same_first_token": 1.0,
        "first_token_logprob_exact": 1.0,
        "first_token_logprob_max_difference": 0.0,
    }


def test_no_first_token_in_common_has_no_difference() -> None:
    other = {doc_id: replace(record("warm", doc_id), token_ids=[7], logprobs=[-5.0]) for doc_id in range(5)}
    evidence = with_records(evidence_of([pass_of("cold", 5), pass_of("warm", 5)]), "warm", other)
    told = agreement(evidence.passes["cold"], evidence.passes["warm"])
    assert told["same_first_token"] == 0.0
    assert told["first_token_logprob_exact"] == 0.0
    assert told["first_token_logprob_max_difference"] is None
