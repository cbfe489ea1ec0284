"""A launch's walk without servers: what is seeded for a cell, in which order it is asked, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidence import BLOCKS, QUESTIONS, N, healthy, prompt_length, with_flow, write_passes
from repro_support import CELL, broken, ill_run
from stack_support import composed

from harness import session
from harness.equivalence.evidence import Evidence
from harness.errors import UsageError
from harness.report.progress import RunProgress
from harness.repro.bundle import Bundle, read_bundle, write_bundle
from harness.session import LaunchSession
from harness.steps import parse_check
from harness.store import RunFolder, read_json, write_json
from harness.sweep import Launch, launches
from harness.workload.prompts import Prompt, set_hash

PROMPTS = [
    Prompt(i, f"text {i}", tuple(range(1000 * i, 1000 * i + prompt_length(i))), ("\n",), 28) for i in range(QUESTIONS)
]


class Walk:
    """A session over stand-ins for both servers, and everything that it asked of them, in order."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, bundle: Bundle | None = None
    ) -> None:
        self.asked: list[str] = []
        self.orders: list[str | None] = []
        self.seeded: list[Prompt] = []
        self.evidence: Evidence = healthy()
        self.config = composed(*overrides)
        (launch,) = launches(self.config.sweep, N)
        self.launch: Launch = launch
        stack: Any = SimpleNamespace(
            has_lmcache=True,
            chunk_size=N,
            vllm=SimpleNamespace(
                block_size=lambda: N,
                tokenize=list,
                max_model_len=lambda: 4096,
                reset_prefix_cache=lambda: self.asked.append("reset_local"),
            ),
            lmcache=SimpleNamespace(clear=lambda: self.asked.append("clear")),
        )
        monkeypatch.setattr(session, "run_pass", self.run_pass)
        monkeypatch.setattr(session, "seed_prefixes", self.seed)
        monkeypatch.setattr(session, "build_prompts", lambda *_, **__: PROMPTS)
        monkeypatch.setattr(session, "warm_up", lambda *_: self.asked.append("warm_up"))
        run = RunFolder.create(folder, "run")
        write_json(run.path / "run.json", {"run_id": "run", "config": asdict(self.config), "provenance": {}})
        self.session = LaunchSession(
            self.config, launch, stack, run, RunProgress(), task=None, task_block_size=N, bundle=bundle
        )

    def run_pass(self, name: str, stack: Any, folder: Path, *, order: str | None, **_: Any) -> None:
        self.asked.append(name)
        self.orders.append(order)
        write_passes(folder.parent, Evidence(self.evidence.facts, {name: self.evidence.passes[name]}, ()))

    def seed(self, stack: Any, load: Any, requests: Sequence[Prompt], on_done: Any) -> dict[str, int]:
        self.asked.append("seed")
        self.seeded = list(requests)
        return {"requests": len(requests), "chunks_written": 2 * BLOCKS * len(requests)}


def walk(folder: Path, monkeypatch: pytest.MonkeyPatch, hit_rates: str, *overrides: str) -> Walk:
    return Walk(folder, monkeypatch, f"sweep.hit_rates=[{hit_rates}]", *overrides)


def measured(walked: Walk) -> list[dict[str, Any]]:
    """Takes the whole launch; its last cell is judged on the evidence that the walk holds then."""
    check = parse_check(walked.config.check)
    walked.session.prepare()
    walked.session.take(check.launch)
    return [walked.session.measure(cell, check.steps_for(cell)) for cell in walked.launch.cells]


def test_the_full_cell_retrieves_what_cold_has_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = walk(tmp_path, monkeypatch, "full")
    (cell,) = measured(walked)
    assert cell["verdict"] == "pass"
    assert walked.asked[walked.asked.index("cold") :] == ["cold", "local_warm", "reset_local", "warm"]


def test_a_seeded_cell_begins_empty_and_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = walk(tmp_path, monkeypatch, "full,0.5")
    cells = measured(walked)
    after_full = walked.asked[walked.asked.index("warm") + 1 :]
    assert after_full == ["reset_local", "clear", "seed", "reset_local", "warm"]
    tokens = sum(len(request.token_ids) for request in walked.seeded)
    assert tokens == 397 * N == pytest.approx(cells[1]["hit_rate"]["reachable"] * 50_760)
    for request in walked.seeded:
        assert request.token_ids == PROMPTS[request.doc_id].token_ids[: len(request.token_ids)]
    (event,) = (event for event in cells[1]["events"] if event["step"] == "seed")
    assert event["seeded"]["requests"] == len(walked.seeded)
    # Warm was served with everything that could be stored, so the seeding had no effect: not what was asked for.
    assert cells[1]["verdict"] == "invalid"


def test_every_warm_pass_of_a_launch_has_an_order_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = walk(tmp_path, monkeypatch, "full,0.5,0.25")
    measured(walked)
    assert walked.orders == [
        None,
        None,
        None,
        "budget127-full-r1/warm",
        "budget127-hit0.50-r1/warm",
        "budget127-hit0.25-r1/warm",
    ]


