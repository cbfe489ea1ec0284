"""What a pass amounts to, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from evidence import failed, flow, pass_of, record

from harness.measure.summary import inter_token_times, percentiles, running_batch, summarize_pass
from harness.workload.stream import RequestRecord


def timeline(*looks: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame(looks, columns=["running", "waiting"], dtype=float)


def summary(records: list[RequestRecord], wall_s: float = 2.0) -> dict[str, object]:
    each = pass_of("warm", len(records), records=records)
    return summarize_pass(each.requests, each.samples, each.timeline, each.flow, wall_s)


def test_percentiles_interpolate() -> None:
    assert percentiles(np.array([4.0, 1.0, 2.0, 3.0])) == pytest.approx({"p50": 2.5, "p95": 3.85, "p99": 3.97})
    assert percentiles(np.array([7.0])) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}


def test_percentiles_leave_out_what_was_not_measured() -> None:
    assert percentiles(pd.Series([1.0, None, 3.0]))["p50"] == 2.0
    assert percentiles(pd.Series([None, None], dtype=object)) == {"p50": None, "p95": None, "p99": None}
    assert percentiles(np.empty(0)) == {"p50": None, "p95": None, "p99": None}


def test_inter_token_times_stay_within_a_request() -> None:
    requests = pd.DataFrame({"token_times_s": [[1.0, 1.5, 1.75], [9.0, 9.0], [5.0], []]})
    assert list(inter_token_times(requests)) == [0.5, 0.25, 0.0]
    assert len(inter_token_times(requests.iloc[:0])) == 0


def test_batch_size_counts_looks_that_saw_requests() -> None:
    looks = timeline((0, 0), (1, 3), (2, 1), (6, 0), (0, 2), (0, 0))
    assert running_batch(looks) == {"mean": 9 / 4, "max": 6.0, "waiting_mean": 6 / 4}


def test_a_batch_that_is_stuck_at_one_shows() -> None:
    assert running_batch(timeline((0, 0), (1, 7), (1, 6), (1, 5))) == {"mean": 1.0, "max": 1.0, "waiting_mean": 6.0}


def test_no_look_has_no_batch_size() -> None:
    nothing = {"mean": None, "max": None, "waiting_mean": None}
    assert running_batch(timeline()) == nothing
    assert running_batch(timeline((0, 0), (0, 0))) == nothing


def test_rates_are_per_second_of_wall_time() -> None:
    told = summary([record("warm", doc_id) for doc_id in range(4)], wall_s=0.5)
    assert told["output_tokens"] == 4 * 17
    assert told["output_tokens_per_s"] == 4 * 17 / 0.5
    assert told["prompt_tokens_per_s"] == (411 + 419 + 427 + 435) / 0.5
    assert told["requests_per_s"] == 8.0


def test_failed_requests_count_as_errors_and_nothing_else() -> None:
    cut = replace(failed("warm", 1), output_tokens=5, prompt_tokens=419, ttft_s=50.0, token_times_s=[1.0, 90.0])
    told = summary([record("warm", 0), cut, record("warm", 2), failed("warm", 3)])
    assert told["errors"] == 2
    assert told["output_tokens"] == 2 * 17
    assert told["prompt_tokens_per_s"] == (411 + 427) / 2.0
    assert told["requests_per_s"] == 1.0
    assert told["ttft_s"] == pytest.approx({"p50": 0.201, "p95": 0.2019, "p99": 0.20198})
    assert told["inter_token_s"] == pytest.approx({"p50": 0.02, "p95": 0.02, "p99": 0.02}, abs=1e-5)


def test_retries_and_answers_cut_at_their_limit() -> None:
    records = [
        replace(record("warm", 0), retries=2),
        replace(record("warm", 1), retries=1, finish_reason="length"),
        replace(failed("warm", 2), retries=3, finish_reason="length"),
    ]
    told = summary(records)
    assert (told["retries"], told["ended_by_length"], told["errors"]) == (6, 1, 1)


def test_scores_are_over_all_documents() -> None:
    each = pass_of("warm", 4, right=lambda doc_id: doc_id == 0)
    told = summarize_pass(each.requests, each.samples, each.timeline, each.flow, 1.0)
    assert (told["score"], told["n"]) == (0.25, 4)


def test_hits_are_what_the_servers_counted() -> None:
    each = pass_of("warm", 4)
    counted = replace(flow("warm", 4), external_hit=640.0, local_hit=64.0, lookup_hit=704.0, preemptions=2.0)
    told = summarize_pass(each.requests, each.samples, each.timeline, counted, 1.0)
    assert told["external_hit_tokens"] == 640
    assert told["local_hit_tokens"] == 64
    assert told["lmcache_hit_tokens"] == 704
    assert told["prompt_tokens"] == 1692
    assert told["preemptions"] == 2
