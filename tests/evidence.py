"""A healthy cell of 120 questions, built in code, and the ways in which tests make it ill.

Sizes are those of a real run of the pocket model: N = 64, prompts of 6 whole blocks, answers of 17 tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from harness.equivalence.evidence import CellFacts, Evidence, PassEvidence, gather_cell
from harness.measure.batch import BatchSample
from harness.measure.counters import Tokens
from harness.store import write_frame, write_json
from harness.workload.passes import requests_frame, timeline_frame
from harness.workload.stream import RequestRecord

N = 64
BLOCKS = 6
ANSWER_TOKENS = 17
QUESTIONS = 120
PASSES = ("control", "cold", "local_warm", "warm")

WALL_S = {"control": 6.0, "cold": 6.0, "local_warm": 1.5, "warm": 2.0}
FIRST_TTFT_S = {"control": 0.4, "cold": 0.4, "local_warm": 0.1, "warm": 0.2}
STARTED_AT = {name: f"2026-11-29T20:4{i}:00.000+00:00" for i, name in enumerate(PASSES)}

LOOKS = ((0, 0), (1, 7), (4, 4), (4, 0), (3, 1), (0, 0))
"""Running and waiting requests, look by look."""

FACTS = CellFacts(
    cell_id="budget127-full-r1",
    launch_id="budget127-r1",
    budget=127,
    repeat=1,
    block_size=N,
    chunk_size=N,
    target=None,
    floor=0.3,
    prompt_set_sha256="5e" * 32,
)

EVENTS: tuple[dict[str, Any], ...] = (
    {"step": "clear", "argument": None, "vllm": {"attempts": 1, "success": True}},
    {"step": "pass", "argument": "cold"},
    {"step": "pass", "argument": "warm"},
)

COUNTERS = {
    "prompt": ("vllm", "vllm:prompt_tokens_total"),
    "computed": ("vllm", 'vllm:prompt_tokens_by_source_total{source="local_compute"}'),
    "local_hit": ("vllm", 'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'),
    "external_hit": ("vllm", 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'),
    "preemptions": ("vllm", "vllm:num_preemptions_total"),
    "corrupted": ("vllm", "vllm:corrupted_requests_total"),
    "lookup_requested": ("lmcache", "lmcache_mp_lookup_requested_tokens_total"),
    "lookup_hit": ("lmcache", "lmcache_mp_lookup_hit_tokens_total"),
    "stores_submitted": ("lmcache", "lmcache_mp_num_submitted_stores_total"),
    "stores_finished": ("lmcache", "lmcache_mp_num_finished_stores_total"),
    "retrieves_submitted": ("lmcache", "lmcache_mp_num_submitted_retrieves_total"),
    "retrieves_finished": ("lmcache", "lmcache_mp_num_finished_retrieves_total"),
    "chunks_written": ("lmcache", "lmcache_mp_l1_write_chunks_total"),
}
"""Counters as both servers name them."""


def prompt_length(doc_id: int) -> int:
    """411, 419, 427 or 435 tokens: 6 whole blocks and a rest."""
    return 411 + 8 * (doc_id % 4)


def prompt_tokens(questions: int = QUESTIONS) -> int:
    return sum(prompt_length(doc_id) for doc_id in range(questions))


def reachable(questions: int = QUESTIONS) -> int:
    return questions * BLOCKS * N


def right_by_default(doc_id: int) -> bool:
    """Nine of ten."""
    return doc_id % 10 != 9


def record(name: str, doc_id: int) -> RequestRecord:
    """An answered request; TTFT grows by a millisecond from document to document."""
    sent_s, ttft_s = 0.01 * doc_id, FIRST_TTFT_S[name] + 0.001 * doc_id
    times = [round(sent_s + ttft_s + 0.02 * token, 6) for token in range(ANSWER_TOKENS)]
    pens = doc_id % 10
    return RequestRecord(
        doc_id=doc_id,
        prompt_sha256=hashlib.sha256(str(doc_id).encode()).hexdigest(),
        sent_s=sent_s,
        ttft_s=ttft_s,
        finished_s=times[-1],
        prompt_tokens=prompt_length(doc_id),
        cached_tokens=BLOCKS * N if name.endswith("warm") else 0,
        output_tokens=ANSWER_TOKENS,
        text=f" Rex has {pens} pens.\n#### {pens}",
        finish_reason="stop",
        token_times_s=times,
        token_ids=[462 + doc_id, *range(1, ANSWER_TOKENS)],
        logprobs=[-0.01 * doc_id - 0.5] * ANSWER_TOKENS,
        runner_up_ids=[300] * ANSWER_TOKENS,
        runner_up_logprobs=[-9.0] * ANSWER_TOKENS,
    )


def failed(name: str, doc_id: int, error: str = "HTTP 500: no room") -> RequestRecord:
    """A request that got no answer."""
    healthy = record(name, doc_id)
    return RequestRecord(doc_id, healthy.prompt_sha256, healthy.sent_s, error=error)


def flow(name: str, questions: int = QUESTIONS) -> Tokens:
    """What both servers count over a healthy pass; LMCache has two object groups, so two chunks per block."""
    asked, hits = prompt_tokens(questions), reachable(questions)
    stores = 0 if name.endswith("warm") else questions * BLOCKS
    retrieves = questions if name == "warm" else 0
    local, external = hits * (name == "local_warm"), hits * (name == "warm")
    return Tokens(
        prompt=asked,
        computed=asked - local - external,
        local_hit=local,
        external_hit=external,
        lookup_requested=hits,
        lookup_hit=local + external,
        stores_submitted=stores,
        stores_finished=stores,
        retrieves_submitted=retrieves,
        retrieves_finished=retrieves,
        chunks_written=2 * stores,
        preemptions=0,
        corrupted=None,
    )


def pass_of(
    name: str,
    questions: int = QUESTIONS,
    *,
    right: Callable[[int], bool] = right_by_default,
    records: Iterable[RequestRecord] | None = None,
) -> PassEvidence:
    """One pass; ``right`` says which documents score 1."""
    sent = [record(name, doc_id) for doc_id in range(questions)] if records is None else list(records)
    lengths = {each.doc_id: prompt_length(each.doc_id) for each in sent}
    samples = pd.DataFrame(
        {
            "doc_id": list(range(questions)),
            "target": [f"#### {doc_id % 10}" for doc_id in range(questions)],
            "answer": [str(doc_id % 10) for doc_id in range(questions)],
            "score": [float(right(doc_id)) for doc_id in range(questions)],
        }
    )
    looks = [BatchSample(0.05 * i, running, waiting) for i, (running, waiting) in enumerate(LOOKS)]
    return PassEvidence(
        name=name,
        wall_s=WALL_S[name],
        started_at=STARTED_AT[name],
        requests=requests_frame(name, sent, lengths),
        samples=samples.assign(**{"pass": name}),
        timeline=timeline_frame(name, looks),
        flow=flow(name, questions),
    )


def evidence_of(passes: Iterable[PassEvidence], **facts: Any) -> Evidence:
    return Evidence(replace(FACTS, **facts), {each.name: each for each in passes}, EVENTS)


@cache
def healthy(questions: int = QUESTIONS) -> Evidence:
    """A cell in which nothing is wrong; shared, so nobody changes its tables in place."""
    return evidence_of(pass_of(name, questions) for name in PASSES)


def diverged(after: int, found: int, *, right: Callable[[int], bool] = right_by_default, **facts: Any) -> Evidence:
    """A cell whose stored prompts share ``after`` blocks with those asked, and each of these found ``found``."""
    hits, retrieves = QUESTIONS * found * N, QUESTIONS * (found > 0)
    records = [replace(record("warm", doc_id), cached_tokens=found * N) for doc_id in range(QUESTIONS)]
    passes = [pass_of("cold"), pass_of("local_warm"), pass_of("warm", records=records, right=right)]
    name = f"budget127-after{after}-r1"
    served = with_flow(
        evidence_of(passes, cell_id=name, diverges_after=after, **facts),
        "warm",
        external_hit=hits,
        lookup_hit=hits,
        retrieves_submitted=retrieves,
        retrieves_finished=retrieves,
    )
    seeded = {"requests": QUESTIONS, "tokens": prompt_tokens(), "chunks_written": QUESTIONS * (BLOCKS + 1)}
    seed = {"step": "seed", "argument": "diverging", "seeded": seeded}
    return replace(served, events=(*EVENTS[:-1], EVENTS[0], seed, EVENTS[-1]))


def with_pass(evidence: Evidence, name: str, **changes: Any) -> Evidence:
    """The same with fields of one pass replaced."""
    return replace(evidence, passes={**evidence.passes, name: replace(evidence.passes[name], **changes)})


def with_flow(evidence: Evidence, name: str, **changes: float | None) -> Evidence:
    """The same with counters of one pass replaced."""
    return with_pass(evidence, name, flow=replace(evidence.passes[name].flow, **changes))


def with_record(evidence: Evidence, name: str, changed: RequestRecord) -> Evidence:
    """The same with one request of one pass replaced."""
    return with_records(evidence, name, {changed.doc_id: changed})


def with_records(evidence: Evidence, name: str, changed: Mapping[int, RequestRecord]) -> Evidence:
    """The same with some requests of one pass replaced."""
    count = len(evidence.passes[name].samples)
    records = [changed.get(doc_id) or record(name, doc_id) for doc_id in range(count)]
    return with_pass(evidence, name, requests=pass_of(name, count, records=records).requests)


def snapshots(flow: Tokens) -> dict[str, Any]:
    """Counters before and after a pass that differ by its flow, as pass.json has them."""
    before: dict[str, dict[str, float]] = {"vllm": {}, "lmcache": {}}
    after: dict[str, dict[str, float]] = {"vllm": {}, "lmcache": {}}
    for number, (field, (server, name)) in enumerate(COUNTERS.items(), start=1):
        value = getattr(flow, field)
        if value is not None:
            before[server][name] = 1000.0 * number
            after[server][name] = 1000.0 * number + value
    return {"before": before, "after": after}


def write_passes(folder: Path, evidence: Evidence) -> list[Path]:
    """Writes every pass as a launch does; returns their folders."""
    folders = []
    for name, each in evidence.passes.items():
        path = folder / name
        path.mkdir(parents=True)
        for table, frame in (("requests", each.requests), ("samples", each.samples), ("timeline", each.timeline)):
            write_frame(path / f"{table}.parquet", frame)
        write_json(
            path / "pass.json",
            {
                "name": name,
                "started_at": each.started_at,
                "wall_s": each.wall_s,
                "missed_looks": 0,
                "settled": {},
                "counters": snapshots(each.flow),
            },
        )
        folders.append(path)
    return folders


def write_cell(folder: Path, evidence: Evidence, scratch: Path) -> Path:
    """Gathers a cell's evidence into ``folder`` from pass folders below ``scratch``."""
    passes: Sequence[Path] = write_passes(scratch, evidence)
    folder.mkdir(parents=True)
    gather_cell(folder, evidence.facts, passes, [dict(event) for event in evidence.events])
    return folder