def test_hit_rate_0_seeds_nothing_and_is_about_speed_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = walk(tmp_path, monkeypatch, "0", "task.floor=0.99")
    walked.evidence = with_flow(healthy(), "warm", external_hit=0, lookup_hit=0, retrieves_finished=0)
    (cell,) = measured(walked)
    assert (cell["verdict"], cell["reasons"]) == ("pass", ["speed only: nothing is retrieved at hit rate 0"])
    assert walked.seeded == []


def test_a_diverging_cell_stores_prompts_that_share_only_their_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = walk(tmp_path, monkeypatch, "full", "check=divergence", "sweep.diverge_after=[4]")
    full, diverged = measured(walked)
    after_full = walked.asked[walked.asked.index("warm") + 1 :]
    assert after_full == ["reset_local", "clear", "seed", "reset_local", "warm"]
    assert walked.orders[-1] == "budget127-after4-r1/warm"
    assert len(walked.seeded) == QUESTIONS
    for stored in walked.seeded:
        asked = PROMPTS[stored.doc_id].token_ids
        assert len(stored.token_ids) == len(asked)
        assert [a == b for a, b in zip(stored.token_ids, asked, strict=True)].index(False) == 4 * N
    assert (full["reuse"], diverged["reuse"]["diverges_after_blocks"]) == (None, 4)
    assert [event["argument"] for event in diverged["events"] if event["step"] == "seed"] == ["diverging"]
    # Warm was served with all six blocks, though only four of them are the same.
    assert diverged["verdict"] == "invalid" and "WRONG STATE" in "; ".join(diverged["reasons"])


def test_prompts_that_end_before_they_diverge_are_refused_before_the_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = walk(tmp_path, monkeypatch, "full", "check=divergence", "sweep.diverge_after=[4,7]")
    with pytest.raises(UsageError, match="7 blocks can't be shared: the shortest prompt has 411 tokens, and 6 blocks"):
        walked.session.prepare()
    assert walked.asked == []


def test_a_target_out_of_reach_is_refused_before_the_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = walk(tmp_path, monkeypatch, "full,0.5,0.97")
    with pytest.raises(UsageError, match=r"0\.97 can't be reached: of the 50,760 tokens .* can serve 0\.908"):
        walked.session.prepare()
    assert walked.asked == []


# --- repro bundles and their replay ------------------------------------------------------------------------


def test_a_failed_cell_keeps_its_worst_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = walk(tmp_path, monkeypatch, "full")
    walked.evidence = broken()
    (cell,) = measured(walked)
    assert (cell["verdict"], cell["replay"]) == ("fail", None)
    bundle = read_bundle(tmp_path / "run" / "cells" / CELL / "repro")
    assert [each.prompt for each in bundle.prompts] == [PROMPTS[each.prompt.doc_id] for each in bundle.prompts]
    assert bundle.prompts[0].prompt.doc_id == 3


def test_a_cell_that_passed_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = walk(tmp_path, monkeypatch, "full")
    measured(walked)
    assert not (tmp_path / "run" / "cells" / CELL / "repro").exists()


def test_a_bundle_that_can_not_be_written_costs_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.repro.bundle.side_by_side", refuse)
    walked = walk(tmp_path, monkeypatch, "full")
    walked.evidence = broken()
    (cell,) = measured(walked)
    folder = tmp_path / "run" / "cells" / CELL
    assert cell["verdict"] == read_json(folder / "cell.json")["verdict"] == "fail"
    assert not list(folder.glob("repro*")), "nor half a bundle"
    told = " ".join(capsys.readouterr().err.split())
    assert f"warning: the repro bundle of {CELL} could not be written ([Errno 28] No space left" in told


def test_a_replay_sends_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_bundle(ill_run(tmp_path / "before", broken(), prompts=PROMPTS), CELL)
    assert path is not None
    bundle = read_bundle(path)
    walked = Walk(tmp_path / "now", monkeypatch, bundle=bundle)
    monkeypatch.setattr(session, "build_prompts", lambda *_, **__: pytest.fail("nothing may be built"))
    (cell,) = measured(walked)
    assert walked.session.prompts == [PROMPTS[each.prompt.doc_id] for each in bundle.prompts]
    assert cell["prompt_set_sha256"] == set_hash([each.prompt for each in bundle.prompts])
    assert cell["replay"] == {
        "of": f"run/{CELL}",
        "prompts": QUESTIONS,  # the stand-in answers them all
        "differed_then": 12,
        "of_these_differ_now": 0,
        "others_differ_now": 0,
    }
    assert "warning" not in capsys.readouterr().err


def test_a_replay_at_another_block_size_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_bundle(ill_run(tmp_path / "before", broken(), prompts=PROMPTS), CELL)
    assert path is not None
    walked = Walk(tmp_path / "now", monkeypatch, bundle=read_bundle(path))
    walked.session.block_size = 128
    walked.session.prepare()
    told = " ".join(capsys.readouterr().err.split())
    assert f"the prompts of run/{CELL} were sent at N = 64 tokens and N is 128 now" in told
