"""The command line: ``python -m harness run …`` and its sisters, one module each.

What other modules take from here is imported when it is asked for: a command does not wait for what another one needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.cli.catalog import usage
    from harness.cli.compose import compose_config, configs_folder, register, with_engine
    from harness.cli.diagnose import diagnose_command
    from harness.cli.dispatch import complain, main
    from harness.cli.figures import figures_command
    from harness.cli.model import model_command
    from harness.cli.options import split_format
    from harness.cli.plan import plan_command
    from harness.cli.report import report_command
    from harness.cli.run import run_command

__all__ = [
    "complain",
    "compose_config",
    "configs_folder",
    "diagnose_command",
    "figures_command",
    "main",
    "model_command",
    "plan_command",
    "register",
    "report_command",
    "run_command",
    "split_format",
    "usage",
    "with_engine",
]

_HOMES = {
    "complain": "dispatch",
    "compose_config": "compose",
    "configs_folder": "compose",
    "main": "dispatch",
    "register": "compose",
    "split_format": "options",
    "usage": "catalog",
    "with_engine": "compose",
}
"""Name -> module; a name that is not here is a command's, and lies in the module of that command."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, name.removesuffix("_command"))
    return getattr(import_module(f"{__name__}.{home}"), name)
