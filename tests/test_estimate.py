"""Times: steps as vLLM's scheduler takes them, costs fitted to measured passes, plans and remaining times from them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_support import Scene
from rich.console import Console
from stack_support import composed

from harness.cli import main
from harness.errors import UsageError
from harness.estimate.forecast import Outlook, forecast
from harness.estimate.history import read_history
from harness.estimate.planned import estimate_plan
from harness.estimate.rates import Timed, fit_rates
from harness.estimate.replay import Foretold, replayed
from harness.estimate.scheduler import Asked, Work, prefill_part, work_of
from harness.estimate.workload import Questions, launch_passes
from harness.plan import as_json, make_plan
from harness.report.estimate import estimate_lines
from harness.report.plan import print_plan
from harness.report.progress import about
from harness.report.runs import Run, read_run
from harness.steps import Check, parse_check
from harness.store import RunFolder, write_json
from harness.sweep import Launch, launches

RESULTS = Path(__file__).parent.parent / "results"
SWEEP = RESULTS / "reference-batched-tokens-pocket"
SELFTEST = RESULTS / "reference-selftest-pocket"
N = 64

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def sweep() -> Run:
    return read_run(SWEEP)


@pytest.fixture(scope="module")
def selftest() -> Run:
    return read_run(SELFTEST)


def planned(*overrides: str) -> tuple[list[Launch], Check]:
    """Launches and steps of a configuration."""
    config = composed(*overrides)
    check = parse_check(config.check)
    return launches(config.sweep, N, list(check.variants)), check


def of_reference() -> tuple[list[Launch], Check]:
    return planned("sweep=batched_tokens", "task=pocket_long", "task.limit=90", "load.concurrency=16")


# --- steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "prompt", "room", "part"),
    [
        (0, 514, 64, 64),
        (0, 514, 63, 0),  # less than a block: nothing
        (0, 514, 127, 64),
        (0, 514, 256, 256),
        (0, 514, 1000, 512),  # stops at the last multiple of N, so that its state can be kept
        (512, 514, 1, 0),
        (512, 514, 2, 2),  # the prompt's end need not be a multiple
        (0, 512, 1000, 448),  # the last token is always computed, so 448 is the last that can be served
        (0, 40, 100, 40),
    ],
)
def test_prefill_stops_where_state_is_kept(start: int, prompt: int, room: int, part: int) -> None:
    assert prefill_part(start, prompt, room, N) == part


def test_at_a_budget_of_n_requests_run_one_after_the_other() -> None:
    asked = Asked(requests=32, prompt_tokens=32 * 514, output_tokens=32 * 63, concurrency=16)
    work = work_of(asked, N, N)
    # eight blocks, the rest of the prompt, which gives the first token, and 62 more
    assert work.steps == 32 * (8 + 1 + 62)
    assert (work.computed, work.decoded) == (32 * 514, 32 * 62)
    beside = work_of(asked, 2 * N - 1, N)
    assert (beside.computed, beside.decoded) == (work.computed, work.decoded)
    assert beside.steps < work.steps / 5


def test_what_is_served_is_not_computed() -> None:
    asked = Asked(16, 16 * 514, 16 * 63, external_tokens=16 * 256, local_tokens=16 * 128, concurrency=16)
    work = work_of(asked, 127, N)
    assert (work.computed, work.retrieved) == (16 * 130, 16 * 256)
    full = work_of(replace(asked, external_tokens=16 * 512, local_tokens=0), 127, N)
    assert full.computed == 16 * 2 and full.steps == 63


def test_large_passes_are_played_in_part_and_odd_ones_end() -> None:
    def steps(requests: int) -> float:
        return work_of(Asked(requests, requests * 514, requests * 63, concurrency=16), 127, N).steps

    assert steps(2400) == pytest.approx(10 * steps(240))
    assert work_of(Asked(0, 0, 0), 127, N) == Work()
    # a server whose N is larger than was predicted, and than the budget
    assert work_of(Asked(3, 3 * 514, 3 * 5, concurrency=2), 100, 128).computed == 3 * 514


def test_steps_are_those_of_the_measured_batches(sweep: Run) -> None:
    """Tokens that came out of steps, per step, against the running requests that were seen, from one to fifteen."""
    for cell in sweep.cells:
        told = cell["passes"]["cold"]
        work = work_of(Asked(90, 46251, 5670, concurrency=16), cell["budget"], N)
        batch = (work.decoded + 90) / work.steps
        assert batch == pytest.approx(told["running"]["mean"], rel=0.16), cell["cell"]


# --- what is asked -----------------------------------------------------------------------------------------


def asked_of(*overrides: str, lengths: Sequence[int] = (514,) * 10) -> tuple[dict[str, Asked], dict[str, list[Asked]]]:
    """Passes of the first launch by name, and what each of its cells sends."""
    plan, check = planned(*overrides)
    config = composed(*overrides)
    questions = Questions(lengths, 63, N, N, 8, config.check.connector, config.check.file_l2)
    once, cells = launch_passes(check, plan[0], questions)
    return {each.name: each.asked for each in once}, {
        name: [each.asked for each in sent] for name, sent in cells.items()
    }


def test_each_pass_is_served_by_what_its_steps_left() -> None:
    once, cells = asked_of("sweep=hit_rate", "task=pocket_long", "task.limit=10")
    assert [(each.local_tokens, each.external_tokens) for each in once.values()] == [(0, 0), (0, 0), (5120, 0)]
    assert [each.external_tokens for each in cells["budget127-full-r1"]] == [5120]
    seeding, warm = cells["budget127-hit0.50-r1"]
    assert (seeding.requests, seeding.prompt_tokens, seeding.output_tokens) == (10, 40 * N, 10)
    assert warm.external_tokens == 40 * N
    nothing, cold = cells["budget127-hit0.00-r1"]
    assert nothing.requests == 0 and cold.computed_tokens == 5140


@pytest.mark.parametrize(
    ("overrides", "cell", "served"),
    [
        (["check=bypassed"], "full", [(0, 0)]),
        (["check=no_connector"], "full", [(0, 0)]),
        (["check=apc_only"], "full", [(5120, 0)]),
        (["check=l2"], "full", [(0, 5120)]),
        (["check=restart_lmcache"], "full", [(0, 5120)]),
        (["check=mixed"], "full", [(0, 1280), (1280, 3840)]),
        (["check=repeat_warm"], "full", [(0, 5120)] * 3),
        (["check=concurrency"], "alone", [(0, 0), (5120, 0), (0, 5120)]),
        (["check=selftest", "sweep=selftest"], "truncated", [(0, 0)]),
        (["check=selftest", "sweep=selftest"], "failed_loads-20pct", [(0, 4096)]),
        (["check=selftest", "sweep=selftest"], "flipped_bytes", [(0, 5120)]),
        (["sweep=divergence"], "after4", [(0, 0), (0, 2560)]),
        (["sweep=divergence", "sweep.budgets=[2N]"], "after7", [(0, 0), (0, 3840)]),
        (["sweep=divergence", "sweep.budgets=[16N]"], "after7", [(0, 0), (0, 0)]),
    ],
)
def test_what_serves_the_passes_of_other_checks(overrides: list[str], cell: str, served: list[tuple[int, int]]) -> None:
    _, cells = asked_of(*overrides)
    (sent,) = [each for name, each in cells.items() if name.split("-", 1)[1] == f"{cell}-r1"]
    assert [(each.local_tokens, each.external_tokens) for each in sent] == served


def test_hits_are_those_that_were_measured(sweep: Run, selftest: Run) -> None:
    for run, (plan, check) in ((sweep, of_reference()), (selftest, planned("check=selftest", "sweep=selftest"))):
        history = read_history(run.record, run.cells)
        told = {str(cell["cell"]): cell["passes"]["warm"] for cell in run.cells}
        for launch in plan:
            for name, sent in launch_passes(check, launch, history.questions)[1].items():
                assert sent[-1].asked.external_tokens == told[name]["external_hit_tokens"], name


# --- costs -------------------------------------------------------------------------------------------------


def test_costs_are_found_again() -> None:
    cost = (0.005, 0.0001, 0.0003, 0.00002)
    works = [
        Work(400, 100, 5600, 46000),
        Work(800, 46000, 5600, 0),
        Work(6400, 46000, 5600, 0),
        Work(440, 23000, 5600, 23000),
    ]
    measured = [
        Timed(
            127,
            work,
            sum(a * b for a, b in zip(cost, (work.steps, work.computed, work.decoded, work.retrieved), strict=True)),
        )
        for work in works
    ]
    rates = fit_rates([*measured, Timed(127, Work(), 1.5, between=True)])
    for each in measured:
        assert rates.seconds(each.work, 127) == pytest.approx(each.seconds, rel=0.1)
    assert sum(rates.seconds(each.work, 127) for each in measured) == pytest.approx(
        sum(each.seconds for each in measured)
    )
    assert rates.between_s == pytest.approx(1.5)
    assert min(rates.unit_s) >= 0


def test_the_nearest_budget_is_nearest_as_a_ratio() -> None:
    rates = fit_rates([Timed(64, Work(10, 10, 10), 1.0), Timed(256, Work(10, 10, 10), 3.0)])
    assert [rates.nearest(budget) for budget in (64, 80, 120, 140, 256, 4000)] == [64, 64, 64, 256, 256, 256]
    assert rates.seconds(Work(10, 10, 10), 256) == pytest.approx(3 * rates.seconds(Work(10, 10, 10), 64))
    with pytest.raises(ValueError, match="no pass"):
        fit_rates([Timed(64, Work(), 1.0, between=True)])


def test_one_budget_tells_something_of_all_others(sweep: Run) -> None:
    """The ridge's reason: what docs/sizing.md says of it."""
    history = read_history(sweep.record, sweep.cells)
    for budget in history.budgets:
        rates = fit_rates([each for each in (*history.passes, *history.betweens) if each.budget == budget])
        others = [each for each in history.passes if each.budget != budget]
        took = sum(each.seconds for each in others)
        assert abs(sum(rates.seconds(each.work, each.budget) for each in others) / took - 1) < 0.35


