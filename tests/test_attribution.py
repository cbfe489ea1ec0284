"""The attribution table: every row by hand, which row wins, and that no pattern of arms is left without one."""

from __future__ import annotations

import copy
import io
import itertools
import json
import random
import re
from typing import Any

import pytest
from evidence import healthy, with_flow
from rich.console import Console

from harness.config import GateConfig
from harness.equivalence.attribution import (
    ALL,
    ARMS,
    HINTS,
    MECHANISMS,
    RETRIEVING,
    TABLE,
    Attribution,
    Outcome,
    Row,
    State,
    attribute,
    by_outcome,
    outcomes_of,
    suspects,
)
from harness.equivalence.judge import judge_cell
from harness.report.attribution import attribution_json, print_attribution

Record = dict[str, Any]

LETTERS = {
    "R": "reset_warm",
    "N": "no_connector",
    "A": "apc_only",
    "m": "mixed",
    "b": "boundary",
    "d": "divergence",
    "v": "restart_vllm",
    "k": "restart_lmcache",
    "2": "l2",
    "1": "concurrency:alone",
    "8": "concurrency:load",
    "p": "preemption",
    "w": "repeat_warm",
}
ROWS = {row.name: row for row in TABLE}


def named(letters: str) -> set[str]:
    return {LETTERS[letter] for letter in letters}


def outcomes(broken: set[str] | frozenset[str], ok: set[str] | frozenset[str]) -> dict[str, Outcome]:
    assert not broken & ok
    states = dict.fromkeys(ok, State.OK) | dict.fromkeys(broken, State.BROKEN)
    return {
        arm: Outcome(arm, states.get(arm, State.UNKNOWN), "why", {"ok": "pass", "broken": "fail"}.get(state, "invalid"))
        for arm in ARMS
        for state in (str(states.get(arm, "")),)
    }


def told(broken: str = "", ok: str = "") -> Attribution:
    """What a pattern means; arms by their letters, all others unknown."""
    return attribute(outcomes(named(broken), named(ok)))


