"""The selftest on results folders: the command, its files, its figure, and the small form that is kept in git."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evidence import evidence_of, healthy, pass_of, write_cell
from matplotlib.figure import Figure
from rich.console import Console
from selftest_support import GATE, write_selftest
from synthetic_run import sweep, write_run

from harness.cli import main
from harness.config import RunConfig
from harness.equivalence.evidence import read_evidence
from harness.equivalence.judge import judge_cell
from harness.errors import HarnessError, Interrupted, UsageError
from harness.report import figures
from harness.report.figures import NothingToDraw, load_run
from harness.report.terminal import print_run
from harness.selftest.command import overrides_of, selftest_command
from harness.selftest.outcomes import TABLE
from harness.selftest.reduce import reduce_run
from harness.selftest.summary import read_summary
from harness.selftest.table import print_summary
from harness.store import RunFolder, read_json, write_json

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A selftest of two launches; tests that write into it copy it."""
    folder = tmp_path_factory.mktemp("selftest")
    return write_selftest(folder / "results" / "synthetic", folder / "scratch")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "results" / made.name)
    return tmp_path / "results" / made.name


def spoil(folder: Path, cell: str, verdict: str) -> None:
    """Gives a cell another verdict than the one it came to."""
    path = folder / "cells" / cell / "cell.json"
    write_json(path, read_json(path) | {"verdict": verdict, "reasons": ["spoiled by the test"]})


# --- summaries ---------------------------------------------------------------------------------------------


def test_a_gate_that_bites(folder: Path, capsys: Captured) -> None:
    assert main(["selftest", f"from={folder}"]) == 0
    out = capsys.readouterr().out
    # 5 % of 120 are 6 documents and 0.045 of the tokens; the latter must be noticed.
    assert "selftest PASS: 8 of 8 damaged cells ended as they must (2 more were damaged too little" in out
    assert "and 2 of 2 undamaged ones passed" in out
    assert "false alarms (undamaged and fail): 0 of 2 launches, 95% interval 0.00 to 0.84" in out
    assert "mixing holds in 3 of 3 kinds and doses" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["20%", *["2/2", ".16-1.00"] * 3, "2", "fail"] in rows
    assert ["truncated", "~1%", *["0.00", ".00-.84"] * 3] in rows
    stored = json.loads((folder / "selftest.json").read_text())
    assert (stored["exit_code"], stored["runs"]["synthetic"]["cells"]) == (0, 12)
    table = pd.read_csv(folder / "selftest.csv")
    assert len(table) == len(stored["points"]) and {"real", "mixed"} == set(table["source"])
    assert {path.name for path in (folder / "figures").iterdir()} == {"selftest.png", "selftest.svg"}


def test_a_gate_that_does_not_bite(folder: Path, capsys: Captured) -> None:
    spoil(folder, "budget127-flipped_bytes-r2", "pass")
    assert main(["selftest", f"from={folder}"]) == 1
    out = capsys.readouterr().out
    assert "budget127-flipped_bytes-r2, flipped bytes, 120 of 120 prompts: fail was expected and it is pass" in out
    assert "selftest FAIL: 7 of 8 damaged cells" in out


def test_a_false_alarm(folder: Path, capsys: Captured) -> None:
    spoil(folder, "budget127-none-r1", "fail")
    assert main(["selftest", f"from={folder}"]) == 1
    assert "budget127-none-r1, undamaged: a FALSE ALARM: spoiled by the test" in capsys.readouterr().out


