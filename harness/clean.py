"""``clean``: ends and removes what killed runs have left on the machine; results are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.servers.leftovers import clear, find_leftovers
from harness.store import RECORD, RunFolder


def clean(folders: Sequence[Path]) -> list[str]:
    """Clears what killed runs have left.

    Args:
        folders: of runs, or of several runs.

    Returns:
        A sentence for each launch and run that had left something.

    Raises:
        UsageError: a folder is not there, holds no run, or a named run still goes on.
        ServerError: a process can't be ended.
    """
    told = []
    for folder in folders:
        runs = _runs(folder)
        if not runs:
            raise UsageError(
                f"{folder} holds no run: name a results folder, results/<run id>, or the folder of several."
            )
        for run in runs:
            try:
                told += _clean_one(run)
            except UsageError:
                # Of several runs, one that goes on has left nothing.
                if run.path == folder:
                    raise
    return told


def _runs(folder: Path) -> list[RunFolder]:
    """Runs in a folder; one that was killed before its first record has only its launches or cells."""
    paths = {path.parent for pattern in ("", "*/", "*/*/") for path in folder.glob(pattern + "launches")}
    paths |= {path.parent for pattern in ("", "*/", "*/*/") for path in folder.glob(pattern + RECORD)}
    return [RunFolder(path) for path in sorted(paths)]


def _clean_one(run: RunFolder) -> list[str]:
    run.lock()
    try:
        leftovers = find_leftovers(run.path)
        clear(leftovers)
        halves = run.clear_halves()
        run.release_reserve()
    except OSError as error:
        raise UsageError(f"{run.path} can't be written: {error.strerror}.") from error
    finally:
        run.unlock()
    told = [f"{run.path}: ended and removed {leftover.in_words()}" for leftover in leftovers if leftover]
    return told + [f"{run.path}: removed {halves} file(s) or cell(s) that were half written"] * (halves > 0)