BY_HAND = [
    # broken, ok, row
    ("", "", "not_exercised"),
    ("", "RNAmbdvk218pw", "all_ok"),
    ("", "R", "ok_where_exercised"),
    ("", "RNAmbdvk218p", "ok_where_exercised"),
    ("", "A", "ok_where_exercised"),
    # Recomputation: whatever else is broken.
    ("N", "", "recomputation"),
    ("N", "RAmbdvk218pw", "recomputation"),
    ("NA", "R", "recomputation"),
    ("NR8", "A1", "recomputation"),
    ("RNAmbdvk218pw", "", "recomputation"),
    # vLLM's own prefix cache.
    ("A", "RN", "vllm_prefix_cache_only"),
    ("A", "R", "vllm_prefix_cache_only"),
    ("Amp", "RN", "vllm_prefix_cache_only"),
    ("A", "N", "vllm_prefix_cache"),
    ("AR", "N", "vllm_prefix_cache"),
    ("ARmbdvk218pw", "N", "vllm_prefix_cache"),
    ("AR8", "N1", "vllm_prefix_cache"),
    ("A", "", "prefix_cache_or_recomputation"),
    ("AR", "", "prefix_cache_or_recomputation"),
    # Load.
    ("8", "RNA1", "only_under_load"),
    ("8R", "NA1", "only_under_load"),
    ("8R2m", "NA1", "only_under_load"),
    ("8", "R1", "load_or_recomputation"),
    ("8R", "N1", "load_or_recomputation"),
    ("8R", "A1", "load_or_recomputation"),
    # LMCache.
    ("R", "NA8", "lmcache_in_some_runs"),
    ("R", "NA81", "lmcache_in_some_runs"),
    ("R", "NA", "lmcache"),
    ("R81", "NA", "lmcache"),
    ("R8", "NA", "lmcache"),
    ("Rmbdvk218pw", "NA", "lmcache"),
    ("R2", "NAk", "lmcache"),
    ("R", "A", "lmcache_or_recomputation"),
    ("Rm", "A8", "lmcache_or_recomputation"),
    ("R", "N", "lmcache_or_prefix_cache"),
    ("R81", "N", "lmcache_or_prefix_cache"),
    ("R", "", "lmcache_not_told_apart"),
    ("Rmbdvk218pw", "", "lmcache_not_told_apart"),
    # One thing more than reset_warm, which is ok.
    ("m", "RA", "only_mixed"),
    ("m", "RNAbdvk218pw", "only_mixed"),
    ("m", "RN", "mixed_or_prefix_cache"),
    ("b", "R", "only_at_boundaries"),
    ("b", "RNAmdvk218pw", "only_at_boundaries"),
    ("d", "R", "only_after_divergence"),
    ("d", "RNAmbvk218pw", "only_after_divergence"),
    ("v", "R", "only_after_vllm_restart"),
    ("vk", "R2", "only_after_vllm_restart"),
    ("v", "Rk", "only_after_vllm_restart"),
    ("2", "R", "only_l2"),
    ("2k", "Rv", "only_l2"),
    ("2", "RNAmbdvk18pw", "only_l2"),
    ("k", "Rv2", "only_after_lmcache_restart"),
    ("k", "RNAmbdv218pw", "only_after_lmcache_restart"),
    ("k", "R", "restart_or_l2"),
    ("k", "Rv", "restart_or_l2"),
    ("k", "R2", "restart_or_l2"),
    ("p", "R", "only_preemption"),
    ("p", "RNAmbdvk218w", "only_preemption"),
    ("w", "R", "only_repeated"),
    ("w", "RNAmbdvk218p", "only_repeated"),
    # reset_warm undecided.
    ("2", "NA", "not_told_apart"),
    ("bd", "", "not_told_apart"),
    ("8", "NA", "not_told_apart"),
    ("81", "NA", "not_told_apart"),
    ("m", "A", "not_told_apart"),
    ("mbdvk218pw", "NA", "not_told_apart"),
    # Anything else.
    ("mb", "RA", "several"),
    ("bd", "RNA", "several"),
    ("2v", "R", "several"),
    ("A2", "RN", "several"),
    ("A8", "R1", "several"),
    ("8", "R", "several"),
    ("8", "RNA", "several"),
    ("1", "RNA8", "several"),
    ("mbdvk2pw", "RNA", "several"),
]


@pytest.mark.parametrize(("broken", "ok", "row"), BY_HAND)
def test_by_hand(broken: str, ok: str, row: str) -> None:
    assert told(broken, ok).row == row


@pytest.mark.parametrize("arm", ARMS)
def test_one_undecided_arm_is_not_all_ok(arm: str) -> None:
    assert attribute(outcomes(set(), ALL - {arm})).row == "ok_where_exercised"


def test_every_row_is_tested_by_hand() -> None:
    assert {row for _, _, row in BY_HAND} == set(ROWS)


# Per row: its broken arms and its ok arms, and which further broken arms the row explains.
PATTERNS = {
    "recomputation": ("N", "", "RAmbdvk218pw"),
    "vllm_prefix_cache_only": ("A", "R", "mp"),
    "vllm_prefix_cache": ("A", "N", "Rmbdvk218pw"),
    "prefix_cache_or_recomputation": ("A", "", "Rmbdvk218pw"),
    "only_under_load": ("8", "1AN", "Rmbdvk2pw"),
    "load_or_recomputation": ("8", "1", "Rmbdvk2pw"),
    "lmcache_in_some_runs": ("R", "8AN", "mbdvk21pw"),
    "lmcache": ("R", "AN", "mbdvk218pw"),
    "lmcache_or_recomputation": ("R", "A", "mbdvk218pw"),
    "lmcache_or_prefix_cache": ("R", "N", "mbdvk218pw"),
    "lmcache_not_told_apart": ("R", "", "mbdvk218pw"),
    "only_mixed": ("m", "RA", ""),
    "mixed_or_prefix_cache": ("m", "R", ""),
    "only_at_boundaries": ("b", "R", ""),
    "only_after_divergence": ("d", "R", ""),
    "only_after_vllm_restart": ("v", "R", "k"),
    "only_l2": ("2", "R", "k"),
    "only_after_lmcache_restart": ("k", "Rv2", ""),
    "restart_or_l2": ("k", "R", ""),
    "only_preemption": ("p", "R", ""),
    "only_repeated": ("w", "R", ""),
}


