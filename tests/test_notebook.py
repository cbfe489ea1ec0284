"""The notebook runs from its first cell to its last on a results folder whose numbers are known."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from synthetic_run import MODEL, sweep, write_run

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "notebooks" / "slowdown.ipynb"


def executed(results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook after all of its cells have run in a kernel of their own."""
    monkeypatch.setenv("HARNESS_RESULTS", str(results))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(results.parent)}}  # neither the repository nor the notebook's own folder
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where)
    return client.execute()


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook: Any) -> str:
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


def shown(notebook: Any, kind: str) -> list[str]:
    return [output.data[kind] for output in outputs(notebook) if kind in output.get("data", {})]


def test_it_draws_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = write_run(tmp_path / "synthetic", sweep(repeats=3))
    notebook = executed(results, monkeypatch)
    pictures = [base64.b64decode(each) for each in shown(notebook, "image/png")]
    assert len(pictures) == 5 and all(each.startswith(b"\x89PNG") for each in pictures)
    assert f"synthetic: model {MODEL}, N = 64 tokens, engine none; 54 cells, 0 of them invalid" in printed(notebook)
    assert printed(notebook).count("is not drawn") == 1
    assert "reuse is not drawn: the run has no valid cells of a divergence workload" in printed(notebook)
    # slowdown, lowest, highest, repeats: 5, 3.75 and 1.667 times 1.0, 1.2 and 0.9.
    rows = [line.split() for line in "\n".join(shown(notebook, "text/plain")).splitlines() if re.match(r"0\.\d", line)]
    assert rows == [
        ["0.00", "5.00", "4.50", "6.0", "3"],
        ["0.50", "3.75", "3.38", "4.5", "3"],
        ["0.97", "1.67", "1.50", "2.0", "3"],
    ]


def test_it_is_kept_without_outputs() -> None:
    """Outputs belong to a run; in git they would go stale unseen."""
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert cells and all(cell.outputs == [] and cell.execution_count is None for cell in cells)
