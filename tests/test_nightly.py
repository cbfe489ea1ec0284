"""The night's steps: which commands they give, what they note, and what the gate makes of it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import cli, nightly
from harness.cli import configs_folder
from harness.nightly import decide, main, settings
from harness.pocket import CHECKPOINT
from harness.store import write_json

ROOT = Path(__file__).parent.parent

# --- the decision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "code", "told"),
    [
        ({}, 0, "The run passed."),
        ({"compare": 0}, 0, "The run passed."),
        ({"why": ["1 cell: all pass"]}, 0, "The run passed: 1 cell: all pass."),
        ({"run": 1, "why": ["9 broke"]}, 1, "The run ended in 1, fail: 9 broke."),
        ({"run": 2}, 2, "The run ended in 2, wrong usage or configuration."),
        ({"run": 3}, 3, "The run ended in 3, a server or the machine failed."),
        ({"run": 4}, 4, "The run ended in 4, inconclusive or invalid."),
        ({"run": 130}, 130, "The run ended in 130, interrupted."),
        ({"run": None}, 3, "Nothing was decided: the run was killed or never began."),
        ({"doctor": 3}, 3, "Nothing was measured: the preflight (doctor) ended in 3, a server or the machine failed."),
        ({"doctor": 2}, 2, "Nothing was measured: the preflight (doctor) ended in 2, wrong usage or configuration."),
        ({"doctor": None}, 3, "Nothing was measured: the preflight (doctor) did not come to its end."),
        ({"compare": 1}, 1, "The run passed, but is worse than the night before: see the comparison."),
        ({"report": 3}, 3, "The run passed, but its report could not be written."),
        ({"report": None}, 3, "The run passed, but its report could not be written."),
        ({"control": True, "selftest": 0}, 0, "The run passed."),
        ({"control": True, "selftest": 1}, 1, "was not caught, or raised a false alarm: tonight's pass proves nothing"),
        ({"control": True, "selftest": 4}, 4, "inconclusive or invalid, so nobody knows whether this gate bites"),
        ({"control": True, "selftest": None}, 3, "the negative control did not come to its end"),
    ],
)
def test_what_a_night_comes_to(codes: dict[str, Any], code: int, told: str) -> None:
    decision = decide(**({"doctor": 0, "run": 0, "report": 0} | codes))
    assert decision.code == code
    assert told in decision.sentence


@pytest.mark.parametrize("compare", [None, 0, 2, 3, 4, 130])
def test_a_night_before_that_is_missing_or_can_not_be_compared_with_blocks_nothing(compare: int | None) -> None:
    assert decide(0, 0, compare=compare).code == 0


def test_no_failure_is_hidden_by_what_comes_after_it() -> None:
    """Green means: measured, passed, nothing worse, reported, and the control was caught."""
    codes: tuple[int | None, ...] = (None, 0, 1, 2, 3, 4, 130)
    for control, night in itertools.product((False, True), itertools.product(codes, repeat=5)):
        doctor, run, report, compare, selftest = night
        decision = decide(doctor, run, report, compare, selftest, control=control)
        good = doctor == run == report == 0 and compare != 1 and (not control or selftest == 0)
        assert (decision.code == 0) == good
        if doctor == 0 and run not in (0, None):
            assert decision.code == run, "the run's own code is the night's"


def test_a_crash_has_a_meaning() -> None:
    assert (nightly.meaning(137), nightly.meaning(77)) == ("killed", "a crash")


# --- settings ----------------------------------------------------------------------------------------------


def test_settings_of_a_pull_requests_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    night = settings(
        {
            "GATE_MODEL": "qwen3_6_27b",
            "GATE_RUN_ID": "n",
            "GATE_OVERRIDES": " task.limit=10 'servers.vllm.extra_args=[\"--seed=1\"]' ",
            "GATE_LMCACHE_PYTHON": "pr/bin/python",
            "GATE_SELFTEST": "true",
            "GATE_PREVIOUS": "previous",
        }
    )
    assert night.overrides == (
        "model=qwen3_6_27b",
        "task.limit=10",
        'servers.vllm.extra_args=["--seed=1"]',
        f"servers.lmcache.python={tmp_path}/pr/bin/python",
    )
    assert (night.selftest, night.previous, night.run) == (True, Path("previous"), Path("results/n"))


NAMED = {"GATE_MODEL": "m", "GATE_RUN_ID": "n"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"GATE_MODEL": "m"},
        NAMED | {"GATE_OVERRIDES": "'"},
        NAMED | {"GATE_OVERRIDES": "results_dir=x"},
        NAMED | {"GATE_OVERRIDES": "+run_id=x"},
    ],
)
def test_settings_that_do_not_do(environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"], environment) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("argv", [[], ["nope"], ["run", "run"]])
def test_usage(argv: list[str]) -> None:
    assert main(argv, {}) == 2


# --- the steps, with a harness that ends as it is told -----------------------------------------------------


class Night:
    """A night in a folder, whose harness ends with the codes that a test names and writes a run's folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **codes: int) -> None:
        self.codes, self.calls = codes, list[list[str]]()
        self.summary = folder / "summary.md"
        self.environment = {"GATE_MODEL": "pocket", "GATE_RUN_ID": "n", "GATE_OVERRIDES": "task.limit=3"}
        monkeypatch.chdir(folder)
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(self.summary))
        monkeypatch.setattr(cli, "main", self._command)

    def _command(self, argv: Sequence[str]) -> int:
        self.calls.append(list(argv))
        if argv[0] == "run":
            Path("results/n").mkdir(parents=True)
            write_json(Path("results/n/run.json"), {"reasons": ["1 cell: all pass."], "error": None})
        if argv[0] in ("run", "selftest"):
            assert "GITHUB_STEP_SUMMARY" not in os.environ, "the report writes the summary, once"
        return self.codes.get(argv[0], 0)

    def step(self, name: str) -> int:
        return main([name], self.environment)

    def walk(self) -> int:
        for name in ("doctor", "run", "report", "compare", "selftest"):
            assert self.step(name) == 0, "only the gate decides"
        return self.step("gate")

    @property
    def commands(self) -> list[str]:
        return [call[0] for call in self.calls]


