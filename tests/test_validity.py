"""Validity checks: each one fails alone on the evidence that it is there for, and names the number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest
from evidence import (
    BLOCKS,
    QUESTIONS,
    N,
    evidence_of,
    failed,
    healthy,
    pass_of,
    prompt_tokens,
    reachable,
    record,
    with_flow,
    with_pass,
    with_record,
)

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence
from harness.equivalence.validity import CHECKS, ValidityCheck, check_validity, hit_rate

GATE = GateConfig(name="test")
ASKED, HITS = prompt_tokens(), reachable()
STORES = QUESTIONS * BLOCKS


def misses(evidence: Evidence, gate: GateConfig = GATE) -> dict[str, ValidityCheck]:
    return {check.check: check for check in check_validity(evidence, gate) if not check.ok}


def test_healthy_evidence_passes_every_check() -> None:
    checks = check_validity(healthy(), GATE)
    assert [check.check for check in checks if not check.ok] == []
    assert [check.check for check in checks] == [
        "same_prompts",
        "all_scored",
        "no_request_failed",
        "prompts_whole",
        "cold_not_retried",
        "cold_no_external_hit",
        "cold_no_local_hit",
        "cold_not_corrupted",
        "stores_landed",
        "warm_hit_rate",
        "warm_no_local_hit",
        "lmcache_agrees",
        "competence",
    ]


def test_healthy_observations_are_the_numbers_that_were_measured() -> None:
    observed = {check.check: check.observed for check in check_validity(healthy(), GATE)}
    assert observed["same_prompts"] == "120 of 120 cold and 120 warm prompts are the same"
    assert observed["no_request_failed"] == "0 cold and 0 warm requests failed"
    assert observed["cold_no_external_hit"] == "0 tokens"
    assert observed["stores_landed"] == "720 of 720 stores finished, 1440 chunks written"
    assert observed["warm_hit_rate"] == f"{HITS / ASKED:.3f} of prompt tokens"
    assert observed["lmcache_agrees"] == (
        "LMCache found 46,080 tokens and finished 120 of 120 retrieves; vLLM counted 46,080 tokens"
    )
    assert observed["competence"] == "cold score 0.900 (n = 120)"


def duplicated(evidence: Evidence, name: str, doc_id: int) -> Evidence:
    requests = evidence.passes[name].requests
    return with_pass(evidence, name, requests=pd.concat([requests, requests.iloc[[doc_id]]], ignore_index=True))


def without(evidence: Evidence, name: str, doc_id: int) -> Evidence:
    return with_pass(evidence, name, requests=evidence.passes[name].requests.drop(index=doc_id))


def unscored(evidence: Evidence, name: str, doc_id: int) -> Evidence:
    return with_pass(evidence, name, samples=evidence.passes[name].samples.drop(index=doc_id))


def scored_twice(evidence: Evidence, name: str, doc_id: int) -> Evidence:
    samples = evidence.passes[name].samples
    return with_pass(evidence, name, samples=pd.concat([samples, samples.iloc[[doc_id]]], ignore_index=True))


def warm_served(tokens: int) -> Evidence:
    """A warm pass that retrieved ``tokens``, and both servers say so."""
    return with_flow(healthy(), "warm", external_hit=tokens, lookup_hit=tokens)


DOCTORED: list[tuple[str, Callable[[], Evidence], str]] = [
    (
        "same_prompts",
        lambda: with_record(healthy(), "warm", replace(record("warm", 7), prompt_sha256="0" * 64)),
        "119 of 120 cold and 120 warm",
    ),
    ("same_prompts", lambda: without(healthy(), "warm", 7), "119 of 120 cold and 119 warm"),
    ("same_prompts", lambda: without(healthy(), "cold", 7), "119 of 119 cold and 120 warm"),
    ("same_prompts", lambda: duplicated(healthy(), "warm", 7), "120 of 120 cold and 121 warm"),
    (
        "same_prompts",
        lambda: duplicated(duplicated(healthy(), "warm", 7), "cold", 7),
        "120 of 121 cold and 121 warm",
    ),
    ("all_scored", lambda: unscored(healthy(), "cold", 7), "1 cold and 0 warm answers without a score"),
    ("all_scored", lambda: unscored(healthy(), "warm", 7), "0 cold and 1 warm answers without a score"),
    ("all_scored", lambda: scored_twice(healthy(), "warm", 7), "some scored twice"),
    (
        "no_request_failed",
        lambda: with_record(healthy(), "warm", failed("warm", 3, "HTTP 500: load failed")),
        "0 cold and 1 warm requests failed; first: HTTP 500: load failed",
    ),
    (
        "no_request_failed",
        lambda: with_record(healthy(), "cold", failed("cold", 3, "no end within 600 s")),
        "1 cold and 0 warm requests failed; first: no end within 600 s",
    ),
    (
        "prompts_whole",
        lambda: with_record(healthy(), "warm", replace(record("warm", 5), prompt_tokens=400)),
        "1 prompts changed length",
    ),
    (
        "prompts_whole",
        lambda: with_record(healthy(), "cold", replace(record("cold", 5), prompt_tokens=None)),
        "1 prompts changed length",
    ),
    (
        "cold_not_retried",
        lambda: with_record(healthy(), "cold", replace(record("cold", 5), retries=2)),
        "2 re-sent",
    ),
    ("cold_no_external_hit", lambda: with_flow(healthy(), "cold", external_hit=64), "64 tokens (required: 0 tokens)"),
    ("cold_no_external_hit", lambda: with_flow(healthy(), "cold", external_hit=None), "unreported number of tokens"),
    (
        "cold_no_local_hit",
        lambda: with_flow(healthy(), "cold", local_hit=0.0125 * ASKED),
        "0.0125 of prompt tokens (required: at most 0.005)",
    ),
    ("cold_no_local_hit", lambda: with_flow(healthy(), "cold", local_hit=None), "not reported"),
    ("cold_no_local_hit", lambda: with_flow(healthy(), "cold", prompt=None), "not reported"),
    ("cold_not_corrupted", lambda: with_flow(healthy(), "cold", corrupted=3), "3 cold requests"),
    ("stores_landed", lambda: with_flow(healthy(), "cold", stores_finished=719), "719 of 720 stores finished"),
    (
        "stores_landed",
        lambda: with_flow(healthy(), "cold", chunks_written=719),
        "719 chunks written (required: all finished, at least 720 chunks)",
    ),
    ("stores_landed", lambda: with_flow(healthy(), "cold", chunks_written=None), "an unreported number chunks"),
    (
        "stores_landed",
        lambda: with_flow(healthy(), "cold", stores_finished=None, stores_submitted=None),
        "an unreported number of an unreported number stores",
    ),
    (
        "warm_hit_rate",
        lambda: warm_served(round(HITS - 0.03 * ASKED)),
        f"{HITS / ASKED - 0.03:.3f} of prompt tokens (required: {HITS / ASKED:.3f} ± 0.02)",
    ),
    (
        "warm_hit_rate",
        lambda: replace(healthy(), facts=replace(healthy().facts, target=0.5)),
        # Nearest to half of 50,760 tokens are 397 blocks of 64.
        f"{HITS / ASKED:.3f} of prompt tokens (required: 0.501 ± 0.02)",
    ),
    (
        "warm_no_local_hit",
        lambda: with_flow(healthy(), "warm", local_hit=0.0125 * ASKED),
        "0.0125 of prompt tokens (required: at most 0.005)",
    ),
    ("lmcache_agrees", lambda: with_flow(healthy(), "warm", lookup_hit=None), "found an unreported number of tokens"),
    ("lmcache_agrees", lambda: with_flow(healthy(), "warm", lookup_hit=0), "found 0 tokens"),
    (
        "lmcache_agrees",
        lambda: with_flow(healthy(), "warm", lookup_hit=HITS - 0.03 * ASKED),
        f"found {HITS - 0.03 * ASKED:,.0f} tokens",
    ),
    ("lmcache_agrees", lambda: with_flow(healthy(), "warm", retrieves_finished=119), "finished 119 of 120 retrieves"),
    (
        "lmcache_agrees",
        lambda: with_flow(healthy(), "warm", retrieves_finished=0, retrieves_submitted=0),
        "finished 0 of 0 retrieves",
    ),
    (
        "lmcache_agrees",
        lambda: with_flow(healthy(), "warm", retrieves_finished=None, retrieves_submitted=None),
        "an unreported number of an unreported number retrieves",
    ),
    (
        "competence",
        lambda: replace(healthy(), facts=replace(healthy().facts, floor=0.9)),
        "cold score 0.900 (n = 120) (required: above 0.9)",
    ),
]


@pytest.mark.parametrize(
    ("check", "doctor", "told"), DOCTORED, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(DOCTORED)]
)
def test_one_thing_wrong_fails_one_check_and_says_how_much(
    check: str, doctor: Callable[[], Evidence], told: str
) -> None:
    missed = misses(doctor())
    assert list(missed) == [check]
    assert told in missed[check].sentence


def at_rate(target: float, *, blocks: int) -> Evidence:
    """A cell with a target whose warm pass retrieved ``blocks`` blocks in all; every other counter agrees."""
    served = with_flow(
        warm_served(blocks * N), "warm", retrieves_submitted=min(blocks, 120), retrieves_finished=min(blocks, 120)
    )
    return replace(served, facts=replace(served.facts, target=target))


def test_a_target_is_held_to_what_is_reachable() -> None:
    assert not misses(at_rate(0.5, blocks=397))
    assert not misses(at_rate(0.5, blocks=397 + 15)), "0.0189 above"
    for blocks in (397 + 17, 397 - 17):
        assert set(misses(at_rate(0.5, blocks=blocks))) == {"warm_hit_rate"}


def test_all_that_was_stored_where_less_was_asked_for_is_invalid() -> None:
    """A seeded cell that was not cleared first retrieves what cold has stored as well."""
    assert set(misses(at_rate(0.5, blocks=720))) == {"warm_hit_rate"}


def test_a_speed_only_cell_retrieves_nothing_and_needs_no_score() -> None:
    cell = at_rate(0.0, blocks=0)
    assert not misses(replace(cell, facts=replace(cell.facts, floor=1.0)))
    assert [check.check for check in check_validity(cell, GATE)] == [
        "same_prompts",
        "all_scored",
        "no_request_failed",
        "prompts_whole",
        "cold_not_retried",
        "cold_no_external_hit",
        "cold_no_local_hit",
        "cold_not_corrupted",
        "stores_landed",
        "warm_no_external_hit",
        "warm_no_local_hit",
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"external_hit": 64}, "vLLM counted 64 tokens, LMCache found 0 tokens (required: 0 tokens)"),
        ({"lookup_hit": 64}, "vLLM counted 0 tokens, LMCache found 64 tokens"),
        ({"external_hit": None}, "vLLM counted an unreported number of tokens"),
        ({"lookup_hit": None}, "LMCache found an unreported number of tokens"),
    ],
)
def test_a_single_hit_of_a_speed_only_cell_is_invalid(changes: dict[str, float | None], told: str) -> None:
    missed = misses(with_flow(at_rate(0.0, blocks=0), "warm", **changes))
    assert list(missed) == ["warm_no_external_hit"]
    assert told in missed["warm_no_external_hit"].sentence


def test_every_check_has_evidence_that_fails_it() -> None:
    assert {name for name, _, _ in DOCTORED} == {check.__name__ for check in CHECKS}


def test_a_warm_pass_served_by_vllms_own_cache_is_invalid() -> None:
    local = with_flow(
        healthy(), "warm", local_hit=HITS, external_hit=0, retrieves_submitted=0, retrieves_finished=0
    )  # LMCache's lookups still hit: it is asked first
    missed = misses(local)
    assert set(missed) == {"warm_hit_rate", "warm_no_local_hit", "lmcache_agrees"}
    assert f"{HITS / ASKED:.4f} of prompt tokens" in missed["warm_no_local_hit"].sentence


def test_a_cleared_lmcache_is_invalid() -> None:
    """Warm recomputed everything: scores are equal, and nothing was tested."""
    cleared = with_flow(
        healthy(), "warm", external_hit=0, lookup_hit=0, retrieves_submitted=0, retrieves_finished=0, computed=ASKED
    )
    missed = misses(cleared)
    assert set(missed) == {"warm_hit_rate", "lmcache_agrees"}
    assert missed["warm_hit_rate"].observed == "0.000 of prompt tokens"


def test_lmcaches_silence_is_not_zero() -> None:
    """LMCache's page is empty until its first traffic."""
    silent = with_flow(
        healthy(), "warm", lookup_hit=None, lookup_requested=None, retrieves_submitted=None, retrieves_finished=None
    )
    silent = with_flow(silent, "cold", stores_submitted=None, stores_finished=None, chunks_written=None)
    assert set(misses(silent)) == {"stores_landed", "lmcache_agrees"}


