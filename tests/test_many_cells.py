"""Reports of runs of many cells: bounded pages and figures, what is left out is named, and nothing is judged less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_cells import Pattern, places
from scipy.stats import bootstrap
from synthetic_run import cell, write_run

from harness.cli import main
from harness.compare.resamples import interval, medians, resamples, sums
from harness.report.document import told_in_full
from harness.report.figures import load_run
from harness.report.figures.judged import score
from harness.report.many import MOST_CELLS, MOST_RUNS, cells_each, some_lines, telling_cells
from harness.report.runs import Run, read_run

Captured = pytest.CaptureFixture[str]

CELLS = 130


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pattern]:
    yield Pattern(tmp_path_factory.mktemp("pattern"))


@pytest.fixture(scope="module")
def runs(pattern: Pattern, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return tuple(pattern.write(folder, name, places(CELLS), seed=seed) for seed, name in enumerate("AB"))  # type: ignore[return-value]


def test_a_page_of_many_cells_is_bounded_and_says_what_it_leaves_out(
    runs: tuple[Path, Path], tmp_path: Path, capsys: Captured
) -> None:
    assert main(["report", str(runs[0]), f"out={tmp_path}"]) == 0
    page, run = (tmp_path / "report.html").read_text(), read_run(runs[0])
    told = f"Of {CELLS} cells the tables show the {MOST_CELLS} most telling"
    assert told in page and told in (tmp_path / "report.md").read_text() and told in capsys.readouterr().out
    assert len(page) < 4_000_000 and page.count("<svg") <= 10
    shown = set(
        re.findall(r"budget\d+-hit0\.\d\d-r\d+", page.partition("<caption>Cells</caption>")[2].partition("</table>")[0])
    )
    assert shown == {each["cell"] for each in telling_cells(run.cells)} and len(shown) == MOST_CELLS
    ill = {str(each["cell"]) for each in run.cells if each["verdict"] != "pass"}
    assert ill and ill <= shown, "whatever did not pass is shown"
    assert "Budgets and hit rates" in page
    for file in ("junit.xml", "summary.csv"):
        assert all(str(each["cell"]) in (tmp_path / file).read_text() for each in run.cells), file


def test_compare_shows_the_worst_of_many_cells_and_judges_all(runs: tuple[Path, Path], capsys: Captured) -> None:
    main(["compare", *map(str, runs)])
    told = capsys.readouterr().out
    assert f"Of {CELLS} cells the tables show the {MOST_CELLS} that changed most for the worse" in " ".join(
        told.split()
    )


def test_the_figure_of_the_score_is_bounded_and_says_so(tmp_path: Path) -> None:
    paired = {"interval": {"low": -0.01, "high": 0.01, "confidence": 0.9}, "margin": 0.03, "difference": 0.0, "n": 40}
    cells = [cell(127, 0.5, cell=f"budget127-hit0.50-r{r}", paired=paired) for r in range(1, MOST_CELLS + 31)]
    figure = score(load_run(write_run(tmp_path / "run", cells, looks=None)))
    assert len(figure.axes[0].get_yticklabels()) == MOST_CELLS
    assert f"the {MOST_CELLS} most telling of {MOST_CELLS + 30} cells" in str(
        figure.texts[0].get_text() + figure.get_supxlabel()
    )


def test_few_cells_are_all_shown_in_their_own_order() -> None:
    cells = [{"cell": str(place), "verdict": "pass"} for place in range(MOST_CELLS)]
    assert telling_cells(cells) == tuple(cells)
    ill = {"cell": "ill", "verdict": "fail"}
    assert telling_cells([*cells, ill])[-1] is ill and len(telling_cells([*cells, ill])) == MOST_CELLS
    assert cells_each(1) == MOST_CELLS > cells_each(20) > cells_each(1000) > 0


def test_many_sentences_are_cut_with_their_number() -> None:
    assert some_lines(["a", "b"], "in x", most=2) == ["a", "b"]
    assert some_lines(["a", "b", "c", "d"], "in x", most=2) == ["a", "b", "2 more like these: in x"]


def test_of_very_many_runs_the_worst_are_told_in_full(tmp_path: Path) -> None:
    def run(verdict: str) -> Run:
        return Run(tmp_path, {"verdict": verdict}, ({"cell": "x", "verdict": verdict},))

    many = [run("pass")] * MOST_RUNS + [run("fail")]
    assert told_in_full(many[1:]) == list(range(MOST_RUNS))
    assert MOST_RUNS in told_in_full(many) and len(told_in_full(many)) == MOST_RUNS


@pytest.mark.parametrize("n", [10, 125, 300])
def test_shared_draws_give_the_intervals_of_scipy(n: int) -> None:
    chance = np.random.default_rng(n)
    before, after = chance.lognormal(size=n), chance.lognormal(size=n)

    def of_scipy(statistic: Any) -> tuple[float, float]:
        found = bootstrap(
            (before, after),
            lambda a, b, axis: statistic(b, axis=axis) / statistic(a, axis=axis),
            paired=True,
            n_resamples=1200,
            batch=500,
            confidence_level=0.9,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        return found.low, found.high

    of_medians = interval((medians(after, each) / medians(before, each) for each in resamples(n, 1200)), 0.9)
    of_sums = interval((sums(after, each) / sums(before, each) for each in resamples(n, 1200)), 0.9)
    assert of_medians == of_scipy(np.median)
    assert of_sums == pytest.approx(of_scipy(np.sum), rel=1e-12)
