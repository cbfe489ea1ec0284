"""Looks in between: levels, what ends a run early, blocks of documents, and a launch that is taken in blocks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from blocks_support import BlockWalk
from evidence import N, failed, pass_of, prompt_length, right_by_default, with_pass
from stack_support import composed

from harness.blocks import blocks_of, check_of
from harness.config import GateConfig
from harness.equivalence.evidence import PassEvidence, read_evidence
from harness.equivalence.judge import judge_cell
from harness.equivalence.looks import ends, gate_at, levels, questions_at
from harness.equivalence.verdict import Verdict, judge_run, of_alpha
from harness.errors import UsageError
from harness.plan import as_json, make_plan
from harness.report.plan import cost_lines
from harness.report.tables.looks import looks_tables
from harness.steps import Step
from harness.store import read_json
from harness.workload.passes import requests_frame

GATE = GateConfig(name="quick", looks=5)
CELL = "budget127-full-r1"


# --- levels and rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [1, 2, 5, 100])
@pytest.mark.parametrize("interim", [0.001, 0.2, 0.9])
def test_levels_add_up_to_alpha(looks: int, interim: float) -> None:
    found = levels(replace(GATE, looks=looks, interim_alpha=interim))
    assert len(found) == looks and min(found) > 0
    assert sum(found) == pytest.approx(GATE.alpha, abs=1e-15)
    assert len(set(found[:-1])) <= 1, "the looks before the last are alike"


def test_levels_of_the_shipped_gate() -> None:
    gate = composed("gate=quick").gate
    assert levels(gate) == pytest.approx([0.0025] * 4 + [0.04])
    assert gate_at(gate, 1) == replace(gate, alpha=0.05 * 0.2 / 4, looks=1)
    assert levels(composed().gate) == (0.05,)


def look(
    verdict: str,
    mcnemar: float = 1.0,
    loss: float = 1.0,
    drift: float | None = 1.0,
    number: int = 1,
    **counts: int | None,
) -> Any:
    told = {"mcnemar_p": mcnemar, "loss_p": loss, "drift_p": drift, "b": 0, "c": 0, "drift_excess": 0} | counts
    return {"look": number, "verdict": verdict, "level": levels(GATE)[number - 1], **told}


@pytest.mark.parametrize(
    ("told", "missed", "expected"),
    [
        pytest.param(look("inconclusive"), (), False, id="undecided"),
        pytest.param(look("fail", 1e-4, 1e-4), (), True, id="a loss beyond the margin"),
        pytest.param(look("fail", 1e-4, 0.5), (), False, id="a real loss that may be within it"),
        pytest.param(look("fail", 0.9, 1e-4), (), False, id="a loss that McNemar does not see"),
        pytest.param(look("fail", drift=1e-4), (), True, id="drift"),
        pytest.param(look("pass"), (), True, id="equivalent"),
        pytest.param(look("pass", drift=None, drift_excess=None), (), True, id="equivalent, drift not judged"),
        pytest.param(look("pass", b=2, c=2, drift_excess=-3), (), True, id="equivalent, with noise"),
        pytest.param(look("pass", b=3, c=2), (), False, id="equivalent, with a hint of damage"),
        pytest.param(look("pass", drift_excess=1), (), False, id="equivalent, with a hint of drift"),
        pytest.param(look("invalid"), ("stores_landed",), True, id="invalid"),
        pytest.param(look("invalid"), (), True, id="can't be paired"),
        pytest.param(look("invalid"), ("competence",), False, id="a low score so far"),
        pytest.param(look("invalid"), ("competence", "stores_landed"), True, id="a low score, and invalid"),
        pytest.param(look("inconclusive", number=5), (), True, id="the last one"),
        pytest.param(look("fail", 0.03, number=5), (), True, id="the last one fails"),
    ],
)
def test_what_ends_a_run(told: Any, missed: tuple[str, ...], expected: bool) -> None:
    assert ends(told, missed, GATE) is expected


def test_an_early_pass_can_be_switched_off() -> None:
    assert not ends(look("pass"), (), replace(GATE, early_pass=False))
    assert ends(look("pass", number=5), (), replace(GATE, early_pass=False))


def test_p_values_of_a_look_are_those_of_the_whole_run() -> None:
    """A cell's verdict and its run's agree: p at a level below alpha is p divided by the level's share, below alpha."""
    cell = {"looks": {"share": 0.05}}
    assert of_alpha(cell, 0.001) == pytest.approx(0.02)
    assert (of_alpha(cell, 0.9), of_alpha(cell, None)) == (1.0, None)
    assert of_alpha({"looks": None}, 0.03) == of_alpha({}, 0.03) == 0.03