@pytest.mark.parametrize("row", PATTERNS)
def test_what_a_row_explains_besides_its_own_arms(row: str) -> None:
    """One more broken arm, of all the others: the row stays only if it explains that one too."""
    broken, ok, explained = PATTERNS[row]
    assert told(broken, ok).row == row
    for letter in LETTERS:
        if letter in broken + ok:
            continue
        assert (told(broken + letter, ok).row == row) == (letter in explained), LETTERS[letter]
    assert told(broken + explained, ok).row == row


@pytest.mark.parametrize("row", PATTERNS)
def test_a_row_needs_each_of_its_ok_arms(row: str) -> None:
    broken, ok, _ = PATTERNS[row]
    for letter in ok:
        assert told(broken, ok.replace(letter, "")).row != row, LETTERS[letter]


def test_rows_with_a_pattern_of_their_own() -> None:
    others = {"not_exercised", "all_ok", "ok_where_exercised", "not_told_apart", "several"}
    assert set(PATTERNS) == set(ROWS) - others


# The table once more, as an independent statement of it.
SAYS = {
    "recomputation": ("No cache can be blamed", 23138),
    "vllm_prefix_cache_only": ("The fault is vLLM's.", 40896),
    "vllm_prefix_cache": ("LMCache is neither blamed nor cleared", 40896),
    "prefix_cache_or_recomputation": ("no_connector was not decided", None),
    "only_under_load": ("a race on LMCache's path", 4886),
    "load_or_recomputation": ("Not told apart", None),
    "lmcache_in_some_runs": ("or a false alarm", 4886),
    "lmcache": ("LMCache or its connector stores or loads something wrong", 2879),
    "lmcache_or_recomputation": ("no_connector was not decided", None),
    "lmcache_or_prefix_cache": ("apc_only was not decided", None),
    "lmcache_not_told_apart": ("neither apc_only nor no_connector was decided", None),
    "only_mixed": ("one prompt served by both is wrong", 4247),
    "mixed_or_prefix_cache": ("apc_only was not decided", 4247),
    "only_at_boundaries": ("at or next to a multiple of N", 5249),
    "only_after_divergence": ("inside a longer prefill", 53084),
    "only_after_vllm_restart": ("wrong for the next one", 4492),
    "only_l2": ("second level is wrong", 4991),
    "only_after_lmcache_restart": ("a new LMCache process reads", None),
    "restart_or_l2": ("restart_vllm or l2 was not decided", None),
    "only_preemption": ("compete for too few", 5248),
    "only_repeated": ("The first retrieve is right and later ones are wrong", None),
    "not_told_apart": ("reset_warm, the plainest arm, was not decided", None),
    "several": ("No single row explains", None),
    "not_exercised": ("No arm was decided", None),
    "all_ok": ("Every arm is ok", None),
    "ok_where_exercised": ("Every arm that was decided is ok", None),
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_what_a_row_says(row: Row) -> None:
    phrase, number = SAYS[row.name]
    assert phrase in row.meaning
    assert (row.resembles.link.rsplit("/", 1)[1] if row.resembles else None) == (number and str(number))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_is_reached_by_its_own_pattern(row: Row) -> None:
    """Its broken arms broken, its ok arms ok, everything else unknown: no row before it may take that."""
    broken = row.broken if row.broken or not row.explains else frozenset({"l2"})
    ok = row.ok | ({"reset_warm"} if row.name in ("several", "ok_where_exercised") else frozenset())
    broken |= {"mixed"} if row.name == "several" else frozenset()
    found = attribute(outcomes(broken, ok))
    assert found.row == row.name
    assert found.meaning.startswith(row.meaning)
    assert found.next_step.endswith(row.next_step)
    assert found.resembles == row.resembles


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_names_known_arms_only(row: Row) -> None:
    named_here = row.broken | row.ok | row.not_ok | row.explains
    assert named_here <= ALL
    assert not row.broken & (row.ok | row.not_ok)
    assert not row.ok & (row.not_ok | row.explains)
    for arms in re.findall(r"\+check=\[([^\]]*)\]", row.next_step):
        assert set(arms.split(",")) <= {arm.partition(":")[0] for arm in ARMS}


def test_names_are_unique() -> None:
    assert len(ROWS) == len(TABLE)
    assert set(LETTERS.values()) == set(ARMS) == ALL
    for arms in MECHANISMS.values():
        assert arms and arms <= ALL
    for hint in HINTS:
        assert hint.arms <= ALL


def test_links_are_to_vllm_or_lmcache() -> None:
    everywhere = [row.resembles for row in TABLE] + [hint.resembles for hint in HINTS]
    cited = [symptom for symptom in everywhere if symptom]
    assert len({symptom.link for symptom in cited}) >= 12
    for symptom in cited:
        assert re.fullmatch(r"https://github\.com/(vllm-project/vllm|LMCache/LMCache)/(issues|pull)/\d+", symptom.link)
        assert symptom.title


# Properties over many patterns.


def patterns(count: int, seed: int = 7) -> list[dict[str, Outcome]]:
    source = random.Random(seed)
    drawn = []
    for _ in range(count):
        weights = source.choice(((1, 1, 1), (8, 1, 1), (8, 1, 0), (1, 8, 1), (1, 1, 8)))
        states = source.choices((State.OK, State.BROKEN, State.UNKNOWN), weights, k=len(ARMS))
        drawn.append({arm: Outcome(arm, state, "", "") for arm, state in zip(ARMS, states, strict=True)})
    return drawn


def arms_in(state: State, pattern: dict[str, Outcome]) -> set[str]:
    return {arm for arm, each in pattern.items() if each.state is state}


@pytest.fixture(scope="module")
def many() -> list[tuple[dict[str, Outcome], Attribution]]:
    return [(pattern, attribute(pattern)) for pattern in patterns(4000)]


Many = list[tuple[dict[str, Outcome], Attribution]]


def test_every_pattern_has_exactly_one_row(many: Many) -> None:
    assert {found.row for _, found in many} <= set(ROWS)
    for pattern, found in many:
        row = ROWS[found.row]
        broken, ok = arms_in(State.BROKEN, pattern), arms_in(State.OK, pattern)
        assert row.broken <= broken <= row.broken | row.explains
        assert row.ok <= ok
        assert not row.not_ok & ok
        assert {each.arm for each in found.not_exercised} == arms_in(State.UNKNOWN, pattern)
        assert set(found.decided_by) <= broken | ok
        assert found.row not in [each.name for each in found.also]


def test_nothing_broken_and_only_then_a_quiet_row(many: Many) -> None:
    quiet = {"not_exercised", "all_ok", "ok_where_exercised"}
    for pattern, found in many:
        assert (found.row in quiet) == (not arms_in(State.BROKEN, pattern))


def test_no_row_blames_a_cache_while_the_null_is_broken(many: Many) -> None:
    for pattern, found in many:
        if pattern["no_connector"].state is State.BROKEN:
            assert found.row == "recomputation"
            assert found.also == ()


def test_lmcache_is_blamed_alone_only_if_both_nulls_are_ok(many: Many) -> None:
    blames = {"lmcache", "only_under_load", "lmcache_in_some_runs"}
    seen = set()
    for pattern, found in many:
        if found.row in blames:
            seen.add(found.row)
            assert pattern["apc_only"].state is State.OK
            assert pattern["no_connector"].state is State.OK
    assert seen == blames


def test_what_is_said_to_be_undecided_is_undecided() -> None:
    """Rows that follow a stricter one by falling through: all patterns of the arms concerned."""
    concerned = ("reset_warm", "no_connector", "apc_only", "concurrency:alone", "concurrency:load", "mixed")
    restarts = ("reset_warm", "restart_vllm", "l2", "restart_lmcache")
    either = {
        "load_or_recomputation": ("apc_only", "no_connector"),
        "restart_or_l2": ("restart_vllm", "l2"),
        "prefix_cache_or_recomputation": ("no_connector",),
        "lmcache_or_recomputation": ("no_connector",),
        "lmcache_or_prefix_cache": ("apc_only",),
        "mixed_or_prefix_cache": ("apc_only",),
    }
    seen = set()
    for arms in (concerned, restarts):
        for states in itertools.product(State, repeat=len(arms)):
            state_of = dict(zip(arms, states, strict=True))
            found = attribute({arm: Outcome(arm, state, "", "") for arm, state in state_of.items()})
            seen.add(found.row)
            undecided = [state_of.get(arm, State.UNKNOWN) is State.UNKNOWN for arm in either.get(found.row, ())]
            assert any(undecided) or not undecided
            if found.row == "lmcache_not_told_apart":
                assert state_of.get("apc_only", State.UNKNOWN) is State.UNKNOWN
                assert state_of.get("no_connector", State.UNKNOWN) is State.UNKNOWN
    assert set(either) | {"lmcache_not_told_apart"} <= seen


def test_an_unknown_arm_never_becomes_a_culprit() -> None:
    """Taking away what was decided ok must not make a claim stronger: the row is one of the weaker ones."""
    for broken, ok in (("R", "NA"), ("8R", "NA1"), ("A", "RN"), ("m", "RA")):
        assert told(broken, "").row in ("lmcache_not_told_apart", "prefix_cache_or_recomputation", "not_told_apart")
        assert told(broken, ok).row != told(broken, "").row


# Words.


def test_the_chance_of_a_false_alarm_is_told_for_a_single_broken_arm() -> None:
    found = told("b", "RNAmdvk218pw")
    # Score and drift of 13 arms: 1 - 0.95^26.
    assert found.next_step.startswith("Repeat boundary first")
    assert "of 13 healthy ones at least one fails by chance with a probability of 74% at worst" in found.next_step
    assert not told("bd", "R").next_step.startswith("Repeat")
    assert not told("b", "").next_step.startswith("Repeat")
    assert "of 4% at worst" in attribute(outcomes({"boundary"}, {"reset_warm"}), alpha=0.01).next_step


def test_deciding_arms_in_their_order() -> None:
    assert told("8R", "NA1").decided_by == ("no_connector", "apc_only", "concurrency:alone", "concurrency:load")
    assert told("bd", "RA").decided_by == ("boundary", "divergence")
    assert told("", "AR").decided_by == ("reset_warm", "apc_only")


def test_also() -> None:
    assert [row.name for row in told("8R", "NA1").also] == ["lmcache"]
    assert [row.name for row in told("mb", "RA").also] == ["only_mixed", "only_at_boundaries"]
    assert [row.name for row in told("A2", "RN").also] == ["vllm_prefix_cache_only", "only_l2"]
    assert told("N2", "R").also == ()
    assert told("AR2", "N").also == ()
    assert told("R", "NA").also == ()


def test_smallest_common_explanation() -> None:
    def smallest(broken: str, ok: str) -> tuple[tuple[str, ...], ...]:
        return suspects(frozenset(named(broken)), frozenset(named(ok)))

    assert smallest("mp", "RA") == (("two caches in one prompt",),)
    assert smallest("vk", "R2") == (("another vLLM process than the one that stored",),)
    assert smallest("mb", "RA") == (("two caches in one prompt", "lengths around a multiple of N"),)
    assert smallest("bd", "A") == (("storing in and retrieving from LMCache",),)
    assert smallest("bd", "1A") == (("lengths around a multiple of N", "state from the middle of a longer prefill"),)
    assert smallest("8b", "A") == (("storing in and retrieving from LMCache",),)
    # What load does, reset_warm does as well.
    assert smallest("8", "R") == ()
    assert "not in every run" in told("8", "R").meaning
    assert "Smallest common explanation: two caches in one prompt." in told("mp", "RA").meaning
    assert "Broken: mixed, boundary." in told("mb", "RA").meaning


def test_suspects_are_smallest_and_cleared_by_ok_arms(many: Many) -> None:
    for pattern, _ in many[:400]:
        broken, ok = frozenset(arms_in(State.BROKEN, pattern)), frozenset(arms_in(State.OK, pattern))
        if not broken:
            continue
        found = suspects(broken, ok)
        assert len({len(names) for names in found}) <= 1
        for names in found:
            assert all(not MECHANISMS[name] & ok for name in names)
            assert broken <= frozenset().union(*(MECHANISMS[name] for name in names))


def test_local_warm_that_drifts_itself_is_told() -> None:
    pattern = outcomes({"boundary"}, {"reset_warm"})
    pattern["boundary"] = Outcome("boundary", State.BROKEN, "", "fail", local_warm_drifts=True)
    assert "local_warm itself drifts from cold in boundary" in attribute(pattern).meaning
    assert "local_warm itself" not in told("b", "R").meaning


def test_an_arm_that_the_table_does_not_know() -> None:
    with pytest.raises(ValueError, match="flipped_bytes"):
        attribute({"flipped_bytes": Outcome("flipped_bytes", State.BROKEN, "", "fail")})


def test_arms_not_given_were_not_run() -> None:
    found = attribute({"reset_warm": Outcome("reset_warm", State.OK, "", "pass")})
    assert found.row == "ok_where_exercised"
    assert {each.status for each in found.not_exercised} == {"not run"}
    assert len(found.not_exercised) == len(ARMS) - 1
    assert attribute({}).row == "not_exercised"


# From records of arms to outcomes.

GATE = GateConfig(name="test")
JUDGED = judge_cell(healthy(), GATE)
MISSED = judge_cell(
    with_flow(healthy(), "warm", external_hit=0, lookup_hit=0, retrieves_submitted=0, retrieves_finished=0), GATE
)


def cell_of(verdict: str = "pass", **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(JUDGED) | {"verdict": verdict, "reasons": [f"because {verdict}"]} | changes


def record(arm: str, verdict: str | None = "pass", **changes: Any) -> Record:
    cells = [cell_of(verdict)] if verdict else []
    return {"arm": arm, "status": "complete", "verdict": verdict, "reason": f"{verdict}!", "cells": cells} | changes


def refused(arm: str, reason: str = "prompts are too short", status: str = "refused") -> Record:
    return {"arm": arm, "status": status, "verdict": None, "reason": reason, "cells": []}


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        ("pass", State.OK),
        ("fail", State.BROKEN),
        ("inconclusive", State.UNKNOWN),
        ("invalid", State.UNKNOWN),
        (None, State.UNKNOWN),
    ],
)
def test_verdicts(verdict: str | None, state: State) -> None:
    found = outcomes_of([record("l2", verdict)])["l2"]
    assert found.state is state
    assert found.status == (verdict or "invalid")
    assert found.reason == f"{verdict}!"


