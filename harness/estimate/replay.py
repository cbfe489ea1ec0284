"""What a run would have said of its remaining time, cell by cell, beside what then really happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from harness.estimate.forecast import Outlook
from harness.steps import Check
from harness.sweep import Launch


@dataclass(frozen=True, slots=True)
class Foretold:
    """After one cell; in seconds."""

    cell: str
    launch: str
    launch_done: bool
    """Whether it was the last one of its launch."""
    left_s: float
    """What the run would have said."""
    took_s: float
    """What it then took, without the time between being killed and being resumed."""

    @property
    def error(self) -> float:
        """By how much that was too much, as a fraction."""
        return self.left_s / self.took_s - 1


def replayed(
    plan: Sequence[Launch], check: Check, record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]
) -> list[Foretold]:
    """Tells a complete run's cells to an outlook, one after the other, each with no more than was known then.

    Args:
        plan: all launches of the run.
        check: its check.
        record: contents of run.json.
        cells: contents of every cell.json, in the order in which they were measured.
    """
    outlook, told = Outlook(plan, check), []
    for cell, following in pairwise(cells):
        now = _end(cell)
        left_s = outlook.after(cell, _as_of(record, now))
        assert left_s is not None, "a complete run has measured passes"
        took_s = _seconds(record["finished_at"]) - now - _pauses(record, cells, now)
        done = following["launch"] != cell["launch"]
        told.append(Foretold(str(cell["cell"]), str(cell["launch"]), done, left_s, took_s))
    return told


def _as_of(record: Mapping[str, Any], now: float) -> dict[str, Any]:
    """run.json as it was: without the ends and beginnings that came later."""
    launches = {
        name: {key: value for key, value in told.items() if key != "finished_at" or _seconds(value) <= now}
        for name, told in record["launches"].items()
        if "started_at" not in told or _seconds(told["started_at"]) <= now
    }
    resumed = [each for each in record.get("resumed") or [] if _seconds(each["at"]) <= now]
    return {**record, "finished_at": None, "launches": launches, "resumed": resumed}


def _pauses(record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], now: float) -> float:
    """Seconds from ``now`` on in which nobody ran: from the last complete cell before a resumption up to that."""
    pauses = 0.0
    for each in record.get("resumed") or []:
        at = _seconds(each["at"])
        if at > now:
            pauses += at - max(_end(cell) for cell in cells if _end(cell) <= at)
    return pauses


def _end(cell: Mapping[str, Any]) -> float:
    """When a cell's warm pass had ended."""
    return _seconds(cell["measured_at"]) + float(cell["passes"]["warm"]["wall_s"])


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
