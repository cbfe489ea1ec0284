"""How long a planned run takes, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from harness.estimate.forecast import LaunchTime
from harness.estimate.planned import Estimate
from harness.report.progress import about, duration


def estimate_lines(estimate: Estimate) -> list[str]:
    """What it is based on, launches with their cells, the sum, and how far the rates carry."""
    lines = [f"at the rates of run {estimate.run_id}: {estimate.measured}"]
    lines += [line for launch in estimate.launches for line in _launch(launch)]
    total = f"in all: {about(estimate.seconds)}, and some seconds for the report and its figures"
    return [*lines, total, *(f"note: {note}" for note in estimate.notes)]


def _launch(launch: LaunchTime) -> Iterator[str]:
    extrapolated = f", extrapolated from budget {launch.rates_of}" if launch.rates_of != launch.budget else ""
    yield (
        f"{launch.id}: {duration(launch.seconds)}, of which servers and prompts take {duration(launch.servers_s)} and "
        f"passes that its cells share {duration(launch.passes_s)}{extrapolated}"
    )
    for cell in launch.cells:
        yield f"  {cell.id}: {duration(cell.seconds)}"