def test_a_night_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = Night(tmp_path, monkeypatch)
    assert night.walk() == 0
    assert night.calls == [
        ["doctor", "model=pocket", "task.limit=3"],
        ["run", "model=pocket", "task.limit=3", "run_id=n"],
        ["report", "results/n"],
    ]
    told = night.summary.read_text()
    assert told.startswith("### ✓ pocket: The run passed: 1 cell: all pass.\n\n- ")
    assert told.endswith("- exit code 0: pass\n\n")
    assert night.step("clean") == 0 and night.calls[-1] == ["clean", "results/n"]


def test_a_whole_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = Night(tmp_path, monkeypatch)
    night.environment |= {"GATE_SELFTEST": "true", "GATE_PREVIOUS": "previous", "GATE_COMPARE": "alpha=0.01"}
    (tmp_path / "previous").mkdir()
    write_json(tmp_path / "previous" / "run.json", {})
    assert night.step("measure") == 0 and night.step("gate") == 0
    assert night.calls[3:] == [
        ["compare", "previous", "results/n", "alpha=0.01", "format=markdown"],
        ["selftest", "short", "model=pocket", "task.limit=3", "run_id=n-selftest"],
    ]
    (tmp_path / "results" / "n-selftest").mkdir()
    assert night.step("clean") == 0
    assert night.calls[-2:] == [["clean", "results/n"], ["clean", "results/n-selftest"]]


def test_a_machine_that_is_not_ready_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = Night(tmp_path, monkeypatch, doctor=3)
    assert night.walk() == 3
    assert night.commands == ["doctor"]
    assert "Nothing was measured" in night.summary.read_text()
    assert night.step("clean") == 0 and night.commands == ["doctor"], "there is nothing to clean"


