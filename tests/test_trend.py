"""Runs of a folder over time: which are one series, where it steps, and what is said of it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from synthetic_run import N, cell

from harness.cli import main
from harness.errors import UsageError
from harness.report.figures.data import NothingToDraw
from harness.report.figures.trend import trend_figure
from harness.report.trend import conclusion, shown_series
from harness.store import write_json
from harness.trend.series import METRICS, runs_below, series_of
from harness.trend.steps import FEWEST, find_steps, noise
from harness.trend.trend import BETTER, OTHER, WORSE, read_trend

Captured = pytest.CaptureFixture[str]

NOISE = (1.0, 1.03, 0.98, 1.01, 0.97, 1.02, 0.99, 1.04, 0.96, 1.0, 1.02, 0.98)
"""Factors on a night's times."""


def night(folder: Path, number: int, slower: float = 1.0, name: str | None = None, **changes: Any) -> Path:
    """A run of one cell, of night ``number``; ``changes`` go into its cell."""
    path = folder / (name or f"night-{number:02}")
    factor = slower * NOISE[number % len(NOISE)]
    flow = {"score": 0.9, "n": 40, "ttft_s": {"p50": 0.4 * factor}, "output_tokens_per_s": 200 / factor}
    warm = flow | {"ttft_s": {"p50": 0.1 * factor}, "output_tokens_per_s": 400 / factor}
    told = cell(127, 0.97, cell="budget127-full-r1", passes={"cold": flow, "warm": warm}) | changes
    record = {
        "run_id": path.name,
        "status": "complete",
        "verdict": told["verdict"],
        "model": "pocket",
        "started_at": f"2026-01-{number + 1:02}T02:00:00+00:00",
        "unified_block_size": told["unified_block_size"],
        "config": {kind: {"name": kind} for kind in ("model", "task", "check", "gate", "engine")},
        "provenance": {"machine": {"processor": "AMD EPYC"}, "versions": {"vllm": {"torch": "2.13.0"}}},
    }
    (path / "cells" / str(told["cell"])).mkdir(parents=True)
    write_json(path / "run.json", record)
    write_json(path / "cells" / str(told["cell"]) / "cell.json", told)
    return path


