"""Attribution: what the pattern of arms means, whose fault it is, and what to do next.

Pure: outcomes of arms in, one frozen `Attribution` out. The mapping is data, the tuple `TABLE`: rows are tried in
order and the first that matches is the answer. An arm is *ok* (it passed), *broken* (it failed) or *unknown* (it was
inconclusive, invalid, refused, ended in an error, or was not run). A row matches if

- all of its ``broken`` arms are broken, all of its ``ok`` arms are ok, and none of its ``not_ok`` arms is ok;
- every arm that is broken is one of its ``broken`` arms or one that it ``explains``.

So a row never speaks about an arm that is broken and that it can't explain: such patterns fall through to the last
rows, which list what is broken and the smallest common explanation. And a row never takes an arm that was not decided
for one that is ok: where a deciding null (``apc_only``, ``no_connector``) is unknown, another row says that causes are
not told apart and names the arms that would tell. tests/test_attribution.py has a test for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

from harness.equivalence.verdict import Verdict, run_verdict

RESET_WARM = "reset_warm"
MIXED = "mixed"
BOUNDARY = "boundary"
DIVERGENCE = "divergence"
RESTART_VLLM = "restart_vllm"
RESTART_LMCACHE = "restart_lmcache"
L2 = "l2"
APC_ONLY = "apc_only"
NO_CONNECTOR = "no_connector"
CONCURRENCY = "concurrency"
ALONE = f"{CONCURRENCY}:alone"
LOAD = f"{CONCURRENCY}:load"
PREEMPTION = "preemption"
REPEAT_WARM = "repeat_warm"

ARMS = (
    RESET_WARM,
    NO_CONNECTOR,
    APC_ONLY,
    MIXED,
    BOUNDARY,
    DIVERGENCE,
    RESTART_VLLM,
    RESTART_LMCACHE,
    L2,
    ALONE,
    LOAD,
    PREEMPTION,
    REPEAT_WARM,
)
"""Every arm that the table knows, as outcomes: ``concurrency`` is two of them, one for each of its cells."""

Arms = frozenset[str]

ALL: Arms = frozenset(ARMS)
RETRIEVING: Arms = ALL - {APC_ONLY, NO_CONNECTOR}
"""Arms whose warm pass retrieves from LMCache."""

COMMAND = "python -m harness run"


class State(StrEnum):
    """What an arm says: nothing, unless it passed or failed."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


STATES = {Verdict.PASS.value: State.OK, Verdict.FAIL.value: State.BROKEN}
"""Verdicts that decide; all others leave the arm unknown."""

TESTS_OF_AN_ARM = 2
"""Kinds of tests that a healthy arm can fail by, each with a probability of about alpha: score and drift."""

NOT_RUN = "not run"
COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one arm."""

    arm: str
    state: State
    reason: str
    """Its verdict's reason, or why it has none."""
    status: str
    """The verdict of a complete arm, else ``refused``, ``error`` or ``not run``."""
    missed: tuple[str, ...] = ()
    """Names of the validity checks that it missed."""
    local_warm_drifts: bool = False
    """Whether its own `local_warm` pass drifts from cold: vLLM's own prefix cache, on this arm's prompts."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """A public report that a pattern resembles; resembling is no proof of having the same cause."""

    title: str
    link: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a pattern of arms and what it means."""

    name: str
    meaning: str
    next_step: str
    broken: Arms = frozenset()
    ok: Arms = frozenset()
    not_ok: Arms = frozenset()
    """Arms of which none may be ok: broken or unknown."""
    explains: Arms = frozenset()
    """Arms that may be broken too, since what this row says would break them as well."""
    resembles: Symptom | None = None
    lists_suspects: bool = False
    """Whether the meaning ends with what is broken and the smallest common explanation."""

    def holds(self, by_state: Mapping[State, Arms]) -> bool:
        """Whether its own conditions hold, whatever else is broken."""
        return (
            self.broken <= by_state[State.BROKEN]
            and self.ok <= by_state[State.OK]
            and not self.not_ok & by_state[State.OK]
        )

    def matches(self, by_state: Mapping[State, Arms]) -> bool:
        """Whether it holds and nothing is broken that it does not explain."""
        return self.holds(by_state) and by_state[State.BROKEN] <= self.broken | self.explains


