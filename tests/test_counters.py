"""Prometheus pages of both servers, as they really print them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from standin import Reply, StandIn

from harness.errors import ServerError
from harness.measure.batch import BatchSampler, read_batch
from harness.measure.counters import Snapshot, delta, info_labels, parse_counters, read_gauges, token_flow

VLLM = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 16067.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="pocket"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="pocket"} 5.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="pocket",reason="capacity"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="pocket",reason="deferred"} 1.0
# HELP vllm:external_prefix_cache_hits_total External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="pocket"} 256.0
# HELP vllm:external_prefix_cache_hits_created External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.
# TYPE vllm:external_prefix_cache_hits_created gauge
vllm:external_prefix_cache_hits_created{engine="0",model_name="pocket"} 1.7959843096633768e+09
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="pocket"} 0.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="pocket"} 600.0
# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="pocket",source="local_compute"} 344.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="pocket",source="local_cache_hit"} 0.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="pocket",source="external_kv_transfer"} 256.0
# HELP vllm:prompt_tokens_by_source_created Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_created gauge
vllm:prompt_tokens_by_source_created{engine="0",model_name="pocket",source="local_compute"} 1.7959843096634288e+09
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="pocket"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="pocket"} 2.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="pocket"} 2.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="pocket"} 0.8
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="64",cache_dtype="auto",engine="0",mamba_block_size="4096",mamba_cache_mode="align",prefix_match_unit="None"} 1.0
"""  # noqa: E501