@pytest.mark.parametrize("status", ["refused", "error"])
def test_an_arm_without_a_result_is_unknown(status: str) -> None:
    found = outcomes_of([refused("l2", status=status)])["l2"]
    assert (found.state, found.status, found.reason) == (State.UNKNOWN, status, "prompts are too short")
    # Even if cells were judged before the error.
    assert outcomes_of([record("l2", "fail", status=status)])["l2"].state is State.UNKNOWN


def test_a_pass_that_compared_nothing_proves_nothing() -> None:
    nothing = cell_of(paired=None, reasons=["reuse only: nothing was found"])
    found = outcomes_of([record("divergence", reason="", cells=[nothing])])["divergence"]
    assert (found.state, found.reason) == (State.UNKNOWN, "reuse only: nothing was found")
    assert outcomes_of([record("divergence", cells=[nothing, cell_of()])])["divergence"].state is State.OK


def test_concurrency_is_two_outcomes() -> None:
    cells = [cell_of(cell="budget127-full-alone-r1"), cell_of("fail", cell="budget127-full-load-r1")]
    both = outcomes_of([record("concurrency", "fail", cells=cells)])
    assert {arm: each.state for arm, each in both.items()} == {
        "concurrency:alone": State.OK,
        "concurrency:load": State.BROKEN,
    }
    assert both["concurrency:load"].reason == "because fail"
    by_number = [cell_of("fail", concurrency=8), cell_of(concurrency=1)]
    assert {arm: each.state for arm, each in outcomes_of([record("concurrency", cells=by_number)]).items()} == {
        "concurrency:alone": State.OK,
        "concurrency:load": State.BROKEN,
    }