# --- blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "looks"), [(300, 5), (1319, 5), (7, 5), (5, 5), (100, 7)])
def test_blocks_are_a_partition_in_seeded_order(count: int, looks: int) -> None:
    blocks = blocks_of(count, looks, seed=0)
    assert sorted(position for block in blocks for position in block) == list(range(count))
    sizes = [len(block) for block in blocks]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1
    ends_at = questions_at(count, looks)
    assert [sum(sizes[: k + 1]) for k in range(looks)] == ends_at and ends_at[-1] == count
    assert blocks == blocks_of(count, looks, seed=0) != blocks_of(count, looks, seed=1)
    if count > looks:
        assert [position for block in blocks for position in block] != list(range(count))


def test_the_check_in_blocks() -> None:
    """Control is left out, everything from cold on is taken for each block, and nothing is cleared in between."""
    check = check_of(composed("gate=quick"))
    assert check.launch == (Step("clear"),)
    assert [(step.action, step.argument) for step in check.cell] == [
        ("pass", "cold"), ("pass", "local_warm"), ("reset_local", None), ("pass", "warm"),
    ]  # fmt: skip
    damaged = check_of(composed("gate=quick", "check=flipped_bytes"))
    assert [step.action for step in damaged.cell] == ["pass", "pass", "clear_l1", "corrupt", "reset_local", "pass"]
    assert check_of(composed()).launch == check_of(composed("gate=threshold")).launch != check.launch


REFUSED = [
    (["check=mixed"], "check=mixed is not about what LMCache serves alone (check.warm_from=mixed)"),
    (["check=no_connector"], "check.warm_from=nothing"),
    (["check=preemption"], "is about preemption"),
    (["check=concurrency"], "has variants"),
    (["check=restart_vllm"], "has a restart step"),
    (["check=stale_checkpoint"], "has a serve step"),
    (["task.limit=4"], "gate.looks=5 needs at least one question for each look, and 4 are asked"),
]


@pytest.mark.parametrize(("overrides", "told"), REFUSED)
def test_what_can_not_be_taken_in_blocks_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(composed("gate=quick", *overrides))
    assert told in str(caught.value) and str(caught.value).count(". ") == 0


def test_the_plan_tells_the_worst_case() -> None:
    plan = make_plan(composed("gate=quick"))
    told = as_json(plan)
    assert (told["passes"], told["requests"]) == (3, 900)
    assert [each["n"] for each in told["looks"]] == [60, 120, 180, 240, 300]
    assert any("worst case: looks after 60, 120, 180, 240, 300 questions, and at the first one 180" in line
               for line in cost_lines(plan))  # fmt: skip
    ordinary = make_plan(composed())
    assert not any("worst case" in line for line in cost_lines(ordinary))
    assert as_json(ordinary)["looks"] == [{"look": 1, "n": 300, "level": 0.05}]
    assert plan.power[0.05] < ordinary.power[0.05]


# --- a launch ----------------------------------------------------------------------------------------------


def broken_warm(walked: BlockWalk, wrong: int) -> None:
    """Of 120 documents the first so many that were right are wrong in warm."""
    damaged = [doc_id for doc_id in range(120) if right_by_default(doc_id)][:wrong]
    worse = pass_of("warm", right=lambda doc_id: right_by_default(doc_id) and doc_id not in damaged)
    walked.evidence = with_pass(walked.evidence, "warm", samples=worse.samples)


