"""Figures: what they show, by numbers known beforehand, what they leave out, and whether they stay apart in print."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from synthetic_run import BUDGETS, MODEL, RATES, Cell, cell, diverging, speed, sweep, timeline, write_run

from harness.cli import main
from harness.errors import HarnessError, UsageError
from harness.report import figures
from harness.report.figures import NothingToDraw, RunData, Spread, load_run, slowdown, write_figures
from harness.report.figures.style import OKABE_ITO, styles
from harness.store import RunFolder, write_json
from harness.sweep import budget_in_blocks

Captured = pytest.CaptureFixture[str]


def data(cells: Sequence[Cell], path: Path = Path("results/synthetic")) -> RunData:
    return RunData(path=path, model=MODEL, engine="none", block_size=64, concurrency=8, cells=tuple(cells))


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def lines(axes: Axes) -> dict[str, Line2D]:
    """Lines that have a label, by it."""
    return {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}


def points(line: Line2D) -> list[tuple[float, float]]:
    x, y = (np.asarray(each, dtype=float).round(6).tolist() for each in line.get_data())
    return list(zip(x, y, strict=True))


def legends(figure: Figure) -> list[Legend]:
    """Legends beside the axes, and those of the axes themselves."""
    return [*figure.legends, *(found for axes in figure.axes if (found := axes.get_legend()))]


def words(figure: Figure) -> str:
    """All that is written on a figure."""
    texts = [text.get_text() for axes in figure.axes for text in (*axes.texts, axes.title)]
    texts += [axes.get_title(loc="left") for axes in figure.axes]
    texts += [text.get_text() for legend in legends(figure) for text in (*legend.get_texts(), legend.get_title())]
    return "\n".join([figure.get_suptitle(), figure.get_supxlabel(), *texts])


def whiskers(axes: Axes) -> list[tuple[float, float]]:
    """Ends of the vertical bars of the first line that has some."""
    (bars,) = axes.containers[0].lines[2]  # type: ignore[attr-defined]
    return [(round(float(low), 6), round(float(high), 6)) for (_, low), (_, high) in bars.get_segments()]


# --- the slowdown ------------------------------------------------------------------------------------------


def test_slowdown_by_hand() -> None:
    """100/20 at hit rate 0, 150/40 at 0.5, 300/180 at 0.97; other budgets do not enter."""
    ratios = slowdown(sweep())
    assert list(ratios) == [0.0, 0.5, 0.97]
    assert [each.median for each in ratios.values()] == pytest.approx([5.0, 3.75, 5 / 3])
    assert {each.repeats for each in ratios.values()} == {1}


def test_slowdown_is_paired_within_repeats() -> None:
    """Repeats have factors of 1.0, 1.2 and 0.9 at 2N-1."""
    spread = slowdown(sweep(repeats=3))[0.0]
    assert (spread.median, spread.low, spread.high, spread.repeats) == pytest.approx((5.0, 4.5, 6.0, 3))
    cells = [each for each in sweep(repeats=3) if (each["budget"], each["repeat"]) != (64, 1)]
    assert slowdown(cells)[0.0].median == pytest.approx(5.25), "of the second and third repeat"


def test_slowdown_needs_both_budgets_at_the_same_hit_rate() -> None:
    assert slowdown([cell(64, 0.0), cell(127, 0.5)]) == {}
    assert slowdown([cell(64, 0.0), cell(128, 0.0)]) == {}
    assert slowdown([]) == {}


def test_slowdown_takes_nothing_from_cells_that_prove_nothing() -> None:
    assert slowdown([cell(64, 0.0, verdict="invalid"), cell(127, 0.0)]) == {}
    assert slowdown([diverging(64, 8, 8), diverging(127, 8, 8)]) == {}
    silent = cell(64, 0.0)
    silent["passes"]["warm"]["output_tokens_per_s"] = 0.0
    assert slowdown([silent, cell(127, 0.0)]) == {}
    assert slowdown([cell(64, 0.0, verdict="fail"), cell(127, 0.0)]) != {}, "it is slow whatever it answers"


def test_a_block_size_of_other_models() -> None:
    """Budgets are those of the cell's own N: 784 and 1567 for Qwen3.6-27B."""
    cells = [cell(64, 0.0) | {"budget": 784}, cell(127, 0.0) | {"budget": 1567}]
    assert slowdown(cells) == {}
    cells = [each | {"unified_block_size": 784} for each in cells]
    assert slowdown(cells)[0.0].median == pytest.approx(5.0)