def test_concurrency_whose_cells_can_not_be_told_apart_is_unknown() -> None:
    for cells in ([], [cell_of("fail")]):
        both = outcomes_of([record("concurrency", cells=cells)])
        assert {each.state for each in both.values()} == {State.UNKNOWN}
        assert "no cell can be told to be concurrency:alone" in both["concurrency:alone"].reason
    both = outcomes_of([refused("concurrency")])
    assert {each.reason for each in both.values()} == {"prompts are too short"}
    half = {"status": "error", "reason": "vLLM died", "cells": [cell_of(cell="alone")]}
    both = outcomes_of([record("concurrency", None) | half])
    assert both["concurrency:alone"].state is State.OK
    assert (both["concurrency:load"].state, both["concurrency:load"].reason) == (State.UNKNOWN, "vLLM died")


def test_repeats_of_a_side_count_as_their_worst() -> None:
    cells = [cell_of(cell="load-r1"), cell_of("fail", cell="load-r2"), cell_of(cell="alone-r1")]
    assert outcomes_of([record("concurrency", cells=cells)])["concurrency:load"].state is State.BROKEN


def test_a_check_of_another_kind_takes_no_part() -> None:
    records = [record("flipped_bytes", "fail"), record("reset_warm")]
    assert set(outcomes_of(records)) == {"reset_warm"}
    assert attribution_json(records)["row"] == "ok_where_exercised"
    assert [each["arm"] for each in attribution_json(records)["arms"]] == ["flipped_bytes", "reset_warm"]


