"""Figures of score, drift and TTFT: what they show, by numbers known beforehand, and that nothing is cut off."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from report_support import cell_of, change_cell, failing, invalid, passing
from synthetic_run import sweep, write_run

from harness.report import figures
from harness.report.figures import NothingToDraw, load_run
from harness.report.figures.judged import PASS_STYLES
from harness.report.figures.style import OKABE_ITO


def line(figure: Figure, label: str) -> tuple[list[float], list[float]]:
    """Points of the line with a label that begins like this."""
    (axes,) = figure.axes
    (found,) = (each for each in axes.get_lines() if str(each.get_label()).startswith(label))
    x, y = (np.asarray(each, dtype=float).tolist() for each in found.get_data())
    return x, y


def test_the_loss_and_its_margin(tmp_path: Path) -> None:
    path = failing(tmp_path)
    paired = cell_of(path)["paired"]
    (axes,) = figures.score(load_run(path)).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["budget127-full-r1 (n = 120)"]
    (band,) = (patch for patch in axes.patches if isinstance(patch, Rectangle))
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((-0.03, 0.03))
    (bars,) = axes.containers
    point, _, (whiskers,) = bars.lines  # type: ignore[attr-defined]
    assert point.get_xdata().tolist() == [paired["difference"]]
    ((low, _), (high, _)) = whiskers.get_segments()[0]
    assert (low, high) == pytest.approx((paired["interval"]["low"], paired["interval"]["high"]))
    assert point.get_color() == OKABE_ITO[1] and bars.get_label() == "interval not inside"


def test_an_interval_inside_looks_different(tmp_path: Path) -> None:
    (axes,) = figures.score(load_run(passing(tmp_path))).axes
    (bars,) = axes.containers
    assert bars.get_label() == "interval inside: equivalent"
    assert bars.lines[0].get_marker() == "o"  # type: ignore[attr-defined]


def test_drift_counts_answers(tmp_path: Path) -> None:
    """Document 3 diverges (by 3 nats or more) and 40 is off by 0.7; all others are the same as cold."""
    figure = figures.drift(load_run(failing(tmp_path)))
    (axes,) = figure.axes
    x, y = line(figure, "warm (n = 120)")

    def further_than(nats: float) -> float:
        return [count for place, count in zip(x, y, strict=True) if place <= nats][-1]

    assert further_than(0.1) == 2 == cell_of(tmp_path / "run")["drift"]["passes"]["warm"]["beyond"]
    assert further_than(0.8) == 1
    assert y[-1] == 0
    assert set(line(figure, "local_warm")[1]) == {0.0}
    unnamed = [each for each in axes.get_lines() if str(each.get_label()).startswith("_child")]
    levels = [float(np.asarray(each.get_xdata(), dtype=float)[0]) for each in unnamed]
    assert levels == pytest.approx([0.1, 0.4, 1.6])


def test_first_tokens_add_up_to_all(tmp_path: Path) -> None:
    path = passing(tmp_path)
    figure = figures.latency(load_run(path))
    for name, each in cell_of(path)["passes"].items():
        x, y = line(figure, f"{name} (n = 120)")
        assert y[-1] == 100
        middle = next(value for value, share in zip(x, y, strict=True) if share >= 50)
        assert middle == pytest.approx(1000 * each["ttft_s"]["p50"], rel=0.05)


def test_passes_look_the_same_everywhere() -> None:
    assert list(PASS_STYLES) == ["cold", "warm", "local_warm", "control"]
    assert (
        len({style.color for style in PASS_STYLES.values()}) == 4 == len({str(s.dashes) for s in PASS_STYLES.values()})
    )


def test_what_there_is_no_data_for(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "synthetic", sweep(budgets=[127])))
    for draw in (figures.score, figures.drift, figures.latency):
        with pytest.raises(NothingToDraw):
            draw(run)
    with pytest.raises(NothingToDraw, match="no cell is complete"):
        figures.latency(load_run(write_run(tmp_path / "empty", [])))


def test_a_cell_whose_drift_was_not_judged(tmp_path: Path) -> None:
    path = passing(tmp_path)
    change_cell(path, lambda cell: cell.update(drift=None))
    with pytest.raises(NothingToDraw, match="drift was judged in no cell"):
        figures.drift(load_run(path))


@pytest.mark.parametrize("make", [passing, failing, invalid])
@pytest.mark.parametrize("name", ["score", "drift", "latency"])
def test_nothing_is_cut_off(make: object, name: str, tmp_path: Path) -> None:
    figure = figures.FIGURES[name](load_run(make(tmp_path)))  # type: ignore[operator]
    figure.draw_without_rendering()
    (axes,) = figure.axes
    beside = [*figure.legends, *([legend] if (legend := axes.get_legend()) else [])]
    boxes = [("title", figure._suptitle.get_window_extent()), ("note", figure._supxlabel.get_window_extent())]  # type: ignore[attr-defined]
    boxes += [("legend", each.get_window_extent()) for each in beside]
    boxes += [("x", axes.xaxis.label.get_window_extent()), ("y", axes.yaxis.label.get_window_extent())]
    boxes += [("y ticks", each.get_window_extent()) for each in (axes.get_yticklabels() if name == "score" else [])]
    boxes = [(told, box) for told, box in boxes if box.width]
    for told, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, told
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), f"{one} and {other}"


def test_no_drift_at_all_is_said_in_the_figure(tmp_path: Path) -> None:
    def words(figure: Figure) -> list[str]:
        return [text.get_text() for axes in figure.axes for text in axes.texts]

    path = passing(tmp_path / "same")
    assert "all 120 identical" not in words(figures.drift(load_run(failing(tmp_path / "other"))))
    assert "all 120 identical" in words(figures.drift(load_run(path)))
