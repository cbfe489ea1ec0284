"""Rules that a run must keep, each answered in one sentence with its numbers and the override that mends it.

Pure: everything a rule looks at is in `Facts`. Errors stop a run before anything starts; warnings and notes are
shown by ``plan``, shown and recorded by ``run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.config import RunConfig
from harness.errors import UsageError
from harness.model.releases import budget_window
from harness.model.sizes import GIB, L1_WATERMARK, Sizes
from harness.model.support import EXPERIMENTAL, FEATURES, RUNNABLE, requested_features, status
from harness.workload.seeding import unreachable

ANY_RELEASE = "all releases"
VLLM_MEASURED = "vLLM 0.32"
LMCACHE_MEASURED = "LMCache 0.5.6"


VLLM_MAX_NUM_SEQS = 1024
"""vLLM's default ``--max-num-seqs`` when it serves on GPUs of 70 GiB and more but the A100 (0.32); others get 256."""


class Severity(StrEnum):
    """What a finding means for a run."""

    ERROR = "error"
    """The run cannot work, or would prove nothing."""
    WARNING = "warning"
    """It works, and something about it will surprise."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule has to say."""

    rule: str
    severity: Severity
    text: str
    """One sentence, with the numbers."""
    override: str | None
    """What to put on the command line to mend it; None where no override can."""
    holds_for: str
    """Releases that it holds for."""

    def __str__(self) -> str:
        return f"{self.text}: use {self.override}." if self.override else f"{self.text}."


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules look at."""

    config: RunConfig
    sizes: Sizes
    budgets: Sequence[int]
    """Tokens per step, each once."""
    chunk_size: int
    lmcache: str | None
    """Release of LMCache, if it is known."""
    prompt_tokens: Sequence[int] | None = None
    """Lengths of the prompts, or an estimate of them."""
    estimated: bool = False
    """Whether the lengths are an estimate."""
    targets: Sequence[float | None] = ()
    """Hit rates asked for, as fractions of prompt tokens; None is all that can be reached."""
    kv_bytes: int | None = None
    """Memory for vLLM's cache on one GPU, if it is known."""

    @property
    def block_size(self) -> int:
        """N in tokens."""
        return self.sizes.block_size


Rule = Callable[[Facts], Iterator[Finding]]


def check_rules(facts: Facts, rules: Sequence[Rule] | None = None) -> list[Finding]:
    """What the rules find, errors first; all rules by default."""
    found = [finding for rule in (RULES if rules is None else rules) for finding in rule(facts)]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def obeyed(findings: Sequence[Finding]) -> list[str]:
    """The warnings among findings.

    Raises:
        UsageError: there is an error among them.
    """
    for finding in findings:
        if finding.severity is Severity.ERROR:
            text = str(finding)
            raise UsageError(text[0].upper() + text[1:])
    return [str(finding) for finding in findings if finding.severity is Severity.WARNING]


def budget(facts: Facts) -> Iterator[Finding]:
    """``budget ≥ N``; ``[N, 2N)`` where the release demands it; N itself serializes; 2N and more lose reuse."""
    n, window, model = facts.block_size, budget_window(facts.lmcache), facts.config.model
    release = f"LMCache {facts.lmcache or 'of an unknown release'}"
    best = f"sweep.budgets=[2N-1], which is {2 * n - 1}"
    for tokens in facts.budgets:
        name = f"a budget of {tokens} tokens"
        if tokens < n:
            yield Finding(
                "budget below N",
                Severity.ERROR,
                f"{name} is less than one block of N = {n}, so that nothing could be stored, and LMCache refuses it",
                best,
                ANY_RELEASE,
            )
        elif tokens == n:
            yield Finding(
                "budget of N",
                Severity.WARNING,
                f"{name} is exactly N: once a request decodes no new one can start its prefill, so that requests run "
                "one after the other (reported about 7 times slower for Qwen3.6-27B when little is cached)",
                best,
                ANY_RELEASE,
            )
        elif tokens >= 2 * n and window.below_2n_only:
            yield Finding(
                "budget outside [N, 2N)",
                Severity.ERROR,
                f"{name} is 2N = {2 * n} or more, which {release} refuses ({window.source})",
                best,
                f"LMCache {window.releases}",
            )
        elif tokens >= 2 * n:
            if not model.separate_object_groups:
                yield Finding(
                    "budget of 2N without object groups",
                    Severity.ERROR,
                    f"{name} is 2N = {2 * n} or more, which needs separate object groups: attention and recurrent "
                    "state are then stored for different blocks",
                    "model.separate_object_groups=true",
                    f"LMCache {window.releases}",
                )
            yield Finding(
                "budget of 2N",
                Severity.WARNING,
                f"{name} is 2N = {2 * n} or more: only the last block of a step keeps its recurrent state, so that "
                "prompts which share only a part of a stored one hit little or nothing; identical ones hit fully",
                best,
                f"{LMCACHE_MEASURED}, measured with a diverging load",
            )