def test_a_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0, 2)


@pytest.mark.parametrize(
    ("tokens", "told"),
    [(64, "N"), (80, "1.25N"), (96, "1.5N"), (127, "2N-1"), (128, "2N"), (256, "4N"), (255, "4N-1"), (81, "1.27N")],
)
def test_budgets_in_blocks(tokens: int, told: str) -> None:
    assert budget_in_blocks(tokens, 64) == told


def test_a_budget_that_two_digits_do_not_tell() -> None:
    assert budget_in_blocks(2101, 2096) == "~1N"


# --- what each figure shows --------------------------------------------------------------------------------


def test_throughput_has_a_line_per_hit_rate_and_its_slowdown() -> None:
    figure = figures.throughput(data(sweep()))
    axes = axes_of(figure)
    assert list(lines(axes)) == ["0: 5.0x", "0.5: 3.8x", "0.97: 1.7x"]
    for rate, line in zip(RATES, lines(axes).values(), strict=True):
        assert points(line) == [(place, speed(budget, rate)) for place, budget in enumerate(BUDGETS)]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "64\nN", "80\n1.25N", "96\n1.5N", "127\n2N-1", "128\n2N", "256\n4N",
    ]  # fmt: skip
    assert "tokens per step" in axes.get_xlabel()
    assert axes.get_ylabel() == "output tokens per second (log scale)"
    assert f"model {MODEL}, N = 64 tokens, engine none" in words(figure)
    assert "slowdown at N" in words(figure) and "8 requests in flight; one repeat" in words(figure)
    assert "run synthetic" in words(figure)
    assert axes.get_ylim() == (10, 1000), "round numbers around 20 and 480"


def test_throughput_over_repeats_is_the_median_with_whiskers() -> None:
    figure = figures.throughput(data(sweep(repeats=3)))
    axes = axes_of(figure)
    assert list(lines(axes)) == ["0: 5.0x (4.5-6.0)", "0.5: 3.8x (3.4-4.5)", "0.97: 1.7x (1.5-2.0)"]
    assert points(next(iter(lines(axes).values())))[3] == (3, 100.0), "of 100, 120 and 90"
    assert whiskers(axes)[3] == (90.0, 120.0)
    assert "medians of up to 3 repeats, whiskers from lowest to highest" in words(figure)


def test_without_repeats_there_are_no_whiskers() -> None:
    assert axes_of(figures.throughput(data(sweep()))).containers == []


def test_ttft_in_milliseconds() -> None:
    axes = axes_of(figures.ttft(data(sweep())))
    assert list(lines(axes)) == ["0", "0.5", "0.97"]
    assert points(lines(axes)["0"])[0] == (0, 2500.0), "2.5 s at N"
    assert points(lines(axes)["0.97"])[3] == (3, 166.666667)
    assert axes.get_ylabel() == "median TTFT (ms, log scale)"


def test_one_budget_is_drawn_against_the_hit_rate() -> None:
    figure = figures.throughput(data(sweep(budgets=[127])))
    axes = axes_of(figure)
    assert {name: points(line) for name, line in lines(axes).items()} == {
        "127 (2N-1)": [(0.0, 100.0), (0.5, 150.0), (0.97, 300.0)]
    }
    assert axes.get_xlabel() == "target hit rate (fraction of prompt tokens)"
    assert "slowdown" not in words(figure)


def test_a_hit_rate_that_one_budget_lacks_keeps_its_place() -> None:
    cells = [each for each in sweep() if (each["budget"], each["hit_rate"]["target"]) != (80, 0.5)]
    places = [place for place, _ in points(lines(axes_of(figures.ttft(data(cells))))["0.5"])]
    assert places == [0, 2, 3, 4, 5]


