"""Validity: does the comparison of cold and warm prove anything?  Each check with the number that decided it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence, PassEvidence
from harness.equivalence.reuse import measure_reuse, shared_of
from harness.workload.prompts import reachable_tokens
from harness.workload.seeding import reachable_rate


@dataclass(frozen=True, slots=True)
class ValidityCheck:
    """One check: what was observed, what is required, and what a miss means."""

    check: str
    ok: bool
    observed: str
    required: str
    meaning: str

    @property
    def sentence(self) -> str:
        """The miss in words."""
        return f"{self.meaning}: {self.observed} (required: {self.required})"


@dataclass(frozen=True, slots=True)
class HitRate:
    """Hit rates of the warm pass as fractions of its prompt tokens."""

    target: float
    """Asked for; what is reachable where nothing was asked for."""
    reachable: float
    """The nearest to the target that its prompts can have; where they diverge, the share that is shared."""
    measured: float | None
    """None when vLLM does not report it."""


def hit_rate(evidence: Evidence) -> HitRate:
    """Target, reachable and measured hit rate of a cell."""
    warm, target = evidence.passes["warm"], evidence.facts.target
    lengths = [int(length) for length in warm.requests["sent_tokens"]]
    reuse = measure_reuse(evidence)
    if reuse:
        reachable = reuse.shared_tokens / sum(lengths)
    elif evidence.facts.warm_from in ("vllm", "nothing"):
        reachable = 0.0
    else:
        reachable = reachable_rate(lengths, evidence.facts.chunk_size, target) - primed_share(evidence)
    measured = _share(warm.flow.external_hit, warm.flow.prompt)
    return HitRate(reachable if target is None else target, reachable, measured)


def primed_share(evidence: Evidence) -> float:
    """Fraction of the prompt tokens of warm that vLLM's own cache was primed with, and LMCache goes on from."""
    lengths = [int(length) for length in evidence.passes["warm"].requests["sent_tokens"]]
    return len(lengths) * evidence.facts.primed_blocks * evidence.facts.block_size / sum(lengths)


def local_share(evidence: Evidence) -> float:
    """Fraction of the prompt tokens of warm that vLLM's own cache is to serve."""
    if evidence.facts.warm_from != "vllm":
        return primed_share(evidence)
    lengths = [int(length) for length in evidence.passes["warm"].requests["sent_tokens"]]
    return reachable_rate(lengths, evidence.facts.block_size, None)


def check_validity(evidence: Evidence, gate: GateConfig) -> list[ValidityCheck]:
    """All checks that a cell of this kind must hold, in the order in which a person would ask."""
    return [check(evidence, gate) for check in checks_for(evidence)]


def check_blocks(evidence: Evidence, gate: GateConfig) -> list[ValidityCheck]:
    """All checks over all blocks together and in each of them: what one block lacks, others can't make up for.

    The score of a block alone has too few questions to be called competence: that counts over all of them.
    """
    checks = check_validity(evidence, gate)
    for number in range(1, len(evidence.blocks) + 1):
        of_block = check_validity(evidence.of_block(number), gate)
        told = [replace(each, observed=f"{each.observed} in block {number}") for each in of_block]
        checks = [
            alone if whole.ok and not alone.ok and whole.check != competence.__name__ else whole
            for whole, alone in zip(checks, told, strict=True)
        ]
    return checks


def checks_for(evidence: Evidence) -> Sequence[Callable[[Evidence, GateConfig], ValidityCheck]]:
    """Which checks these are."""
    facts = evidence.facts
    if reuse := measure_reuse(evidence):
        return REUSE_ONLY_CHECKS if reuse.nothing else DIVERGENCE_CHECKS
    if facts.speed_only:
        return SPEED_ONLY_CHECKS
    if facts.preempts:
        return PREEMPTION_CHECKS
    return CHECKS_BY_SOURCE[facts.warm_from]


