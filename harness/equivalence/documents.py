"""A cell's documents one by one: which broke, how far each is from cold, and so which of them differ."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.equivalence.divergence import departures
from harness.equivalence.evidence import Evidence, PassEvidence


def compare_documents(cold: PassEvidence, warm: PassEvidence, margin_nats: float) -> pd.DataFrame:
    """Every document that both passes have scored, worst first.

    Returns:
        Indexed by ``doc_id``: ``broke`` (right cold, wrong warm), ``mended`` (the other way round), ``max_nats``
        (largest |Δlogprob| up to and including the first divergence, NaN without two answers), ``differs`` (broke,
        mended, or further from cold than ``margin_nats``). Those that broke come first, then by ``max_nats``, then by
        document.
    """
    scores = pd.concat({"cold": cold.scores, "warm": warm.scores}, axis=1, join="inner").sort_index()
    frame = pd.DataFrame(
        {
            "broke": scores["cold"] > scores["warm"],
            "mended": scores["cold"] < scores["warm"],
            "max_nats": departures(cold.requests, warm.requests)["max_nats"].reindex(scores.index),
        }
    )
    frame["differs"] = frame["broke"] | frame["mended"] | (frame["max_nats"] > margin_nats)
    # Stable, so that documents which are equally bad keep their order.
    return frame.sort_values(["broke", "max_nats"], ascending=False, kind="stable")


def replay_numbers(evidence: Evidence, margin_nats: float) -> dict[str, Any] | None:
    """What became of the documents that differed in the cell that is replayed; None for a cell that replays nothing."""
    facts = evidence.facts
    if facts.replay_of is None:
        return None
    compared = compare_documents(evidence.passes["cold"], evidence.passes["warm"], margin_nats)
    differ = set(compared.index[compared["differs"]])
    then = set(facts.differed_then) & set(compared.index)
    return {
        "of": facts.replay_of,
        "prompts": len(compared),
        "differed_then": len(then),
        "of_these_differ_now": len(then & differ),
        "others_differ_now": len(differ - then),
    }