def test_a_run_tells_how_long_its_own_launches_took(sweep: Run) -> None:
    history = read_history(sweep.record, sweep.cells)
    assert len(history.passes) == 36 and len(history.betweens) == 12 and history.budgets == [64, 80, 96, 127, 128, 256]
    plan, check = of_reference()
    times = forecast(plan, check, history.questions, history, history.rates())
    for launch, time in zip(plan, times, strict=True):
        took = sum(each.seconds for each in history.passes if each.budget == launch.budget)
        foretold = time.passes_s + sum(cell.seconds for cell in time.cells)
        # and with what lies between its cells, 7 to 14 s
        assert took < foretold < took + 16 and 35 < time.servers_s < 50 and time.rates_of == launch.budget


# --- remaining time ----------------------------------------------------------------------------------------


def after_launches(run: Run, plan: list[Launch], check: Check) -> list[Foretold]:
    return [each for each in replayed(plan, check, run.record, run.cells) if each.launch_done]


def test_time_left_after_the_first_launch_of_a_sweep(sweep: Run) -> None:
    """All that is known then is a budget of N, at which passes take up to six times as long."""
    told = after_launches(sweep, *of_reference())
    assert [each.launch for each in told] == [f"budget{b}-r1" for b in (64, 80, 96, 127, 128)]
    # From the end of the first launch's last pass, 00:46:13, to the end at 01:14:26, less the 1,200 s between the last
    # cell before it was killed and its resumption.
    assert told[0].took_s == pytest.approx(491, abs=3)
    assert all(abs(each.error) < 0.25 for each in told), [round(each.error, 2) for each in told]