@dataclass(frozen=True, slots=True)
class Hint:
    """What an invalid arm suggests by the validity check that it missed."""

    arms: Arms
    missed: str
    text: str
    resembles: Symptom | None = None


@dataclass(frozen=True, slots=True)
class Undecided:
    """An arm that says nothing, and why."""

    arm: str
    status: str
    reason: str
    hint: str | None
    resembles: Symptom | None


@dataclass(frozen=True, slots=True)
class Attribution:
    """What the arms say together."""

    row: str
    meaning: str
    next_step: str
    resembles: Symptom | None
    decided_by: tuple[str, ...]
    """Arms that the row's conditions name, or all that are broken where the row lists them."""
    also: tuple[Row, ...]
    """Other rows whose conditions hold: the same fault seen closer, or another one."""
    not_exercised: tuple[Undecided, ...]


def _run(*arms: str, overrides: str = "") -> str:
    return f"{COMMAND} '+check=[{','.join(arms)}]'{overrides and ' ' + overrides}"


def _vllm(number: int, title: str, kind: str = "issues") -> Symptom:
    return Symptom(title, f"https://github.com/vllm-project/vllm/{kind}/{number}")


def _lmcache(number: int, title: str, kind: str = "issues") -> Symptom:
    return Symptom(title, f"https://github.com/LMCache/LMCache/{kind}/{number}")


_LOCAL_WARM = (
    "Look at local_warm in that arm's own run, the same prompts from vLLM's own prefix cache: if it drifts from cold "
    "too, this is vLLM and not LMCache."
)
"""apc_only asks other prompts than arms that build their own, so it does not clear vLLM on theirs."""

_UNDER_LOAD = _lmcache(
    4886, "Issue Report: Non-deterministic outputs with LMCache under concurrent inference on Qwen3 hybrid model"
)
_NOT_RESTORED = _lmcache(2879, "Fix garbled output on hybrid models (mamba + attention)", "pull")
_MIXED = _lmcache(
    4247,
    "[Bug] LMCacheMPConnector silently corrupts output on shared-prefix requests for hybrid Mamba/GDN models under "
    "vLLM 0.26.0 (EngineKVFormat 10)",
)
_COLD_AND_WARM = _vllm(
    40896,
    "[Bug]: vLLM v1 with prefix caching: first request differs from subsequent identical requests at temperature=0",
)

