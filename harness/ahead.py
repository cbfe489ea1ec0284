"""What a run needs once its servers are up is imported while they start, when the harness has nothing else to do."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module

LATER = (
    "harness.workload.scoring",
    "uvloop",
    "scipy.stats",
    "harness.report.files",
    "harness.report.figures",
)
"""In the order in which a run comes to need them."""

NAME = "imports"


def import_ahead() -> None:
    """Begins to import what is needed later; what fails to import fails again where it is needed, and is told there."""
    threading.Thread(target=_import_all, name=NAME).start()


def await_imports() -> None:
    """Waits until nothing is being imported: two threads that import parts of one library may see half of it."""
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join()


def _import_all() -> None:
    for name in LATER:
        # A run that has ended meanwhile waits for the module at hand, since an import can't be cut short in peace.
        if not threading.main_thread().is_alive():
            return
        with suppress(Exception):
            import_module(name)