def test_a_healthy_launch_looks_five_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    cell = walked.measured()
    block = ["cold", "local_warm", "reset_local", "warm"]
    assert walked.asked == ["warm_up", "reset_local", "clear", *block * 5]
    assert cell["verdict"] == "pass" and cell["passes"]["warm"]["n"] == 120
    looks = cell["looks"]
    assert (looks["planned"], looks["asked"], looks["questions"]) == (5, 120, 120)
    assert [each["n"] for each in looks["looks"]] == [24, 48, 72, 96, 120]
    assert [each["ends"] for each in looks["looks"]] == [False] * 4 + [True]
    assert cell["reasons"][-1] == "judged at the last look, at level 0.04 of alpha = 0.05"
    assert cell["paired"]["interval"]["confidence"] == pytest.approx(0.92)
    assert judge_run([cell]).verdict is Verdict.PASS
    # Each block asks its own documents, the same ones in all its passes, each in an order of its own.
    asked = [documents for name, documents in walked.documents if name == "cold"]
    assert sorted(doc_id for documents in asked for doc_id in documents) == list(range(120))
    for start in range(0, 15, 3):
        assert len({tuple(documents) for _, documents in walked.documents[start : start + 3]}) == 1
    assert len(set(walked.orders)) == 15 and walked.orders[5] == f"{CELL}/block2/warm"


def test_numbers_of_all_blocks_are_those_of_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    cell = walked.measured()
    whole = judge_cell(walked.evidence, GateConfig(name="quick"))
    for name in ("cold", "local_warm", "warm"):
        got, expected = cell["passes"][name], whole["passes"][name]
        for key in (
            "score",
            "n",
            "ttft_s",
            "prompt_tokens",
            "external_hit_tokens",
            "local_hit_tokens",
            "output_tokens",
        ):
            assert got[key] == expected[key], (name, key)
        assert got["wall_s"] == pytest.approx(5 * expected["wall_s"]), "each block takes the time of its pass"
    assert cell["hit_rate"] == whole["hit_rate"]
    for key in ("n", "b", "c", "tost_p"):
        assert cell["paired"][key] == whole["paired"][key]
    # Blocks follow one another, so that throughput over a pass can be read from its requests.
    warm = read_evidence(tmp_path / "run" / "cells" / CELL).passes["warm"].requests
    starts = warm.groupby("block")["sent_s"].min()
    assert all(later - earlier > 1 for earlier, later in pairwise(starts))
    assert (warm["token_times_s"].str[-1] == warm["finished_s"]).all()


def test_gross_damage_ends_a_run_at_the_first_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    broken_warm(walked, 108)
    cell = walked.measured()
    assert (cell["verdict"], walked.asked.count("cold")) == ("fail", 1)
    assert (cell["looks"]["asked"], cell["looks"]["questions"], cell["passes"]["cold"]["n"]) == (24, 120, 24)
    assert cell["looks"]["share"] == pytest.approx(0.05)
    assert cell["reasons"][-1] == (
        "stopped early, at look 1 of 5, after 24 of 120 questions: a loss beyond the margin is clear at level 0.0025"
    )
    decision = judge_run([cell])
    assert decision.verdict is Verdict.FAIL and "Holm-adjusted" in decision.reasons[0]
    assert (tmp_path / "run" / "cells" / CELL / "repro" / "bundle.json").is_file()


def test_moderate_damage_is_left_to_a_later_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    broken_warm(walked, 18)
    cell = walked.measured()
    looks = cell["looks"]["looks"]
    assert cell["verdict"] == "fail" and 1 < len(looks) < 5
    assert [each["ends"] for each in looks] == [False] * (len(looks) - 1) + [True]
    assert all(max(each["mcnemar_p"], each["loss_p"]) >= 0.0025 for each in looks[:-1])
    assert max(looks[-1]["mcnemar_p"], looks[-1]["loss_p"]) < 0.0025