def test_hints_come_from_missed_checks() -> None:
    assert MISSED["verdict"] == "invalid"
    for arm, number in (("restart_vllm", "1139"), ("restart_lmcache", "1175")):
        found = attribution_json([record(arm, "invalid", cells=[MISSED])])
        [undecided] = [each for each in found["not_exercised"] if each["arm"] == arm]
        assert undecided["status"] == "invalid"
        assert "PYTHONHASHSEED" in undecided["hint"]
        assert undecided["resembles"]["link"].endswith(f"/{number}")
    [plain] = [
        each
        for each in attribution_json([record("reset_warm", "invalid", cells=[MISSED])])["not_exercised"]
        if each["arm"] == "reset_warm"
    ]
    assert plain["hint"] is None


def test_wrong_state_that_was_served_is_told_first() -> None:
    both = [{"check": "warm_hit_rate", "ok": False}, {"check": "warm_within_shared", "ok": False}]
    invalid = record("restart_vllm", "invalid", cells=[cell_of("invalid", validity=both)])
    [undecided] = [each for each in attribution_json([invalid])["not_exercised"] if each["arm"] == "restart_vllm"]
    assert "a serious bug of the cache" in undecided["hint"]


def test_own_drift_of_local_warm_is_read_from_cells() -> None:
    cell = cell_of("fail")
    assert not outcomes_of([record("boundary", "fail", cells=[cell])])["boundary"].local_warm_drifts
    cell["drift"]["local_warm"]["drifts"] = True
    assert outcomes_of([record("boundary", "fail", cells=[cell])])["boundary"].local_warm_drifts


