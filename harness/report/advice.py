"""What to do about a verdict: one sentence for every way in which a run can end.

Pure: contents of run.json and cell.json in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.report.runs import Run, find
from harness.repro.bundle import replay_command


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do."""

    text: str
    command: str = ""
    """What to type for it; empty where there is nothing to type."""


ARMS = "python -m harness run +check=all"
"""What measures all arms, to find out which part is at fault."""

DELIBERATE = {"flipped_bytes": "fail", "stale_checkpoint": "fail", "bypassed": "invalid"}
"""Checks that spoil a run on purpose -> the verdict of a gate that works."""

CHECKS: Mapping[str, str] = {
    "same_prompts": (
        "The two passes did not send the same questions, which is no fault of the cache: run again, and if it stays, "
        "look for missing and doubled documents in the cell's requests.parquet."
    ),
    "all_scored": (
        "Choose a scoring that fits the task (task.filter, now {task.filter}; task.metric, now {task.metric}): lm-eval "
        "has to give every answer one score."
    ),
    "no_request_failed": (
        "Read in vllm.log why requests failed. If they ran into load.request_timeout_s (now {load.request_timeout_s} "
        "s), raise it or lower load.concurrency (now {load.concurrency})."
    ),
    "prompts_whole": (
        "Make room for the longest prompt and its answer (model.max_model_len, now {model.max_model_len}), and take "
        "away server arguments that cut prompts."
    ),
    "cold_not_retried": (
        "Set load.retries=0 (now {load.retries}), since a request that is sent again may hit what its first try has "
        "stored; why connections broke is in vllm.log."
    ),
    "cold_no_external_hit": (
        "Give the run an LMCache that is empty: no other client and no filled L2. Prompts with the same first blocks "
        "hit each other as well: task.shared_blocks=0 (now {task.shared_blocks}), or other few-shot examples "
        "(task.num_fewshot)."
    ),
    "cold_no_local_hit": (
        "Look at “clear” among the cell's events: vLLM may have refused to reset its prefix cache. Prompts with the "
        "same first blocks hit each other as well: task.shared_blocks=0 (now {task.shared_blocks})."
    ),
    "cold_not_corrupted": (
        "vLLM computed NaN before any cache was used: mend that first (checkpoint, dtype, kernels), without LMCache."
    ),
    "stores_landed": (
        "LMCache did not keep what cold had computed: raise servers.lmcache.l1_size_gb (now {l1_size_gb}; “python -m "
        "harness plan” prints what one pass needs), and look for failed stores in lmcache.log."
    ),
    "seeds_landed": (
        "LMCache did not keep the prompts that were put into it: raise servers.lmcache.l1_size_gb (now {l1_size_gb}), "
        "and look for failed stores in lmcache.log."
    ),
    "warm_hit_rate": (
        "Find out why LMCache served something else than it was asked for: blocks that were evicted (raise "
        "servers.lmcache.l1_size_gb, now {l1_size_gb}), a chunk size that is no multiple of N "
        "(servers.lmcache.chunk_size, now {servers.lmcache.chunk_size}), or lookups and loads that failed "
        "(lmcache.log, vllm.log)."
    ),
    "warm_within_shared": (
        "Do not serve with this build: LMCache handed out state of other prompts. Report it with the cell's folder, "
        "which holds every request."
    ),
    "warm_no_external_hit": (
        "LMCache was not empty when a pass that retrieves nothing began: look at “clear” among the cell's events, and "
        "keep other clients away."
    ),
    "warm_no_local_hit": (
        "vLLM's own prefix cache served the warm pass, so LMCache was not tested: look at “reset_local” among the "
        "cell's events and in vllm.log, since a reset is refused while requests run. Prompts with the same first "
        "blocks hit each other as well: task.shared_blocks=0 (now {task.shared_blocks})."
    ),
    "lmcache_agrees": (
        "vLLM and LMCache tell different stories about what was retrieved: look for retrieves that failed in "
        "lmcache.log, and check that the two versions under provenance belong together."
    ),
    "competence": (
        "Take a checkpoint that can do this task, or an easier task: two models that know nothing are always equal. "
        "Lowering task.floor (now {task.floor}) would only hide it."
    ),
}
"""Validity check -> what to do about a miss; names in braces are fields of the configuration."""

CAUSES = {
    "warm_hit_rate": ("no_request_failed", "stores_landed", "warm_no_local_hit"),
    "lmcache_agrees": ("no_request_failed", "stores_landed", "warm_no_local_hit", "warm_hit_rate"),
}
"""Check -> checks whose miss explains its own, so that advice about those is enough."""


def advice(run: Run, cells: list[Mapping[str, Any]], counted: Mapping[str, str]) -> list[Advice]:
    """What to do about a run, most important first; empty where nothing is left to do.

    Args:
        run: what was measured.
        cells: its cells, the most telling ones first.
        counted: cell -> verdict as it counts in the run.
    """
    told = list(dict.fromkeys([*_about_purpose(run), *_about_status(run)]))
    expected = DELIBERATE.get(run.check or "")
    if expected is not None and run.verdict == expected:
        return told
    for cell in cells:
        told += [line for line in of_cell(run, cell, counted.get(str(cell.get("cell")))) if line not in told]
    return told


