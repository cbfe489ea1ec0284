"""From a cell's evidence to its cell.json: one pure function over files, used by run and report alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from harness.config import GateConfig
from harness.equivalence.documents import replay_numbers
from harness.equivalence.drift import measure_drift
from harness.equivalence.evidence import CellFacts, Evidence, PassEvidence
from harness.equivalence.lmcache_ci import lmcache_rule
from harness.equivalence.looks import gate_at, look_of, stop_reason
from harness.equivalence.paired import PairedTable, paired_table
from harness.equivalence.reuse import Reuse, measure_reuse
from harness.equivalence.score import score_tests
from harness.equivalence.validity import ValidityCheck, check_blocks, check_validity, hit_rate
from harness.equivalence.verdict import decide, decide_uncompared
from harness.errors import HarnessError
from harness.measure.summary import summarize_pass


def judge_cell(evidence: Evidence, gate: GateConfig) -> dict[str, Any]:
    """Verdict of a cell and every number behind it; the contract is docs/results.md.

    Raises:
        HarnessError: the task's scores are not 0 or 1, so questions can't be counted as right or wrong.
    """
    if gate.looks > 1 and evidence.blocks:
        return judge_looks(evidence, replace(gate, looks=evidence.facts.looks))
    return _judged(evidence, gate, check_validity(evidence, gate)) | {"looks": None}


def judge_looks(evidence: Evidence, gate: GateConfig) -> dict[str, Any]:
    """The same of a cell that was measured block by block: judged at its first look that ends it.

    Args:
        evidence: with blocks.
        gate: of the run, with as many looks as the evidence has planned.
    """
    looks: list[dict[str, Any]] = []
    for number in range(1, len(evidence.blocks) + 1):
        seen, ordinary = evidence.until(number), gate_at(gate, number)
        judged = _judged(seen, ordinary, check_blocks(seen, ordinary))
        looks.append(look_of(judged, number, gate))
        if looks[-1]["ends"]:
            break
    asked = evidence.facts.questions or looks[-1]["n"]
    why = stop_reason(looks[-1], asked, gate)
    told = {
        "planned": gate.looks,
        "questions": asked,
        "asked": looks[-1]["n"],
        "share": looks[-1]["level"] / gate.alpha,
        "why": why,
        "looks": looks,
    }
    return judged | {"gate": asdict(gate), "reasons": [*judged["reasons"], why], "looks": told}


def _judged(evidence: Evidence, gate: GateConfig, validity: Sequence[ValidityCheck]) -> dict[str, Any]:
    """All of a cell.json but its looks."""
    facts = evidence.facts
    reuse = measure_reuse(evidence)
    if reason := nothing_retrieved(facts, reuse):
        score = drift = lmcache = None
        decision = decide_uncompared(validity, reason)
    else:
        table = pair(evidence.passes["cold"], evidence.passes["warm"])
        score = score_tests(table, gate) if table else None
        drift, lmcache = measure_drift(evidence, gate), lmcache_rule(evidence)
        decision = decide(validity, score, drift, lmcache, gate)
    passes = {
        name: summarize_pass(each.requests, each.samples, each.timeline, each.flow, each.wall_s)
        for name, each in evidence.passes.items()
    }
    cold = evidence.passes["cold"]
    return {
        "cell": facts.cell_id,
        "launch": facts.launch_id,
        "measured_at": evidence.passes["warm"].started_at,
        "verdict": decision.verdict.value,
        "reasons": list(decision.reasons),
        "budget": facts.budget,
        "repeat": facts.repeat,
        "unified_block_size": facts.block_size,
        "chunk_size": facts.chunk_size,
        "prompt_set_sha256": facts.prompt_set_sha256,
        "hit_rate": asdict(hit_rate(evidence)),
        "reuse": asdict(reuse) if reuse else None,
        "passes": passes,
        "paired": score.numbers() if score else None,
        "drift": drift.numbers() if drift else None,
        "lmcache_ci": lmcache.numbers() if lmcache and facts.warm_from in ("lmcache", "mixed") else None,
        "agreement": {name: agreement(cold, each) for name, each in evidence.passes.items() if name != "cold"},
        "speed": speed(passes["cold"], passes["warm"]),
        "validity": [asdict(check) for check in validity],
        "gate": asdict(gate),
        "events": list(evidence.events),
        "warm_from": facts.warm_from,
        "damage": dict(facts.damage) if facts.damage is not None else None,
        "replay": replay_numbers(evidence, gate.drift_margin_nats),
    }


def nothing_retrieved(facts: CellFacts, reuse: Reuse | None) -> str | None:
    """Why a cell has nothing to compare; None for one that has."""
    if facts.speed_only:
        return "speed only: nothing is retrieved at hit rate 0"
    if reuse and reuse.nothing:
        return (
            f"reuse only: nothing of the shared {reuse.diverges_after_blocks} blocks was found at a budget of "
            f"{facts.budget} tokens"
        )
    return None


def pair(cold: PassEvidence, warm: PassEvidence) -> PairedTable | None:
    """Paired table of two passes over the same documents; None when they answered different ones."""
    scores = [_right_or_wrong(each.samples) for each in (cold, warm)]
    if scores[0].keys() != scores[1].keys() or not scores[0]:
        return None
    return paired_table(*scores)


def agreement(cold: PassEvidence, other: PassEvidence) -> dict[str, Any]:
    """How far another pass repeats the cold one, token by token: shown, not judged; drift is."""
    both = cold.requests.merge(other.requests, on="doc_id", suffixes=("_cold", "_other"))
    both = both[both["error_cold"].isna() & both["error_other"].isna()]
    answered = both[(both["logprobs_cold"].str.len() > 0) & (both["logprobs_other"].str.len() > 0)]
    same_first = _first(answered["token_ids_cold"]) == _first(answered["token_ids_other"])
    first = (_first(answered["logprobs_cold"]) - _first(answered["logprobs_other"])).abs()
    same = [np.array_equal(a, b) for a, b in zip(both["token_ids_cold"], both["token_ids_other"], strict=True)]
    return {
        "n": len(both),
        "same_text": float(np.mean(both["text_cold"] == both["text_other"])) if len(both) else None,
        "same_tokens": float(np.mean(same)) if same else None,
        "same_first_token": float(same_first.mean()) if len(answered) else None,
        "first_token_logprob_exact": float((same_first & (first == 0)).mean()) if len(answered) else None,
        # Of the same token only: logprobs of different tokens say nothing about each other.
        "first_token_logprob_max_difference": float(first[same_first].max()) if same_first.any() else None,
    }


def speed(cold: dict[str, Any], warm: dict[str, Any]) -> dict[str, float | None]:
    """Warm against cold as ratios; above 1 means that warm is faster (TTFT) or does more (throughput)."""

    def ratio(top: float | None, bottom: float | None) -> float | None:
        return top / bottom if top is not None and bottom else None

    return {
        "ttft_p50_cold_over_warm": ratio(cold["ttft_s"]["p50"], warm["ttft_s"]["p50"]),
        "throughput_warm_over_cold": ratio(warm["output_tokens_per_s"], cold["output_tokens_per_s"]),
    }


def _first(lists: pd.Series[Any]) -> pd.Series[float]:
    return lists.map(lambda values: values[0]).astype(float)


def _right_or_wrong(samples: pd.DataFrame) -> dict[int, bool]:
    values = set(samples["score"].unique()) - {0.0, 1.0}
    if values:
        told = ", ".join(f"{float(value):g}" for value in sorted(values)[:3])
        raise HarnessError(
            f"Scores must be 0 or 1 to be paired, and this task gives {told}: choose another task.metric."
        )
    return {int(doc): bool(score) for doc, score in zip(samples["doc_id"], samples["score"], strict=True)}