# attribution.json and the terminal.

RECORDS = [
    record("reset_warm"),
    record("apc_only"),
    record("no_connector"),
    record("mixed", "fail"),
    refused("boundary", "prompts of [5, 7] tokens are too short"),
    record("restart_vllm", "invalid", cells=[MISSED]),
    record("l2", "inconclusive"),
    refused("preemption", "vLLM died", status="error"),
    record("concurrency", cells=[cell_of(cell="a-alone"), cell_of(cell="a-load")]),
]


def test_json_by_hand() -> None:
    found = attribution_json(RECORDS)
    assert set(found) == {
        "arms", "row", "decided_by", "meaning", "next_step", "resembles", "also", "not_exercised",
    }  # fmt: skip
    assert found == json.loads(json.dumps(found))
    assert found["row"] == "only_mixed"
    assert found["resembles"]["link"] == "https://github.com/LMCache/LMCache/issues/4247"
    assert found["decided_by"] == ["reset_warm", "apc_only", "mixed"]
    arms = {each["arm"]: each for each in found["arms"]}
    assert list(arms)[-2:] == ["concurrency:alone", "concurrency:load"]
    assert arms["mixed"] == {
        "arm": "mixed",
        "status": "complete",
        "verdict": "fail",
        "reason": "fail!",
        "cells": 1,
        "score_cold": 0.9,
        "score_warm": 0.9,
        "questions": 120,
        "broke": 0,
        "mended": 0,
        "drifting": 0,
        "drift_documents": 120,
        "prompt_tokens": 50760,
        "external_hit_tokens": 46080,
        "local_hit_tokens": 0,
    }
    assert arms["preemption"]["verdict"] is None
    assert arms["preemption"]["score_cold"] is None
    assert [each["arm"] for each in found["not_exercised"] if each["status"] != "not run"] == [
        "boundary",
        "restart_vllm",
        "l2",
        "preemption",
    ]


