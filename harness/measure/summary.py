"""What one pass amounts to: latency, throughput, batch size and hits, from what it wrote down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.measure.counters import Tokens

PERCENTILES = (50, 95, 99)


def summarize_pass(
    requests: pd.DataFrame, scores: pd.DataFrame, timeline: pd.DataFrame, flow: Tokens, wall_s: float
) -> dict[str, Any]:
    """Numbers of one pass; times in seconds, rates in tokens per second of its wall time, None where unmeasured.

    Args:
        requests: one row per request, as requests.parquet has them.
        scores: one row per document.
        timeline: columns ``running`` and ``waiting``, one row per look.
        flow: what both servers counted.
        wall_s: from the first request sent to the last one finished.
    """
    answered = requests[requests["error"].isna()]
    output_tokens = int(answered["output_tokens"].sum())
    prompt_tokens = int(answered["prompt_tokens"].sum())
    return {
        "score": float(scores["score"].mean()),
        "n": len(scores),
        "wall_s": wall_s,
        "ttft_s": percentiles(answered["ttft_s"]),
        "inter_token_s": percentiles(inter_token_times(answered)),
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / wall_s,
        "prompt_tokens_per_s": prompt_tokens / wall_s,
        "requests_per_s": len(answered) / wall_s,
        "running": running_batch(timeline),
        "prompt_tokens": flow.prompt,
        "external_hit_tokens": flow.external_hit,
        "local_hit_tokens": flow.local_hit,
        "lmcache_hit_tokens": flow.lookup_hit,
        "preemptions": flow.preemptions,
        "errors": int(requests["error"].notna().sum()),
        "retries": int(requests["retries"].sum()),
        "ended_by_length": int((answered["finish_reason"] == "length").sum()),
    }


def percentiles(values: pd.Series[float] | np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float | None]:
    """``{"p50": …, "p95": …, "p99": …}`` by linear interpolation; None without values."""
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    if not len(known):
        return {f"p{p}": None for p in PERCENTILES}
    return {f"p{p}": float(np.percentile(known, p)) for p in PERCENTILES}


def inter_token_times(requests: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds between consecutive tokens of a request, of all requests together."""
    gaps = [np.diff(np.asarray(times, dtype=float)) for times in requests["token_times_s"]]
    return np.concatenate(gaps) if gaps else np.empty(0)


def running_batch(timeline: pd.DataFrame) -> dict[str, float | None]:
    """Mean and maximum of running requests over the looks that saw any request."""
    busy = timeline[timeline["running"] + timeline["waiting"] > 0]
    if busy.empty:
        return {"mean": None, "max": None, "waiting_mean": None}
    return {
        "mean": float(busy["running"].mean()),
        "max": float(busy["running"].max()),
        "waiting_mean": float(busy["waiting"].mean()),
    }
