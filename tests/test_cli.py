"""The command line: what is refused, in which words, and what a results folder shows again."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from evidence import healthy, with_flow, write_cell

from harness.cli import configs_folder, main, with_engine
from harness.config import GateConfig, RunConfig
from harness.equivalence.evidence import Evidence, read_evidence
from harness.equivalence.judge import judge_cell
from harness.errors import HarnessError, Interrupted
from harness.interrupts import interruptible
from harness.store import RunFolder, write_json


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command changes in this process is undone."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for name in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


Captured = pytest.CaptureFixture[str]

# --- refusals ----------------------------------------------------------------------------------------------

BAD_OVERRIDES = [
    ("model=nope", "Could not find 'model/nope'"),
    ("modle=pocket", "Key 'modle' not in 'RunConfig'"),
    ("model.nope=1", "Key 'nope' not in 'ModelConfig'"),
    ("+model.nope=1", "Key 'nope' not in 'ModelConfig'"),
    ("gate=null", "Config group override must be a string or a list"),
    ("~gate", "gate.name"),
    ("engine=tpu", "Could not find 'engine/tpu' Available options in 'engine': cpu gpu"),
    ("task=mmlu", "Available options in 'task': gsm8k gsm8k_ci pocket pocket_long"),
    ("check=nope", "reset_warm"),
    ("hydra/launcher=nope", "Could not find 'hydra/launcher/nope'"),
    ("junk", "junk"),
    ("task.limit=abc", "task.limit=abc: Value 'abc' of type 'str' could not be converted to Integer"),
    ("task.limit=0", "task.limit=0 is out of range"),
    ("strict=maybe", "strict=maybe is not a valid bool: write true or false."),
    ("sweep.budgets=2N-1", "sweep.budgets=2N-1"),
    ("sweep.budgets=[]", "sweep.budgets is empty"),
    ("sweep.budgets=[2M-1]", "'2M-1' is no budget"),
    ("sweep.budgets=[10]", "less than one block of N = 64"),
    ("sweep.budgets=[2N-1,127]", "names the same budget twice at N = 64"),
    ("sweep.hit_rates=[]", "sweep.hit_rates is empty"),
    ("sweep.hit_rates=[97]", "sweep.hit_rates: 97 is no hit rate: write a number from 0 to 1"),
    ("sweep.hit_rates=[0.5,0.5]", "sweep.hit_rates=[0.5, 0.5] names the same hit rate twice"),
    ("sweep.diverge_after=[0]", "sweep.diverge_after: 0 is no number of blocks"),
    ("sweep.diverge_after=[4]", "check reset_warm has no step `seed: diverging`"),
    ("check.seeded_cell=[clear,{pass: warm}]", "check reset_warm: seeded_cell must begin with clear and have one seed"),
    ("resume=nope", "results holds no run of that name"),
    ("model.path=/nonexistent", "model.path=/nonexistent is not a folder"),
    ("model.path=~/x", "quote values that hold =, ~ or spaces"),
    ("model.path=null", "field 'model.path' is not Optional"),
    ("model.kv_cache_dtype=weird", "model.kv_cache_dtype=weird is not known"),
    ("model.tensor_parallel_size=3", "does not divide"),
    ("task.blocks=1000", "task.blocks=1000 makes prompts of at least 64001 tokens"),
    ("gate.mode=tots", "did you mean tost?"),
    ("gate.margin=nan", "gate.margin=nan is out of range"),
    ("load.concurrency=0", "load.concurrency=0 is out of range"),
    ("check.cell=[warp]", "check reset_warm: cell, step 1: 'warp' is no step"),
    ("check.launch=[]", "has 0 passes called cold"),
    ("servers.vllm.extra_args=[--port,80]", "servers.vllm.extra_args contains --port"),
    ("servers.vllm.extra_args=[--port=80]", "quote values that hold ="),
    ("servers.vllm.python=/nonexistent/python", "servers.vllm.python=/nonexistent/python is not a Python that runs"),
]


@pytest.mark.parametrize(("override", "told"), BAD_OVERRIDES, ids=[override for override, _ in BAD_OVERRIDES])
def test_a_bad_override_is_refused_before_anything_starts(
    override: str, told: str, tmp_path: Path, capsys: Captured
) -> None:
    results = tmp_path / "results"
    engine = [] if override.startswith("engine=") else ["engine=cpu"]
    assert main(["run", *engine, f"results_dir={results}", override]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.startswith("error: ") and err.count("\n") == 1, "one sentence"
    assert err.rstrip().endswith((".", "?", ")"))
    assert "Traceback" not in err and "\x1b" not in err
    assert not results.exists()


def test_an_unknown_option_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", f"results_dir={tmp_path / 'results'}", "--bogus"]) == 2
    assert "unrecognized arguments: --bogus" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["rnu"], "rnu is no command; did you mean run?"),
        (["reprot", "x"], "did you mean report?"),
        (["xyzzy"], "xyzzy is no command; known: run, plan, model, report, open, compare, trend, figures"),
        (["task.limit=3"], "task.limit=3 is no command"),
    ],
)
def test_an_unknown_command_names_the_nearest(argv: list[str], told: str, capsys: Captured) -> None:
    assert main(argv) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--help"], 0), (["-h"], 0), (["help"], 0)])
def test_usage(argv: list[str], code: int, capsys: Captured) -> None:
    assert main(argv) == code
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m harness COMMAND")
    assert "  run " in out and "  report " in out


def test_a_check_that_cannot_seed_refuses_a_hit_rate(tmp_path: Path, capsys: Captured) -> None:
    argv = ["run", "engine=cpu", f"results_dir={tmp_path}", "check=bypassed", "sweep=hit_rate"]
    assert main(argv) == 2
    assert "error: check bypassed has no seeded_cell" in capsys.readouterr().err


def test_the_composed_configuration_can_be_shown(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu", f"results_dir={tmp_path / 'results'}", "--cfg", "job"]) == 0
    out = capsys.readouterr().out
    assert "budgets:" in out and "path: ${pocket_checkpoint:}" in out
    assert not (tmp_path / "results").exists()


# --- exit codes --------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the runs of servers: they end, in order, with the codes and errors that a test puts in."""
    codes: list[Any] = []

    def job(config: RunConfig, progress: object) -> tuple[RunFolder, dict[str, Any], int]:
        code = codes.pop(0)
        if isinstance(code, BaseException):
            raise code
        return RunFolder(Path("nowhere")), {"verdict": "told", "status": "complete", "error": None}, int(code)

    monkeypatch.setattr("harness.cli.run.run", job)
    return codes


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_code_of_a_job_is_the_commands(code: int, jobs: list[Any]) -> None:
    jobs.append(code)
    assert main(["run", "engine=cpu"]) == code


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([0, 0], 0),
        ([0, 4], 4),
        ([4, 1], 1),
        ([1, 2], 2),
        ([1, HarnessError("gone")], 3),
        ([HarnessError("gone"), 0], 3),
    ],
)
def test_a_multirun_ends_with_its_worst(codes: list[Any], worst: int, jobs: list[Any], tmp_path: Path) -> None:
    jobs.extend(codes)
    argv = ["run", "-m", "engine=cpu", f"results_dir={tmp_path}", "gate=equivalence,threshold"]
    assert main(argv) == worst
    assert jobs == [], "every job ran, whatever became of the one before"