def test_vllms_silence_about_the_connector_is_not_zero() -> None:
    silent = with_flow(with_flow(healthy(), "warm", external_hit=None), "cold", external_hit=None)
    missed = misses(silent)
    assert set(missed) == {"cold_no_external_hit", "warm_hit_rate", "lmcache_agrees"}
    assert missed["warm_hit_rate"].observed == "not reported"


def test_corrupted_requests_that_vllm_does_not_count_are_no_miss() -> None:
    assert healthy().passes["cold"].flow.corrupted is None
    assert not misses(with_flow(healthy(), "cold", corrupted=0))


def test_tolerances_come_from_the_gate() -> None:
    off = warm_served(round(HITS - 0.019 * ASKED))
    assert not misses(off)
    assert set(misses(off, GateConfig(name="strict", hit_rate_tolerance=0.01))) == {"warm_hit_rate"}
    local = with_flow(healthy(), "warm", local_hit=0.004 * ASKED)
    assert not misses(local)
    assert set(misses(local, GateConfig(name="strict", local_hit_tolerance=0.003))) == {"warm_no_local_hit"}


def test_more_hits_than_asked_for_are_a_miss_too() -> None:
    asked_for_half = replace(healthy(), facts=replace(healthy().facts, target=0.5))
    half = with_flow(asked_for_half, "warm", external_hit=0.5 * ASKED, lookup_hit=0.5 * ASKED)
    assert not misses(half)
    assert set(misses(asked_for_half)) == {"warm_hit_rate"}


