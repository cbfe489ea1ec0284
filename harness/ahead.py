"""What a run needs once its servers are up is imported while they start, when the harness has nothing else to do."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from threading import Thread

LATER = (
    "harness.workload.scoring",
    "uvloop",
    "scipy.stats",
    "scipy.optimize",
    "harness.report.files",
    "harness.report.runs",
    "harness.report.figures",
)
"""In the order in which a run comes to need them."""


def import_ahead() -> None:
    """Begins to import what is needed later; what fails to import fails again where it is needed, and is told there."""
    Thread(target=_import_all, name="imports", daemon=True).start()


def _import_all() -> None:
    for name in LATER:
        with suppress(Exception):
            import_module(name)