def object_groups(facts: Facts) -> Iterator[Finding]:
    """Releases that want separate object groups for hybrids."""
    window = budget_window(facts.lmcache)
    if window.object_groups_needed and not facts.config.model.separate_object_groups:
        yield Finding(
            "object groups",
            Severity.WARNING,
            f"LMCache {facts.lmcache or 'of an unknown release'} wants separate object groups for models with "
            "recurrent layers, and model.separate_object_groups is false",
            "model.separate_object_groups=true",
            f"LMCache {window.releases}",
        )


def chunk_size(facts: Facts) -> Iterator[Finding]:
    """The chunk size is N or a multiple."""
    chunk, n = facts.chunk_size, facts.block_size
    if chunk % n:
        yield Finding(
            "chunk size",
            Severity.ERROR,
            f"servers.lmcache.chunk_size={chunk} is not a multiple of N = {n}, and LMCache refuses it",
            f"servers.lmcache.chunk_size={n * max(1, round(chunk / n))}",
            LMCACHE_MEASURED,
        )


def prefix_caching(facts: Facts) -> Iterator[Finding]:
    """``align`` and prefix caching: the harness sets both and nobody else may."""
    for note in EXPERIMENTAL:
        yield Finding("experimental", Severity.NOTE, note, None, VLLM_MEASURED)


def reachable(facts: Facts) -> Iterator[Finding]:
    """Prompts of fewer than N + 1 tokens can never hit: whole blocks only, and never the last token."""
    if facts.prompt_tokens is None:
        return
    short = [tokens for tokens in facts.prompt_tokens if tokens <= facts.chunk_size]
    if not short:
        return
    few = len(short) < len(facts.prompt_tokens)
    yield Finding(
        "prompts too short",
        Severity.WARNING if few or facts.estimated else Severity.ERROR,
        f"{len(short)} of {len(facts.prompt_tokens)} prompts (the shortest has {min(short)} tokens) can never hit: a "
        f"hit takes a whole chunk of {facts.chunk_size} tokens and one token more",
        "a larger task.min_blocks, or task.blocks for the pocket task",
        ANY_RELEASE,
    )


def hit_rates(facts: Facts) -> Iterator[Finding]:
    """A target hit rate has one near it that the prompts can have."""
    lengths = facts.prompt_tokens
    for target in facts.targets:
        if lengths and (why := unreachable(lengths, facts.chunk_size, target)):
            severity = Severity.WARNING if facts.estimated else Severity.ERROR
            yield Finding("hit rate not reachable", severity, *why, ANY_RELEASE)


def l1_size(facts: Facts) -> Iterator[Finding]:
    """The L1 holds what the cold pass stores, or the warm pass finds part of it evicted."""
    if facts.prompt_tokens is None:
        return
    needed = facts.sizes.l1_bytes(facts.prompt_tokens) / 1e9
    have = facts.config.l1_size_gb
    if needed > have:
        yield Finding(
            "L1 smaller than the working set",
            Severity.WARNING if facts.estimated else Severity.ERROR,
            f"an L1 of {have:g} GB evicts part of what {len(facts.prompt_tokens)} prompts store before the warm pass "
            f"asks for it: they need {needed:.1f} GB ({facts.sizes.stored_block / 1e6:.2f} MB per block of "
            f"{facts.block_size} tokens, and eviction starts at {L1_WATERMARK:.0%})",
            f"servers.lmcache.l1_size_gb={_round_up(needed)}, or a smaller task.limit",
            LMCACHE_MEASURED,
        )