def test_time_left_after_the_first_launch_of_a_selftest(selftest: Run) -> None:
    """Later it can't be: on that machine the same pass took from 9 to 54 s. docs/sizing.md has these numbers."""
    first, _, third, _ = after_launches(selftest, *planned("check=selftest", "sweep=selftest"))
    assert first.took_s == pytest.approx(2918, abs=3)
    assert first.error == pytest.approx(0.06, abs=0.01)
    assert third.error == pytest.approx(1.35, abs=0.01)


def test_cells_alone_would_tell_less(sweep: Run) -> None:
    """As long for each cell as for those that are done: what was shown before."""
    told = after_launches(sweep, *of_reference())[0]
    began = 3 * 60 + 22
    assert abs(began / 3 * 15 / told.took_s - 1) > 0.5


def test_time_left_goes_down_to_the_end_of_the_launch(sweep: Run) -> None:
    plan, check = of_reference()
    outlook = Outlook(plan, check)
    left = [outlook.after(cell, sweep.record) for cell in sweep.cells]
    assert left[-1] == read_history(sweep.record, sweep.cells).stop_s
    resumed = Outlook(plan[3:], check, sweep.cells[:9])
    assert resumed.after(sweep.cells[9], sweep.record) == pytest.approx(left[9])


def test_times_of_launches_that_say_when_they_began_and_ended(sweep: Run) -> None:
    record = deepcopy(dict(sweep.record))
    record["launches"]["budget80-r1"] |= {
        "started_at": "2026-11-30T00:46:20+00:00",
        "finished_at": "2026-11-30T00:47:54+00:00",
    }
    history = read_history(record, sweep.cells)
    assert history.stops == [pytest.approx(8, abs=1)]
    before = read_history(sweep.record, sweep.cells)
    assert history.starts[1][0] == pytest.approx(before.starts[1][0] - 7, abs=1)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> Iterator[Scene]:
    scene = Scene(tmp_path, monkeypatch, capfd)
    yield scene
    scene.close()