def test_a_crash_is_not_a_fail(jobs: list[Any], capsys: Captured) -> None:
    """Python ends with 1 after a traceback, which a CI job would read as: the model changed."""
    jobs.append(ValueError("a bug"))
    assert main(["run", "engine=cpu"]) == 3
    assert "a bug" in capsys.readouterr().err


def test_a_failure_of_a_server(jobs: list[Any], capsys: Captured) -> None:
    jobs.append(HarnessError("vLLM exited with code 1."))
    assert main(["run", "engine=cpu"]) == 3
    assert capsys.readouterr().err == "error: vLLM exited with code 1.\n"


def test_an_interruption(jobs: list[Any], capsys: Captured) -> None:
    jobs.append(Interrupted("SIGINT"))
    assert main(["run", "engine=cpu"]) == 130
    assert capsys.readouterr().err == "interrupted\n", "no run has begun that could go on"
    begun = Interrupted("SIGTERM")
    begun.goes_on = "python -m harness run resume=results/x"
    jobs.append(begun)
    assert main(["run", "engine=cpu"]) == 130
    assert capsys.readouterr().err == "interrupted; to go on with it: python -m harness run resume=results/x\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_become_an_exception_twice_and_are_restored(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.interrupts._leave_terminal", lambda: None)  # the terminal of this process
    before = signal.getsignal(number)
    with interruptible():
        for _ in range(2):
            with pytest.raises(Interrupted, match=number.name):
                os.kill(os.getpid(), number)
                signal.sigtimedwait([], 1)
        os.kill(os.getpid(), number)  # the third changes nothing: by then everything is being killed
    assert signal.getsignal(number) == before