def test_the_slowdown_with_the_documented_line() -> None:
    figure = figures.slowdown_figure(data(sweep(repeats=3)))
    axes = axes_of(figure)
    measured = lines(axes)["measured here"]
    assert points(measured) == [(0, 5.0), (1, 3.75), (2, 1.666667)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.5", "0.97"]
    assert [text.get_text() for text in axes.texts] == ["5.0x\n(4.5-6.0)", "3.8x\n(3.4-4.5)", "1.7x\n(1.5-2.0)"]
    assert "1: equally fast" in words(figure)
    documented = "about 7: documented for Qwen3.6-27B (cold or low hit), not measured here"
    assert documented in words(figure)
    assert [y for _, y in points(lines(axes)[documented])] == [7.0, 7.0]
    assert axes.get_ylim()[1] > 7.0
    assert axes.get_ylabel() == "throughput at 2N-1 ÷ at N (times)"


def test_the_documented_number_is_on_no_other_figure(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "synthetic", sweep()))
    others = [figures.FIGURES[name](run) for name in ("throughput", "ttft", "batch_size", "hit_rate")]
    others.append(figures.reuse(data([diverging(127, 2, 2)])))
    assert len(others) == 5
    assert all("Qwen" not in words(figure) and "documented" not in words(figure) for figure in others)
    assert "Qwen" in words(figures.slowdown_figure(run))


def test_the_batch_over_time_at_the_lowest_hit_rate(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "synthetic", sweep(repeats=2)))
    figure = figures.batch_size(run)
    at_n, wider = figure.axes
    for axes, budget in ((at_n, 64), (wider, 127)):
        looks = timeline(budget)
        looks = looks[looks["pass"] == "warm"]
        assert np.array_equal(axes.get_lines()[0].get_ydata(), looks["running"]), "warm alone"
        assert np.array_equal(axes.get_lines()[0].get_xdata(), looks["t_s"])
        assert axes.get_ylabel() == "running requests"
    assert at_n.get_title(loc="left") == "budget 64 (N): done after 40.0 s, mean 1.0, at most 1"
    assert wider.get_title(loc="left") == "budget 127 (2N-1): done after 8.0 s, mean 6.0, at most 8"
    assert at_n.get_xlim() == wider.get_xlim() and at_n.get_ylim() == wider.get_ylim(), "one scale"
    assert wider.get_xlabel() == "time since the pass began (s)"
    assert "at hit rate 0" in words(figure) and "repeat 1" in words(figure)


def test_the_batch_takes_the_lowest_hit_rate_that_both_budgets_have(tmp_path: Path) -> None:
    cells = [cell(64, 0.0, verdict="invalid"), cell(127, 0.0), cell(64, 0.5), cell(127, 0.5)]
    run = load_run(write_run(tmp_path / "synthetic", cells))
    assert "at hit rate 0.5" in words(figures.batch_size(run))


def test_an_unknown_mean_is_not_written(tmp_path: Path) -> None:
    cells = sweep(budgets=[64, 127], rates=[0.0])
    cells[0]["passes"]["warm"]["running"] = {"mean": None, "max": None, "waiting_mean": None}
    figure = figures.batch_size(load_run(write_run(tmp_path / "synthetic", cells)))
    assert figure.axes[0].get_title(loc="left") == "budget 64 (N): done after 40.0 s"


def test_target_and_measured_hit_rate() -> None:
    cells = sweep(budgets=[64, 127], rates=[0.0, 0.5])
    cells[-1]["hit_rate"]["measured"] = 0.31
    cells[-1]["verdict"] = "invalid"
    cells[0]["hit_rate"]["measured"] = None
    figure = figures.hit_rate(data(cells))
    axes = axes_of(figure)
    assert points(lines(axes)["measured = target"]) == [(0, 0), (1, 1)]
    assert points(lines(axes)["64 (N)"]) == [(0.5, 0.5)], "what was not measured is not drawn"
    assert points(lines(axes)["127 (2N-1)"]) == [(0.0, 0.0), (0.5, 0.31)], "a miss is what one wants to see"
    assert lines(axes)["64 (N)"].get_markersize() > lines(axes)["127 (2N-1)"].get_markersize()
    assert "fraction of prompt tokens" in axes.get_xlabel() and "fraction of prompt tokens" in axes.get_ylabel()
    assert "invalid included" in words(figure)