TABLE: tuple[Row, ...] = (
    # Nothing is broken.
    Row(
        name="not_exercised",
        not_ok=ALL,
        meaning="No arm was decided, so nothing is known about any cache.",
        next_step=f"Do what the arms below say of themselves, then start with {_run(RESET_WARM)}",
    ),
    Row(
        name="all_ok",
        ok=ALL,
        meaning="Every arm is ok: neither vLLM's prefix cache nor LMCache changes answers by more than the gate allows "
        "in any way that is exercised here. What could still be missed: docs/verdict.md, section 10.",
        next_step="Nothing to do.",
    ),
    Row(
        name="ok_where_exercised",
        meaning="Every arm that was decided is ok; the others say nothing, neither good nor bad.",
        next_step=f"For the rest: {COMMAND} +check=all",
    ),
    # The nulls come first: what breaks without a cache is no cache's fault.
    Row(
        name="recomputation",
        broken=frozenset({NO_CONNECTOR}),
        explains=ALL,
        meaning="Answers change when the same prompts are computed twice without any cache: recomputation noise, or "
        "vLLM itself. No cache can be blamed, whatever the other arms say.",
        next_step="Make computing repeatable first, on a GPU with +engine.env.VLLM_BATCH_INVARIANT=1, or see whether "
        f"it needs load: {_run(NO_CONNECTOR, overrides='load.concurrency=1')}. If it can't be, ask more questions "
        "(task.limit) or set a larger gate.margin, with a reason.",
        resembles=_vllm(
            23138, "[Bug]:Non-deterministic outputs despite temperature=0.0 when handling concurrent requests"
        ),
    ),
    Row(
        name="vllm_prefix_cache_only",
        broken=frozenset({APC_ONLY}),
        ok=frozenset({RESET_WARM}),
        explains=frozenset({MIXED, PREEMPTION}),
        meaning="vLLM's own prefix cache changes answers with no LMCache in the process, while the same prompts "
        "retrieved from LMCache are right. The fault is vLLM's.",
        next_step="Report it to vLLM with the repro bundle of apc_only, which needs no LMCache.",
        resembles=_COLD_AND_WARM,
    ),
    Row(
        name="vllm_prefix_cache",
        broken=frozenset({APC_ONLY}),
        ok=frozenset({NO_CONNECTOR}),
        not_ok=frozenset({RESET_WARM}),
        explains=ALL - {NO_CONNECTOR},
        meaning="vLLM's own prefix cache changes answers with no LMCache in the process, and computing twice does not. "
        "LMCache hands its state to the same code of vLLM, so one fault of vLLM's is enough for every arm that is "
        "broken; LMCache is neither blamed nor cleared.",
        next_step="Report it to vLLM with the repro bundle of apc_only, which needs no LMCache; once that arm passes, "
        f"{COMMAND} +check=all",
        resembles=_COLD_AND_WARM,
    ),
    Row(
        name="prefix_cache_or_recomputation",
        broken=frozenset({APC_ONLY}),
        not_ok=frozenset({RESET_WARM, NO_CONNECTOR}),
        explains=ALL,
        meaning="Answers change without LMCache, so it is not needed for the fault. Not told apart: vLLM's own prefix "
        "cache and recomputation noise, since no_connector was not decided.",
        next_step=_run(NO_CONNECTOR, APC_ONLY, RESET_WARM),
    ),
    # From here on apc_only and no_connector are ok or unknown.
    Row(
        name="only_under_load",
        broken=frozenset({LOAD}),
        ok=frozenset({ALONE, APC_ONLY, NO_CONNECTOR}),
        explains=RETRIEVING - {ALONE},
        meaning="Retrieved answers are right one at a time and wrong when requests run side by side, and neither "
        "computing again nor vLLM's prefix cache does that under the same load: a race on LMCache's path (a store that "
        "reads a block too late, a retrieve that writes one too early). If reset_warm is ok at the same concurrency, "
        "it is not lost in every run.",
        next_step=f"Find the smallest load that breaks it: {_run(CONCURRENCY, overrides='load.concurrency=2')}, then "
        "4; and with one prefill step at a time: 'sweep.budgets=[N]'",
        resembles=_UNDER_LOAD,
    ),
    Row(
        name="load_or_recomputation",
        broken=frozenset({LOAD}),
        ok=frozenset({ALONE}),
        explains=RETRIEVING - {ALONE},
        meaning="Retrieved answers are right one at a time and wrong when requests run side by side. Not told apart: a "
        "race on LMCache's path, vLLM's prefix cache, and recomputation noise, which load brings about as well, since "
        "apc_only or no_connector was not decided.",
        next_step=_run(NO_CONNECTOR, APC_ONLY, CONCURRENCY),
    ),
    Row(
        name="lmcache_in_some_runs",
        broken=frozenset({RESET_WARM}),
        ok=frozenset({LOAD, APC_ONLY, NO_CONNECTOR}),
        explains=RETRIEVING - {LOAD},
        meaning="Retrieving from LMCache changed answers in reset_warm and did not in concurrency:load, which asks the "
        "same at the same concurrency; the nulls are ok. Damage on LMCache's path that is not in every run, or a false "
        "alarm.",
        next_step=f"Measure how often: {_run(RESET_WARM, overrides='sweep.repeats=5')}",
        resembles=_UNDER_LOAD,
    ),
    Row(
        name="lmcache",
        broken=frozenset({RESET_WARM}),
        ok=frozenset({APC_ONLY, NO_CONNECTOR}),
        explains=RETRIEVING,
        meaning="Answers change when the state comes from LMCache, and neither when it is computed again nor when it "
        "comes from vLLM's own prefix cache: LMCache or its connector stores or loads something wrong (with engine=cpu "
        "also the bridge in harness/servers/cpu_engine).",
        next_step="Read the repro bundle of reset_warm: a first token that is off points to the recurrent state, later "
        f"ones to attention. If concurrency was not decided: {_run(CONCURRENCY)}",
        resembles=_NOT_RESTORED,
    ),
    Row(
        name="lmcache_or_recomputation",
        broken=frozenset({RESET_WARM}),
        ok=frozenset({APC_ONLY}),
        explains=RETRIEVING,
        meaning="Answers change when the state comes from LMCache and not when it comes from vLLM's own prefix cache. "
        "Most likely LMCache or its connector; recomputation noise is not excluded, since no_connector was not "
        "decided.",
        next_step=_run(NO_CONNECTOR, RESET_WARM),
    ),
    Row(
        name="lmcache_or_prefix_cache",
        broken=frozenset({RESET_WARM}),
        ok=frozenset({NO_CONNECTOR}),
        explains=RETRIEVING,
        meaning="Answers change when the state comes from LMCache and not when it is computed again: it is a cache. "
        "Not told apart: LMCache with its connector, and how vLLM resumes from any cached state, since apc_only was "
        "not decided.",
        next_step=_run(APC_ONLY, RESET_WARM),
    ),
    Row(
        name="lmcache_not_told_apart",
        broken=frozenset({RESET_WARM}),
        explains=RETRIEVING,
        meaning="Answers change when the state comes from LMCache. Not told apart: LMCache with its connector, vLLM's "
        "own prefix cache, and recomputation noise, since neither apc_only nor no_connector was decided.",
        next_step=_run(NO_CONNECTOR, APC_ONLY, RESET_WARM),
    ),
    # From here on reset_warm must be ok: at the same concurrency, which also bounds recomputation noise.
    Row(
        name="only_mixed",
        broken=frozenset({MIXED}),
        ok=frozenset({RESET_WARM, APC_ONLY}),
        meaning="LMCache alone is right and vLLM's prefix cache alone is right; one prompt served by both is wrong: "
        "where the one ends and the other begins (connector or vLLM's scheduler).",
        next_step=f"See whether it needs load: {_run(MIXED, overrides='load.concurrency=1')}",
        resembles=_MIXED,
    ),
    Row(
        name="mixed_or_prefix_cache",
        broken=frozenset({MIXED}),
        ok=frozenset({RESET_WARM}),
        meaning="LMCache alone is right; one prompt served by vLLM's prefix cache and LMCache together is wrong. Not "
        "told apart: the seam between the two, and vLLM's prefix cache by itself, since apc_only was not decided.",
        next_step=_run(APC_ONLY, MIXED),
        resembles=_MIXED,
    ),
    Row(
        name="only_at_boundaries",
        broken=frozenset({BOUNDARY}),
        ok=frozenset({RESET_WARM}),
        meaning="The task's own prompts are right, those whose length is at or next to a multiple of N are wrong, "
        "such as where a restored recurrent state holds the last token already and that is computed again. Not told "
        "apart: LMCache with its connector, and vLLM's own prefix cache at these lengths.",
        next_step=f"{_LOCAL_WARM} Which lengths: k·N alone, or its neighbours too (requests.parquet, prompt_tokens).",
        resembles=_lmcache(5249, "[Bugfix] Fix full-hit Mamba checkpoint restoration in vLLM MP connector", "pull"),
    ),
    Row(
        name="only_after_divergence",
        broken=frozenset({DIVERGENCE}),
        ok=frozenset({RESET_WARM}),
        meaning="Identical prompts are right; prompts that leave the stored one in its middle are wrong: what was "
        "stored for a block inside a longer prefill is not the recurrent state at that block. Not told apart: vLLM's "
        "align mode, which goes on with the prefill while LMCache stores asynchronously; the connector's choice of "
        "block; and vLLM's own prefix cache on such prompts.",
        next_step=f"{_LOCAL_WARM} See whether it needs load: {COMMAND} sweep=divergence load.concurrency=1, and "
        "whether it needs steps of less than the prompt: 'sweep.budgets=[16N]'",
        resembles=_vllm(
            53084,
            "[Bug]: MooncakeStoreConnector stores invalid recurrent states with mamba_cache_mode=align, causing silent "
            "output corruption",
        ),
    ),
    Row(
        name="only_after_vllm_restart",
        broken=frozenset({RESTART_VLLM}),
        ok=frozenset({RESET_WARM}),
        explains=frozenset({RESTART_LMCACHE}),
        meaning="What one vLLM process stored is wrong for the next one, and right for itself: LMCache's key does not "
        "hold what has changed (weights behind the same path, attention backend, kernel block size), or registering "
        "the new process maps stored blocks to other places.",
        next_step="Compare both launches in run.json (provenance, N, kernel block size) and the checkpoint's files; "
        f"then {_run(RESTART_VLLM, RESTART_LMCACHE)}",
        resembles=_lmcache(
            4492,
            "[Bug] MP-mode cross-restart: retrieve for a previously-cached prompt returns corrupted output after "
            "restarting the single vLLM instance",
        ),
    ),
    Row(
        name="only_l2",
        broken=frozenset({L2}),
        ok=frozenset({RESET_WARM}),
        explains=frozenset({RESTART_LMCACHE}),
        meaning="What comes from LMCache's memory is right, what comes from its second level is wrong: written wrongly "
        "or in part, or read wrongly.",
        next_step="Look for failed stores in lmcache.log, and for files of another size than their neighbours.",
        resembles=_lmcache(
            4991,
            "[L2][fs_native] Failed stores stay visible to lookups — later retrieves serve corrupted KV (gibberish "
            "output)",
        ),
    ),
    Row(
        name="only_after_lmcache_restart",
        broken=frozenset({RESTART_LMCACHE}),
        ok=frozenset({RESET_WARM, RESTART_VLLM, L2}),
        meaning="A new vLLM is right with the old LMCache, and the second level is right within one LMCache process; "
        "what a new LMCache process reads from it is wrong: how L2 is persisted, indexed or keyed across restarts.",
        next_step="Compare the file names that both LMCache processes log: model path, rank mask, object group, hash.",
    ),
    Row(
        name="restart_or_l2",
        broken=frozenset({RESTART_LMCACHE}),
        ok=frozenset({RESET_WARM}),
        meaning="State is right as long as both servers live, and wrong after both were restarted. Not told apart: the "
        "new vLLM, the second level, and how it is persisted, since restart_vllm or l2 was not decided.",
        next_step=_run(L2, RESTART_VLLM, RESTART_LMCACHE),
    ),
    Row(
        name="only_preemption",
        broken=frozenset({PREEMPTION}),
        ok=frozenset({RESET_WARM}),
        meaning="Requests are right with enough blocks and wrong when they compete for too few: blocks that are given "
        "away while LMCache still reads or writes them, or vLLM's own way to resume. The two are not told apart: no "
        "null preempts.",
        next_step=f"{_LOCAL_WARM} Then run no_connector with the same small pool of blocks.",
        resembles=_lmcache(5248, "[Feat][MP]: Preemption Handling", "pull"),
    ),
    Row(
        name="only_repeated",
        broken=frozenset({REPEAT_WARM}),
        ok=frozenset({RESET_WARM}),
        meaning="The first retrieve is right and later ones are wrong: retrieving, or storing again what was "
        "retrieved, damages what LMCache holds.",
        next_step="Compare the three warm passes: damage that grows points to writing back, a sudden step to eviction. "
        f"Again with {_run(REPEAT_WARM, overrides='load.concurrency=1')}",
    ),
    # Anything else.
    Row(
        name="not_told_apart",
        not_ok=frozenset({RESET_WARM}),
        explains=RETRIEVING,
        lists_suspects=True,
        meaning="Something is wrong with state from LMCache, but reset_warm, the plainest arm, was not decided: "
        "whether it is LMCache as such or what the broken arms add to it can't be told.",
        next_step=_run(RESET_WARM, APC_ONLY, NO_CONNECTOR),
    ),
    Row(
        name="several",
        explains=ALL,
        lists_suspects=True,
        meaning="No single row explains what is broken.",
        next_step="Begin with the first suspect: repeat its arm alone with sweep.repeats=3, then its neighbour.",
    ),
)

