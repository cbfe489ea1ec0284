"""The results folder: files whole or not at all, and folder names that stay where they belong."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.equivalence.verdict import Verdict
from harness.errors import HarnessError, UsageError
from harness.store import NewFolder, RunFolder, read_json, write_frame, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- JSON --------------------------------------------------------------------------------------------------


def test_values_of_numpy_and_what_is_not_a_number(tmp_path: Path) -> None:
    data: dict[Any, Any] = {
        "float": np.float64(0.5),
        "single": np.float32(0.5),
        "int": np.int64(7),
        "bool": np.bool_(True),
        "nan": math.nan,
        "deep": [{"inf": math.inf, "numpy": np.float64("nan")}, (1, -math.inf)],
        "verdict": Verdict.PASS,
        "text": "δ ± 0.03",
        3: None,
    }
    write_json(tmp_path / "x.json", data)
    text = (tmp_path / "x.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert "δ ± 0.03" in text
    assert read_json(tmp_path / "x.json") == {
        "float": 0.5,
        "single": 0.5,
        "int": 7,
        "bool": True,
        "nan": None,
        "deep": [{"inf": None, "numpy": None}, [1, None]],
        "verdict": "pass",
        "text": "δ ± 0.03",
        "3": None,
    }
    assert text.endswith("}\n")


def test_numbers_are_not_rounded(tmp_path: Path) -> None:
    value = 0.9076297626926349
    write_json(tmp_path / "x.json", {"value": value})
    assert read_json(tmp_path / "x.json")["value"] == value


def test_a_file_is_replaced(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    write_json(tmp_path / "x.json", {"a": 2})
    assert read_json(tmp_path / "x.json") == {"a": 2}
    assert names(tmp_path) == ["x.json"]


@pytest.mark.parametrize("old", [None, {"a": 1}])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, old: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if old:
        write_json(tmp_path / "x.json", old)
    before = names(tmp_path)

    def cut(path: Path, text: str) -> None:
        path.touch()
        no_space()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut)
        with pytest.raises(HarnessError, match=r"x\.json can't be written: No space left on device\. Free some space"):
            write_json(tmp_path / "x.json", {"a": 2})
    assert names(tmp_path) == before
    if old:
        assert read_json(tmp_path / "x.json") == old


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate")])
def test_a_write_cut_short_leaves_no_half_file(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(path: Path, text: str) -> None:
        path.touch()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut)
        with pytest.raises(type(error)):
            write_json(tmp_path / "x.json", {"a": 2})
    assert names(tmp_path) == []


def test_a_text_that_is_no_unicode_leaves_no_half_file(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_json(tmp_path / "x.json", {"text": "\ud83d"})
    assert names(tmp_path) == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="can't be written: No such file or directory"):
        write_json(tmp_path / "gone" / "x.json", {})
    with pytest.raises(HarnessError, match="can't be written: Cannot save file into a non-existent directory"):
        write_frame(tmp_path / "gone" / "x.parquet", pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "can't be read: No such file or directory"),
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[1]", "holds a list where a JSON object belongs"),
        ("null", "holds a NoneType where"),
        (b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_what_cannot_be_read_as_an_object(tmp_path: Path, text: str | bytes | None, told: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=told):
        read_json(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read: Is a directory"):
        read_json(tmp_path)


# --- tables ------------------------------------------------------------------------------------------------


def test_tables_keep_lists_and_gaps(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "doc_id": [0, 1],
            "token_ids": [[1, 2], []],
            "error": [None, "HTTP 500"],
            "ttft_s": [0.5, None],
        }
    )
    write_frame(tmp_path / "x.parquet", frame)
    read = pd.read_parquet(tmp_path / "x.parquet")
    assert [list(ids) for ids in read["token_ids"]] == [[1, 2], []]
    assert read["error"].isna().tolist() == [True, False]
    assert read["ttft_s"].isna().tolist() == [False, True]
    assert list(read.columns) == list(frame.columns)
    assert names(tmp_path) == ["x.parquet"]


def test_the_name_decides_the_format(tmp_path: Path) -> None:
    write_frame(tmp_path / "x.csv", pd.DataFrame({"a": [1, 2], "b": ["x", "y,z"]}))
    assert (tmp_path / "x.csv").read_text() == 'a,b\n1,x\n2,"y,z"\n'


@pytest.mark.parametrize("name", ["x.parquet", "x.csv"])
def test_a_table_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(frame: pd.DataFrame, path: Path, **_: Any) -> None:
        path.write_bytes(b"PAR1")
        no_space()

    monkeypatch.setattr(pd.DataFrame, "to_parquet", cut)
    monkeypatch.setattr(pd.DataFrame, "to_csv", cut)
    with pytest.raises(HarnessError, match="No space left on device"):
        write_frame(tmp_path / name, pd.DataFrame({"a": [1]}))
    assert names(tmp_path) == []


# --- folders -----------------------------------------------------------------------------------------------


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    with NewFolder(tmp_path / "cell") as folder:
        (folder / "cell.json").write_text("{}")
        assert not (tmp_path / "cell").exists()
    assert names(tmp_path) == ["cell"]
    assert names(tmp_path / "cell") == ["cell.json"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, HarnessError])
def test_an_error_leaves_no_new_folder(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), NewFolder(tmp_path / "cell") as folder:
        (folder / "half").write_text("x")
        raise error
    assert names(tmp_path) == []


def test_a_new_run_has_its_folders(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "deep" / "results", "run")
    assert names(run.path) == [".reserve", "cells", "launches"]
    assert run.path == tmp_path / "deep" / "results" / "run"
    assert run.launch("budget127-r1").is_dir()
    assert run.launch("budget127-r1") == run.path / "launches" / "budget127-r1", "asked twice, it is the same"
    assert not run.cell("budget127-full-r1").exists()
    run.release_reserve()
    run.release_reserve()
    assert names(run.path) == ["cells", "launches"]


def test_an_existing_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    write_json(run.path / "run.json", {"a": 1})
    with pytest.raises(UsageError, match="exists already: choose another run_id"):
        RunFolder.create(tmp_path, "run")
    assert read_json(run.path / "run.json") == {"a": 1}


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../escape", "/abs", "a/", "./a"])
def test_run_ids_stay_inside_the_results_folder(tmp_path: Path, run_id: str) -> None:
    results = tmp_path / "results"
    with pytest.raises(UsageError, match="must be a plain folder name"):
        RunFolder.create(results, run_id)
    assert not results.exists()


@pytest.mark.parametrize("run_id", ["a", "2026.11.29", "a b", "-x", "é"])
def test_plain_run_ids(tmp_path: Path, run_id: str) -> None:
    assert RunFolder.create(tmp_path, run_id).path.name == run_id


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written: Not a directory"):
        RunFolder.create(tmp_path / "file", "run")


# --- cells -------------------------------------------------------------------------------------------------


def add_cell(run: RunFolder, name: str, measured_at: str) -> None:
    folder = run.path / "cells" / name
    folder.mkdir()
    (folder / "cell.json").write_text(json.dumps({"cell": name, "measured_at": measured_at}))


def test_cells_come_in_the_order_in_which_they_were_measured(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    add_cell(run, "a", "2026-11-29T20:42:55.758+00:00")
    add_cell(run, "b", "2026-11-29T20:41:55.758+00:00")
    assert [cell["cell"] for cell in run.cells()] == ["b", "a"]


def test_a_cell_that_a_killed_process_left_is_not_read(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    add_cell(run, "budget127-full-r1.tmp-4711", "2026")
    (run.path / "cells" / "budget127-full-r2").mkdir()
    assert run.cells() == []


def test_a_point_in_a_cells_name_hides_nothing(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    add_cell(run, "budget127-hit0.5-r1", "2026")
    assert [cell["cell"] for cell in run.cells()] == ["budget127-hit0.5-r1"]


def test_a_run_without_cells(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "nothing").cells() == []