def test_reuse_by_the_point_of_divergence() -> None:
    """2N-1 reuses all that is shared; 16N the whole prompt, and of 7 shared blocks 2.4."""
    wide = [(8, 8.0), (7, 2.4), (4, 0.0), (0, 0.0)]
    cells = [diverging(127, k, k) for k in (8, 7, 4, 0)] + [
        diverging(1024, k, hit) | {"budget": 1024} for k, hit in wide
    ]
    axes = axes_of(figures.reuse(data(cells)))
    assert points(lines(axes)["ideal: all k blocks"]) == [(0, 0), (8, 8)]
    assert points(lines(axes)["127 (2N-1)"]) == [(0, 0), (4, 4), (7, 7), (8, 8)]
    assert points(lines(axes)["1024 (16N)"]) == [(0, 0), (4, 0), (7, 2.4), (8, 8)]
    assert all(tick == int(tick) for tick in axes.get_xticks())
    assert "blocks of N tokens" in axes.get_xlabel() and "blocks of N tokens" in axes.get_ylabel()


def test_divergence_enters_no_other_figure() -> None:
    alone = data([diverging(127, 8, 8), diverging(64, 8, 8), diverging(64, 7, 7)])
    for draw in (figures.throughput, figures.ttft, figures.slowdown_figure, figures.batch_size, figures.hit_rate):
        with pytest.raises(NothingToDraw):
            draw(alone)


def test_invalid_cells_have_no_speed_and_are_counted() -> None:
    cells = sweep()
    cells[0]["verdict"] = "invalid"
    figure = figures.throughput(data(cells))
    assert points(next(iter(lines(axes_of(figure)).values())))[0] == (1, speed(80, 0.0))
    assert "cells with verdict invalid left out: 1" in words(figure)
    assert "left out" not in words(figures.throughput(data(sweep())))


# --- readable by all, and in print -------------------------------------------------------------------------


def test_the_palette_is_okabe_and_itos() -> None:
    assert set(OKABE_ITO) <= {
        "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    }  # fmt: skip


def test_no_colour_is_too_light_for_paper() -> None:
    luminance = {color: float(np.dot(to_rgb(color), (0.2126, 0.7152, 0.0722))) for color in OKABE_ITO}
    assert max(luminance.values()) < 0.7


def test_lines_differ_in_more_than_colour() -> None:
    chosen = styles(7)
    for one, other in itertools.combinations(chosen, 2):
        assert one.color != other.color and one.marker != other.marker
    assert len({str(style.dashes) for style in styles(5)}) == 5
    assert len(set(map(str, styles(56)))) == 56


def test_the_lines_of_a_figure_have_these_styles() -> None:
    drawn = list(lines(axes_of(figures.throughput(data(sweep())))).values())
    assert [(line.get_color(), line.get_marker()) for line in drawn] == [(s.color, s.marker) for s in styles(3)]
    assert len({str(line.get_linestyle()) + str(line._dash_pattern) for line in drawn}) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["throughput", "slowdown", "ttft", "batch_size", "hit_rate"])
def test_nothing_written_is_cut_off_or_covers_something_else(name: str, tmp_path: Path) -> None:
    """At as many hit rates as the sweep hit_rate has, with repeats."""
    more = {rate: (0.5, 0.0, 0.97)[place % 3] for place, rate in enumerate([0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.996])}
    cells = []
    for rate, like in more.items():
        rates = dict.fromkeys(("target", "reachable", "measured"), rate)
        for each in sweep(rates=[like], repeats=2):
            cells.append(each | {"cell": f"{each['cell']}-as{rate}", "hit_rate": rates})
    run = load_run(write_run(tmp_path / "synthetic", cells))
    figure = figures.FIGURES[name](run)
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for axes in figure.axes for text in axes.texts]
    boxes += [(axes.get_title(loc="left"), axes._left_title.get_window_extent()) for axes in figure.axes]  # type: ignore[attr-defined]
    boxes += [("legend", legend.get_window_extent()) for legend in legends(figure)]
    boxes += [("title", figure._suptitle.get_window_extent()), ("note", figure._supxlabel.get_window_extent())]  # type: ignore[attr-defined]
    boxes = [(told, box) for told, box in boxes if told]
    for told, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, told
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} and {other!r}"