MECHANISMS: Mapping[str, Arms] = {
    "computing again": ALL,
    "resuming from a cached state": ALL - {NO_CONNECTOR},
    "storing in and retrieving from LMCache": RETRIEVING,
    "requests side by side": ALL - {ALONE},
    "blocks that vLLM keeps itself": frozenset({APC_ONLY, MIXED, PREEMPTION}),
    "two caches in one prompt": frozenset({MIXED, PREEMPTION}),
    "another vLLM process than the one that stored": frozenset({RESTART_VLLM, RESTART_LMCACHE}),
    "LMCache's second level": frozenset({L2, RESTART_LMCACHE}),
    "another LMCache process than the one that stored": frozenset({RESTART_LMCACHE}),
    "lengths around a multiple of N": frozenset({BOUNDARY}),
    "state from the middle of a longer prefill": frozenset({DIVERGENCE}),
    "preemption": frozenset({PREEMPTION}),
    "retrieving again and again": frozenset({REPEAT_WARM}),
}
"""What arms exercise, from the most common to the rarest: for patterns that no row explains."""

HINTS: tuple[Hint, ...] = (
    Hint(
        ALL,
        "warm_within_shared",
        "Requests were served more than they share with what is stored: wrong state, a serious bug of the cache "
        "whatever the scores say. See the arm's own reasons.",
    ),
    Hint(
        frozenset({RESTART_LMCACHE}),
        "warm_hit_rate",
        "Too little came back after the restart: does LMCache read the index of its second level again, and have all "
        "servers the same PYTHONHASHSEED?",
        _lmcache(1175, "KV-Cache Persistence Issue with SSD Offloading"),
    ),
    Hint(
        frozenset({RESTART_VLLM}),
        "warm_hit_rate",
        "Too little came back after the restart: block hashes that differ between processes give hits of 0 that look "
        "clean. Have all servers the same PYTHONHASHSEED?",
        _lmcache(1139, "[Bug] Cross-process cache sharing fails due to non-deterministic NONE_HASH initialization"),
    ),
    Hint(
        frozenset({L2}),
        "warm_hit_rate",
        "Too little came back from the second level: had it been written in full before memory was cleared?",
    ),
    Hint(
        RETRIEVING,
        "stores_landed",
        "Not all of the prompts was stored, or stores had not finished.",
        _lmcache(
            3640, "[Bug] LMCacheMPConnector under-stores prompt chunks with chunked prefill, causing warm cache misses"
        ),
    ),
)
"""Of several that apply to an arm, the first counts."""


