"""Repro bundles: which prompts are the worst, what is said of them, and that they cost no cell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evidence import N, failed, healthy, pass_of, with_pass, with_records
from repro_support import CELL, LAUNCH, PROMPTS, broken, ill_run, not_retrieved, off_by, other_token

from harness.equivalence.divergence import Answer
from harness.equivalence.documents import compare_documents, replay_numbers
from harness.equivalence.evidence import Evidence
from harness.errors import UsageError
from harness.repro.bundle import read_bundle, replay_command, write_bundle
from harness.repro.side_by_side import marked, place, telling_token
from harness.workload.prompts import as_frame, from_frame

# --- which are the worst -----------------------------------------------------------------------------------


def worst(evidence: Evidence, count: int) -> list[int]:
    compared = compare_documents(evidence.passes["cold"], evidence.passes["warm"], 0.1)
    return [int(doc_id) for doc_id in compared.index[:count]]


def test_broken_ones_come_first_then_by_drift_then_by_document() -> None:
    ill = with_pass(healthy(), "warm", samples=pass_of("warm", right=lambda doc: doc % 10 != 9 and doc > 2).samples)
    records = {1: off_by(1, 0.2), 2: off_by(2, 0.05), 50: off_by(50, 3.0), 60: off_by(60, 5.0)}
    # 0, 1 and 2 broke, by 0, 0.2 and 0.05 nats; 60 and 50 only drifted; 3 and on are as in cold.
    assert worst(with_records(ill, "warm", records), 7) == [1, 2, 0, 60, 50, 3, 4]


def test_a_document_differs_by_its_score_or_by_more_than_the_margin() -> None:
    mended = pass_of("warm", right=lambda doc: doc % 10 != 9 or doc == 19).samples
    ill = with_records(with_pass(healthy(), "warm", samples=mended), "warm", {4: off_by(4, 0.2), 5: off_by(5, 0.09)})
    compared = compare_documents(ill.passes["cold"], ill.passes["warm"], 0.1)
    assert sorted(compared.index[compared["differs"]]) == [4, 19]
    assert compared.loc[19, "mended"] and not compared["broke"].any()


def test_one_without_an_answer_is_the_last_of_the_broken_ones() -> None:
    assert worst(with_records(broken(), "warm", {5: failed("warm", 5)}), 12)[-2:] == [5, 9]


def test_what_became_of_replayed_documents() -> None:
    """Of 3, 40 and 50 the first two differ again; 0 to 11 but 3 and 9, which were wrong before, are new."""
    assert replay_numbers(healthy(), 0.1) is None
    ill = broken()
    replay = replace(ill, facts=replace(ill.facts, replay_of="run/cell", differed_then=(3, 40, 50)))
    assert replay_numbers(replay, 0.1) == {
        "of": "run/cell",
        "prompts": 120,
        "differed_then": 3,
        "of_these_differ_now": 2,
        "others_differ_now": 10,
    }


# --- where they part ---------------------------------------------------------------------------------------


def answer(ids: list[int], logprobs: list[float]) -> Answer:
    count = len(ids)
    return Answer(np.array(ids), np.array(logprobs), np.full(count, 300), np.full(count, -9.0))


def test_the_token_to_look_at() -> None:
    cold = answer([1, 2, 3], [-0.1, -0.2, -0.3])
    assert telling_token(cold, answer([1, 9, 3], [-0.1, -0.2, -0.3])) == (1, True)
    assert telling_token(cold, answer([1, 2], [-0.1, -0.2])) == (2, True), "it ended earlier"
    assert telling_token(cold, answer([1, 2, 3], [-0.1, -0.9, -0.4])) == (1, False), "the largest difference"


def test_places_by_hand() -> None:
    assert [place(token, 64) for token in (0, 63, 64, 439)] == [
        "position 0, block 0",
        "position 63, block 0",
        "position 64, block 1",
        "position 439, block 6",
    ]


def test_the_first_other_character_is_marked() -> None:
    assert marked("has 3 pens", "has 9 pens") == "has ▶3 pens"
    assert marked("has 3", "has 3 pens") == "has 3▶"
    assert marked("has 3 pens", "has 3") == "has 3▶ pens"
    assert marked("same", "same") == "same"


def section(told: str, document: int) -> str:
    (found,) = (each for each in told.split("\n## ") if f"Document {document}:" in each.split("\n")[0])
    return found


def test_the_side_by_side_by_hand(tmp_path: Path) -> None:
    """Document 3 has 435 tokens, so token 4 of its answer is 439 of the whole, and 439 // 64 = 6; logprobs in cold
    are -0.01 * 3 - 0.5, and 99 against the runner-up's -9 in cold won 6 nats, 4 lost 8.47.
    """
    path = write_bundle(ill_run(tmp_path, broken()), CELL)
    assert path is not None
    told = (path / "README.md").read_text()
    assert told.startswith(f"# {CELL}: fail\n\n- warm answers are worse: 11 of 120 questions broke and 0 mended")
    assert "Of 120 prompts 11 were right cold and wrong warm, and 12 differ" in told
    assert "Below are 20, 12 of which differ" in told
    assert f"\n```\npython -m harness run replay={path}\n```\n" in told

    third = section(told, 3)
    assert third.startswith("1. Document 3: right cold, wrong warm")
    assert "435 tokens (blocks 0 to 6), 384 (6 blocks) of them from the cache in warm; expected `#### 3`" in third
    assert "the fact about the asked person, which starts at position 63, block 0." in third
    assert "the fact about box P, which starts at position 320, block 5." in third
    assert "First divergence of warm from cold at token 4 of the answer: position 439, block 6" in third
    assert "| cold | 1 | 3 | 4 | -0.5300 | 300 | -9.0000 |  |" in third
    assert "| local_warm | 1 | 3 | 4 | -0.5300 | 300 | -9.0000 | same tokens, largest \\|Δlogprob\\| 0 nats |" in third
    assert "| warm | 0 | 3 | 99 | -3.0000 | 300 | -9.0000 | parts at token 4 (position 439, block 6), larg" in third
    assert "\ncold       |  Rex has ▶3 pens.\n           | #### 3\nlocal_warm |  Rex has 3 pens.\n" in third
    assert "\nwarm       |  Rex has ▶9 pens.\n           | #### 9\n```" in third
    assert "same tokens as cold; largest |Δlogprob| 0.7 nats, at token 6 of the answer" in section(told, 40)


def test_what_was_not_answered_is_said(tmp_path: Path) -> None:
    ended = other_token(3, 4, " Rex has")
    for values in (ended.token_ids, ended.logprobs, ended.runner_up_ids, ended.runner_up_logprobs):
        del values[2:]
    ill = with_records(broken(), "warm", {3: ended, 5: failed("warm", 5)})
    path = write_bundle(ill_run(tmp_path, ill), CELL)
    assert path is not None
    told = (path / "README.md").read_text()
    assert "warm       | (no answer: HTTP 500: no room)" in section(told, 5)
    assert "an unknown number of them from the cache" in section(told, 5)
    assert "| warm | 0 | 5 | - | - | - | - | not answered |" in section(told, 5)
    assert "| warm | 0 | 3 | (ended) | - | - | - | parts at token 2" in section(told, 3)


def test_text_can_not_leave_its_fence(tmp_path: Path) -> None:
    path = write_bundle(ill_run(tmp_path, broken({3: other_token(3, 4, "````\n# not a heading")})), CELL)
    assert path is not None
    third = section((path / "README.md").read_text(), 3)
    assert third.count("\n`````\n") == 2


# --- the bundle --------------------------------------------------------------------------------------------


def test_what_was_sent_is_what_is_kept(tmp_path: Path) -> None:
    run = ill_run(tmp_path, broken(), "sweep=batched_tokens")
    path = write_bundle(run, CELL)
    assert path == run.cell(CELL) / "repro"
    assert sorted(each.name for each in path.iterdir()) == ["README.md", "bundle.json", "prompts.jsonl"]
    bundle = read_bundle(path)
    assert (bundle.origin, bundle.block_size, len(bundle.prompts)) == (f"run/{CELL}", N, 20)
    assert [each.prompt for each in bundle.prompts] == [PROMPTS[each.prompt.doc_id] for each in bundle.prompts]
    assert [each.prompt.doc_id for each in bundle.prompts][:13] == [3, 0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 40, 9]
    assert bundle.differed == (3, 0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 40)
    assert bundle.prompts[0].target == "#### 3"
    sweep = bundle.config["sweep"]
    assert (sweep["budgets"], sweep["hit_rates"], sweep["repeats"]) == ([127], ["full"], 1), "this cell alone"
    first = json.loads((path / "prompts.jsonl").read_text().split("\n")[0])
    assert first["sha256"] == PROMPTS[3].sha256 and first["token_ids"] == list(PROMPTS[3].token_ids)


def test_a_seeded_cell_keeps_its_target(tmp_path: Path) -> None:
    ill = with_pass(broken(), "cold")
    path = write_bundle(ill_run(tmp_path, replace(ill, facts=replace(ill.facts, target=0.5))), CELL)
    assert path is not None
    assert read_bundle(path).config["sweep"]["hit_rates"] == [0.5]


@pytest.mark.parametrize(("diverges_after", "kept"), [(None, []), (4, [4])])
def test_of_a_divergence_sweep_only_this_cells_point_is_kept(
    tmp_path: Path, diverges_after: int | None, kept: list[int]
) -> None:
    ill = broken()
    seeded = ({"step": "seed", "argument": "diverging", "seeded": {"chunks_written": 10**6}},)
    ill = replace(ill, facts=replace(ill.facts, diverges_after=diverges_after), events=seeded)
    path = write_bundle(ill_run(tmp_path, ill, "sweep=divergence"), CELL)
    assert path is not None
    sweep = read_bundle(path).config["sweep"]
    assert (sweep["budgets"], sweep["hit_rates"], sweep["diverge_after"]) == ([127], ["full"], kept)


@pytest.mark.parametrize(
    ("evidence", "written"),
    [(broken(), True), (not_retrieved(), True), (healthy(), False)],
    ids=["fail", "invalid", "pass"],
)
def test_for_fail_and_invalid_only(tmp_path: Path, evidence: Evidence, written: bool) -> None:
    run = ill_run(tmp_path, evidence)
    assert (write_bundle(run, CELL) is not None) is written
    assert (run.cell(CELL) / "repro").exists() is written


def test_none_where_nothing_can_be_compared(tmp_path: Path) -> None:
    fewer = with_pass(healthy(), "warm", samples=healthy().passes["warm"].samples[:-1])
    assert write_bundle(ill_run(tmp_path, fewer), CELL) is None


def test_launches_of_earlier_versions_hold_no_needed_facts(tmp_path: Path) -> None:
    run = ill_run(tmp_path, broken())
    stored = run.path / "launches" / LAUNCH / "prompts.parquet"
    pd.read_parquet(stored).drop(columns="needed").to_parquet(stored)
    path = write_bundle(run, CELL)
    assert path is not None and "Needed for the answer" not in (path / "README.md").read_text()


def test_prompts_survive_the_disk(tmp_path: Path) -> None:
    as_frame(PROMPTS[:5]).to_parquet(tmp_path / "prompts.parquet")
    assert from_frame(pd.read_parquet(tmp_path / "prompts.parquet")) == PROMPTS[:5]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("results/a-1/cells/b0.50/repro", "python -m harness run replay=results/a-1/cells/b0.50/repro"),
        ("/my results/a=1", "python -m harness run 'replay=\"/my results/a=1\"'"),
    ],
)
def test_the_command_that_replays(path: str, command: str) -> None:
    assert replay_command(Path(path)) == command


# --- bundles that are none ---------------------------------------------------------------------------------


def test_a_folder_without_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no bundle\.json: give the repro folder of a cell that ended in fail"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"max_tokens": 28', '"max_tokens": 29', r"line 1: what it sends has the hash \w+ and \w+ was sent"),
        ('"max_tokens": 28, ', "", r"line 1 is no prompt of a bundle \(KeyError: 'max_tokens'\)"),
        ('{"doc_id"', '{doc_id"', r"line 1 is no prompt of a bundle \(JSONDecodeError"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, before: str, after: str, told: str) -> None:
    path = write_bundle(ill_run(tmp_path, broken()), CELL)
    assert path is not None
    prompts = path / "prompts.jsonl"
    prompts.write_text(prompts.read_text().replace(before, after, 1))
    with pytest.raises(UsageError, match=told):
        read_bundle(path)


@pytest.mark.parametrize(("content", "told"), [("", "holds no prompts"), (None, "can't be read")])
def test_no_prompts(tmp_path: Path, content: str | None, told: str) -> None:
    path = write_bundle(ill_run(tmp_path, broken()), CELL)
    assert path is not None
    if content is None:
        (path / "prompts.jsonl").unlink()
    else:
        (path / "prompts.jsonl").write_text(content)
    with pytest.raises(UsageError, match=told):
        read_bundle(path)


@pytest.mark.parametrize(("field", "value"), [("config", 7), ("unified_block_size", "N"), ("run_id", None)])
def test_a_changed_description_is_refused(tmp_path: Path, field: str, value: object) -> None:
    path = write_bundle(ill_run(tmp_path, broken()), CELL)
    assert path is not None
    told = json.loads((path / "bundle.json").read_text())
    changed = {key: each for key, each in told.items() if key != field} | ({} if value is None else {field: value})
    (path / "bundle.json").write_text(json.dumps(changed))
    with pytest.raises(UsageError, match=r"bundle\.json is not what the harness wrote"):
        read_bundle(path)