def test_a_run_shows_what_it_foretells(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole command, with servers that only stand in for real ones."""
    foretold: list[float | None] = []
    after = Outlook.after

    def noted(self: Outlook, *known: Any) -> float | None:
        foretold.append(after(self, *known))
        return foretold[-1]

    monkeypatch.setattr(Outlook, "after", noted)
    ended = scene.run("sweep.repeats=2")
    launches_of_run = scene.record()["launches"]
    assert all(each["started_at"] <= each["finished_at"] for each in launches_of_run.values())
    first, last = foretold
    assert first is not None and first > 0 and last is not None
    assert f"1 of 2 cells, {about(first)} left" in ended.err
    history = read_history(scene.record(), RunFolder(scene.results / "run").cells())
    assert len(history.passes) == 4 and len(history.starts) == len(history.stops) == 2


def test_a_run_that_tells_nothing_shows_nothing(sweep: Run) -> None:
    plan, check = of_reference()
    assert Outlook(plan, check).after(deepcopy(dict(sweep.cells[0])) | {"passes": {}}, sweep.record) is None


# --- plan from= --------------------------------------------------------------------------------------------


def test_a_plan_at_the_rates_of_a_run(capsys: Captured) -> None:
    words = ["plan", f"from={SWEEP}", "sweep=batched_tokens", "task=pocket_long", "load.concurrency=16"]
    assert main([*words, "task.limit=90", "sweep.budgets=[N,2N-1,16N]", "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)["estimate"]
    assert told["from"] == "reference-batched-tokens-pocket"
    assert [each["extrapolated"] for each in told["launches"]] == [False, False, True]
    assert told["launches"][2]["rates_of"] == 256
    assert told["seconds"] == pytest.approx(sum(each["seconds"] for each in told["launches"]))
    assert told["launches"][0]["passes_s"] > 2 * told["launches"][1]["passes_s"]
    (note,) = told["notes"]
    assert note.startswith("budget1024-r1: a budget of 1024 was not measured")
    assert main([*words, "task.limit=180", "sweep.budgets=[2N-1]"]) == 0
    out = capsys.readouterr().out
    assert (
        "at the rates of run reference-batched-tokens-pocket: 36 passes of 18 cells at budgets 64, 80, 96, 127, 128"
        in out
    )
    assert "in all: about" in out and "  budget127-hit0.97-r1: " in out


def test_twice_the_questions_take_twice_the_passes(sweep: Run) -> None:
    def passes_s(limit: int) -> float:
        words = ("sweep=batched_tokens", "sweep.budgets=[2N-1]", "task=pocket_long", "load.concurrency=16")
        estimate = estimate_plan(make_plan(composed(*words, f"task.limit={limit}")), sweep)
        return estimate.launches[0].passes_s

    assert passes_s(180) == pytest.approx(2 * passes_s(90), rel=0.05)


def test_what_differs_is_said(sweep: Run) -> None:
    estimate = estimate_plan(make_plan(composed("check=restart_vllm", "task.limit=20")), sweep)
    notes = " ".join(estimate.notes)
    assert "another task was measured: answers are taken to have the 14 tokens that worked answers have" in notes
    assert "16 requests at once were measured and 8 are planned" in notes
    assert "check reset_warm was measured and restart_vllm is planned" in notes
    # its own restart is in it: 25 s
    assert estimate.launches[0].cells[0].seconds > 25
    assert any(line.startswith("note: ") for line in estimate_lines(estimate))


def test_measured_prompts_take_the_place_of_estimated_ones(sweep: Run) -> None:
    plan = make_plan(composed("model=qwen3_6_27b", "task.limit=8"))
    record: dict[str, Any] = deepcopy(dict(sweep.record))
    record["model"] = "qwen3_6_27b"
    record["config"]["engine"]["name"] = "gpu"
    record["config"]["task"] |= {"name": plan.config.task.name, "long_answers": False}
    estimate = estimate_plan(plan, replace(sweep, record=record))
    assert "prompts are taken to have the 514 tokens that they had there." in estimate.notes
    assert "N was 64 there and 784 is predicted." in estimate.notes


def changed(run: Run, folder: Path, cells: int = 18, **record: Any) -> Path:
    """A copy of its records with fewer cells and other values."""
    write_json(folder / "run.json", {**run.record, **record})
    for cell in run.cells[:cells]:
        (folder / "cells" / str(cell["cell"])).mkdir(parents=True)
        write_json(folder / "cells" / str(cell["cell"]) / "cell.json", cell)
    return folder


def without(cell: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in cell.items() if key != name}


def test_runs_that_tell_nothing_are_refused_in_a_sentence(sweep: Run, tmp_path: Path, capsys: Captured) -> None:
    assert main(["plan", "model=qwen3_6_27b", f"from={SWEEP}"]) == 2
    assert "that is a run of model=pocket, and model=qwen3_6_27b is planned" in capsys.readouterr().err
    assert main(["plan", f"from={changed(sweep, tmp_path, 0)}"]) == 2
    assert "has no complete cell, so it tells no times" in capsys.readouterr().err
    assert main(["plan", f"from={tmp_path / 'nowhere'}"]) == 2
    assert "can't be read" in capsys.readouterr().err
    assert main(["plan", "from="]) == 2
    assert "from= needs the folder of a run" in capsys.readouterr().err
    for name in ("passes", "launch", "unified_block_size"):
        with pytest.raises(UsageError, match="lacks what times are taken from"):
            read_history(sweep.record, [without(sweep.cells[0], name)])
    with pytest.raises(UsageError, match="lacks what times are taken from"):
        read_history(without(sweep.record, "config"), sweep.cells)


def test_failed_requests_tell_no_time(sweep: Run) -> None:
    cells = deepcopy([dict(cell) for cell in sweep.cells[:1]])
    for told in cells[0]["passes"].values():
        told["errors"] = 1
    with pytest.raises(UsageError, match="no pass whose every request was answered"):
        read_history(sweep.record, cells)
    cells[0]["passes"]["warm"]["errors"] = 0
    assert len(read_history(sweep.record, cells).passes) == 1


def test_the_work_of_a_plan() -> None:
    plan = make_plan(composed("sweep=batched_tokens", "task=pocket_long", "task.limit=10"))
    work = as_json(plan)["work"]
    # six launches of three passes and three cells, two of which seed ten prompts
    assert work["requests"] == 6 * (6 + 2) * 10
    assert work["computed_tokens"] == work["prompt_tokens"] - work["local_tokens"] - work["external_tokens"]
    assert not work["output_tokens_at_most"]
    out = io.StringIO()
    print_plan(Console(file=out, width=200), plan)
    assert f"{work['requests']:,} requests" in out.getvalue() and "tells how long" in out.getvalue()
    assert as_json(make_plan(composed("model=qwen3_6_27b")))["work"]["output_tokens"] == 4 * 300 * 256