LMCACHE_QUIET = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3",minor="11",patchlevel="7",version="3.11.7"} 1.0
"""

LMCACHE = """\
# HELP target_info Target metadata
# TYPE target_info gauge
target_info{service_name="unknown_service",telemetry_sdk_language="python",telemetry_sdk_version="1.40.0"} 1.0
# HELP lmcache_mp_l1_write_chunks_total Total chunks written to L1
# TYPE lmcache_mp_l1_write_chunks_total counter
lmcache_mp_l1_write_chunks_total{l1_tag="_default"} 8.0
# HELP lmcache_mp_lookup_requested_tokens_total Total tokens submitted for lookup (denominator of the L1+L2 token-level hit rate). Only chunk-aligned tokens are counted.
# TYPE lmcache_mp_lookup_requested_tokens_total counter
lmcache_mp_lookup_requested_tokens_total{cache_salt="",model_name="/models/pocket"} 512.0
# HELP lmcache_mp_lookup_hit_tokens_total Total tokens found in L1+L2 during lookup (numerator of the L1+L2 token-level hit rate). Counts the contiguous prefix hit only.
# TYPE lmcache_mp_lookup_hit_tokens_total counter
lmcache_mp_lookup_hit_tokens_total{cache_salt="",model_name="/models/pocket"} 256.0
# HELP lmcache_mp_num_submitted_stores_total Total GPU→CPU store transfers enqueued on the device stream.
# TYPE lmcache_mp_num_submitted_stores_total counter
lmcache_mp_num_submitted_stores_total{device="cpu"} 4.0
# HELP lmcache_mp_num_finished_stores_total Total GPU→CPU store transfers completed on the device stream (regardless of how many chunks were committed).
# TYPE lmcache_mp_num_finished_stores_total counter
lmcache_mp_num_finished_stores_total{device="cpu"} 4.0
# HELP lmcache_mp_l0_l1_store_throughput_GB_per_second Histogram of L0→L1 (GPU→CPU) store throughput in GB/s.
# TYPE lmcache_mp_l0_l1_store_throughput_GB_per_second histogram
lmcache_mp_l0_l1_store_throughput_GB_per_second_bucket{device="cpu",le="+Inf"} 4.0
lmcache_mp_l0_l1_store_throughput_GB_per_second_count{device="cpu"} 4.0
lmcache_mp_l0_l1_store_throughput_GB_per_second_sum{device="cpu"} 0.79
"""  # noqa: E501

BY_SOURCE = 'vllm:prompt_tokens_by_source_total{source="%s"}'


def test_counters_and_gauges_and_nothing_else() -> None:
    assert parse_counters(VLLM) == {
        "vllm:num_requests_running": 3.0,
        "vllm:num_requests_waiting": 5.0,
        "vllm:num_requests_waiting_by_reason": 5.0,
        "vllm:external_prefix_cache_hits_total": 256.0,
        "vllm:num_preemptions_total": 0.0,
        "vllm:prompt_tokens_total": 600.0,
        BY_SOURCE % "local_compute": 344.0,
        BY_SOURCE % "local_cache_hit": 0.0,
        BY_SOURCE % "external_kv_transfer": 256.0,
        "vllm:cache_config_info": 1.0,
    }
    assert parse_counters(LMCACHE) == {
        "lmcache_mp_l1_write_chunks_total": 8.0,
        "lmcache_mp_lookup_requested_tokens_total": 512.0,
        "lmcache_mp_lookup_hit_tokens_total": 256.0,
        "lmcache_mp_num_submitted_stores_total": 4.0,
        "lmcache_mp_num_finished_stores_total": 4.0,
    }


def test_before_any_traffic_lmcache_reports_nothing() -> None:
    assert parse_counters(LMCACHE_QUIET) == {}
    assert parse_counters("") == {}


def test_engines_are_summed_and_sources_are_not() -> None:
    lines = VLLM.splitlines()
    both = [each for line in lines for each in dict.fromkeys((line, line.replace('engine="0"', 'engine="1"')))]
    counters = parse_counters("\n".join(both) + "\n")
    assert counters["vllm:prompt_tokens_total"] == 1200.0
    assert counters[BY_SOURCE % "local_compute"] == 688.0
    assert counters[BY_SOURCE % "external_kv_transfer"] == 512.0


@pytest.mark.parametrize(
    "page",
    [
        "<html><body>502 Bad Gateway</body></html>",
        VLLM + 'vllm:prompt_tokens_total{engine="0',
        VLLM + "vllm:prompt_tokens_total six\n",
        '{"detail": "Not Found"}',
    ],
)
def test_broken_text_is_an_error_and_not_an_empty_page(page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_counters(page)


def test_delta_tells_absent_from_zero() -> None:
    assert delta({"a": 3.0}, {"a": 3.0}, "a") == 0.0
    assert delta({"a": 3.0}, {"a": 5.0}, "a") == 2.0
    assert delta({}, {"a": 5.0}, "a") == 5.0, "it appeared in between: it started from zero"
    assert delta({}, {}, "a") is None
    assert delta({"a": 3.0}, {}, "a") is None


def test_token_flow_of_a_first_pass() -> None:
    earlier = VLLM.replace("600.0", "300.0").replace("344.0", "300.0").replace("256.0", "0.0")
    later = LMCACHE.replace('finished_stores_total{device="cpu"} 4.0', 'finished_stores_total{device="cpu"} 3.0')
    before = Snapshot(vllm=parse_counters(earlier), lmcache={})
    flow = token_flow(before, Snapshot(vllm=parse_counters(VLLM), lmcache=parse_counters(later)))
    assert (flow.prompt, flow.computed, flow.local_hit, flow.external_hit) == (300.0, 44.0, 0.0, 256.0)
    assert (flow.lookup_requested, flow.lookup_hit) == (512.0, 256.0)
    assert (flow.stores_submitted, flow.stores_finished, flow.chunks_written) == (4.0, 3.0, 8.0)
    assert flow.retrieves_submitted is None and flow.retrieves_finished is None, "never reported is not zero"
    assert flow.preemptions == 0.0
    assert flow.corrupted is None


def test_snapshots_survive_json() -> None:
    snapshot = Snapshot(vllm=parse_counters(VLLM), lmcache={})
    assert Snapshot.from_json(snapshot.as_json()) == snapshot


def test_gauges_are_not_mixed_up_with_longer_names() -> None:
    sample = read_batch(VLLM, 1.5)
    assert (sample.t_s, sample.running, sample.waiting) == (1.5, 3.0, 5.0)


def test_gauges_are_summed_over_engines_and_may_have_no_labels() -> None:
    page = VLLM + 'vllm:num_requests_running{engine="1",model_name="pocket"} 4.0\nlmcache_depth 7.0\n'
    assert read_gauges(page, ["vllm:num_requests_running", "lmcache_depth"]) == {
        "vllm:num_requests_running": 7.0,
        "lmcache_depth": 7.0,
    }


def test_a_gauge_that_is_not_there_is_named() -> None:
    by_reason_only = VLLM.replace("vllm:num_requests_waiting{", "vllm:other{")
    with pytest.raises(ValueError, match=r"^vllm:num_requests_waiting is not reported$"):
        read_batch(by_reason_only, 0.0)


def test_info_labels() -> None:
    labels = info_labels(VLLM, "vllm:cache_config_info")
    assert labels["block_size"] == "64"
    assert labels["mamba_block_size"] == "4096"
    assert info_labels(VLLM, "vllm:cache_config") == {}
    assert info_labels("", "vllm:cache_config_info") == {}


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


def sample(url: str, seconds: float, hz: float = 100.0) -> BatchSampler:
    sampler = BatchSampler(url, hz)

    async def run() -> None:
        async with sampler:
            await asyncio.sleep(seconds)

    asyncio.run(run())
    return sampler


def test_sampler_looks_at_a_steady_rate(server: StandIn) -> None:
    server.on("/metrics", Reply(VLLM))
    sampler = sample(server.url, 0.5, hz=20)
    assert 5 <= len(sampler.samples) <= 11
    assert sampler.missed == 0
    assert all((look.running, look.waiting) == (3.0, 5.0) for look in sampler.samples)
    assert [look.t_s for look in sampler.samples] == sorted(look.t_s for look in sampler.samples)


def test_looks_without_an_answer_are_counted_and_the_others_go_on(server: StandIn) -> None:
    server.on("/metrics", Reply("busy", status=503), Reply("busy", status=503), Reply(VLLM))
    sampler = sample(server.url, 0.3)
    assert sampler.missed == 2
    assert sampler.samples


def test_a_server_without_the_gauges_is_told_and_not_passed_over(server: StandIn) -> None:
    server.on("/metrics", Reply(LMCACHE_QUIET))
    with pytest.raises(ServerError, match=r"http://\S+/metrics: vllm:num_requests_running is not reported\. This vLLM"):
        sample(server.url, 0.2)


def test_an_error_inside_the_pass_is_not_hidden_by_the_sampler(server: StandIn) -> None:
    server.on("/metrics", Reply(LMCACHE_QUIET))

    async def fail() -> None:
        async with BatchSampler(server.url, 100.0):
            await asyncio.sleep(0.1)
            raise RuntimeError("of the pass")

    with pytest.raises(RuntimeError, match="of the pass"):
        asyncio.run(fail())
