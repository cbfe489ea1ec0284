"""The notebook about equivalence runs from its first cell to its last: on known numbers, and on the kept reference."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from selftest_support import write_selftest
from test_notebook import printed, shown

from harness.selftest.summary import read_summary

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "notebooks" / "equivalence.ipynb"
REFERENCE = ROOT / "results" / "reference-selftest-pocket"


def executed(results: Path | None, where: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook after all of its cells have run; None is what it reads by itself."""
    if results is None:
        monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    else:
        monkeypatch.setenv("HARNESS_RESULTS", str(results))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # Neither the repository nor the notebook's own folder.
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(where)}})
    return client.execute()


def test_it_shows_a_selftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = write_selftest(tmp_path / "synthetic", tmp_path / "scratch")
    notebook = executed(results, tmp_path, monkeypatch)
    (picture,) = (base64.b64decode(each) for each in shown(notebook, "image/png"))
    assert picture.startswith(b"\x89PNG")
    told, tables = printed(notebook), "\n".join(shown(notebook, "text/plain"))
    assert "12 cells in 2 launches\n120 questions in each cell" in told
    # Same hit rate and retrieves, and all answers that were right are wrong.
    assert re.search(r"^none +0\.908 +0\.908 +120 +0\.900 +0\.900 +pass$", tables, re.M)
    assert re.search(r"^flipped bytes +0\.908 +0\.908 +120 +0\.900 +0\.000 +fail$", tables, re.M)
    assert re.search(r"^truncated +0\.000 .* invalid$", tables, re.M)
    assert re.search(r"^0\.05 +0\.4\d+$", tables, re.M), "about every other time"
    assert re.search(r"^warm, flipped bytes +120 +120 +120$", tables, re.M)
    # 5 % of 120: six answers, 3 x 2^-6.
    assert "6 of 120 prompts damaged" in told and "B = 6; in local_warm only: C = 0" in told
    assert "= 0.047; the gate says 0.047" in told
    assert "false alarms, fail: 0 of 2 launches, 95% interval 0.00 to 0.84" in told
    assert "exit code 0: 8 of 8 damaged cells ended as they must" in told
    assert re.search(r"0\.20 +real +1\.00 \(0\.16 to 1\.00\)", tables)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"{REFERENCE.name} was not measured yet: results/ does not hold it")
def test_it_shows_the_reference_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = printed(executed(None, tmp_path, monkeypatch))
    summary, _ = read_summary([REFERENCE])
    assert f"{REFERENCE.name}: model pocket" in told
    assert f"exit code {summary.exit_code}: " in told
    assert len({row.outcome.key for row in summary.rows}) >= 5
    assert summary.exit_code == 0, "the reference shows a gate that bites"


def test_it_is_kept_without_outputs() -> None:
    """Outputs belong to a run; in git they would go stale unseen."""
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert cells and all(cell.outputs == [] and cell.execution_count is None for cell in cells)
