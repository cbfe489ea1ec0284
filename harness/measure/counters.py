"""Counters of both servers around a pass, and what they say about where its prompt tokens came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Counters = dict[str, float]
"""Counter or gauge name (``name`` or ``name{source="x"}``) -> value, summed over all other labels."""

KEPT_LABELS = ("source",)
"""Labels that split a counter into parts that mean something here; the rest (engine, model, device) is summed."""

RELEVANT = ("vllm:", "lmcache_")


def parse_counters(text: str) -> Counters:
    """Counters and gauges of a Prometheus text page; histogram buckets and creation times are left out.

    A server that has seen no traffic reports nothing: absent is not zero.

    Raises:
        ValueError: the text is no Prometheus page.
    """
    counters: Counters = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(RELEVANT) or family.type not in ("counter", "gauge"):
            continue
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            kept = "".join(f'{{{k}="{sample.labels[k]}"}}' for k in KEPT_LABELS if k in sample.labels)
            counters[sample.name + kept] = counters.get(sample.name + kept, 0.0) + sample.value
    return counters


def read_gauges(text: str, names: Iterable[str]) -> dict[str, float]:
    """A few gauges of a large Prometheus page, summed over labels, without parsing the rest of it.

    Raises:
        ValueError: one of them is not on the page.
    """
    values, page = {}, text.splitlines()
    for name in names:
        lines = [line for line in page if line.startswith((name + "{", name + " "))]
        if not lines:
            raise ValueError(f"{name} is not reported")
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        values[name] = sum(sample.value for family in families for sample in family.samples)
    return values


def info_labels(text: str, name: str) -> dict[str, str]:
    """Labels of an info metric such as ``vllm:cache_config_info``; empty when it isn't reported."""
    for line in text.splitlines():
        if line.startswith(name + "{"):
            for family in text_string_to_metric_families(line + "\n"):
                return dict(family.samples[0].labels)
    return {}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Both servers' counters at one moment."""

    vllm: Counters
    lmcache: Counters

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, as counters.json stores them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """Inverse of :meth:`as_json`."""
        return cls(dict(data["vllm"]), dict(data["lmcache"]))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Where the prompt tokens of a pass came from; None where a server doesn't report the counter."""

    prompt: float | None
    computed: float | None
    local_hit: float | None
    external_hit: float | None
    lookup_requested: float | None
    lookup_hit: float | None
    stores_submitted: float | None
    stores_finished: float | None
    retrieves_submitted: float | None
    retrieves_finished: float | None
    chunks_written: float | None
    preemptions: float | None
    corrupted: float | None


def delta(before: Counters, after: Counters, name: str) -> float | None:
    """Growth of a counter; None when it isn't reported at the end.

    A counter that appeared in between had not been touched before, so it started from zero.
    """
    return after[name] - before.get(name, 0.0) if name in after else None


def token_flow(before: Snapshot, after: Snapshot) -> Tokens:
    """What both servers counted between two snapshots."""

    def vllm(name: str) -> float | None:
        return delta(before.vllm, after.vllm, "vllm:" + name)

    def lmcache(name: str) -> float | None:
        return delta(before.lmcache, after.lmcache, "lmcache_mp_" + name)

    return Tokens(
        prompt=vllm("prompt_tokens_total"),
        computed=vllm('prompt_tokens_by_source_total{source="local_compute"}'),
        local_hit=vllm('prompt_tokens_by_source_total{source="local_cache_hit"}'),
        external_hit=vllm('prompt_tokens_by_source_total{source="external_kv_transfer"}'),
        lookup_requested=lmcache("lookup_requested_tokens_total"),
        lookup_hit=lmcache("lookup_hit_tokens_total"),
        stores_submitted=lmcache("num_submitted_stores_total"),
        stores_finished=lmcache("num_finished_stores_total"),
        retrieves_submitted=lmcache("num_submitted_retrieves_total"),
        retrieves_finished=lmcache("num_finished_retrieves_total"),
        chunks_written=lmcache("l1_write_chunks_total"),
        preemptions=vllm("num_preemptions_total"),
        corrupted=vllm("corrupted_requests_total"),
    )