def change_record(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    record = json.loads((path / "run.json").read_text())
    change(record)
    write_json(path / "run.json", record)


# --- steps -------------------------------------------------------------------------------------------------


def test_a_step_is_found_where_it_is() -> None:
    (step,) = find_steps([10 * each for each in NOISE[:7]] + [16 * each for each in NOISE[:5]], 0.5)
    assert step.index == 7
    assert (step.before, step.after) == pytest.approx((10.0, 16.0), rel=0.02)


def test_the_last_two_runs_can_be_a_step_and_the_last_one_can_not() -> None:
    assert [step.index for step in find_steps([10.0, 10.1, 9.9, 10.0, 10.2, 16.0, 16.1], 0.5)] == [5]
    assert find_steps([10.0, 10.1, 9.9, 10.0, 10.2, 10.1, 16.0], 0.5) == []


def test_an_outlier_is_no_step() -> None:
    assert find_steps([0.93] * 5 + [0.5] + [0.93] * 6, 0.01) == []


def test_two_steps() -> None:
    values = [10.0] * 5 + [20.0] * 5 + [5.0] * 5
    assert [(step.index, step.before, step.after) for step in find_steps(values, 0.5)] == [(5, 10, 20), (10, 20, 5)]


def test_a_small_step_without_noise_is_not_worth_telling() -> None:
    assert find_steps([0.930] * 20 + [0.925] * 20, 0.01) == []
    assert len(find_steps([0.93] * 6 + [0.89] * 6, 0.01)) == 1


@pytest.mark.parametrize("length", range(FEWEST))
def test_short_series_are_left_alone(length: int) -> None:
    assert find_steps([1.0] * (length // 2) + [9.0] * (length - length // 2), 0.1) == []


def test_noise_alone_seldom_steps() -> None:
    """3 % at most is claimed; so many of 100 happen with a chance of 1e-4 (binomial) if it were 3 %."""
    rng = random.Random(7)
    stepped = sum(bool(find_steps([rng.gauss(10, 1) for _ in range(12)], 0.1)) for _ in range(100))
    assert stepped <= 10


def test_noise_is_hardly_moved_by_a_step() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0, 1) for _ in range(400)]
    assert noise(values) == pytest.approx(1.0, rel=0.15)
    assert noise(values[:200] + [value + 50 for value in values[200:]]) == pytest.approx(noise(values), rel=0.05)


# --- series ------------------------------------------------------------------------------------------------


def test_runs_are_in_order_of_time_and_broken_ones_are_told(tmp_path: Path) -> None:
    night(tmp_path, 3, name="a")
    night(tmp_path / "deeper" / "down", 1, name="b")
    night(tmp_path, 2, name="c")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "failed").mkdir()
    write_json(tmp_path / "failed" / "run.json", {"status": "failed"})
    change_record(night(tmp_path, 5, name="replayed"), lambda record: record["config"].update(replay="some/repro"))
    runs, left = runs_below(tmp_path)
    assert [run.id for run in runs] == ["b", "c", "a"]
    assert "is not JSON" in left[str(tmp_path / "broken")]
    assert left[str(tmp_path / "failed")] == "it is failed, without a complete cell"
    assert "replay" in left[str(tmp_path / "replayed")]
    (series,) = series_of(runs, tmp_path)
    assert [point.name for point in series.points] == ["deeper/down/b", "c", "a"]


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run with a complete cell"):
        runs_below(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(model="another"),
        lambda record: record["config"]["task"].update(name="gsm8k"),
        lambda record: record["config"]["check"].update(name="l2"),
        lambda record: record["config"]["gate"].update(name="threshold"),
        lambda record: record["config"]["engine"].update(name="gpu"),
    ],
)
def test_what_makes_a_series_of_its_own(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    night(tmp_path, 0)
    change_record(night(tmp_path, 1), change)
    assert [len(each.points) for each in read_trend(tmp_path).series] == [1, 1]


def test_versions_and_machine_do_not(tmp_path: Path) -> None:
    night(tmp_path, 0)
    change_record(night(tmp_path, 1), lambda record: record.update(provenance={"versions": {"vllm": {"torch": "9"}}}))
    assert [len(each.points) for each in read_trend(tmp_path).series] == [2]


@pytest.mark.parametrize("changes", [{"unified_block_size": 2 * N, "budget": 255}, {"budget": 64}])
def test_n_and_budget_do(changes: dict[str, Any], tmp_path: Path) -> None:
    night(tmp_path, 0)
    night(tmp_path, 1, **changes)
    assert [len(each.points) for each in read_trend(tmp_path).series] == [1, 1]


def test_repeats_are_one_point(tmp_path: Path) -> None:
    path = night(tmp_path, 0)
    first = json.loads((path / "cells" / "budget127-full-r1" / "cell.json").read_text())
    for number, p50 in ((2, 0.2), (3, 0.9)):
        told = first | {"cell": f"budget127-full-r{number}", "repeat": number}
        warm = first["passes"]["warm"] | {"ttft_s": {"p50": p50}}
        (path / "cells" / told["cell"]).mkdir()
        write_json(path / "cells" / told["cell"] / "cell.json", told | {"passes": first["passes"] | {"warm": warm}})
    (series,) = read_trend(tmp_path).series
    assert series.points[0].values["ttft_warm"] == pytest.approx(200.0), "ms, the median of 100, 200 and 900"


def test_an_invalid_cell_tells_its_hit_rate_alone(tmp_path: Path) -> None:
    night(tmp_path, 0, verdict="invalid")
    (series,) = read_trend(tmp_path).series
    values = series.points[0].values
    assert values["hit_rate"] == 0.97
    assert {name for name, value in values.items() if value is not None} == {"hit_rate"}


def test_damage_on_purpose_is_no_trend(tmp_path: Path) -> None:
    night(tmp_path, 0)
    night(tmp_path, 1, damage={"kind": "flipped_bytes", "dose": 0.05, "documents": [1]})
    assert [len(each.points) for each in read_trend(tmp_path).series] == [1]


# --- the whole ---------------------------------------------------------------------------------------------


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """Twelve nights; from the eighth on all takes 1.6 times as long, with another torch."""
    for number in range(12):
        path = night(tmp_path, number, slower=1.6 if number >= 7 else 1.0)
        if number >= 7:
            change_record(path, lambda record: record["provenance"]["versions"]["vllm"].update(torch="2.14.0"))
        if number == 9:
            change_record(path, lambda record: record["provenance"]["versions"]["vllm"].update(numpy="3"))
    return tmp_path


def test_the_first_run_behind_the_step_and_what_changed(nights: Path) -> None:
    trend = read_trend(nights)
    (turn,) = trend.turns
    assert (turn.point.name, turn.previous.name) == ("night-07", "night-06")
    assert [step.metric.name for step in turn.steps] == ["ttft_cold", "ttft_warm", "throughput_cold", "throughput_warm"]
    assert {step.direction for step in turn.steps} == {WORSE}
    assert [str(change) for change in turn.provenance] == ["versions.torch: 2.13.0 → 2.14.0"]
    assert turn.config == ()


def test_directions() -> None:
    assert {metric.name for metric in METRICS if metric.higher_is_better is None} == {"hit_rate"}
    assert {metric.name for metric in METRICS if metric.higher_is_better} == {
        "score_cold",
        "score_warm",
        "throughput_cold",
        "throughput_warm",
    }


def test_a_faster_run_is_better_and_hits_are_neither(tmp_path: Path) -> None:
    for number in range(8):
        late = number >= 4
        rate = {"target": 0.97, "reachable": 0.97, "measured": 0.5 if late else 0.97}
        night(tmp_path, number, slower=0.5 if late else 1.0, hit_rate=rate)
    (turn,) = read_trend(tmp_path).turns
    assert {step.metric.name: step.direction for step in turn.steps} == {
        "ttft_cold": BETTER,
        "ttft_warm": BETTER,
        "throughput_cold": BETTER,
        "throughput_warm": BETTER,
        "hit_rate": OTHER,
    }


def test_the_command(nights: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["trend", str(nights), f"out={nights / 'out'}"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    assert "12 runs in 1 series, 1 of them with 6 runs or more: 1 step." in out
    assert "step at night-07 (01-08 02:00)" in out and "versions.torch: 2.13.0 → 2.14.0" in out
    assert "warm TTFT p50, ms: 100 → 160 (+60%) (worse)" in out
    assert [path.name for path in sorted((nights / "out").iterdir())] == ["trend.png", "trend.svg"]
    assert str(nights / "out" / "trend.svg") in out


def test_json_alone_on_stdout(nights: Path, capsys: Captured) -> None:
    assert main(["trend", str(nights), "format=json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["runs"] == 12 and told["left_out"] == {}
    (step,) = told["steps"]
    assert (step["first_run"], step["run_before"]) == ("night-07", "night-06")
    assert step["provenance"] == [{"field": "versions.torch", "before": "2.13.0", "after": "2.14.0"}]
    (series,) = told["series"]
    assert series["key"]["budget"] == "2N-1" and series["points"][0]["ttft_warm"] == pytest.approx(100.0)
    assert "trend.png" in err


def test_markdown(nights: Path, capsys: Captured) -> None:
    assert main(["trend", str(nights), "format=markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Trend of ") and "![numbers over time](trend.png)" in out
    assert out.index("## step at night-07") < out.index("| began UTC | run |")


def test_nothing_changed_is_said(tmp_path: Path, capsys: Captured) -> None:
    for number in range(10):
        night(tmp_path, number, slower=2.0 if number >= 5 else 1.0)
    assert main(["trend", str(tmp_path)]) == 0
    assert "neither configuration nor versions nor machine changed" in " ".join(capsys.readouterr().out.split())


def test_few_runs_have_no_steps_and_one_run_has_no_figure(tmp_path: Path, capsys: Captured) -> None:
    night(tmp_path, 0)
    assert main(["trend", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "1 run in 1 series: none has 6 runs, so no step was looked for." in " ".join(out.split())
    assert "no figure: no two runs are of one series" in err
    with pytest.raises(NothingToDraw):
        trend_figure(read_trend(tmp_path))


def places(line: Line2D) -> list[float]:
    """Where a line's points are, from left to right."""
    return [float(value) for value in np.asarray(line.get_xdata())]


def test_the_figure_marks_the_step(nights: Path) -> None:
    figure = trend_figure(read_trend(nights))
    assert isinstance(figure, Figure)
    score, ttft, output, drift = figure.axes
    steps = {ax: [each for each in map(places, ax.lines) if len(each) == 2] for ax in figure.axes}
    assert steps[ttft] == steps[output] == [[6.5, 6.5]], "between the seventh run and the eighth"
    assert steps[score] == steps[drift] == []
    drawn = [float(value) for value in np.asarray(ttft.lines[0].get_ydata())]
    assert len(drawn) == 12
    low, high = ttft.get_ylim()
    assert low < 0 < max(drawn) < high and not math.isclose(max(drawn), high)
    assert drift.get_xticklabels()[0].get_text() == "01-01 02:00\nnight-00"


def test_a_folder_that_can_not_be_written(nights: Path, capsys: Captured) -> None:
    (nights / "taken").write_text("")
    assert main(["trend", str(nights), f"out={nights / 'taken'}"]) == 3
    out, err = capsys.readouterr()
    assert "step at night-07" in out and "Name another with out=DIR." in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "trend needs one folder of runs"),
        (["a", "b"], "trend needs one folder of runs"),
        (["/nope"], "/nope is no folder"),
        (["a", "ou=b"], "trend has no field ou; did you mean out?"),
        (["a", "out="], "out= needs a folder"),
    ],
)
def test_wrong_usage(words: list[str], told: str, capsys: Captured) -> None:
    assert main(["trend", *words]) == 2
    assert told in capsys.readouterr().err


def test_the_conclusion_counts(nights: Path) -> None:
    assert conclusion(read_trend(nights)).endswith("1 step.")


def test_of_many_series_those_with_a_step_are_shown(
    nights: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve nights step; three runs of another budget make a series of their own before it."""
    for number in range(3):
        night(nights, number, name=f"0-other-{number}", budget=64)
    trend = read_trend(nights)
    several = [series for series in trend.series if len(series.points) > 1]
    (turn,) = trend.turns
    assert len(several) == 2 and len(shown_series(trend)) == 2
    monkeypatch.setattr("harness.report.trend.MOST_SERIES", 1)
    assert [series.key for series in shown_series(trend)] == [turn.series.key]
    assert main(["trend", str(nights)]) == 0
    assert "of 2 series 1 are shown, those with a step first (format=json has all)" in capsys.readouterr().out
