"""What figures show: a results folder, read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UsageError
from harness.report.cells import Cell, budget, reused_blocks, target, tells_speed, warm_throughput, warm_ttft_ms
from harness.store import RunFolder, read_record


class NothingToDraw(Exception):
    """A run has no data for a figure; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, as figures need it."""

    path: Path
    model: str
    engine: str
    block_size: int
    """N in tokens, as the running servers had it."""
    concurrency: int
    cells: tuple[Cell, ...]

    @property
    def about(self) -> str:
        """What was measured, for titles."""
        return f"model {self.model}, N = {self.block_size} tokens, engine {self.engine}"

    @property
    def speed_cells(self) -> tuple[Cell, ...]:
        """Cells whose speed means something; see :func:`tells_speed`."""
        return tuple(cell for cell in self.cells if tells_speed(cell))

    @property
    def left_out(self) -> int:
        """Number of cells whose comparison was invalid, so that nothing is claimed about their speed."""
        return sum(cell["verdict"] == "invalid" for cell in self.cells)

    def timeline(self, cell: Cell, name: str) -> pd.DataFrame:
        """Looks at the batch size over one pass: ``t_s`` in seconds, ``running`` and ``waiting`` in requests.

        Raises:
            NothingToDraw: the table is missing, unreadable or holds no look of that pass.
        """
        path = self.path / "cells" / str(cell["cell"]) / "timeline.parquet"
        try:
            table = pd.read_parquet(path, columns=["pass", "t_s", "running", "waiting"])
            looks = table[table["pass"] == name][["t_s", "running", "waiting"]].sort_values("t_s")
        except (OSError, ValueError, KeyError) as error:
            raise NothingToDraw(f"{path} can't be read ({type(error).__name__})") from error
        if looks.empty:
            raise NothingToDraw(f"{path} holds no look at the batch size of pass {name}")
        return looks

    def requests(self, cell: Cell) -> dict[str, pd.DataFrame]:
        """Requests of one cell by pass, columns as in requests.parquet.

        Raises:
            NothingToDraw: the table is missing, unreadable or has no cold pass.
        """
        path = self.path / "cells" / str(cell["cell"]) / "requests.parquet"
        try:
            found = {str(name): rows for name, rows in pd.read_parquet(path).groupby("pass")}
        except (OSError, ValueError, KeyError) as error:
            raise NothingToDraw(f"{path} can't be read ({type(error).__name__})") from error
        if "cold" not in found:
            raise NothingToDraw(f"{path} holds no request of pass cold")
        return found


def load_run(path: Path) -> RunData:
    """Reads a results folder.

    Raises:
        UsageError: it holds no run, a file can't be read, or a field is missing.
    """
    record = read_record(path)
    try:
        return run_data(path, record, RunFolder(path).cells())
    except KeyError as error:
        raise _not_a_run(path, error) from error


def run_data(path: Path, record: Mapping[str, Any], cells: Iterable[Cell]) -> RunData:
    """What figures show of a results folder that was read already.

    Args:
        path: the folder, whose tables are read by the figures that need them.
        record: contents of run.json.
        cells: contents of every cell.json.

    Raises:
        UsageError: a field is missing.
    """
    try:
        every = tuple(cells)
        for cell in every:
            _check(cell)
        config = record["config"]
        return RunData(
            path=path,
            model=str(record["model"]),
            engine=str(config["engine"]["name"]),
            block_size=int(every[0]["unified_block_size"] if every else record["predicted_block_size"]),
            concurrency=int(config["load"]["concurrency"]),
            cells=every,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_run(path, error) from error


def _not_a_run(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path} does not hold a run as docs/results.md describes it: {error!r}.")


def _check(cell: Cell) -> None:
    """Touches every field that figures read, so that a folder of another kind is told before anything is drawn."""
    target(cell), budget(cell), warm_throughput(cell), warm_ttft_ms(cell), reused_blocks(cell)
    cell["verdict"], cell["repeat"], cell["unified_block_size"], cell["hit_rate"]["measured"]
    warm = cell["passes"]["warm"]
    warm["wall_s"], warm["running"]["mean"], warm["running"]["max"]