@pytest.mark.parametrize(("code", "steps"), [(1, ["report", "selftest"]), (3, ["report"]), (130, ["report"])])
def test_a_run_that_fails_is_reported_and_never_tried_again(
    code: int, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(tmp_path, monkeypatch, run=code)
    night.environment["GATE_SELFTEST"] = "true"
    assert night.walk() == code
    assert night.commands == ["doctor", "run", *steps]


def test_a_run_that_was_killed_is_not_taken_for_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = Night(tmp_path, monkeypatch)
    night.step("doctor")
    assert night.step("gate") == 3


def test_a_clean_up_that_leaves_something_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = Night(tmp_path, monkeypatch, clean=3)
    night.walk()
    assert night.step("clean") == 3


@pytest.mark.parametrize("record", ["{", "", '{"error": null}', '{"error": "vLLM exited with code 1."}'])
def test_reasons_of_whatever_there_is(record: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(record)
    assert nightly.reasons(tmp_path) == (["vLLM exited with code 1"] if "vLLM" in record else [])


def test_the_control_gets_a_folder_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name: f"hub/{name}")
    night = nightly.Night("m", "n", ("model=qwen3_5_0_8b", "engine=gpu"))
    assert nightly.checkpoint(night) == ["model.path=hub/Qwen/Qwen3.5-0.8B"]
    assert nightly.checkpoint(nightly.Night("m", "n", ("model=pocket",))) == []
    assert CHECKPOINT.is_dir()


# --- matrix, and the night before --------------------------------------------------------------------------


def entries() -> list[dict[str, Any]]:
    return list(json.loads(nightly.MODELS.read_text()))


def test_models_of_the_night_are_models() -> None:
    import yaml

    for entry in entries():
        model = yaml.safe_load((configs_folder() / "model" / f"{entry['model']}.yaml").read_text())
        assert entry["gpus"] == model["gpus"]
        assert entry["labels"][0] == "self-hosted" and f"gpu-{model['gpus']}" in entry["labels"]
        assert 0 < entry["minutes"] < 360
        assert set(entry) == {"model", "labels", "gpus", "minutes", "overrides", "selftest", "compare"}
        assert cli.main(["plan", f"model={entry['model']}", *entry["overrides"].split()]) == 0
    assert [entry["selftest"] for entry in entries()].count(True) == 1


@pytest.mark.parametrize(
    ("chosen", "models"),
    [("all", 5), ("", 5), ("qwen3_6_27b", 1), ("qwen3_6_27b, qwen3_5_9b", 2), ("nope", None)],
)
def test_the_matrix(chosen: str, models: int | None, tmp_path: Path) -> None:
    file = tmp_path / "output"
    code = main(["matrix"], {"GATE_MODELS": chosen, "GITHUB_OUTPUT": str(file)})
    assert code == (2 if models is None else 0)
    if models is not None:
        name, _, value = file.read_text().partition("=")
        assert (name, len(json.loads(value)["include"])) == ("matrix", models)


def test_the_matrix_needs_nothing_but_python(tmp_path: Path) -> None:
    """It runs before anything is installed."""
    command = [sys.executable, "-S", "-m", "harness.nightly", "matrix"]
    assert subprocess.run(command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("gh", "told"), [("echo 123", "previous=123\n"), ("true", "previous=\n"), ("exit 4", "previous=\n")]
)
def test_the_night_before(gh: str, told: str, tmp_path: Path) -> None:
    program = tmp_path / "gh"
    program.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/asked"\n{gh}\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    subprocess.run([ROOT / "scripts/nightly/previous.sh"], env=environment, check=True, capture_output=True)
    assert (tmp_path / "output").read_text() == told
    asked = (tmp_path / "asked").read_text()
    assert "--repo owner/name --workflow nightly.yml --event schedule --status completed" in asked