def attribute(outcomes: Mapping[str, Outcome], alpha: float = 0.05) -> Attribution:
    """What the outcomes mean together.

    Args:
        outcomes: by arm; an arm that is missing was not run.
        alpha: the gate's significance level, for the chance of a false alarm among so many arms.

    Raises:
        ValueError: an arm that the table does not know.
    """
    if strangers := outcomes.keys() - ALL:
        raise ValueError(f"arms that the attribution table does not know: {', '.join(sorted(strangers))}")
    told = {arm: outcomes.get(arm) or Outcome(arm, State.UNKNOWN, "not asked for", NOT_RUN) for arm in ARMS}
    by_state = {state: frozenset(arm for arm in ARMS if told[arm].state is state) for state in State}
    row = next(row for row in TABLE if row.matches(by_state))
    broken = by_state[State.BROKEN]
    meaning = [row.meaning]
    if row.lists_suspects:
        meaning.append(f"Broken: {_listed(broken)}. {_suspected(broken, by_state[State.OK])}")
    if drifting := frozenset(arm for arm in broken if told[arm].local_warm_drifts):
        meaning.append(
            f"local_warm itself drifts from cold in {_listed(drifting)}: vLLM's own prefix cache does this there, "
            "without LMCache."
        )
    decided = broken | by_state[State.OK]
    next_step = row.next_step
    if len(broken) == 1 and len(decided) > 1:
        chance = 1 - (1 - alpha) ** (TESTS_OF_AN_ARM * len(decided))
        next_step = (
            f"Repeat {_listed(broken)} first: arms are not corrected for one another, and of {len(decided)} healthy "
            f"ones at least one fails by chance with a probability of {chance:.0%} at worst. {row.next_step}"
        )
    return Attribution(
        row=row.name,
        meaning=" ".join(meaning),
        next_step=next_step,
        resembles=row.resembles,
        decided_by=_in_order((row.broken | row.ok) or broken or by_state[State.OK]),
        also=_also(row, by_state),
        not_exercised=tuple(_undecided(each) for each in told.values() if each.state is State.UNKNOWN),
    )


