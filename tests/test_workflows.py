"""The workflows and the action: two linters, what they may do, who can start them, and the night step by step."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack_support import shared_memory

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
PIN = re.compile(r"uses: (?P<action>[\w./-]+)@(?P<commit>[0-9a-f]{40}) # v\d+\.\d+\.\d+$")


def linter(name: str) -> str:
    """A linter of this environment, or of the machine."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{name} is missing: pip install -e '.[dev]'"
    return found


def read(file: Path) -> dict[str, Any]:
    document = yaml.safe_load(file.read_text())
    document["on"] = document.pop(True, None)  # YAML 1.1 takes the word for a truth value
    return dict(document)


def workflow(name: str) -> dict[str, Any]:
    return read(ROOT / ".github" / "workflows" / f"{name}.yml")


def steps(file: Path) -> Iterator[dict[str, Any]]:
    document = read(file)
    for job in document.get("jobs", {"": document.get("runs")}).values():
        yield from job["steps"]


def test_actionlint_has_nothing_to_say() -> None:
    told = subprocess.run([linter("actionlint"), *WORKFLOWS], cwd=ROOT, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")


def test_zizmor_has_nothing_to_say() -> None:
    command = [linter("zizmor"), "--offline", "--no-progress", "--quiet", "--persona=auditor", ".github", "action.yml"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout


def test_the_linters_find_something(tmp_path: Path) -> None:
    """A linter that is never seen complaining is not trusted."""
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    bad = folder / "bad.yml"
    bad.write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
        "      - uses: actions/checkout@v4\n      - run: echo ${{ github.event.pull_request.title }} ${{ nope.x }}\n"
    )
    assert subprocess.run([linter("actionlint"), bad], capture_output=True).returncode == 1
    assert subprocess.run([linter("zizmor"), "--offline", "--quiet", bad], capture_output=True).returncode > 10


@pytest.mark.parametrize("file", [*WORKFLOWS, ACTION], ids=lambda file: file.name)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    used = [line.strip().removeprefix("- ") for line in file.read_text().splitlines() if "uses:" in line]
    assert used and all(PIN.match(line) for line in used), used


def test_an_action_is_pinned_to_one_commit_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for file in (*WORKFLOWS, ACTION):
        for match in re.finditer(PIN.pattern, file.read_text(), re.MULTILINE):
            pins.setdefault(match["action"], set()).add(match["commit"])
    assert all(len(commits) == 1 for commits in pins.values())
    assert all(action.startswith("actions/") for action in pins), "GitHub's own and no others"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_nobody_else_can_start_a_workflow(file: Path) -> None:
    assert set(read(file)["on"]) <= {"push", "schedule", "workflow_dispatch"}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_permissions_are_the_least(file: Path) -> None:
    document = read(file)
    assert document["permissions"] == {}
    for job in document["jobs"].values():
        assert set(job["permissions"].items()) <= {("contents", "read"), ("actions", "read")}
        assert "timeout-minutes" in job


@pytest.mark.parametrize("file", [*WORKFLOWS, ACTION], ids=lambda file: file.name)
def test_no_secret_reaches_a_step(file: Path) -> None:
    text = file.read_text()
    assert "secrets." not in text and "toJSON" not in text and "set -x" not in text
    for step in steps(file):
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("file", [*WORKFLOWS, ACTION], ids=lambda file: file.name)
def test_steps_are_one_command_and_take_settings_from_their_environment(file: Path) -> None:
    for step in steps(file):
        if run := step.get("run"):
            assert "\n" not in run.strip() and "${{" not in run, run


def test_two_nights_never_share_gpus() -> None:
    night = workflow("nightly")
    assert night["concurrency"] == {"group": "nightly-gpus", "cancel-in-progress": False}
    assert night["jobs"]["gate"]["strategy"]["fail-fast"] is False


def test_nothing_is_tried_again() -> None:
    """Two retries turn damage that is caught half the time into a pass nine times out of ten."""
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert "retry" not in text
    forgiven = [step["name"] for step in steps(ROOT / ".github/workflows/nightly.yml") if step.get("continue-on-error")]
    assert forgiven == ["Download the night before"]


def test_results_are_uploaded_before_the_gate_decides() -> None:
    for file in (ROOT / ".github/workflows/nightly.yml", ACTION):
        names = [step.get("name") for step in steps(file)]
        assert names.index("Upload the results") < names.index("Gate") < names.index("Clean up")
        for step in steps(file):
            if step.get("name") in ("Upload the results", "Gate", "Clean up"):
                assert "always()" in step["if"]


def test_the_action_passes_on_every_input() -> None:
    document = read(ACTION)
    text = ACTION.read_text()
    assert all(f"inputs.{name} " in text for name in document["inputs"])
    assert all(step.get("shell") == "bash" for step in document["runs"]["steps"] if "run" in step)


# --- the night, walked through on the CPU engine -----------------------------------------------------------

FILLED = {
    "matrix.model": "pocket",
    "matrix.overrides": "engine=cpu",
    "matrix.compare": "speed_margin=3",
    "matrix.selftest": "true",
    "inputs.model": "pocket",
    "inputs.engine": "cpu",
    "inputs.overrides": "task.limit=100",
    "inputs.selftest": "false",
    "inputs.artifact": "gate",
    "github.run_id": "2",
    "github.run_attempt": "1",
}
"""What GitHub would put in; nothing for other inputs."""


class Job:
    """A job's steps, run one after another as GitHub runs them, in a folder.

    Args:
        folder: the workspace.
        file: workflow or action.
        changed: other values of expressions.
    """

    def __init__(self, folder: Path, file: Path, **changed: str) -> None:
        self.folder = folder
        document = read(file)
        self.job = document["jobs"]["gate"] if "jobs" in document else document["runs"]
        self.values = FILLED | {name.replace("__", "."): value for name, value in changed.items()}
        self.summary = folder / "summary.md"
        self.output = folder / "output"
        self.uploaded: set[str] = set()
        self.codes: dict[str, int] = {}

    def walk(self) -> dict[str, int]:
        """Exit codes of the steps by name; what sets up is left out, since this Python has everything."""
        failed = False
        for step in self.job["steps"]:
            name = step.get("name", "")
            if "upload-artifact" in step.get("uses", ""):
                pattern = self.filled(step["with"]["path"]).rstrip("/")
                self.uploaded |= {
                    str(file.relative_to(self.folder))
                    for found in self.folder.glob(pattern)
                    for file in found.rglob("*")
                }
            elif "run" in step and name != "Set up" and (not failed or "always()" in step.get("if", "")):
                command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
                self.codes[name] = subprocess.run(command, cwd=self.folder, env=self.environment(step)).returncode
                failed = failed or self.codes[name] != 0
        return self.codes

    def filled(self, text: str) -> str:
        """A text with every expression filled in."""
        outputs = dict(line.split("=", 1) for line in self.output.read_text().split()) if self.output.exists() else {}
        values = self.values | {f"steps.names.outputs.{name}": value for name, value in outputs.items()}
        values |= {"runner.temp": str(self.folder)}

        def value(match: re.Match[str]) -> str:
            if match[1].startswith("env."):
                return self.filled(self.job["env"][match[1].removeprefix("env.")])
            assert match[1] in values or match[1].startswith("inputs."), match[1]
            return values.get(match[1], "")

        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)

    def environment(self, step: dict[str, Any]) -> dict[str, str]:
        """Of a step."""
        written = self.job.get("env", {}) | step.get("env", {})
        github = {
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_RUN_ID": "2",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_ACTION_PATH": str(self.folder / "action"),
            "PYTHONPATH": str(ROOT),
        }
        filled = {name: self.filled(str(value)) for name, value in written.items()}
        return {**os.environ, **filled, **github, "PYTHON": sys.executable}