def test_all_requests_failed() -> None:
    dead = evidence_of(
        pass_of(name, right=lambda _: False, records=[failed(name, doc_id) for doc_id in range(QUESTIONS)])
        for name in ("cold", "warm")
    )
    missed = misses(dead)
    assert {"no_request_failed", "competence"} <= set(missed)
    assert missed["no_request_failed"].observed.startswith("120 cold and 120 warm requests failed")


def test_hit_rates_by_hand() -> None:
    rate = hit_rate(healthy())
    # 30 prompts each of 411, 419, 427 and 435 tokens; 6 blocks of 64 of each can be served.
    assert rate.reachable == pytest.approx(120 * 384 / (30 * (411 + 419 + 427 + 435)))
    assert rate.target == rate.reachable, "without a target, all that can be reached"
    assert rate.measured == rate.reachable
    assert hit_rate(with_flow(healthy(), "warm", external_hit=None)).measured is None
    assert hit_rate(with_flow(healthy(), "warm", prompt=0)).measured is None
    assert hit_rate(replace(healthy(), facts=replace(healthy().facts, target=0.25))).target == 0.25


def test_what_is_reachable_follows_the_chunk_size() -> None:
    """LMCache stores and finds whole chunks: of 4 blocks each, only one fits prompts of 6."""
    coarse = replace(healthy(), facts=replace(healthy().facts, chunk_size=4 * N))
    assert hit_rate(coarse).reachable == pytest.approx(QUESTIONS * 4 * N / ASKED)
    served = with_flow(coarse, "warm", external_hit=QUESTIONS * 4 * N, lookup_hit=QUESTIONS * 4 * N)
    assert not misses(with_flow(served, "cold", chunks_written=QUESTIONS))
    assert set(misses(with_flow(served, "cold", chunks_written=QUESTIONS - 1))) == {"stores_landed"}