def test_the_engine_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([Path("0000:01:00.0")]))
    assert with_engine(["task.limit=3"]) == ["task.limit=3", "engine=gpu"]
    assert with_engine(["engine=cpu"]) == ["engine=cpu"]
    assert with_engine(["replay=x", "check=bypassed"]) == ["replay=x", "check=bypassed"]
    assert with_engine(["resume=x"]) == ["resume=x"], "the stored configuration has its engine"
    assert with_engine(["resume=x", "task.limit=3"]) == ["resume=x", "task.limit=3", "engine=gpu"]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([]))
    assert with_engine(["task.limit=3"]) == ["task.limit=3"]


def test_configs_are_found() -> None:
    assert (configs_folder() / "run.yaml").is_file()


# --- report ------------------------------------------------------------------------------------------------


def results(folder: Path, evidence: Evidence, **record: Any) -> Path:
    """A results folder with one cell, written as a run does it."""
    run = RunFolder.create(folder, "run")
    cell = write_cell(run.cell("budget127-full-r1"), evidence, run.launch("budget127-r1") / "passes")
    judged = judge_cell(read_evidence(cell), GateConfig(name="test"))
    write_json(cell / "cell.json", judged)
    told = {"schema": 1, "status": "complete", "verdict": judged["verdict"], "error": None} | record
    write_json(run.path / "run.json", told)
    return run.path


def test_report_shows_a_run_from_its_files_alone(tmp_path: Path, capsys: Captured) -> None:
    path = results(tmp_path, healthy())
    assert main(["report", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "PASS: the score is unchanged over 120 questions" in " ".join(out.split())
    assert f"results: {path}\n" in out
    assert "local_warm" in out


def test_report_shows_several_runs(tmp_path: Path, capsys: Captured) -> None:
    good = results(tmp_path / "a", healthy())
    bad = results(tmp_path / "b", with_flow(healthy(), "warm", lookup_hit=None))
    assert main(["report", str(good), str(bad), f"out={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert out.index("PASS:") < out.index("INVALID:")


def test_report_of_a_run_that_failed(tmp_path: Path, capsys: Captured) -> None:
    run = RunFolder.create(tmp_path, "run")
    write_json(run.path / "run.json", {"status": "failed", "verdict": None, "error": "vLLM exited with code 1."})
    assert main(["report", str(run.path)]) == 0
    assert "run: failed, no verdict: vLLM exited with code 1." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "can't be read: No such file or directory"), ("{", "is not JSON"), ("[]", "holds a list where")],
)
def test_report_on_what_is_no_run(text: str | None, told: str, tmp_path: Path, capsys: Captured) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    assert main(["report", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {tmp_path / 'run.json'} {told}" in err
    assert "Traceback" not in err


def test_report_on_nothing(capsys: Captured) -> None:
    assert main(["report"]) == 2
    assert "report needs a results folder" in capsys.readouterr().err


def test_report_leaves_what_was_measured_as_it_was(tmp_path: Path) -> None:
    path = results(tmp_path, healthy())
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    main(["report", str(path)])
    assert {each: each.read_bytes() for each in before} == before
    assert json.loads((path / "run.json").read_text())["verdict"] == "pass"
