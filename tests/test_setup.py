"""The set-up script with a pip and a uv that only note what they were asked for: which of them installs what."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

PYTHON = """#!/bin/bash
# In place of Python, and of its pip: notes what is installed, and has no CPU build of torch where it is told so.
case "$*" in
    *_base_executable*) echo "$0" ;;
    '-m venv .venv') mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    '-m pip install '*)
        echo "pip ${@: -1}" >> asked.txt
        case "${@: -1}" in
            uv)
                printf '#!/bin/bash\\necho "uv $*" >> asked.txt\\n'"$UV_ENDS"'\\n' > .venv/bin/uv
                chmod +x .venv/bin/uv ;;
            *) echo "$PIP_SAYS"; [[ -z $PIP_SAYS ]] ;;
        esac ;;
esac
"""

NO_TORCH = (
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from harness[cpu,dev]) "
    "(from versions: 2.11.0, 2.12.0, 2.13.0)"
)
NO_NETWORK = "ERROR: Could not find a version that satisfies the requirement setuptools>=77 (from versions: none)"
ALL, WITH_UV = ".[cpu,dev]", "uv pip install --python .venv/bin/python --torch-backend=cpu -e .[cpu,dev]"


def set_up(folder: Path, pip_says: str, uv_ends: str = "exit 0") -> tuple[int, str, list[str]]:
    """Exit code and stderr of the script, and what its installers were asked for."""
    (folder / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "setup", folder / ".ci" / "setup")
    (folder / "pyproject.toml").write_text("")
    python = folder / "python-of-a-test"
    python.write_text(PYTHON)
    python.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PYTHON": str(python), "PIP_SAYS": pip_says, "UV_ENDS": uv_ends}
    # lint: it asks for no room in /dev/shm
    ended = subprocess.run([".ci/setup", "lint"], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    asked = folder / "asked.txt"
    return ended.returncode, ended.stderr, asked.read_text().splitlines() if asked.exists() else []


pytestmark = pytest.mark.skipif(
    shutil.disk_usage(REPOSITORY).free < 7e9 or shutil.which("setpriv") is None,
    reason="the script needs 6 GB and setpriv",
)


def test_pip_installs_all_where_it_finds_all(tmp_path: Path) -> None:
    code, err, asked = set_up(tmp_path, "")
    assert (code, asked) == (0, [f"pip {ALL}"]) and "done after" in err


def test_without_a_cpu_build_of_torch_uv_goes_on(tmp_path: Path) -> None:
    code, err, asked = set_up(tmp_path, NO_TORCH)
    assert (code, asked) == (0, [f"pip {ALL}", "pip uv", WITH_UV]), err
    assert "pip's indexes have no CPU build of torch: going on with uv" in err and "done after" in err
    assert (tmp_path / ".venv" / "setup.stamp").read_text().startswith(str(tmp_path)), "it is not set up twice"


def test_uv_that_fails_is_the_end(tmp_path: Path) -> None:
    code, err, asked = set_up(tmp_path, NO_TORCH, "echo 'harness depends on torch==2.13.0+cpu'; exit 1")
    assert (code, len(asked)) == (1, 3)
    assert "depends on torch==2.13.0+cpu" in err and "uv failed for the reason above" in err
    assert (tmp_path / ".venv" / "setup.stamp").read_text() == "unfinished\n"


def test_a_registry_that_does_not_answer_is_told_as_such(tmp_path: Path) -> None:
    code, err, asked = set_up(tmp_path, NO_NETWORK)
    assert (code, asked) == (1, [f"pip {ALL}"])
    assert "pip did not reach its package registry" in err
