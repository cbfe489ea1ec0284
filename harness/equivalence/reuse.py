"""Reuse: how much of what diverging prompts share with what is stored was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.equivalence.evidence import Evidence
from harness.workload.prompts import whole_blocks
from harness.workload.seeding import shared_tokens


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a cell whose prompts diverge comes to; tokens of all prompts together."""

    diverges_after_blocks: int
    blocks: float
    """Whole blocks of N that a cache can serve of a prompt: the mean over all prompts."""
    shared_tokens: int
    """Of the shared blocks, in whole chunks: as many as can be found."""
    hit_tokens: float | None
    """Served by LMCache; None when vLLM does not report it."""

    @property
    def nothing(self) -> bool:
        """Whether nothing was found, so that there is nothing to compare."""
        return self.hit_tokens == 0


def measure_reuse(evidence: Evidence) -> Reuse | None:
    """Reuse of the warm pass; None where nothing diverges."""
    facts, warm = evidence.facts, evidence.passes["warm"]
    if facts.diverges_after is None:
        return None
    lengths = [int(length) for length in warm.requests["sent_tokens"]]
    return Reuse(
        diverges_after_blocks=facts.diverges_after,
        blocks=sum(whole_blocks(length, facts.block_size) for length in lengths) / len(lengths),
        shared_tokens=sum(shared_of(evidence).values()),
        hit_tokens=warm.flow.external_hit,
    )


def shared_of(evidence: Evidence) -> dict[int, int]:
    """Document -> tokens that LMCache can serve of its prompt, where what is stored diverges."""
    facts, requests = evidence.facts, evidence.passes["warm"].requests
    shared = (facts.diverges_after or 0) * facts.block_size
    return {
        int(doc_id): shared_tokens(int(length), shared, facts.chunk_size)
        for doc_id, length in zip(requests["doc_id"], requests["sent_tokens"], strict=True)
    }


def mean_blocks(cell: Mapping[str, Any]) -> tuple[float | None, float]:
    """Blocks per prompt that were found, and that are shared, from a cell.json that has ``reuse``."""
    reuse, per_prompt = cell["reuse"], cell["unified_block_size"] * cell["passes"]["warm"]["n"]
    hits = reuse["hit_tokens"]
    return None if hits is None else hits / per_prompt, reuse["shared_tokens"] / per_prompt