def suspects(broken: Arms, ok: Arms) -> tuple[tuple[str, ...], ...]:
    """The smallest sets of mechanisms that account for every broken arm and that no arm which is ok exercises.

    Empty if a broken arm exercises nothing but what other arms do without breaking.
    """
    open_ones = {name: arms & broken for name, arms in MECHANISMS.items() if arms & broken and not arms & ok}
    for size in range(1, len(open_ones) + 1):
        found = tuple(
            names
            for names in combinations(open_ones, size)
            if frozenset[str]().union(*(open_ones[name] for name in names)) == broken
        )
        if found:
            return found
    return ()


def by_outcome(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records of arms with ``concurrency`` taken apart into its two cells, each as a record of its own."""
    apart: list[dict[str, Any]] = []
    for record in records:
        if record["arm"] != CONCURRENCY:
            apart.append(dict(record))
            continue
        sides = _sides(record.get("cells") or ())
        for arm in (ALONE, LOAD):
            side: dict[str, Any] = {"arm": arm, "status": record["status"], "verdict": None, "cells": sides[arm]}
            side["reason"] = record.get("reason")
            if sides[arm]:
                worst = run_verdict(Verdict(cell["verdict"]) for cell in sides[arm])
                cell = next(cell for cell in sides[arm] if cell["verdict"] == worst.value)
                side |= {"status": COMPLETE, "verdict": worst.value, "reason": "; ".join(cell.get("reasons") or ())}
            elif record["status"] == COMPLETE:
                side |= {"status": "error", "reason": f"no cell can be told to be {arm}"}
            apart.append(side)
    return apart


def outcomes_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Outcome]:
    """Outcomes by arm from what the runner knows of each; arms that the table does not know are left out.

    Args:
        records: dicts of ``arm``, ``status`` (complete, refused, error), ``verdict``, ``reason`` and ``cells``, the
            contents of every cell.json.
    """
    return {record["arm"]: _outcome(record) for record in by_outcome(records) if record["arm"] in ALL}


def _outcome(record: Mapping[str, Any]) -> Outcome:
    cells: Sequence[Mapping[str, Any]] = record.get("cells") or ()
    status, verdict = str(record["status"]), record.get("verdict")
    reason = str(record.get("reason") or "")
    state = State.UNKNOWN
    if status == COMPLETE:
        status = str(verdict or Verdict.INVALID.value)
        state = STATES.get(status, State.UNKNOWN)
        # Such a cell passes because there was nothing to judge (a hit rate of 0, or no reuse).
        if state is State.OK and cells and not any(cell.get("paired") for cell in cells):
            state = State.UNKNOWN
            reason = reason or "; ".join(cells[0].get("reasons") or ()) or "nothing was compared"
    missed = (check["check"] for cell in cells for check in cell.get("validity") or () if not check["ok"])
    drifts = any(((cell.get("drift") or {}).get("local_warm") or {}).get("drifts") for cell in cells)
    return Outcome(str(record["arm"]), state, reason, status, tuple(dict.fromkeys(missed)), bool(drifts))


def _sides(cells: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Cells of the concurrency arm by outcome: by their name, or else by the concurrency that they state."""
    sides: dict[str, list[Mapping[str, Any]]] = {ALONE: [], LOAD: []}
    for cell in cells:
        name, concurrency = str(cell.get("cell")), cell.get("concurrency")
        if "alone" in name or ("load" not in name and concurrency == 1):
            sides[ALONE].append(cell)
        elif "load" in name or concurrency is not None:
            sides[LOAD].append(cell)
    return sides


def _also(row: Row, by_state: Mapping[State, Arms]) -> tuple[Row, ...]:
    """Further rows whose conditions hold, the first of each set of broken arms; none where one fault explains all."""
    if ALL - {NO_CONNECTOR} <= row.broken | row.explains and not row.lists_suspects:
        return ()
    further: dict[Arms, Row] = {}
    for each in TABLE:
        if each.broken and each.broken != row.broken and each.holds(by_state):
            further.setdefault(each.broken, each)
    return tuple(further.values())


def _undecided(outcome: Outcome) -> Undecided:
    hint = next((hint for hint in HINTS if outcome.arm in hint.arms and hint.missed in outcome.missed), None)
    return Undecided(
        outcome.arm,
        outcome.status,
        outcome.reason,
        hint.text if hint else None,
        hint.resembles if hint else None,
    )


def _suspected(broken: Arms, ok: Arms) -> str:
    found = suspects(broken, ok)
    if not found:
        return (
            "Some of them exercise nothing but what other arms do without breaking: damage that is not in every run, "
            "or that needs several things at once."
        )
    return f"Smallest common explanation: {', or '.join(' with '.join(names) for names in found)}."


def _in_order(arms: Arms) -> tuple[str, ...]:
    return tuple(arm for arm in ARMS if arm in arms)


def _listed(arms: Arms) -> str:
    return ", ".join(_in_order(arms))
