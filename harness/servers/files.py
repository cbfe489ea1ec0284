"""Copies of LMCache's file-system L2, made of links: nobody writes into these files, so a copy costs no space."""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import HarnessError


def copy_aside(folder: Path, copy: Path) -> int:
    """Copies all stored objects to a folder that must not exist yet, and returns how many there are.

    Raises:
        HarnessError: there are none, or the disk refuses.
    """
    count = _link_all(folder, copy)
    if not count:
        raise HarnessError(f"LMCache's L2 in {folder} is empty, so there is nothing to keep.")
    return count


def put_back(copy: Path, folder: Path) -> int:
    """Empties the L2, puts a copy's objects there, and returns how many there are.

    Raises:
        HarnessError: the disk refuses.
    """
    for path in folder.rglob("*.data"):
        path.unlink(missing_ok=True)
    return _link_all(copy, folder)


def _link_all(source: Path, target: Path) -> int:
    count = 0
    try:
        for path in sorted(source.rglob("*.data")):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, place)
            count += 1
    except OSError as error:
        raise HarnessError(f"{source} can't be copied to {target}: {error.strerror}.") from error
    return count
