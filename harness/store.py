"""The results folder: where things lie, and how they get there whole or not at all.

results/<run id>/run.json  summary.csv
  launches/<launch id>/    server logs, prompts.parquet, passes/<pass>/…   (written as soon as measured)
  cells/<cell id>/         cell.json and everything it was decided from
"""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import HarnessError, UsageError

SCHEMA = 1
"""Version of the folder's layout and of run.json and cell.json; see docs/results.md."""


RESERVE = ".reserve"
RESERVE_BYTES = 64 * 1024
"""Kept while a run goes on, so that its end can be recorded on a full disk."""


RECORD = "run.json"


class FolderExistsError(UsageError):
    """The folder of a new run is there already."""


class RunFolder:
    """The folder of one run.

    Args:
        path: ``results/<run id>``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, results_dir: Path, run_id: str) -> RunFolder:
        """Makes the folder of a new run.

        Raises:
            FolderExistsError: it exists already.
            UsageError: it can't be written.
        """
        path = results_dir / plain_name("run_id", run_id)
        try:
            (path / "cells").mkdir(parents=True)
            (path / "launches").mkdir()
            (path / RESERVE).write_bytes(bytes(RESERVE_BYTES))
        except FileExistsError as error:
            raise FolderExistsError(f"{path} exists already: choose another run_id or leave it out.") from error
        except OSError as error:
            raise UsageError(f"results_dir={results_dir} can't be written: {error.strerror}.") from error
        folder = cls(path)
        folder.lock()
        return folder

    @classmethod
    def reopen(cls, results_dir: Path, run_id: str) -> RunFolder:
        """Takes the folder of a run that was cut short, and clears away the half cell that a killed one has left.

        Raises:
            UsageError: there is no such run, it still goes on, or its folder can't be written.
        """
        folder = cls(results_dir / plain_name("resume", run_id))
        if not (folder.path / RECORD).is_file():
            raise UsageError(f"resume={run_id}: {results_dir.absolute()} holds no run of that name.")
        folder.lock()
        try:
            for name in ("cells", "launches"):
                own_folder(folder.path / name, folder.path)
            folder.clear_halves()
            folder.release_reserve()  # where it is a link, what it points to is not ours
            (folder.path / RESERVE).write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            folder.unlock()
            raise UsageError(f"{folder.path} can't be written: {error.strerror}.") from error
        return folder

    def lock(self) -> None:
        """Keeps other processes from writing this run as well; the kernel unlocks it when this one ends, however.

        Raises:
            UsageError: another process has it.
        """
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.unlock()
            raise UsageError(f"{self.path} is being written by another process: the run still goes on.") from error
        except OSError:  # a file system without locks
            self.unlock()

    def unlock(self) -> None:
        """Lets others have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def clear_halves(self) -> int:
        """Removes what a killed run had begun to write, and returns how much that was; the caller has locked it.

        Raises:
            OSError: the folder can't be written.
        """
        cells, files = list((self.path / "cells").glob("*.tmp-*")), list(self.path.glob(".*.tmp-*"))
        for half in cells:
            shutil.rmtree(half)
        for half in files:
            half.unlink(missing_ok=True)
        return len(cells) + len(files)

    def give_up(self) -> None:
        """Ends a run that has not begun: a new one leaves no folder, an older one is as it was."""
        self.release_reserve()
        if not (self.path / RECORD).exists():
            shutil.rmtree(self.path, ignore_errors=True)
        self.unlock()

    def release_reserve(self) -> None:
        """Gives back the space that was kept for the last words of a run whose disk is full."""
        (self.path / RESERVE).unlink(missing_ok=True)

    def launch(self, launch_id: str) -> Path:
        """Folder of one server launch, made when it isn't there."""
        path = own_folder(self.path / "launches" / plain_name("launch", launch_id), self.path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def set_aside(self, launch_id: str) -> None:
        """Renames what an earlier attempt at a launch has left to ``<launch id>.cut-<number>``: nothing is lost."""
        path = self.path / "launches" / launch_id
        if path.exists():
            numbered = (path.with_name(f"{launch_id}.cut-{number}") for number in itertools.count(1))
            path.rename(next(each for each in numbered if not each.exists()))

    def cell(self, cell_id: str) -> Path:
        """Folder of one finished cell; it exists only once the cell is complete."""
        return self.path / "cells" / plain_name("cell", cell_id)

    def cells(self) -> list[dict[str, Any]]:
        """Contents of every complete cell's cell.json, in the order in which they were measured."""
        whole = self.path.resolve()
        paths = (self.path / "cells").glob("*/cell.json")
        cells = [self._read(path, whole) for path in paths if ".tmp-" not in path.parent.name]
        return sorted(cells, key=lambda cell: str(cell["measured_at"]))

    def _read(self, path: Path, whole: Path) -> dict[str, Any]:
        """One cell.json; what it names itself and its launch becomes part of paths, and may come from a stranger.

        Args:
            path: of the file.
            whole: the run's folder, links followed.

        Raises:
            UsageError: it can't be read, leads out of the run's folder, or has the name of another cell.
        """
        if not path.resolve().is_relative_to(whole):
            raise UsageError(f"{path} leads out of {self.path}, to {path.resolve()}: remove the link.")
        cell = read_json(path)
        if "cell" in cell and cell["cell"] != path.parent.name:
            raise UsageError(f"{path} says that it is cell {cell['cell']}: its folder has to have that name.")
        if "launch" in cell:
            plain_name("launch", str(cell["launch"]))
        return cell


class NewFolder:
    """A folder filled under a temporary name and renamed when all of it is there; a context manager.

    Args:
        path: its final name; must not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")

    def __enter__(self) -> Path:
        self.temporary.mkdir(parents=True)
        return self.temporary

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.temporary.rename(self.path)
        else:
            shutil.rmtree(self.temporary, ignore_errors=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes JSON under a temporary name and renames it; not-a-number becomes null.

    Raises:
        HarnessError: the disk refuses.
    """
    text = json.dumps(finite(data), indent=2, ensure_ascii=False) + "\n"
    _replace(path, lambda temporary: temporary.write_text(text))


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Writes a table as parquet, or as CSV by its name, under a temporary name and renames it.

    Raises:
        HarnessError: the disk refuses.
    """
    if path.suffix == ".csv":
        _replace(path, lambda temporary: frame.to_csv(temporary, index=False))
    else:
        _replace(path, lambda temporary: frame.to_parquet(temporary, index=False))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file of any other kind under a temporary name and renames it.

    Raises:
        HarnessError: the disk refuses.
    """
    _replace(path, lambda temporary: temporary.write_bytes(data))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        UsageError: it isn't there or isn't JSON.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds a {type(data).__name__} where a JSON object belongs.")
    return data


def plain_name(field: str, name: str) -> str:
    """A name that stays in the folder that it is put behind.

    Raises:
        UsageError: it has parts, or names that folder or the one above.
    """
    if not name or Path(name).name != name or name in (".", "..") or "\0" in name:
        raise UsageError(f"{field}={name} must be a plain folder name.")
    return name


def inside(path: Path, folder: Path) -> bool:
    """Whether a path, links followed, lies in a folder: a results folder from elsewhere may hold links to anywhere."""
    return path.resolve().is_relative_to(folder.resolve())


def own_folder(path: Path, folder: Path) -> Path:
    """A folder that is written into, when it does not lead out of the results folder.

    Raises:
        UsageError: it does.
    """
    if not inside(path, folder):
        raise UsageError(f"{path} leads out of {folder}, to {path.resolve()}: remove the link.")
    return path


def read_record(run: Path) -> dict[str, Any]:
    """Contents of a run's run.json.

    Raises:
        UsageError: it isn't there, isn't JSON, or was written by a later version of the harness.
    """
    record = read_json(run / RECORD)
    check_schema(run / RECORD, record.get("schema", SCHEMA), SCHEMA)
    return record


def check_schema(path: Path, found: object, known: int) -> None:
    """Refuses a file of a layout that this version does not know: what it says might mean something else.

    Raises:
        UsageError: with both numbers.
    """
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= known:
        raise UsageError(
            f"{path} has schema {found!r}, and this version of the harness reads up to {known}: read it with the one "
            "that wrote it, or a later one."
        )


def _replace(path: Path, write: Any) -> None:
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # of a killed process, or a link to elsewhere
        write(temporary)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise HarnessError(
            f"{path} can't be written: {error.strerror or error}. Free some space and run again."
        ) from error


def finite(value: Any) -> Any:
    """The same data fit for JSON: plain numbers, and null for one that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
