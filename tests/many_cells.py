"""Complete runs of many cells, made up in code: no server has run, and run.json says so.

A few cells are made, and judged by the code that a run uses, and copied under the names of a sweep: budgets x hit rates
x repeats, 500 requests each (125 questions in four passes).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from evidence import (
    BLOCKS,
    PASSES,
    N,
    evidence_of,
    pass_of,
    prompt_length,
    prompt_tokens,
    record,
    with_flow,
    write_cell,
)
from stack_support import composed

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence, PassEvidence, read_evidence
from harness.equivalence.judge import judge_cell
from harness.equivalence.verdict import judge_run
from harness.repro.bundle import write_bundle
from harness.store import RunFolder, read_json, write_frame, write_json
from harness.workload.prompts import Prompt, as_frame

QUESTIONS = 125
REQUESTS = QUESTIONS * len(PASSES)
"""Of a cell."""

MODEL = "made up (nothing measured)"
BUDGETS = (64, 80, 96, 127)
HIT_BLOCKS = (1, 2, 4, 5, BLOCKS)
"""Blocks of every prompt that a cell's warm pass finds: a target hit rate each."""

SHARES = {"healthy": 0.47, "healthy too": 0.47, "flips": 0.04, "broken": 0.01, "not retrieved": 0.01}
"""Kind of cell -> share of the cells; what does not pass stands at random places."""

LOGS = Path(__file__).parent / "data" / "logs" / "healthy"


class Place(NamedTuple):
    """A cell of the sweep."""

    repeat: int
    budget: int
    blocks: int

    @property
    def rate(self) -> float:
        """Target hit rate."""
        return QUESTIONS * self.blocks * N / prompt_tokens(QUESTIONS)

    @property
    def launch(self) -> str:
        """Its server launch."""
        return f"budget{self.budget}-r{self.repeat}"

    @property
    def cell(self) -> str:
        """Its name, as the harness names cells."""
        return f"budget{self.budget}-hit{self.rate:.2f}-r{self.repeat}"