def same_prompts(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """Both passes sent the same documents with the same prompts, each once."""
    cold, warm = (sent_prompts(evidence.passes[name]) for name in ("cold", "warm"))
    same = len(set(cold) & set(warm))
    return ValidityCheck(
        "same_prompts",
        sorted(cold) == sorted(warm) and len(set(cold)) == len(cold),
        f"{same} of {len(cold)} cold and {len(warm)} warm prompts are the same",
        "all, each sent once",
        "cold and warm did not answer the same questions",
    )


def all_scored(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """lm-eval gave every document that was asked exactly one score, in both passes."""
    passes = {name: evidence.passes[name] for name in ("cold", "warm")}
    unscored = {name: set(each.requests["doc_id"]) - set(each.samples["doc_id"]) for name, each in passes.items()}
    twice = any(each.samples["doc_id"].duplicated().any() for each in passes.values())
    return ValidityCheck(
        "all_scored",
        not any(unscored.values()) and not twice,
        f"{len(unscored['cold'])} cold and {len(unscored['warm'])} warm answers without a score"
        + (", some scored twice" if twice else ""),
        "one score for each",
        "answers were not scored",
    )


def no_request_failed(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """Every request of both passes was answered."""
    errors = {name: evidence.passes[name].requests["error"].dropna() for name in ("cold", "warm")}
    first = next((f"; first: {each.iloc[0]}" for each in errors.values() if len(each)), "")
    return ValidityCheck(
        "no_request_failed",
        not any(len(each) for each in errors.values()),
        f"{len(errors['cold'])} cold and {len(errors['warm'])} warm requests failed{first}",
        "0",
        "requests failed",
    )


def prompts_whole(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """The server saw every prompt at full length."""
    requests = pd.concat([evidence.passes[name].requests for name in ("cold", "warm")])
    answered = requests[requests["error"].isna()]
    cut = int((answered["prompt_tokens"] != answered["sent_tokens"]).sum())
    return ValidityCheck(
        "prompts_whole", cut == 0, f"{cut} prompts changed length on the way", "0", "prompts were truncated"
    )


def cold_not_retried(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """No cold request was sent twice: the second one may hit what the first has stored."""
    retries = int(evidence.passes["cold"].requests["retries"].sum())
    return ValidityCheck("cold_not_retried", retries == 0, f"{retries} re-sent", "0", "cold requests were re-sent")


def cold_no_external_hit(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache served nothing in the cold pass."""
    hits = evidence.passes["cold"].flow.external_hit
    return ValidityCheck(
        "cold_no_external_hit", hits == 0, _tokens(hits), "0 tokens", "the cold pass was served by LMCache"
    )


def cold_no_local_hit(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """vLLM's own cache served (almost) nothing in the cold pass."""
    return _local_hits(
        "cold", "cold_no_local_hit", "the cold pass was served by vLLM's own prefix cache", evidence, gate
    )


def stores_landed(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache finished every store of the cold pass, and wrote at least as many chunks as the prompts have.

    Its counter adds up all object groups, so a missing group shows in the warm hit rate, not here.
    """
    cold, chunk = evidence.passes["cold"], evidence.facts.chunk_size
    flow = cold.flow
    expected = reachable_tokens(cold.requests["sent_tokens"], chunk) // chunk
    finished = flow.stores_finished is not None and flow.stores_finished == flow.stores_submitted
    landed = finished and (flow.chunks_written or 0) >= expected
    return ValidityCheck(
        "stores_landed",
        landed,
        f"{_count(flow.stores_finished)} of {_count(flow.stores_submitted)} stores finished, "
        f"{_count(flow.chunks_written)} chunks written",
        f"all finished, at least {expected} chunks",
        "the cold pass did not store everything",
    )


def warm_hit_rate(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache served as much of the warm pass as the cell asks for."""
    rate = hit_rate(evidence)
    if not rate.reachable:
        lengths = evidence.passes["warm"].requests["sent_tokens"]
        return ValidityCheck(
            "warm_hit_rate",
            False,
            f"the longest prompt has {int(lengths.max())} tokens",
            f"at least {evidence.facts.chunk_size + 1}, a whole chunk and one token",
            "no prompt is long enough to be served by LMCache",
        )
    ok = rate.measured is not None and abs(rate.measured - rate.reachable) <= gate.hit_rate_tolerance
    return ValidityCheck(
        "warm_hit_rate",
        ok,
        "not reported" if rate.measured is None else f"{rate.measured:.3f} of prompt tokens",
        f"{rate.reachable:.3f} ± {gate.hit_rate_tolerance:g}",
        "LMCache did not serve what the warm pass was to retrieve",
    )


def seeds_landed(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache wrote at least as many chunks of the diverging prompts as they have: else a miss shows no lost reuse."""
    expected = reachable_tokens(evidence.passes["warm"].requests["sent_tokens"], evidence.facts.chunk_size)
    written = [event["seeded"]["chunks_written"] for event in evidence.events if event["step"] == "seed"]
    chunks, known = expected // evidence.facts.chunk_size, [count for count in written if count is not None]
    return ValidityCheck(
        "seeds_landed",
        bool(known) and sum(known) >= chunks,
        f"{_count(sum(known) if known else None)} chunks written",
        f"at least {chunks}",
        "the diverging prompts were not stored",
    )


def warm_within_shared(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache served no more than what is shared: anything beyond would be the state of another prompt."""
    flow, requests = evidence.passes["warm"].flow, evidence.passes["warm"].requests
    shared = shared_of(evidence)
    beyond = int((requests["cached_tokens"].astype(float) > requests["doc_id"].map(shared)).sum())
    # A request that begins anew may find what it has stored itself.
    again = {"preemptions": int(flow.preemptions or 0), "re-sent": int(requests["retries"].sum())}
    begun_anew = "".join(f", {count} {name}" for name, count in again.items() if count)
    return ValidityCheck(
        "warm_within_shared",
        flow.external_hit is not None and flow.external_hit <= sum(shared.values()) and not beyond,
        f"{_tokens(flow.external_hit)}, {beyond} of {len(requests)} requests beyond what they share{begun_anew}",
        f"at most {_tokens(sum(shared.values()))}, and no request beyond",
        "WRONG STATE was served: hits beyond what prompts share with what was stored are a serious bug of the cache",
    )


def warm_no_external_hit(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache served nothing of a warm pass at hit rate 0, and says so itself."""
    flow = evidence.passes["warm"].flow
    return ValidityCheck(
        "warm_no_external_hit",
        flow.external_hit == 0 and flow.lookup_hit == 0,
        f"vLLM counted {_tokens(flow.external_hit)}, LMCache found {_tokens(flow.lookup_hit)}",
        "0 tokens",
        "LMCache served a warm pass that was to retrieve nothing",
    )


def warm_no_local_hit(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """vLLM's own cache was empty at the start of warm, so it served (almost) nothing of it."""
    return _local_hits(
        "warm", "warm_no_local_hit", "the warm pass was served by vLLM's own prefix cache", evidence, gate
    )


def warm_local_hit_rate(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """vLLM's own cache served as much of the warm pass as the check asks for."""
    flow, wanted = evidence.passes["warm"].flow, local_share(evidence)
    share = _share(flow.local_hit, flow.prompt)
    return ValidityCheck(
        "warm_local_hit_rate",
        share is not None and abs(share - wanted) <= gate.hit_rate_tolerance and wanted > 0,
        "not reported" if share is None else f"{share:.3f} of prompt tokens",
        f"{wanted:.3f} ± {gate.hit_rate_tolerance:g}",
        "vLLM's own prefix cache did not serve what it was to serve of the warm pass",
    )


def preempted(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """Requests were preempted in the warm pass, which is what the check is there for."""
    count = evidence.passes["warm"].flow.preemptions
    return ValidityCheck(
        "preempted",
        bool(count),
        "not reported" if count is None else f"{count:.0f} preemptions",
        "at least 1",
        "no request was preempted, so preemption was not tried (lower check.kv_blocks_per_request)",
    )


def lmcache_agrees(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """LMCache's own counters tell the same story as vLLM's; where prompts diverge, that may be one of no retrieve."""
    flow, reuse = evidence.passes["warm"].flow, measure_reuse(evidence)
    needed = reuse is None or not reuse.nothing
    known = flow.lookup_hit is not None and flow.external_hit is not None and flow.prompt
    # LMCache looks a prompt up from its beginning; what vLLM has itself is then not retrieved.
    served = (flow.external_hit or 0) + (flow.local_hit or 0 if evidence.facts.primed_blocks else 0)
    beyond = (flow.lookup_hit or 0) - served
    if evidence.facts.preempts:
        # A request that comes back after a preemption is looked up again, and vLLM counts its prompt once.
        beyond = min(beyond, 0)
    gap = abs(beyond) / flow.prompt if known and flow.prompt else 1.0
    finished = flow.retrieves_finished is not None and flow.retrieves_finished == flow.retrieves_submitted
    return ValidityCheck(
        "lmcache_agrees",
        bool(finished and (flow.retrieves_finished or not needed) and gap <= gate.hit_rate_tolerance),
        f"LMCache found {_tokens(flow.lookup_hit)} and finished {_count(flow.retrieves_finished)} of "
        f"{_count(flow.retrieves_submitted)} retrieves; vLLM counted {_tokens(flow.external_hit)}",
        f"retrieves{' > 0,' if needed else ''} all finished, tokens equal within {gate.hit_rate_tolerance:g} of the "
        "prompt",
        "LMCache's counters do not confirm the retrieves",
    )


def cold_not_corrupted(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """vLLM reported no cold request with NaN logits; where it doesn't count them, there is nothing to hold."""
    corrupted = evidence.passes["cold"].flow.corrupted or 0
    return ValidityCheck(
        "cold_not_corrupted", corrupted == 0, f"{corrupted:.0f} cold requests", "0", "cold logits were NaN"
    )


def competence(evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    """The cold score is above the task's floor: two models that know nothing are always equivalent."""
    samples = evidence.passes["cold"].samples
    score = float(samples["score"].mean())
    return ValidityCheck(
        "competence",
        score > evidence.facts.floor,
        f"cold score {score:.3f} (n = {len(samples)})",
        f"above {evidence.facts.floor:g}",
        "the model can't do this task, so an equal score would prove nothing",
    )


CHECKS: tuple[Callable[[Evidence, GateConfig], ValidityCheck], ...] = (
    same_prompts,
    all_scored,
    no_request_failed,
    prompts_whole,
    cold_not_retried,
    cold_no_external_hit,
    cold_no_local_hit,
    cold_not_corrupted,
    stores_landed,
    warm_hit_rate,
    warm_no_local_hit,
    lmcache_agrees,
    competence,
)

MIXED_CHECKS = tuple(warm_local_hit_rate if check is warm_no_local_hit else check for check in CHECKS)
"""First blocks from vLLM's own cache, the next from LMCache."""

WITHOUT_LMCACHE = (cold_no_external_hit, stores_landed, warm_hit_rate, lmcache_agrees)

COMPUTED_CHECKS = tuple(check for check in CHECKS if check not in WITHOUT_LMCACHE)
"""No cache at all: warm is a second cold pass."""

LOCAL_CHECKS = tuple(warm_local_hit_rate if check is warm_no_local_hit else check for check in COMPUTED_CHECKS)
"""vLLM's own cache alone."""

CHECKS_BY_SOURCE = {"lmcache": CHECKS, "mixed": MIXED_CHECKS, "vllm": LOCAL_CHECKS, "nothing": COMPUTED_CHECKS}
"""By what has to have served the warm pass; see CheckConfig.warm_from."""

PREEMPTION_CHECKS = tuple(preempted if check is warm_no_local_hit else check for check in CHECKS)
"""A request that was preempted may find what it has computed itself in vLLM's own cache."""

SPEED_ONLY_CHECKS = tuple(
    # Nothing is retrieved, so LMCache must not have served anything; nothing is compared, so any score will do.
    warm_no_external_hit if check is warm_hit_rate else check
    for check in CHECKS
    if check not in (lmcache_agrees, competence)
)
"""The checks of a cell at hit rate 0."""

DIVERGENCE_CHECKS = tuple(
    each
    for check in CHECKS
    # How much is found is the result, not a condition.
    for each in ((seeds_landed, warm_within_shared) if check is warm_hit_rate else (check,))
)
"""The checks of a cell whose prompts diverge from what was stored."""

REUSE_ONLY_CHECKS = tuple(check for check in DIVERGENCE_CHECKS if check is not competence)
"""The same where nothing was found: nothing is compared, so any score will do."""


def sent_prompts(evidence: PassEvidence) -> list[tuple[int, str]]:
    """Document and prompt hash of every request of a pass."""
    requests = evidence.requests
    return [(int(doc_id), str(sha)) for doc_id, sha in zip(requests["doc_id"], requests["prompt_sha256"], strict=True)]


def _local_hits(name: str, check: str, meaning: str, evidence: Evidence, gate: GateConfig) -> ValidityCheck:
    flow = evidence.passes[name].flow
    share = _share(flow.local_hit, flow.prompt)
    return ValidityCheck(
        check,
        share is not None and share <= gate.local_hit_tolerance,
        "not reported" if share is None else f"{share:.4f} of prompt tokens",
        f"at most {gate.local_hit_tolerance:g}",
        meaning,
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _count(value: float | None) -> str:
    return "an unreported number" if value is None else f"{value:.0f}"


def _tokens(value: float | None) -> str:
    return "an unreported number of tokens" if value is None else f"{value:,.0f} tokens"
