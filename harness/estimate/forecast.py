"""How long launches and cells will take, at the rates of a run that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError
from harness.estimate.history import History, read_history
from harness.estimate.rates import Rates
from harness.estimate.scheduler import work_of
from harness.estimate.workload import Questions, Sent, launch_passes
from harness.steps import Check
from harness.sweep import Launch


@dataclass(frozen=True, slots=True)
class CellTime:
    """One cell; in seconds."""

    id: str
    seconds: float
    """Its steps: passes, what is seeded, what is restarted, and what lies between."""


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """One launch; in seconds."""

    id: str
    budget: int
    rates_of: int
    """Budget whose measured passes its rates come from; another one than its own where that was not measured."""
    servers_s: float
    """Starting and stopping the servers, prompts, warming up, and what lies between the passes of the launch."""
    passes_s: float
    """Passes that all its cells share."""
    cells: Sequence[CellTime]

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.servers_s + self.passes_s + sum(cell.seconds for cell in self.cells)


def forecast(
    plan: Sequence[Launch], check: Check, questions: Questions, history: History, rates: Rates
) -> list[LaunchTime]:
    """How long each launch takes.

    Args:
        plan: launches and their cells.
        check: whose steps they take.
        questions: what every pass sends.
        history: what the times come from.
        rates: the rates of that.
    """
    times = []
    for launch in plan:
        once, sent = launch_passes(check, launch, questions)
        servers_s = history.start_s(rates) + history.stop_s + history.restarts_s(check.launch)
        cells = []
        for number, cell in enumerate(launch.cells):
            # What lies between two cells is in a launch's start for its first one.
            between_s = rates.between_s if number else 0.0
            restarts_s = history.restarts_s(check.steps_for(cell))
            seconds = between_s + restarts_s + _sending_s(sent[cell.id], launch.budget, questions, rates)
            cells.append(CellTime(cell.id, seconds))
        passes_s = _sending_s(once, launch.budget, questions, rates)
        times.append(
            LaunchTime(launch.id, launch.budget, rates.nearest(launch.budget), servers_s, passes_s, tuple(cells))
        )
    return times


class Outlook:
    """How long a run still takes, at the rates of what it has measured itself.

    Args:
        plan: launches of this attempt, with all cells that it sets out to measure.
        check: whose steps they take.
        cells: contents of cell.json of those that earlier attempts have measured, in order.
    """

    def __init__(self, plan: Sequence[Launch], check: Check, cells: Sequence[Mapping[str, Any]] = ()) -> None:
        self._plan = list(plan)
        self._check = check
        self._cells = list(cells)

    def after(self, cell: Mapping[str, Any], record: Mapping[str, Any]) -> float | None:
        """Seconds that are left after one more cell; None where what was measured does not tell.

        Args:
            cell: contents of its cell.json.
            record: contents of run.json so far.
        """
        self._cells.append(cell)
        try:
            history = read_history(record, self._cells)
        except UsageError:
            return None
        rates, seconds = history.rates(), history.stop_s
        done = {str(each["cell"]) for each in self._cells}
        times = forecast(self._plan, self._check, history.questions, history, rates)
        for launch in times:
            left = [each.seconds for each in launch.cells if each.id not in done]
            begun = len(left) < len(launch.cells)
            seconds += sum(left) if begun else launch.seconds
        return seconds


def _sending_s(sent: Sequence[Sent], budget: int, questions: Questions, rates: Rates) -> float:
    return sum(rates.seconds(work_of(each.asked, budget, questions.block_size), budget) for each in sent)