def places(cells: int) -> list[Place]:
    """The first so many cells of a sweep with as many repeats as that takes."""
    per_repeat = len(BUDGETS) * len(HIT_BLOCKS)
    every = (
        Place(repeat, budget, blocks)
        for repeat in range(1, -(-cells // per_repeat) + 1)
        for budget in BUDGETS
        for blocks in HIT_BLOCKS
    )
    return [place for place, _ in zip(every, range(cells), strict=False)]


class Pattern:
    """Cells to copy from: one of each kind and hit rate.

    Args:
        folder: for their files; belongs to the pattern from now on.
        seed: of their times.
        slower: factor on all times.
    """

    def __init__(self, folder: Path, seed: int = 0, slower: float = 1.0) -> None:
        self.folder = folder
        chance = np.random.default_rng(seed)
        self.cells: dict[tuple[str, int], tuple[Path, dict[str, Any]]] = {}
        for number, (kind, blocks) in enumerate((kind, blocks) for kind in SHARES for blocks in HIT_BLOCKS):
            evidence = _evidence(kind, Place(1, BUDGETS[-1], blocks), chance, slower)
            path = write_cell(folder / str(number), evidence, folder / "passes" / str(number))
            cell = judge_cell(read_evidence(path), GateConfig(name="made_up"))
            self.cells[kind, blocks] = (path, cell)

    def write(self, results: Path, run_id: str, cells: list[Place], seed: int = 0, day: int = 1, **told: Any) -> Path:
        """Writes a complete run; ``told`` changes its run.json, ``day`` of a January is when it began."""
        run = RunFolder.create(results, run_id)
        run.unlock()
        run.release_reserve()
        chance = random.Random(seed)
        kinds = chance.choices(list(SHARES), list(SHARES.values()), k=len(cells))
        config = asdict(replace(composed(), run_id=run_id, results_dir=str(results)))
        config["model"]["name"] = MODEL
        record = {
            "schema": 1,
            "run_id": run_id,
            "status": "complete",
            "error": None,
            "model": MODEL,
            "started_at": f"2026-01-{day:02}T00:00:00.000+00:00",
            "finished_at": f"2026-01-{day:02}T23:00:00.000+00:00",
            "predicted_block_size": N,
            "unified_block_size": N,
            "warnings": [],
            "config": config,
            "provenance": {"machine": {"processor": "none", "cores": 1, "architecture": "none"}},
            "launches": {place.launch: _launch(place) for place in cells},
        }
        write_json(run.path / "run.json", record)
        for place in {place.launch: place for place in cells}.values():
            folder = run.launch(place.launch)
            write_frame(folder / "prompts.parquet", as_frame(MADE_PROMPTS))
            for log in LOGS.glob("*.log"):
                shutil.copyfile(log, folder / log.name)
        judged = [
            self._copy(run, kind, place, day, number)
            for number, (kind, place) in enumerate(zip(kinds, cells, strict=True))
        ]
        decision = judge_run(judged)
        verdict = {"verdict": decision.verdict.value, "reasons": list(decision.reasons)}
        write_json(run.path / "run.json", record | verdict | told)
        for cell in judged:
            if cell["verdict"] == "fail":
                write_bundle(run, cell["cell"])
        return run.path

    def _copy(self, run: RunFolder, kind: str, place: Place, day: int, number: int) -> dict[str, Any]:
        source, pattern = self.cells[kind, place.blocks]
        folder = run.cell(place.cell)
        shutil.copytree(source, folder)
        facts = {"cell_id": place.cell, "launch_id": place.launch, "budget": place.budget, "repeat": place.repeat}
        evidence = read_json(folder / "evidence.json")
        write_json(folder / "evidence.json", evidence | {"facts": evidence["facts"] | facts})
        hour, rest = divmod(number, 3600)
        minute, second = divmod(rest, 60)
        cell = pattern | {
            "cell": place.cell,
            "launch": place.launch,
            "budget": place.budget,
            "repeat": place.repeat,
            "measured_at": f"2026-01-{day:02}T{hour:02}:{minute:02}:{second:02}.000+00:00",
        }
        write_json(folder / "cell.json", cell)
        return cell


MADE_PROMPTS = [
    Prompt(i, f"text {i}", tuple(range(1000 * i, 1000 * i + prompt_length(i))), ("\n",), 28) for i in range(QUESTIONS)
]


def _launch(place: Place) -> dict[str, Any]:
    return {
        "budget": place.budget,
        "unified_block_size": N,
        "chunk_size": N,
        "started_s": {"lmcache": 5.0, "vllm": 30.0},
        "commands": {"vllm": ["vllm", "serve", "nothing"], "lmcache": ["lmcache", "server"]},
        "environment": {},
    }


def _evidence(kind: str, place: Place, chance: np.random.Generator, slower: float) -> Evidence:
    """A cell of one kind, with times of its own."""
    wrong = {"flips": 2, "broken": 30}.get(kind, 0)
    passes = dict(_passes(place, wrong))
    hits = 0 if kind == "not retrieved" else QUESTIONS * place.blocks * N
    facts = {"cell_id": place.cell, "launch_id": place.launch, "budget": place.budget, "target": place.rate}
    made = evidence_of((_timed(each, chance, slower) for each in passes.values()), **facts)
    retrieves = QUESTIONS if hits else 0
    return with_flow(
        made,
        "warm",
        computed=prompt_tokens(QUESTIONS) - hits,
        external_hit=hits,
        lookup_hit=hits,
        retrieves_submitted=retrieves,
        retrieves_finished=retrieves,
    )


def _passes(place: Place, wrong: int) -> Iterator[tuple[str, PassEvidence]]:
    for name in PASSES:
        records = [record(name, doc_id) for doc_id in range(QUESTIONS)]
        if name == "warm":
            for each in records:
                each.cached_tokens = place.blocks * N
                if wrong > 2 and each.doc_id < wrong:
                    each.token_ids[4], each.logprobs[4] = 99, -3.0
        first_right = wrong if name == "warm" else 0
        right = {doc_id: doc_id % 10 != 9 and doc_id >= first_right for doc_id in range(QUESTIONS)}
        yield name, pass_of(name, QUESTIONS, records=records, right=right.__getitem__)


def _timed(each: PassEvidence, chance: np.random.Generator, slower: float) -> PassEvidence:
    """The same pass with other times: every latency by a factor of its own, log-normal with sigma 0.2."""
    factors = slower * chance.lognormal(sigma=0.2, size=len(each.requests))
    sent = each.requests["sent_s"].to_numpy()
    times = np.stack([np.asarray(row, dtype=float) for row in each.requests["token_times_s"]])
    moved = sent[:, None] + (times - sent[:, None]) * factors[:, None]
    requests = each.requests.assign(
        ttft_s=each.requests["ttft_s"] * factors, finished_s=moved[:, -1], token_times_s=list(moved)
    )
    return replace(each, requests=requests, wall_s=each.wall_s * float(factors.mean()))