def running_sequences(facts: Facts) -> Iterator[Finding]:
    """Every running sequence holds a block for its recurrent state."""
    given = argument_value(facts.config, "--max-num-seqs")
    wanted = given or str(VLLM_MAX_NUM_SEQS)
    if facts.kv_bytes is None or not wanted.isdecimal():
        return
    blocks = facts.sizes.blocks_in(facts.kv_bytes)
    if int(wanted) > blocks:
        default = "" if given else " (the default on large GPUs)"
        yield Finding(
            "max_num_seqs above the Mamba blocks",
            Severity.WARNING,
            f"--max-num-seqs {wanted}{default} is more than the {blocks} blocks that about "
            f"{facts.kv_bytes / GIB:.1f} GiB of cache hold, and every running sequence needs one for its recurrent "
            "state: vLLM will refuse it",
            f"--max-num-seqs {blocks}, or raise --gpu-memory-utilization",
            VLLM_MEASURED,
        )


def workers(facts: Facts) -> Iterator[Finding]:
    """LMCache needs a worker per rank."""
    chosen, ranks = facts.config.servers.lmcache.max_workers, facts.config.model.tensor_parallel_size
    if chosen is not None and chosen < ranks:
        yield Finding(
            "LMCache workers",
            Severity.ERROR,
            f"servers.lmcache.max_workers={chosen} is fewer than the {ranks} ranks of vLLM, which gives no hits at all "
            "and looks clean",
            f"servers.lmcache.max_workers={ranks}",
            LMCACHE_MEASURED,
        )


def hash_seed(facts: Facts) -> Iterator[Finding]:
    """Block hashes must agree between the servers."""
    seed = facts.config.engine.env.get("PYTHONHASHSEED")
    if seed is not None and not seed.isdecimal():
        yield Finding(
            "hash seed",
            Severity.ERROR,
            f"engine.env.PYTHONHASHSEED={seed} gives every process block hashes of its own, so that nothing is ever "
            "found",
            "~engine.env.PYTHONHASHSEED",
            ANY_RELEASE,
        )


def context(facts: Facts) -> Iterator[Finding]:
    """A context beyond the native one needs a rope extension."""
    model = facts.config.model
    longest, native = model.max_model_len, model.native_context
    arguments = " ".join([*model.vllm_args, *facts.config.servers.vllm.extra_args])
    if longest is not None and native is not None and longest > native and "rope" not in arguments:
        yield Finding(
            "context beyond the native one",
            Severity.ERROR,
            f"model.max_model_len={longest} is more than the {native} tokens that {model.name} was trained for, and "
            "no rope extension is set",
            f"model.max_model_len={native}, or --hf-overrides with rope_parameters in model.vllm_args",
            ANY_RELEASE,
        )


def support(facts: Facts) -> Iterator[Finding]:
    """Only what is validated for a model runs, unless ``allow_unvalidated``."""
    config = facts.config
    model = config.model
    if not model.support:
        return
    vllm = [*model.vllm_args, *config.engine.vllm_args, *config.servers.vllm.extra_args]
    for feature in requested_features(vllm, config.servers.lmcache.extra_args):
        stated = status(model.support, feature)
        if stated in RUNNABLE:
            continue
        source = f" ({model.support_source})" if model.support_source else ""
        yield Finding(
            "support",
            Severity.WARNING if config.allow_unvalidated else Severity.ERROR,
            f"{FEATURES[feature]}: {stated} for {model.name}{source}",
            None if config.allow_unvalidated else "allow_unvalidated=true to run it all the same",
            "the published support table",
        )


RULES: tuple[Rule, ...] = (
    budget,
    object_groups,
    chunk_size,
    prefix_caching,
    reachable,
    hit_rates,
    l1_size,
    running_sequences,
    workers,
    hash_seed,
    context,
    support,
)

PROMPT_RULES: tuple[Rule, ...] = (reachable, l1_size)
"""Those that look at the prompts: checked again once the servers have counted their tokens."""


def argument_value(config: RunConfig, name: str) -> str | None:
    """The value that vLLM gets for an argument; the last one counts."""
    value = None
    arguments = [*config.model.vllm_args, *config.engine.vllm_args, *config.servers.vllm.extra_args]
    for index, word in enumerate(arguments):
        whole, _, given = word.partition("=")
        if whole.replace("_", "-") == name:
            value = given or (arguments[index + 1] if index + 1 < len(arguments) else None)
    return value


def _round_up(gigabytes: float) -> int:
    return int(-(-gigabytes // 1))