def test_of_several_cells_the_worst_is_shown() -> None:
    paired = JUDGED["paired"]
    cells = [cell_of(), cell_of("fail", paired=paired | {"b": 9, "difference": 0.075}), cell_of("inconclusive")]
    [arm] = attribution_json([record("boundary", "fail", cells=cells)])["arms"]
    assert (arm["broke"], arm["cells"]) == (9, 3)
    small = cell_of("fail", paired=paired | {"b": 5, "difference": 0.04})
    [arm] = attribution_json([record("boundary", "fail", cells=[small, cells[1]])])["arms"]
    assert arm["broke"] == 9


def printed(records: list[Record], width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    print_attribution(console, records)
    return out.getvalue()


def test_the_table_by_hand() -> None:
    lines = printed(RECORDS).splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in ALL]
    assert rows == [
        ["reset_warm", "pass", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
        ["apc_only", "pass", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
        ["no_connector", "pass", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
        ["mixed", "fail", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
        ["boundary", "refused", "-", "-", "-", "-", "-"],
        ["restart_vllm", "invalid", "0.900→0.900", "0/0", "0/120", "0.000", "0.000"],
        ["l2", "inconclusive", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
        ["preemption", "error", "-", "-", "-", "-", "-"],
        ["concurrency:alone", "pass", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
        ["concurrency:load", "pass", "0.900→0.900", "0/0", "0/120", "0.908", "0.000"],
    ]
    table = lines[: next(i for i, line in enumerate(lines) if not line.strip())]
    assert max(map(len, table)) <= 80


def test_the_sentences_below_it() -> None:
    text = printed(RECORDS)
    assert "only_mixed (decided by reset_warm, apc_only, mixed): LMCache alone is right" in text
    assert "'+check=[mixed]' load.concurrency=1" in text
    assert "resembles: [Bug] LMCacheMPConnector silently corrupts output" in text
    assert "(https://github.com/LMCache/LMCache/issues/4247)" in text
    # Brackets of a reason are no markup.
    assert "not exercised: boundary, refused: prompts of [5, 7] tokens are too short" in text
    assert "not exercised: preemption, error: vLLM died" in text
    assert "not run: divergence, restart_lmcache, repeat_warm" in text


def test_a_narrow_terminal_and_no_arms_at_all() -> None:
    assert "not_exercised" in printed([])
    for width in (40, 80, 120):
        text = re.sub(r"\x1b\[[0-9;]*m", "", printed(RECORDS, width=width, terminal=True))
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("seed", range(20))
def test_any_records_print_and_are_stored(seed: int) -> None:
    source = random.Random(seed)
    names = [*sorted({arm.partition(":")[0] for arm in ARMS}), "flipped_bytes"]
    records = []
    for arm in source.sample(names, source.randint(0, len(names))):
        verdict = source.choice(("pass", "fail", "inconclusive", "invalid", None))
        records.append(record(arm, verdict, status=source.choice(("complete", "refused", "error"))))
    assert attribution_json(records)["row"] in ROWS
    assert printed(records)


def test_concurrency_taken_apart_keeps_other_records() -> None:
    apart = by_outcome(RECORDS)
    assert len(apart) == len(RECORDS) + 1
    assert apart[0] == RECORDS[0]


def test_arms_that_retrieve() -> None:
    assert RETRIEVING | {"apc_only", "no_connector"} == ALL
    assert not RETRIEVING & {"apc_only", "no_connector"}
