"""report.md, and the job summary made from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_support import EVIL, cell_of, failing, invalid, make_run, passing

from harness.cli import main
from harness.report.document import make_report
from harness.report.job_summary import CUT, LIMIT, append_summary, fitted
from harness.report.markdown import escaped, markdown
from harness.report.runs import Run, read_run
from harness.store import read_json, write_json

Captured = pytest.CaptureFixture[str]


def text_of(*paths: Path) -> str:
    runs: list[Run] = [read_run(path) for path in paths]
    return markdown(make_report(runs, paths[0]))


def test_the_verdict_comes_first(tmp_path: Path) -> None:
    path = failing(tmp_path)
    text = text_of(path)
    assert text.startswith(
        "# ❌ fail: run\n\n**The cache was used, and warm answers are not equivalent to cold ones.**\n"
    )
    cell = cell_of(path)
    for reason in cell["reasons"]:
        assert f"- {escaped(reason)}\n" in text
    assert f"`python -m harness run replay={path}/cells/budget127-full-r1/repro`" in text
    paired = cell["paired"]
    assert f"{paired['interval']['low']:+.4f} to {paired['interval']['high']:+.4f}" in text
    assert "Rex has **▶**" in text or "**▶**" in text


def test_tables_have_as_many_entries_as_headings(tmp_path: Path) -> None:
    rows = [
        line for line in text_of(failing(tmp_path / "a"), invalid(tmp_path / "b")).splitlines() if line.startswith("|")
    ]
    width = 0
    for row in rows:
        edges = len(row.replace("\\|", "").split("|"))
        if set(row) <= set("|-:"):
            assert edges == width, row
        width = edges
    assert len(rows) > 40


def test_several_runs(tmp_path: Path) -> None:
    text = text_of(passing(tmp_path / "a"), failing(tmp_path / "b"))
    assert text.startswith("# 2 runs\n\n**Runs**\n")
    assert text.index("# ✅ pass: run") < text.index("# ❌ fail: run")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EVIL, "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a|b\nc", "a\\|b c"),
        ("![x](y) `z` *b*", "!\\[x\\](y) \\`z\\` \\*b\\*"),
        ("a & b", "a &amp; b"),
        ("budget127-full_r1", "budget127-full_r1"),
    ],
)
def test_text_means_itself(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    path = make_run(tmp_path, error=EVIL, warnings=[EVIL, "a | b"])
    record = read_json(path / "run.json")
    record["config"]["task"]["name"] = EVIL
    write_json(path / "run.json", record)
    text = text_of(path)
    assert EVIL not in text and "a \\| b" in text


# --- the job summary ---------------------------------------------------------------------------------------


def test_what_fits_stays_whole() -> None:
    assert fitted("a\nb\n", 4) == "a\nb\n"


def test_what_does_not_fit_is_cut_at_a_line() -> None:
    text = "".join(f"| row {number} | ä |\n" for number in range(2000))
    cut = fitted(text, 5000)
    assert len(cut.encode()) <= 5000
    kept = cut.removesuffix(CUT)
    assert cut.endswith(CUT) and text.startswith(kept + "\n") and kept.endswith("| ä |")
    assert len(fitted(text, 5000).encode()) > 4900, "and not earlier than needed"


def test_no_room_at_all() -> None:
    assert fitted("a" * 100, 10) == ""
    assert fitted("a" * 10000, 5000) == CUT, "one line that is too long"


def test_what_is_there_counts(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    file.write_text("x" * (LIMIT - 1000) + "\n")
    append_summary(file, "y\n" * 5000)
    assert LIMIT - 10 < file.stat().st_size <= LIMIT
    assert file.read_text().startswith("xxx") and file.read_text().endswith(CUT)


def test_the_command_appends_to_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    path = passing(tmp_path)
    assert main(["report", str(path)]) == 0
    assert file.read_text() == "before\n" + (path / "report.md").read_text()


def test_a_summary_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    path = passing(tmp_path)
    assert main(["report", str(path)]) == 3
    assert "GITHUB_STEP_SUMMARY" in capsys.readouterr().err
    assert (path / "report.html").is_file(), "the report itself is there"