def test_a_block_that_was_not_retrieved_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the others would make up for it: 300 of all prompt tokens are within tolerance."""

    def spoil(name: str, block: int, measured: PassEvidence) -> PassEvidence:
        if (name, block) != ("warm", 3):
            return measured
        less = measured.flow.external_hit - 300 if measured.flow.external_hit else None
        return replace(measured, flow=replace(measured.flow, external_hit=less, lookup_hit=less))

    walked = BlockWalk(tmp_path, monkeypatch)
    walked.spoil = spoil
    cell = walked.measured()
    assert (cell["verdict"], len(cell["looks"]["looks"])) == ("invalid", 3)
    (missed,) = (check for check in cell["validity"] if not check["ok"])
    assert missed["check"] == "warm_hit_rate" and missed["observed"].endswith("in block 3")
    assert cell["reasons"][-1].endswith("look 3 of 5, after 72 of 120 questions: the comparison proves nothing")


def test_a_block_without_any_answer_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has columns that hold nothing but None, and its times are still those of a later block."""

    def spoil(name: str, block: int, measured: PassEvidence) -> PassEvidence:
        if block != 2:
            return measured
        documents = [int(doc_id) for doc_id in measured.requests["doc_id"]]
        lengths = {doc_id: prompt_length(doc_id) for doc_id in documents}
        return replace(measured, requests=requests_frame(name, [failed(name, each) for each in documents], lengths))

    walked = BlockWalk(tmp_path, monkeypatch)
    walked.spoil = spoil
    cell = walked.measured()
    assert (cell["verdict"], len(cell["looks"]["looks"])) == ("invalid", 2)
    assert cell["passes"]["warm"]["errors"] == 24


def test_a_low_score_so_far_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor counts over all questions, so a first block below it proves nothing yet."""
    walked = BlockWalk(tmp_path, monkeypatch, "task.floor=0.89")
    first = blocks_of(120, 5, 0)[0]
    for name in ("cold", "local_warm", "warm"):
        few = pass_of(name, right=lambda doc_id: doc_id not in first[:4] and right_by_default(doc_id))
        walked.evidence = with_pass(walked.evidence, name, samples=few.samples)
    walked.config.task.floor = 0.85
    cell = walked.measured()
    verdicts = [each["verdict"] for each in cell["looks"]["looks"]]
    assert verdicts[0] == "invalid" and verdicts[-1] == cell["verdict"] == "pass"


def test_the_verdict_again_from_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    broken_warm(walked, 18)
    walked.measured()
    folder = tmp_path / "run" / "cells" / CELL
    stored = read_json(folder / "cell.json")
    evidence = read_evidence(folder)
    assert judge_cell(evidence, GateConfig(**stored["gate"])) == stored
    json.dumps(stored, allow_nan=False)
    # Every look is a function of what was known then.
    for each in stored["looks"]["looks"]:
        seen = judge_cell(evidence.until(each["look"]), GATE)
        assert seen["looks"]["looks"][-1] == each
    # Other rules on the same evidence; and it is a blocked cell's own matter how many looks were planned.
    assert judge_cell(evidence, GateConfig(name="all at once"))["looks"] is None
    assert judge_cell(evidence, replace(GATE, looks=50))["looks"] == stored["looks"]
    assert {event["block"] for event in stored["events"] if event["step"] == "reset_local"} == {1, 2}
    assert asdict(evidence.facts)["questions"] == 120 and evidence.facts.block_size == N


def test_a_cell_that_was_cut_short_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    walked.measured()
    evidence = read_evidence(tmp_path / "run" / "cells" / CELL).until(2)
    cell = judge_cell(evidence, GATE)
    assert cell["verdict"] == "inconclusive"
    assert cell["reasons"][-1] == "cut short at look 2 of 5, after 48 of 120 questions: nothing was decided before"


def test_the_report_shows_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = BlockWalk(tmp_path, monkeypatch)
    broken_warm(walked, 108)
    cell = walked.measured()
    (table,) = looks_tables([cell])
    (row,) = ([value.text for value in row] for row in table.rows)
    assert row[:4] == [CELL, "1", "24", "0.0025"] and row[-2:] == ["fail", "ends"]
    assert int(row[4]) == cell["paired"]["b"]
    assert looks_tables([{"looks": None}, {}]) == []
