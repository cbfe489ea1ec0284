"""Log files: which there are below a path, and their text in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.diagnosis.diagnose import Log
from harness.errors import UsageError
from harness.store import inside

BLOCK = 1 << 20
"""Bytes that are read at once."""
LONG_LINE = 1 << 16
"""Bytes beyond a block that are read to reach the end of a line; a longer one is cut."""


def logs_below(paths: Sequence[str]) -> dict[Path, list[Path]]:
    """Log files by the folder they lie in, since those of one folder belong together: named files, and every
    ``*.log`` below named folders that does not lead out of them.

    Raises:
        UsageError: a path is not there, or a folder has no log.
    """
    files: dict[Path, None] = {}
    for each in paths:
        path = Path(each).expanduser()
        if not path.exists():
            raise UsageError(f"{each}: no such file or folder.")
        below = sorted(each for each in path.rglob("*.log") if inside(each, path)) if path.is_dir() else [path]
        if not below:
            raise UsageError(f"{each}: no *.log below this folder (attached servers leave none: name theirs).")
        files.update(dict.fromkeys(below))
    together: dict[Path, list[Path]] = {}
    for file in files:
        together.setdefault(file.parent, []).append(file)
    return together


def read_log(path: Path, name: str | None = None) -> Log:
    """A log file, to be read while it is diagnosed.

    Raises:
        UsageError: while it is diagnosed: it can't be read.
    """
    return Log(str(path) if name is None else name, blocks_of(path))


def blocks_of(path: Path, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file from ``start`` on, in blocks that end where a line ends.

    Raises:
        UsageError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            if start:
                file.seek(start)
            while block := file.read(BLOCK):
                yield block if block.endswith(b"\n") else block + file.readline(LONG_LINE)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error


def lines_before(path: Path, end: int) -> int:
    """Lines of a file before the byte ``end``; 0 where it can't be read."""
    lines = 0
    try:
        with path.open("rb") as file:
            while end > 0 and (block := file.read(min(BLOCK, end))):
                lines += block.count(b"\n")
                end -= len(block)
    except OSError:
        return 0
    return lines