# --- files -------------------------------------------------------------------------------------------------


def test_all_that_applies_is_written(tmp_path: Path) -> None:
    path = write_run(tmp_path / "synthetic", sweep(budgets=[64, 127]))
    drawn = write_figures(path)
    names = ["throughput", "slowdown", "ttft", "batch_size", "hit_rate"]
    assert drawn.written == [path / "figures" / f"{name}.{form}" for name in names for form in ("png", "svg")]
    assert drawn.skipped.pop("latency").endswith("requests.parquet can't be read (FileNotFoundError)")
    assert drawn.skipped == {
        "reuse": "the run has no valid cells of a divergence workload",
        "selftest": "no cell was damaged on purpose (python -m harness selftest)",
        "score": "cold and warm answers were compared in no cell",
        "drift": "drift was judged in no cell",
    }
    assert sorted((path / "figures").iterdir()) == sorted(drawn.written), "nothing temporary is left"
    for file in drawn.written:
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
        else:
            assert xml.etree.ElementTree.fromstring(file.read_text()).tag.endswith("svg")


def test_drawn_again_the_files_are_the_same(tmp_path: Path) -> None:
    path = write_run(tmp_path / "synthetic", sweep(budgets=[127]))
    first = {file: file.read_bytes() for file in write_figures(path).written}
    assert {file: file.read_bytes() for file in write_figures(path).written} == first


def test_one_budget_says_what_it_lacks(tmp_path: Path) -> None:
    drawn = write_figures(write_run(tmp_path / "synthetic", sweep(budgets=[127])))
    assert {file.stem for file in drawn.written} == {"throughput", "ttft", "hit_rate"}
    lacks = "it needs budgets N and 2N-1 at one hit rate; validly measured budgets: 127 (2N-1)"
    assert drawn.skipped["slowdown"] == drawn.skipped["batch_size"] == lacks


def test_one_cell_has_no_figure_and_no_folder(tmp_path: Path) -> None:
    path = write_run(tmp_path / "synthetic", [cell(127, 0.97)])
    drawn = write_figures(path)
    assert drawn.written == [] and drawn.skipped.keys() == figures.FIGURES.keys()
    assert drawn.skipped["ttft"] == "it needs two points of budget and hit rate, and 1 was measured validly"
    assert drawn.skipped["hit_rate"] == "fewer than two target hit rates were measured"
    assert not (path / "figures").exists()


def test_a_divergence_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "synthetic", [diverging(127, k, k) for k in (8, 4)], looks=None)
    assert [file.name for file in write_figures(path).written] == ["reuse.png", "reuse.svg"]


@pytest.mark.parametrize("looks", ["missing", "broken", "of another pass", "without columns"])
def test_a_timeline_that_can_not_be_drawn(looks: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "synthetic", sweep(budgets=[64, 127], rates=[0.0]))
    table = path / "cells" / "budget64-hit0.00-r1" / "timeline.parquet"
    if looks == "missing":
        table.unlink()
    elif looks == "broken":
        table.write_text("no table")
    else:
        frame = timeline(64)
        (frame[frame["pass"] == "cold"] if looks == "of another pass" else frame[["t_s"]]).to_parquet(table)
    drawn = write_figures(path)
    assert str(table) in drawn.skipped["batch_size"]
    assert "throughput" in {file.stem for file in drawn.written}, "the others are drawn"


def test_a_full_disk_leaves_the_old_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "synthetic", sweep(budgets=[127]))
    before = {file: file.read_bytes() for file in write_figures(path).written}

    def full(file: Path, content: bytes) -> int:
        file.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HarnessError, match=r"throughput\.png can't be written: No space left on device"):
        write_figures(path)
    assert {file: file.read_bytes() for file in (path / "figures").iterdir()} == before


# --- the command, and the end of a run ---------------------------------------------------------------------