def of_cell(run: Run, cell: Mapping[str, Any], counts_as: str | None = None) -> Iterator[Advice]:
    """What to do about one cell.

    Args:
        run: that it belongs to.
        cell: contents of its cell.json.
        counts_as: its verdict after the correction over the run's cells; None takes its own.
    """
    verdict = str(cell.get("verdict"))
    if verdict == "invalid":
        yield from _about_misses(run, cell)
    elif verdict == "fail" and counts_as == "inconclusive":
        yield Advice(
            f"{cell.get('cell')} fails by itself, but not among so many cells: measure it alone, with more questions "
            "than now."
        )
    elif verdict == "fail":
        yield from _about_failure(run, cell)
    elif verdict == "inconclusive":
        yield from _about_doubt(cell)


def check_advice(check: str, config: Mapping[str, Any]) -> str:
    """What to do about a validity check that missed, with the values of the configuration that it names."""
    text = CHECKS.get(check, "Read what the check requires in docs/verdict.md, section 1.")
    for name in _fields(text):
        value = _l1_size(config) if name == "l1_size_gb" else find(config, *name.split("."))
        text = text.replace("{" + name + "}", "not set" if value is None else str(value))
    return text


def _about_purpose(run: Run) -> Iterator[Advice]:
    expected = DELIBERATE.get(run.check or "")
    if expected is None or run.verdict is None:
        return
    if run.verdict == expected:
        yield Advice(
            f"Nothing: check={run.check} spoils the run on purpose, and {expected} is what a gate that works says. The "
            "cache itself is measured with check=reset_warm.",
            "python -m harness run check=reset_warm",
        )
    else:
        yield Advice(
            f"Do not trust this gate as it is set: check={run.check} spoils the run on purpose and should end in "
            f"{expected}, not {run.verdict}. Ask more questions (task.limit), and read what can fool it in "
            "docs/verdict.md, section 10."
        )


def _about_status(run: Run) -> Iterator[Advice]:
    go_on = f"python -m harness run resume={run.id}"
    if run.status == "failed":
        yield Advice("Mend what the error and the servers' logs (below, under diagnosis) say, then go on.", go_on)
    elif run.status == "interrupted":
        yield Advice("Go on at the first cell that is missing.", go_on)
    elif run.status == "running":
        yield Advice("Wait for its end; if it was killed, go on at the first cell that is missing.", go_on)
    elif not run.cells:
        yield Advice("No cell is complete, so nothing was measured: run it again.")


def _about_misses(run: Run, cell: Mapping[str, Any]) -> Iterator[Advice]:
    missed = [each for each in cell.get("validity") or [] if not each.get("ok")]
    names = {str(each.get("check")) for each in missed}
    for each in missed:
        if names & set(CAUSES.get(str(each.get("check")), ())):
            continue
        yield Advice(check_advice(str(each.get("check")), find(run.record, "config") or {}))
    if not missed:
        yield Advice("Run it again: the passes can't be paired question by question.")


def _about_failure(run: Run, cell: Mapping[str, Any]) -> Iterator[Advice]:
    if find(cell, "gate", "mode") == "lmcache_ci":
        yield Advice("This rule knows no noise: judge by gate=equivalence before anything is changed.")
        return
    yield Advice(
        "Do not serve this model with this cache until the cause is found: retrieved state changes its answers."
    )
    if find(cell, "drift", "local_warm", "drifts"):
        yield Advice(
            "vLLM's own prefix cache changes answers as well, without LMCache: mend or report that first, to vLLM, and "
            "measure again."
        )
    repro = run.repro(cell)
    if repro is not None:
        yield Advice("See what broke: the worst answers stand side by side below, under “What broke”.")
        yield Advice(
            "Send the same prompts again, with one change at a time beside it: servers.vllm.python=PATH for another "
            "build of vLLM, servers.lmcache.python=PATH for another LMCache.",
            replay_command(repro),
        )
    yield Advice("Find out which part is at fault by running the arms.", ARMS)


def _about_doubt(cell: Mapping[str, Any]) -> Iterator[Advice]:
    if cell.get("replay"):
        yield Advice(
            "A replay is too small for a verdict about the score: what counts is how many of the prompts that differed "
            "differ again."
        )
        return
    paired = cell.get("paired")
    needed, asked, gain = (find(paired, name) for name in ("needed_n", "n", "gain_p"))
    alpha = find(cell, "gate", "alpha")
    if gain is not None and alpha is not None and gain < alpha:
        yield Advice(
            "Look at control and local_warm: warm answers are better, so something else than the cache differs."
        )
    elif needed is not None and asked is not None and needed > asked:
        yield Advice(f"Ask more questions: task.limit={needed} (asked: {asked}), if the task has that many.")
    elif asked is not None:
        yield Advice(f"Ask more questions than {asked}: task.limit={2 * asked}, if the task has that many.")


def _fields(text: str) -> list[str]:
    return [part.split("}")[0] for part in text.split("{")[1:]]


def _l1_size(config: Mapping[str, Any]) -> str | None:
    own = find(config, "servers", "lmcache", "l1_size_gb")
    size = find(config, "model", "l1_size_gb") if own is None else own
    return None if size is None else f"{size} GB"