@pytest.mark.stack
@pytest.mark.timeout(1800)
def test_the_night_on_the_cpu_engine(tmp_path: Path) -> None:
    file = ROOT / ".github" / "workflows" / "nightly.yml"
    before = shared_memory()
    first = Job(tmp_path, file)
    assert first.walk() == dict.fromkeys(
        ("Preflight", "Run", "Report", "Compare with the night before", "Negative control", "Gate", "Clean up"), 0
    )
    run = "results/nightly-2-1-pocket"
    assert {f"{run}/run.json", f"{run}/report.html", f"{run}/junit.xml", f"{run}-selftest/run.json"} <= first.uploaded
    told = first.summary.read_text()
    assert told.count("The run passed") == 1 and "night before: none to compare with" in told
    assert shared_memory() == before

    # The next night: the one before lies where its artifact is downloaded to.
    (tmp_path / run).rename(tmp_path / "previous")
    shutil.rmtree(tmp_path / f"{run}-selftest")
    shutil.rmtree(tmp_path / "night")
    first.summary.unlink()
    second = Job(tmp_path, file, matrix__selftest="false")
    assert second.walk()["Gate"] == 0
    assert "night before: no regression" in second.summary.read_text()
    assert json.loads((tmp_path / run / "run.json").read_text())["verdict"] == "pass"


@pytest.mark.stack
@pytest.mark.timeout(600)
def test_the_action_on_the_cpu_engine(tmp_path: Path) -> None:
    python = tmp_path / "action" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    job = Job(tmp_path, ACTION)
    assert job.walk() == dict.fromkeys(("Names", "Preflight, run, report", "Gate", "Clean up"), 0)
    assert {"results/gate-2-1-gate/run.json", "results/gate-2-1-gate/report.html"} <= job.uploaded
    assert "### ✓ pocket: The run passed" in job.summary.read_text()
