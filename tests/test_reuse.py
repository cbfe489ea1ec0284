"""Cells whose prompts diverge from what was stored: what they prove, what they come to, and how it is shown."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from evidence import (
    BLOCKS,
    QUESTIONS,
    N,
    diverged,
    evidence_of,
    healthy,
    pass_of,
    prompt_tokens,
    with_flow,
    with_pass,
    write_cell,
)
from rich.console import Console

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence, read_evidence
from harness.equivalence.judge import judge_cell
from harness.equivalence.reuse import measure_reuse
from harness.equivalence.validity import check_validity
from harness.equivalence.verdict import judge_run
from harness.report.terminal import print_run, summary_frame
from harness.store import read_json, write_json

GATE = GateConfig(name="test")

DIVERGENCE = [
    "same_prompts",
    "all_scored",
    "no_request_failed",
    "prompts_whole",
    "cold_not_retried",
    "cold_no_external_hit",
    "cold_no_local_hit",
    "cold_not_corrupted",
    "stores_landed",
    "seeds_landed",
    "warm_within_shared",
    "warm_no_local_hit",
    "lmcache_agrees",
    "competence",
]


def missed(evidence: Evidence) -> dict[str, str]:
    return {check.check: check.sentence for check in check_validity(evidence, GATE) if not check.ok}


def seeded_chunks(evidence: Evidence, chunks: int | None) -> Evidence:
    """The same where LMCache wrote another number of chunks while seeding."""
    events = [
        {**event, "seeded": {**event["seeded"], "chunks_written": chunks}} if event["step"] == "seed" else event
        for event in evidence.events
    ]
    return replace(evidence, events=events)


def one_served(evidence: Evidence, tokens: int) -> Evidence:
    """The same where one request was served so many tokens."""
    requests = evidence.passes["warm"].requests.copy()
    requests.loc[7, "cached_tokens"] = tokens
    return with_pass(evidence, "warm", requests=requests)


# --- validity ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [4, 3, 1])
def test_what_is_shared_need_not_be_found(found: int) -> None:
    cell = diverged(4, found)
    assert missed(cell) == {}
    assert [check.check for check in check_validity(cell, GATE)] == DIVERGENCE


def test_where_nothing_is_found_no_score_is_needed_and_no_retrieve() -> None:
    cell = diverged(4, 0, floor=1.0)
    assert missed(cell) == {}
    assert [check.check for check in check_validity(cell, GATE)] == DIVERGENCE[:-1]


def test_what_is_found_in_other_cells_is_held_to_its_rate() -> None:
    full = replace(diverged(4, 3), facts=healthy().facts)
    assert set(missed(full)) == {"warm_hit_rate"}


BEYOND: list[tuple[str, Callable[[], Evidence], str]] = [
    (
        "warm_within_shared",
        lambda: diverged(4, 5),
        "38,400 tokens, 120 of 120 requests beyond what they share (required: at most 30,720 tokens, and no request",
    ),
    ("warm_within_shared", lambda: with_flow(diverged(4, 4), "warm", external_hit=30721), "30,721 tokens, 0 of 120"),
    (
        "warm_within_shared",
        # Fewer hits in all than are shared, and one request that was served what nobody has stored.
        lambda: one_served(diverged(4, 1), 5 * N),
        "7,680 tokens, 1 of 120 requests beyond",
    ),
    (
        "warm_within_shared",
        lambda: with_flow(diverged(4, 5), "warm", preemptions=3),
        "requests beyond what they share, 3 preemptions",
    ),
    ("seeds_landed", lambda: seeded_chunks(diverged(4, 4), 719), "719 chunks written (required: at least 720)"),
    ("seeds_landed", lambda: seeded_chunks(diverged(4, 0), 0), "were not stored: 0 chunks written"),
    ("seeds_landed", lambda: seeded_chunks(diverged(4, 4), None), "an unreported number chunks written"),
    (
        "lmcache_agrees",
        lambda: with_flow(diverged(4, 0), "warm", lookup_hit=4 * QUESTIONS * N),
        "LMCache found 30,720 tokens and finished 0 of 0 retrieves; vLLM counted 0 tokens (required: retrieves all",
    ),
    (
        "lmcache_agrees",
        lambda: with_flow(diverged(4, 4), "warm", retrieves_submitted=0, retrieves_finished=0),
        "(required: retrieves > 0, all finished",
    ),
    ("competence", lambda: diverged(4, 1, floor=0.9), "cold score 0.900"),
]


@pytest.mark.parametrize(("check", "cell", "told"), BEYOND, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(BEYOND)])
def test_one_thing_wrong_fails_one_check(check: str, cell: Callable[[], Evidence], told: str) -> None:
    sentences = missed(cell())
    assert list(sentences) == [check]
    assert told in sentences[check]


def test_hits_beyond_what_is_shared_are_called_what_they_are() -> None:
    judged = judge_cell(diverged(4, 5), GATE)
    assert judged["verdict"] == "invalid"
    assert "WRONG STATE was served: hits beyond what prompts share with what was stored" in judged["reasons"][0]


def test_silence_is_not_nothing_found() -> None:
    silent = with_flow(diverged(4, 0), "warm", external_hit=None)
    assert set(missed(silent)) == {"warm_within_shared", "lmcache_agrees"}
    judged = judge_cell(silent, GATE)
    assert (judged["verdict"], judged["reuse"]["hit_tokens"]) == ("invalid", None)


# --- verdict and cell.json ---------------------------------------------------------------------------------


def test_nothing_found_is_about_reuse_only(tmp_path: Path) -> None:
    evidence = diverged(4, 0, right=lambda _: False, budget=1024)
    cell = judge_cell(read_evidence(write_cell(tmp_path / "cell", evidence, tmp_path / "passes")), GATE)
    assert cell["verdict"] == "pass"
    assert cell["reasons"] == ["reuse only: nothing of the shared 4 blocks was found at a budget of 1024 tokens"]
    assert (cell["paired"], cell["drift"], cell["lmcache_ci"]) == (None, None, None)
    assert cell["reuse"]["hit_tokens"] == 0
    assert judge_run([cell, judge_cell(healthy(), GATE)]).reasons == ("2 cells: all pass",)


def test_whatever_is_found_is_compared() -> None:
    assert judge_cell(diverged(4, 1), GATE)["verdict"] == "pass"
    broken = judge_cell(diverged(4, 1, right=lambda _: False), GATE)
    assert broken["verdict"] == "fail" and broken["paired"]["b"] == 108


def test_reuse_in_cell_json(tmp_path: Path) -> None:
    evidence = diverged(4, 3)
    cell = judge_cell(read_evidence(write_cell(tmp_path / "cell", evidence, tmp_path / "passes")), GATE)
    assert cell["reuse"] == {
        "diverges_after_blocks": 4,
        "blocks": BLOCKS,
        "shared_tokens": QUESTIONS * 4 * N,
        "hit_tokens": QUESTIONS * 3 * N,
    }
    shared, asked = QUESTIONS * 4 * N, prompt_tokens()
    assert cell["hit_rate"] == {
        "target": shared / asked,
        "reachable": shared / asked,
        "measured": pytest.approx(0.75 * shared / asked),
    }
    json.dumps(cell, allow_nan=False)
    assert cell == judge_cell(evidence, GATE)
    assert judge_cell(healthy(), GATE)["reuse"] is None


def test_what_is_shared_is_found_in_whole_chunks() -> None:
    found = measure_reuse(diverged(3, 2, chunk_size=2 * N))
    assert found is not None and found.shared_tokens == QUESTIONS * 2 * N


def test_evidence_of_an_earlier_version_has_no_divergence(tmp_path: Path) -> None:
    folder = write_cell(tmp_path / "cell", healthy(), tmp_path / "passes")
    told = read_json(folder / "evidence.json")
    del told["facts"]["diverges_after"]
    write_json(folder / "evidence.json", told)
    assert asdict(read_evidence(folder).facts)["diverges_after"] is None


# --- on a terminal -----------------------------------------------------------------------------------------


def printed(*cells: dict[str, Any]) -> str:
    out = io.StringIO()
    run = {"verdict": "pass", "status": "complete", "error": None}
    print_run(Console(file=out, width=80), run, cells, "results/run")
    return out.getvalue()


def test_reuse_is_shown_by_cell_and_for_all_of_them() -> None:
    cells = [
        judge_cell(healthy(), GATE),
        judge_cell(diverged(6, 6), GATE),
        judge_cell(diverged(4, 4), GATE),
        judge_cell(diverged(6, 6, launch_id="budget1024-r1"), GATE),
        judge_cell(diverged(4, 0, launch_id="budget1024-r1"), GATE),
    ]
    lines = [line.rstrip() for line in printed(*cells[:1], cells[2]).splitlines()]
    assert lines.count("reuse: diverges after 4 of 6 blocks, 4.0 of 4 found") == 1
    assert sum(line.startswith("reuse: diverges") for line in lines) == 1, "not the full cell"
    assert "reuse: diverges after 4 of 6 blocks, 0.0 of 4 found" in printed(cells[4])
    lines = [line.rstrip() for line in printed(*cells).splitlines()]
    assert [line.split() for line in lines if line.startswith(("budget127-r1", "budget1024-r1"))] == [
        ["budget127-r1", "6.0", "4.0"],
        ["budget1024-r1", "6.0", "0.0"],
    ]
    assert "reuse" not in printed(judge_cell(healthy(), GATE))


def test_reuse_in_the_summary() -> None:
    frame = summary_frame([judge_cell(diverged(4, 3), GATE), judge_cell(healthy(), GATE)])
    warm = frame[frame["pass"] == "warm"]
    assert warm["diverges_after_blocks"].iloc[0] == 4 and warm["shared_tokens"].iloc[0] == QUESTIONS * 4 * N
    assert warm["diverges_after_blocks"].isna().tolist() == [False, True]


def test_unknown_hits_are_a_dash() -> None:
    unknown = judge_cell(with_flow(diverged(4, 0), "warm", external_hit=None), GATE)
    assert "reuse: diverges after 4 of 6 blocks, - of 4 found" in printed(unknown)
    earlier = judge_cell(evidence_of([pass_of("cold"), pass_of("warm")]), GATE)
    del earlier["reuse"]
    assert "PASS" in printed(earlier)