PRIMED = 2 * N * QUESTIONS


def from_elsewhere(
    source: str, *, external: float | None, local: float, lookup: float | None, **facts: object
) -> Evidence:
    """A warm pass that another cache than LMCache alone has served."""
    evidence = with_flow(healthy(), "warm", external_hit=external, local_hit=local, lookup_hit=lookup)
    return replace(evidence, facts=replace(evidence.facts, warm_from=source, **facts))  # type: ignore[arg-type]


def mixed(*, external: float = HITS - PRIMED, local: float = PRIMED, lookup: float = HITS) -> Evidence:
    return from_elsewhere("mixed", external=external, local=local, lookup=lookup, primed_blocks=2)


def test_mixed_prefixes_are_served_by_both_caches_in_their_parts() -> None:
    assert misses(mixed()) == {}
    assert hit_rate(mixed()).reachable == pytest.approx((HITS - PRIMED) / ASKED)
    assert set(misses(mixed(external=HITS, local=0))) == {"warm_hit_rate", "warm_local_hit_rate"}
    assert set(misses(mixed(external=0, local=HITS))) == {"warm_hit_rate", "warm_local_hit_rate"}
    assert set(misses(mixed(lookup=PRIMED))) == {"lmcache_agrees"}


def alone(local: float) -> Evidence:
    return from_elsewhere("vllm", external=None, local=local, lookup=None)


