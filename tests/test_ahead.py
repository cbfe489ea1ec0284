"""What is imported while servers start, and what a command does not wait for."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from harness.ahead import LATER


def imported_by(code: str) -> set[str]:
    """Modules that a new interpreter has after running ``code``."""
    code += "\nimport sys\nprint('modules', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", LATER)
def test_what_is_imported_ahead_exists(name: str) -> None:
    assert find_spec(name) is not None


def test_a_run_has_what_is_imported_ahead() -> None:
    code = "from harness.ahead import await_imports, import_ahead\nimport_ahead()\nawait_imports()"
    assert set(LATER) <= imported_by(code)


def test_a_run_that_ends_at_once_does_not_wait_for_all_of_it() -> None:
    code = "import atexit, sys\natexit.register(lambda: print(*sys.modules))\nimport harness.ahead\n"
    done = subprocess.run([sys.executable, "-c", code + "harness.ahead.import_ahead()"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert not {*LATER[1:]} & {*done.stdout.split()}


def test_servers_do_not_wait_for_the_statistics() -> None:
    """The run's own module is imported before anything starts: scipy's statistics take half a second."""
    modules = imported_by("import harness.runner")
    assert "scipy" in modules
    assert not {"scipy.stats", "scipy.optimize", "matplotlib", "lm_eval", "uvloop"} & modules


def test_hydra_finds_the_launchers_without_importing_what_measures() -> None:
    modules = imported_by("import hydra_plugins.harness_cluster.launchers, hydra_plugins.harness_cluster.sweeper")
    assert not {"harness.runner", "scipy"} & modules