def test_the_command_prints_the_paths(tmp_path: Path, capsys: Captured) -> None:
    path = write_run(tmp_path / "synthetic", sweep(budgets=[127]))
    assert main(["figures", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{path}/figures/{name}.{form}" for name in ("throughput", "ttft", "hit_rate") for form in ("png", "svg")
    ]
    assert "skipped reuse: the run has no valid cells of a divergence workload\n" in err


def told_once(capsys: Captured) -> str:
    """The one sentence on stderr, with nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_the_command_on_what_is_no_run(text: str | None, tmp_path: Path, capsys: Captured) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    assert main(["figures", str(tmp_path)]) == 2
    assert f"{tmp_path / 'run.json'} " in told_once(capsys)


@pytest.mark.parametrize("lacks", ["passes", "hit_rate", "verdict", "measured_at"])
def test_the_command_on_a_cell_of_another_kind(lacks: str, tmp_path: Path, capsys: Captured) -> None:
    path = write_run(tmp_path / "synthetic", [{k: v for k, v in cell(64, 0.0).items() if k != lacks}])
    assert main(["figures", str(path)]) == 2
    assert f"does not hold a run as docs/results.md describes it: KeyError('{lacks}')" in told_once(capsys)


def test_the_command_on_an_unreadable_cell(tmp_path: Path, capsys: Captured) -> None:
    path = write_run(tmp_path / "synthetic", [cell(64, 0.0)])
    (path / "cells" / "budget64-hit0.00-r1" / "cell.json").write_text("{")
    assert main(["figures", str(path)]) == 2
    assert "cell.json is not JSON" in told_once(capsys)


def test_the_command_without_a_folder(capsys: Captured) -> None:
    assert main(["figures"]) == 2
    assert "figures needs a results folder" in told_once(capsys)


def test_a_folder_that_can_not_be_written(tmp_path: Path, capsys: Captured) -> None:
    path = write_run(tmp_path / "synthetic", sweep(budgets=[127]))
    (path / "figures").write_text("in the way")
    assert main(["figures", str(path)]) == 3
    assert f"{path / 'figures'} can't be written" in told_once(capsys)


def test_other_commands_do_not_wait_for_matplotlib() -> None:
    code = "import sys, harness.cli; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent).returncode == 0


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has just ended with verdict fail, two cells, instead of real servers."""
    path = write_run(tmp_path / "synthetic", sweep(budgets=[127], rates=[0.0, 0.5]))
    record = {"verdict": "fail", "status": "complete", "error": None}
    monkeypatch.setattr("harness.cli.run.run", lambda config, progress: (RunFolder(path), record, 1))
    monkeypatch.setattr("harness.cli.run.print_run", lambda *_: print("the summary"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return path


def test_a_sweep_ends_with_its_figures(ended: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu"]) == 1
    out, err = capsys.readouterr()
    assert "the summary" in out
    assert f"6 files in {ended / 'figures'}" in err
    assert (ended / "figures" / "ttft.svg").is_file()


@pytest.mark.parametrize("error", [HarnessError("the disk is full."), ValueError("a bug"), ZeroDivisionError()])
def test_figures_that_fail_lose_nothing(
    error: Exception, ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fails(path: Path) -> Any:
        raise error

    monkeypatch.setattr(figures, "write_figures", fails)
    assert main(["run", "engine=cpu"]) == 1, "the verdict's"
    out, err = capsys.readouterr()
    assert "the summary" in out
    told = str(error).rstrip(".") or "ZeroDivisionError"
    assert f"warning: figures were not drawn: {told}. Try again: python -m harness figures {ended}" in err


def test_a_run_of_one_cell_draws_nothing(ended: Path, capsys: Captured) -> None:
    shutil.rmtree(ended / "cells" / "budget127-hit0.50-r1")
    assert main(["run", "engine=cpu"]) == 1
    assert not (ended / "figures").exists()
    assert "figures" not in capsys.readouterr().err


def test_a_run_without_cells_is_still_a_run(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "synthetic", []))
    assert run.cells == () and run.block_size == 64
    write_json(tmp_path / "run.json", {"status": "failed"})
    with pytest.raises(UsageError, match="KeyError"):
        load_run(tmp_path)
