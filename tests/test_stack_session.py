"""One real launch, seven cells: equal, damaged, bypassed, served locally, half seeded, nothing seeded, diverged.

At concurrency 1 the batch never differs between passes, so a warm pass must repeat every token and logprob.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from stack_support import composed, server_processes, shared_memory

from harness.corruption import Corruption
from harness.equivalence.evidence import read_evidence
from harness.equivalence.judge import judge_cell
from harness.model.predict import predicted_block_size
from harness.pocket import CHECKPOINT
from harness.pocket.damage import UNDAMAGED
from harness.pocket.evaluate import Evaluator
from harness.pocket.problems import make_problems
from harness.report.progress import RunProgress
from harness.servers.stack import Stack
from harness.session import LaunchSession
from harness.steps import DIVERGING, Step
from harness.store import RunFolder
from harness.sweep import Cell, launches
from harness.workload.seeding import first_chunks
from harness.workload.tasks import load_task

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

QUESTIONS = 100
"""Enough for TOST to decide when nothing flips (88)."""

CELLS = {
    "equal": [Step("reset_local"), Step("pass", "warm")],
    "damaged": [
        Step("clear_l1"),
        Step("corrupt", Corruption("flipped_bytes", group=0, share=0.01)),
        Step("reset_local"),
        Step("pass", "warm"),
    ],
    "bypassed": [Step("clear"), Step("pass", "warm")],
    "served_locally": [Step("pass", "warm")],
    "half": [Step("clear"), Step("seed"), Step("reset_local"), Step("pass", "warm")],
    "nothing": [Step("clear"), Step("seed"), Step("reset_local"), Step("pass", "warm")],
    "diverged": [Step("clear"), Step("seed", DIVERGING), Step("reset_local"), Step("pass", "warm")],
}

TARGETS = {"half": 0.5, "nothing": 0.0}
"""Hit rates asked for; the other cells take all that is there."""

AFTER = {"diverged": 4}
"""Blocks that are shared with what is stored."""


@dataclass
class Measured:
    """What the launch left."""

    run: RunFolder
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    predicted: int = 0
    observed: int = 0
    shared_memory_before: set[Path] = field(default_factory=set)

    def requests(self, cell: str, name: str) -> pd.DataFrame:
        """Requests of one pass of a cell."""
        frame = pd.read_parquet(self.run.cell(cell) / "requests.parquet")
        return frame[frame["pass"] == name].set_index("doc_id").sort_index()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    config = composed(f"task.limit={QUESTIONS}", "load.concurrency=1", "check=flipped_bytes")
    predicted = predicted_block_size(config.model, config.engine)
    (launch,) = launches(config.sweep, predicted)
    result = Measured(RunFolder.create(tmp_path_factory.mktemp("results"), "run"), predicted=predicted)
    result.shared_memory_before = shared_memory()
    task = load_task(config.task, predicted, config.model.path)
    folder = result.run.launch(launch.id)
    with (
        RunProgress() as progress,
        Stack(config, budget=launch.budget, chunk_size=predicted, folder=folder, notify=progress.stage) as stack,
    ):
        session = LaunchSession(config, launch, stack, result.run, progress, task=task, task_block_size=predicted)
        result.observed = session.block_size
        session.prepare()
        session.take([Step("clear"), Step("pass", "cold"), Step("pass", "local_warm")])
        for name, steps in CELLS.items():
            cell = Cell(name, launch.budget, 1, TARGETS.get(name), AFTER.get(name))
            result.cells[name] = session.measure(cell, steps)
            # Only equality needs a batch that never differs; the other cells are about the verdict.
            config.load.concurrency = 8
    yield result


def test_the_server_has_the_predicted_block_size(measured: Measured) -> None:
    assert measured.observed == measured.predicted == 64


def test_vllm_answers_as_transformers_does(measured: Measured) -> None:
    """The checkpoint is the same model in both: the same score within sampling error, and nearly every text."""
    whole = Evaluator(CHECKPOINT).answers(make_problems(QUESTIONS, seed=0), [UNDAMAGED])["none"]
    cold = measured.requests("equal", "cold")
    golds = [problem.gold for problem in make_problems(QUESTIONS, seed=0)]
    right = [text.endswith(f"#### {gold}") for text, gold in zip(cold["text"], golds, strict=True)]
    assert measured.cells["equal"]["passes"]["cold"]["score"] == pytest.approx(sum(right) / QUESTIONS)
    differing = [a.right != b for a, b in zip(whole, right, strict=True)]
    assert sum(differing) <= 5, "one kernel may round otherwise than the other, where two numbers are about as likely"
    assert sum(a.text == b for a, b in zip(whole, cold["text"], strict=True)) >= 0.95 * QUESTIONS
    first = [float(answer.logprobs[0, answer.tokens[0]]) for answer in whole]
    changes = [abs(a - b[0]) for a, b in zip(first, cold["logprobs"], strict=True)]
    assert np.median(changes) < 0.01


def test_warm_repeats_every_token_and_logprob(measured: Measured) -> None:
    cold, warm = measured.requests("equal", "cold"), measured.requests("equal", "warm")
    assert len(cold) == len(warm) == QUESTIONS
    for column in ("token_ids", "logprobs", "runner_up_ids", "runner_up_logprobs"):
        assert all(np.array_equal(a, b) for a, b in zip(cold[column], warm[column], strict=True)), column
    assert (warm["cached_tokens"] == (warm["sent_tokens"] - 1) // 64 * 64).all()
    assert (cold["cached_tokens"] == 0).all()


def test_a_request_is_fully_recorded(measured: Measured) -> None:
    for _, row in measured.requests("equal", "warm").iterrows():
        assert row["output_tokens"] == len(row["token_ids"]) == len(row["logprobs"]) == len(row["token_times_s"])
        assert len(row["runner_up_ids"]) == len(row["token_ids"])
        assert (row["logprobs"] >= row["runner_up_logprobs"]).all()
        assert 0 < row["ttft_s"] < row["finished_s"] - row["sent_s"]
        assert list(row["token_times_s"]) == sorted(row["token_times_s"])
        assert row["text"] and row["error"] is None and row["retries"] == 0


def test_equal_passes(measured: Measured) -> None:
    cell = measured.cells["equal"]
    assert cell["verdict"] == "pass", cell["reasons"]
    assert cell["hit_rate"]["measured"] == pytest.approx(cell["hit_rate"]["reachable"])
    assert cell["passes"]["warm"]["external_hit_tokens"] == cell["passes"]["warm"]["lmcache_hit_tokens"]
    assert cell["passes"]["local_warm"]["external_hit_tokens"] == 0
    assert cell["passes"]["local_warm"]["local_hit_tokens"] > 0
    assert cell["passes"]["warm"]["ttft_s"]["p50"] < cell["passes"]["cold"]["ttft_s"]["p50"]
    assert cell["passes"]["cold"]["running"]["max"] == 1


def test_damaged_state_fails_though_all_counters_are_healthy(measured: Measured) -> None:
    cell = measured.cells["damaged"]
    assert cell["verdict"] == "fail", cell["reasons"]
    assert all(check["ok"] for check in cell["validity"])
    assert cell["passes"]["warm"]["score"] < cell["passes"]["cold"]["score"] - 0.2
    assert cell["agreement"]["warm"]["first_token_logprob_exact"] < 0.1


def test_a_bypassed_lmcache_is_invalid(measured: Measured) -> None:
    cell = measured.cells["bypassed"]
    assert cell["verdict"] == "invalid"
    assert cell["paired"]["b"] == cell["paired"]["c"] == 0, "recomputed state is right: the score sees nothing"
    assert {check["check"] for check in cell["validity"] if not check["ok"]} == {"warm_hit_rate", "lmcache_agrees"}


def test_a_warm_pass_served_by_vllm_itself_is_invalid(measured: Measured) -> None:
    cell = measured.cells["served_locally"]
    assert cell["verdict"] == "invalid"
    assert "warm_no_local_hit" in {check["check"] for check in cell["validity"] if not check["ok"]}


def test_every_prompt_hits_exactly_what_was_seeded(measured: Measured) -> None:
    cell = measured.cells["half"]
    assert cell["verdict"] == "pass", cell["reasons"]
    assert cell["hit_rate"]["measured"] == cell["hit_rate"]["reachable"] == pytest.approx(0.5, abs=0.001)
    warm = measured.requests("half", "warm")
    lengths = {int(doc_id): int(tokens) for doc_id, tokens in zip(warm.index, warm["sent_tokens"], strict=True)}
    seeded = first_chunks(lengths, 64, 0.5, seed=0)
    assert list(warm["cached_tokens"]) == [64 * seeded[doc_id] for doc_id in lengths]
    assert set(seeded.values()) == {3, 4}, "of six blocks, spread evenly"


def test_hit_rate_0_retrieves_nothing(measured: Measured) -> None:
    cell = measured.cells["nothing"]
    assert (cell["verdict"], cell["hit_rate"]["measured"]) == ("pass", 0.0), cell["reasons"]
    assert (measured.requests("nothing", "warm")["cached_tokens"] == 0).all()


def test_every_prompt_hits_exactly_what_it_shares_with_a_stored_one(measured: Measured) -> None:
    """At 2N - 1 every block ends a step, so that nothing of what is shared is lost."""
    cell = measured.cells["diverged"]
    assert cell["verdict"] != "invalid", cell["reasons"]
    assert cell["reuse"]["hit_tokens"] == cell["reuse"]["shared_tokens"] == QUESTIONS * 4 * 64
    assert (measured.requests("diverged", "warm")["cached_tokens"] == 4 * 64).all()


def test_the_verdict_follows_from_the_files_alone(measured: Measured) -> None:
    config = composed(f"task.limit={QUESTIONS}")
    for name, cell in measured.cells.items():
        again = judge_cell(read_evidence(measured.run.cell(name)), config.gate)
        assert (again["verdict"], again["reasons"]) == (cell["verdict"], cell["reasons"])


def test_nothing_is_left_behind(measured: Measured) -> None:
    assert server_processes(measured.run.path) == []
    assert shared_memory() <= measured.shared_memory_before
