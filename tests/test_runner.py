"""What a run is called, and what is there of it before anything is started."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from stack_support import composed

from harness.runner import new_run_id
from harness.servers.stack import Stack, scratch_folder


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        ([], "-pocket-smoke"),
        (["check=flipped_bytes"], "-pocket-smoke-flipped_bytes"),
        (["task=gsm8k"], "-pocket-smoke-gsm8k"),
        (["sweep=divergence"], "-pocket-divergence"),
        (["replay=x"], "-pocket-smoke-replay"),
    ],
)
def test_a_run_is_called_by_what_it_is(tmp_path: Path, overrides: list[str], end: str) -> None:
    assert new_run_id(composed(f"results_dir={tmp_path}", *overrides)).endswith(end)


def test_two_runs_of_one_second_have_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed(f"results_dir={tmp_path}")
    seen = set()
    for _ in range(20):
        name = new_run_id(config)
        (tmp_path / name).mkdir()
        seen.add(name)
    assert len(seen) == 20


def test_commands_are_known_before_anything_is_started(tmp_path: Path) -> None:
    stack = Stack(composed("check=flipped_bytes"), budget=127, chunk_size=64, folder=tmp_path)
    commands = stack.described()["commands"]
    assert commands["lmcache"][:4] == ["lmcache", "server", "--chunk-size", "64"]
    assert commands["vllm"][:2] == ["vllm", "serve"]
    ports = [line[line.index("--port") + 1] for line in commands.values()]
    assert len(set(ports)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_the_packages_says_what_to_do(tmp_path: Path) -> None:
    """Exit code 1, Python's own, would read as a verdict."""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-S", "-m", "harness", "run"], cwd=root, capture_output=True, text=True, env={"PATH": ""}
    )
    assert done.returncode == 2
    assert "set up with `make demo`" in done.stderr and "Traceback" not in done.stderr


def test_a_temporary_folder_is_short_enough_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's sockets have 36 characters below it, and 107 in all."""
    for parent, kept in ((Path("/var/tmp"), True), (tmp_path / ("long" * 20), False)):
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        folder = scratch_folder()
        assert (folder.parent == parent) is kept
        assert len(str(folder)) + 1 + 36 <= 107