def test_runs_are_pooled_and_healthy_ones_tell_about_false_alarms(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    config = {"engine": {"name": "none"}, "load": {"concurrency": 8}, "check": {"name": "reset_warm"}}
    write_run(tmp_path / "healthy", [], config=config)
    for repeat in (1, 2, 3):
        passes = healthy().passes.values()
        cell = evidence_of(passes, cell_id=f"budget127-full-r{repeat}", launch_id=f"budget127-r{repeat}")
        place = tmp_path / "healthy" / "cells" / cell.facts.cell_id
        write_cell(place, cell, tmp_path / "scratch" / cell.facts.cell_id)
        write_json(place / "cell.json", judge_cell(read_evidence(place), GATE))
    assert main(["selftest", f"from={folder},{tmp_path / 'healthy'}"]) == 0
    assert "0 of 5 launches, 95% interval 0.00 to 0.52" in capsys.readouterr().out
    assert not (tmp_path / "healthy" / "selftest.json").exists()
    # Of another check nothing counts: it may damage, and does not say so.
    record = read_json(tmp_path / "healthy" / "run.json")
    config["check"] = {"name": "bypassed"}
    write_json(tmp_path / "healthy" / "run.json", record | {"config": config})
    main(["selftest", f"from={folder},{tmp_path / 'healthy'}"])
    out = capsys.readouterr().out
    assert "0 of 2 launches" in out and "3 cells tell nothing here and were left out" in out


def test_nothing_to_judge(tmp_path: Path, capsys: Captured) -> None:
    write_run(tmp_path / "plain", [])
    assert main(["selftest", f"from={tmp_path / 'plain'}"]) == 4
    out = capsys.readouterr()
    assert "selftest INCOMPLETE" in out.out and "no undamaged cell was measured" in out.out
    interrupted = write_selftest(tmp_path / "cut", tmp_path / "scratch", launches=1, status="interrupted")
    assert main(["selftest", f"from={interrupted}"]) == 4
    assert "incomplete: run cut is interrupted" in capsys.readouterr().out


def test_a_cell_whose_passes_can_not_be_paired_counts(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    """A damaged cell must be invalid however little was answered; it has no rows, and in the small form neither."""
    cell = folder / "cells" / "budget127-truncated-r1"
    table = pd.read_parquet(cell / "samples.parquet")
    table[table["pass"] != "warm"].to_parquet(cell / "samples.parquet")
    write_json(cell / "cell.json", read_json(cell / "cell.json") | {"paired": None})
    for path in (folder, tmp_path / "kept"):
        assert main(["selftest", f"from={path}", *([f"into={tmp_path / 'kept'}"] if path == folder else [])]) == 0
        assert "8 of 8 damaged cells" in capsys.readouterr().out


def test_refusals(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    for arguments, told in (
        ([f"from={tmp_path / 'nowhere'}"], "run.json can't be read"),
        ([f"from={folder},{folder}"], "different names"),
        (["from="], "needs results folders"),
        ([f"from={folder}", "task.limit=9"], "takes no task.limit=9"),
        ([f"into={tmp_path / 'x'}"], "into= needs from="),
        (["--multirun"], "takes no --multirun"),
        ([f"from={folder}", f"into={folder}"], "exists already"),
    ):
        assert main(["selftest", *arguments]) == 2, arguments
        assert told in capsys.readouterr().err.replace("\n", " ")


# --- the small form ----------------------------------------------------------------------------------------


def test_the_small_form_says_the_same(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    kept = tmp_path / "kept"
    assert main(["selftest", f"from={folder}", f"into={kept}"]) == 0
    files = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    assert not any(name.endswith(("requests.parquet", "evidence.json")) for name in files)
    assert {"run.json", "selftest.json", "selftest.csv", TABLE, "figures/selftest.png"} <= files
    assert sum(name.endswith("cell.json") for name in files) == 12
    (small, _), (whole, _) = read_summary([kept]), read_summary([folder])
    assert [(each.kind, each.dose, each.rate) for each in small.points] == [
        (each.kind, each.dose, each.rate) for each in whole.points
    ]
    assert small.exit_code == whole.exit_code == 0
    stored = read_json(kept / "selftest.json")
    assert list(stored["runs"]) == ["kept"] and {cell["run"] for cell in stored["cells"]} == {"kept"}
    assert main(["report", str(kept)]) == 0 and main(["figures", str(kept)]) == 0


def test_paths_of_the_machine_are_shortened(folder: Path, tmp_path: Path) -> None:
    record = read_json(folder / "run.json")
    path = str(folder.parent.parent / "deep" / "model")
    write_json(folder / "run.json", record | {"launches": {"a": {"commands": {"vllm": ["vllm", path]}}}})
    main(["selftest", f"from={folder}"])
    kept = reduce_run(folder, tmp_path / "kept")
    assert read_json(kept / "run.json")["launches"]["a"]["commands"]["vllm"] == ["vllm", "deep/model"]
    assert str(tmp_path) not in (kept / "run.json").read_text()
    with pytest.raises(UsageError, match=r"holds no selftest\.json"):
        (folder / "selftest.json").unlink()
        reduce_run(folder, tmp_path / "again")


def test_a_reduced_cell_without_its_rows_is_told(folder: Path, tmp_path: Path) -> None:
    main(["selftest", f"from={folder}"])
    kept = reduce_run(folder, tmp_path / "kept")
    rows = pd.read_parquet(kept / TABLE)
    rows[rows["cell"] != "budget127-none-r1"].to_parquet(kept / TABLE)
    with pytest.raises(UsageError, match="budget127-none-r1 holds no requests"):
        read_summary([kept])
    (kept / TABLE).unlink()
    with pytest.raises(UsageError, match="can't be read"):
        read_summary([kept])


# --- the command -------------------------------------------------------------------------------------------


def test_overrides() -> None:
    assert overrides_of([]) == ["check=selftest", "sweep=selftest"]
    assert overrides_of(["short", "task.limit=90"]) == ["check=selftest", "sweep=selftest_short", "task.limit=90"]
    assert overrides_of(["sweep=mine"]) == ["check=selftest", "sweep=mine"]
    assert overrides_of(["sweep.repeats=1"]) == ["check=selftest", "sweep=selftest", "sweep.repeats=1"]
    assert overrides_of(["resume=x", "results_dir=y"]) == ["resume=x", "results_dir=y"]


class Runs:
    """Stands for the command ``run``: notes what it is told and leaves a finished folder."""

    def __init__(self, made: Path, results: Path, code: int = 1) -> None:
        self.made, self.results, self.code = made, results, code
        self.told: list[str] = []

    def __call__(self, overrides: Sequence[str]) -> int:
        self.told = list(overrides)
        fields = dict(word.split("=", 1) for word in overrides if "=" in word)
        if self.code in (0, 1, 4):
            shutil.copytree(self.made, self.results / fields.get("run_id", fields.get("resume", "")))
        return self.code

    def compose(self, overrides: Sequence[str]) -> RunConfig:
        fields = dict(word.split("=", 1) for word in overrides)
        config = RunConfig(results_dir=str(self.results), run_id=fields.get("run_id"), resume=fields.get("resume"))
        config.model.name, config.sweep.name, config.check.name = "pocket", "selftest", "selftest"
        config.task.name = "pocket"
        return config


def test_a_run_that_fails_by_design_ends_well(made: Path, tmp_path: Path) -> None:
    runs = Runs(made, tmp_path, code=1)
    assert selftest_command(["task.limit=90"], runs, runs.compose) == 0
    *before, named = runs.told
    assert before == ["check=selftest", "sweep=selftest", "task.limit=90"]
    assert named.startswith("run_id=") and (tmp_path / named.removeprefix("run_id=") / "selftest.json").is_file()


@pytest.mark.parametrize("words", [["run_id=mine"], ["resume=mine"]])
def test_a_run_that_has_a_name_keeps_it(words: list[str], made: Path, tmp_path: Path) -> None:
    runs = Runs(made, tmp_path)
    assert selftest_command(words, runs, runs.compose) == 0
    assert runs.told[-1] == words[0] and (tmp_path / "mine" / "selftest.json").is_file()


@pytest.mark.parametrize("code", [2, 3, 130])
def test_a_run_that_does_not_end_gives_its_own_code(code: int, made: Path, tmp_path: Path) -> None:
    runs = Runs(made, tmp_path, code=code)
    assert selftest_command([], runs, runs.compose) == code


def test_an_interrupted_run_is_interrupted(made: Path, tmp_path: Path) -> None:
    def stopped(overrides: Sequence[str]) -> int:
        raise Interrupted("SIGINT")

    with pytest.raises(Interrupted):
        selftest_command([], stopped, Runs(made, tmp_path).compose)


def test_hydras_own_flags_go_to_the_run(made: Path, tmp_path: Path) -> None:
    runs = Runs(made, tmp_path, code=3)
    assert selftest_command(["--cfg", "job"], runs, runs.compose) == 3
    assert runs.told == ["check=selftest", "sweep=selftest", "--cfg", "job"]


# --- report and figure -------------------------------------------------------------------------------------


def printed_on(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_of_a_run_leaves_it_to_the_selftest(made: Path) -> None:
    """Cells that fail on purpose are not told one by one."""
    console = Console(file=io.StringIO(), width=200)
    print_run(console, read_json(made / "run.json"), RunFolder(made).cells(), str(made))
    out = printed_on(console)
    assert f"12 cells, most of them damaged on purpose: python -m harness selftest from={made}" in out
    assert "broke" not in out and "budget\n" not in out


def test_the_table_fits_80_columns(made: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    print_summary(console, read_summary([made])[0])
    rows = printed_on(console).split("false alarms")[0].splitlines()
    assert max(map(len, rows)) <= 80 and not any("…" in row for row in rows)


def drawn(figure: Figure, panel: int) -> dict[str, dict[float, float]]:
    """Label -> place -> height of the points of a panel."""
    found: dict[str, dict[float, float]] = {}
    for bar in figure.axes[panel].containers:
        (x,), (y,) = (np.asarray(each) for each in bar[0].get_data())
        found.setdefault(str(bar.get_label()), {})[round(float(x), 3)] = float(y)
    return found


def test_the_figure_shows_real_and_mixed_points(made: Path) -> None:
    figure = figures.selftest(load_run(made))
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.axison] == [
        "flipped bytes (must end in fail)",
        "truncated (must end in invalid)",
    ]
    bytes_flipped, truncated = drawn(figure, 0), drawn(figure, 1)
    # Doses 0, 1, 5, 20 and 100 % at 0 to 4; drift is the second of four.
    assert {round(x + 0.09): y for x, y in bytes_flipped["drift real"].items()} == {0: 0, 2: 1, 3: 1, 4: 1}
    assert {round(x): y for x, y in bytes_flipped["drift mixed"].items()} == {1: 0, 2: 1, 3: 1}
    assert {round(x): y for x, y in truncated["gate real"].items()} == {0: 0, 2: 1, 4: 1}
    assert "gate mixed" not in truncated
    told = figure.get_supxlabel()
    assert "at most 2 of each" in told and "95% intervals" in told
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-2:] == ["real launches", "mixed"] and "LMCache's own rule" in legend


def test_a_stored_summary_is_drawn_unless_cells_came_after_it(folder: Path) -> None:
    main(["selftest", f"from={folder}"])
    stored = read_json(folder / "selftest.json")
    for point in stored["points"]:
        point["rate"] = 0.25
    write_json(folder / "selftest.json", stored)
    heights = set(drawn(figures.selftest(load_run(folder)), 0)["drift real"].values())
    assert heights == {0.25}
    shutil.rmtree(folder / "cells" / "budget127-none-r2")
    assert 1.0 in drawn(figures.selftest(load_run(folder)), 0)["drift real"].values()


def test_other_runs_have_no_such_figure(tmp_path: Path) -> None:
    with pytest.raises(NothingToDraw, match="no cell was damaged on purpose"):
        figures.selftest(load_run(write_run(tmp_path / "sweep", sweep())))


def test_a_figure_that_fails_changes_nothing(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, only: Sequence[str] = ()) -> None:
        raise HarnessError("no room")

    monkeypatch.setattr(figures, "write_figures", refuse)
    assert main(["selftest", f"from={folder}"]) == 0
    assert "warning: the figure was not drawn: no room" in capsys.readouterr().err


def test_passes_of_a_resumed_launch_are_not_mixed_up(folder: Path) -> None:
    """Two attempts at a launch have their own cold and local_warm: rows rest on those in the cell's own folder."""
    cell = folder / "cells" / "budget127-none-r1"
    null = pass_of("local_warm").requests
    moved = null.assign(logprobs=null["logprobs"].map(lambda row: [value - 3 for value in row]))
    table = pd.read_parquet(cell / "requests.parquet")
    pd.concat([table[table["pass"] != "local_warm"], moved]).to_parquet(cell / "requests.parquet")
    evidence = read_json(cell / "evidence.json")
    evidence["passes"]["local_warm"]["started_at"] = "2026-11-30T01:00:00.000+00:00"
    write_json(cell / "evidence.json", evidence)
    summary, _ = read_summary([folder])
    beyond = {row.outcome.cell: int((row.outcome.documents.null_nats > 0.1).sum()) for row in summary.rows}
    assert beyond.pop("budget127-none-r1") == 120 and set(beyond.values()) == {0}


@pytest.mark.parametrize(
    "cells",
    [
        [("none", 0.0), ("flipped_bytes", 1.0)],
        [("none", 0.0), *((kind, 1.0) for kind in ("stale_checkpoint", "other_prompt", "gdn_only"))],
    ],
)
def test_nothing_on_the_figure_covers_something_else(cells: list[tuple[str, float]], tmp_path: Path) -> None:
    """One panel, as in the short form, and an odd number of them."""
    path = write_selftest(tmp_path / "run", tmp_path / "scratch", launches=1, cells=cells)
    figure = figures.selftest(load_run(path))
    figure.draw_without_rendering()
    boxes = [axes._left_title.get_window_extent() for axes in figure.axes if axes.axison]  # type: ignore[attr-defined]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes += [figure._suptitle.get_window_extent(), figure._supxlabel.get_window_extent()]  # type: ignore[attr-defined]
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in boxes)
    assert all(box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
