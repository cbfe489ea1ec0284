"""Live progress: plain lines where nobody watches, a moving line on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from harness.report.progress import RunProgress, about


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def lines(out: io.StringIO) -> list[str]:
    """What was printed, without times."""
    return [re.sub(r"^\[ *\d+\.\d s\] ", "", line) for line in out.getvalue().splitlines()]


def test_a_line_per_stage_off_a_terminal() -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=80)) as progress:
        progress.stage("starting vLLM (1 s)")
        progress.stage("starting vLLM (2 s)")
        progress.stage("cold pass", total=3)
        for _ in range(3):
            progress.step()
        progress.done("budget127-full-r1: pass")
        progress.warn("N is not what was predicted")
    assert lines(out) == [
        "starting vLLM",
        "cold pass",
        "budget127-full-r1: pass",
        "warning: N is not what was predicted",
    ]
    assert "\x1b" not in out.getvalue()
    assert all(re.match(r"\[ +\d+\.\d s\] |warning", line) for line in out.getvalue().splitlines())


def test_paths_and_brackets_are_printed_as_they_are() -> None:
    out = io.StringIO()
    told = "results in /a/[bold]/" + "x" * 200
    with RunProgress(Console(file=out, width=80)) as progress:
        progress.stage(told)
        progress.done(told)
        progress.warn(told)
    assert lines(out) == [told, told, f"warning: {told}"]


def test_steps_are_counted_on_a_terminal() -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=100, force_terminal=True)) as progress:
        progress.step()  # before any stage: nothing to count
        progress.stage("cold pass", total=300)
        for _ in range(74):
            progress.step()
        progress._progress.refresh()
        progress.stage("waiting")
        progress._progress.refresh()
    assert "cold pass" in out.getvalue()
    assert "74/300" in out.getvalue()
    assert "0/None" not in out.getvalue()


def test_what_is_left_is_told_from_the_second_cell_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("harness.report.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    progress = RunProgress(Console(file=out, width=200))
    progress.expect_cells(4)
    now[0] = 220.0
    progress.cell_done("a: pass")
    now[0] = 340.0
    progress.cell_done("b: pass")
    progress.cell_done("c: pass")
    progress.cell_done("d: pass")
    assert [line.split("] ")[1] for line in out.getvalue().splitlines()] == [
        "a: pass (1 of 4 cells, about 6 min left)",
        "b: pass (2 of 4 cells, about 4 min left)",
        "c: pass (3 of 4 cells, about 80 s left)",
        "d: pass (4 of 4 cells)",
    ]


def test_what_is_foretold_takes_the_place_of_what_cells_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("harness.report.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    progress = RunProgress(Console(file=out, width=200))
    progress.expect_cells(3)
    now[0] = 700.0
    progress.cell_done("a: pass", 80.0)
    now[0] = 730.0
    assert progress.outlook == "1 of 3 cells, about 50 s left"
    now[0] = 800.0
    assert progress.outlook == "1 of 3 cells, about 0 s left"
    progress.cell_done("b: pass")
    assert progress.outlook == "2 of 3 cells, about 6 min left", "as long as those, where nothing is foretold"
    assert "a: pass (1 of 3 cells, about 80 s left)" in out.getvalue()


def test_a_single_cell_has_no_outlook() -> None:
    out = io.StringIO()
    progress = RunProgress(Console(file=out, width=200))
    progress.expect_cells(1)
    progress.cell_done("a: pass")
    assert out.getvalue().rstrip().endswith("a: pass")


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "about 5 s"), (89, "about 89 s"), (95, "about 2 min"), (7500, "about 2 h 5 min")]
)
def test_times_as_people_tell_them(seconds: float, told: str) -> None:
    assert about(seconds) == told