def test_vllms_own_cache_alone_must_serve_all_that_it_can() -> None:
    checks = [check.check for check in check_validity(alone(HITS), GATE)]
    assert "stores_landed" not in checks and "lmcache_agrees" not in checks and "cold_no_external_hit" not in checks
    assert misses(alone(HITS)) == {}
    assert hit_rate(alone(HITS)).reachable == 0
    assert set(misses(alone(HITS / 2))) == {"warm_local_hit_rate"}
    assert set(misses(alone(0))) == {"warm_local_hit_rate"}


def test_without_a_cache_nothing_may_be_served() -> None:
    assert misses(from_elsewhere("nothing", external=None, local=0, lookup=None)) == {}
    assert set(misses(from_elsewhere("nothing", external=None, local=HITS, lookup=None))) == {"warm_no_local_hit"}


def test_preemption_must_have_happened() -> None:
    """A request that comes back finds its own blocks, and is looked up again."""

    def cell(preemptions: float | None) -> Evidence:
        evidence = with_flow(healthy(), "warm", preemptions=preemptions, local_hit=640, lookup_hit=HITS + 6400)
        return replace(evidence, facts=replace(evidence.facts, preempts=True))

    assert misses(cell(3)) == {}
    assert set(misses(cell(0))) == set(misses(cell(None))) == {"preempted"}
    lost = with_flow(cell(3), "warm", lookup_hit=HITS / 2)
    assert set(misses(lost)) == {"lmcache_agrees"}


def test_prompts_too_short_to_be_served_prove_nothing() -> None:
    """The reachable rate is 0 then, which a warm pass that retrieved nothing would meet."""
    evidence = with_flow(healthy(), "warm", external_hit=0, lookup_hit=0)
    short = replace(evidence, facts=replace(evidence.facts, chunk_size=10_000))
    missed = misses(short)["warm_hit_rate"]
    assert missed.meaning == "no prompt is long enough to be served by LMCache"
    assert missed.required == "at least 10001, a whole chunk and one token"
