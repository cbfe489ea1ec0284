"""A run that goes on: with its own configuration and programs, without the cells it has, and never twice at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from evidence import FACTS, healthy, write_cell
from stack_support import composed

from harness import runner
from harness.cli import main
from harness.config import GateConfig, RunConfig
from harness.equivalence.evidence import read_evidence
from harness.equivalence.judge import judge_cell
from harness.errors import HarnessError, UsageError
from harness.overrides import with_run_path
from harness.redaction import without_secrets_in
from harness.report.progress import RunProgress
from harness.resume import check_versions, difference, is_bare, resumed_config
from harness.runner import RunRecord, run
from harness.store import NewFolder, RunFolder, read_json, write_json
from harness.sweep import Cell, Launch

ROOT = Path(__file__).parent.parent
RATES = "sweep.hit_rates=[full,0.5]"
CELLS = ["budget64-full-r1", "budget64-hit0.50-r1", "budget127-full-r1", "budget127-hit0.50-r1"]

# --- the configuration -------------------------------------------------------------------------------------


def stored(results: Path, *overrides: str) -> RunConfig:
    """Writes the run.json of a run with these overrides, as a run does."""
    config = composed(f"results_dir={results}", *overrides)
    (results / "run").mkdir(parents=True)
    told = without_secrets_in(asdict(config))
    write_json(results / "run" / "run.json", {"config": told})
    return config


def resumed(results: Path, *overrides: str, bare: bool = False) -> RunConfig:
    return resumed_config(composed(f"results_dir={results}", "resume=run", *overrides), bare=bare)


@pytest.mark.parametrize(
    ("overrides", "bare"),
    [
        (["resume=x"], True),
        (["resume=x", "results_dir=y"], True),
        (["resume=x", "task.limit=3"], False),
        (["resume=x", "engine=cpu"], False),
        (["resume=x", "-m", "gate=equivalence,threshold"], False),
        (["results_dir=y"], False),
        ([], False),
    ],
)
def test_a_bare_resume_says_only_which_run(overrides: list[str], bare: bool) -> None:
    assert is_bare(overrides) is bare


def test_a_bare_resume_takes_the_stored_configuration(tmp_path: Path) -> None:
    began = stored(
        tmp_path, "task.limit=17", "gate=threshold", "sweep=batched_tokens", "servers.vllm.extra_args=[--seed,1]"
    )
    assert resumed(tmp_path, bare=True) == replace(began, resume="run")


def test_a_moved_results_folder_goes_on_where_it_is(tmp_path: Path) -> None:
    stored(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    assert resumed(tmp_path / "after", bare=True).results_dir == str(tmp_path / "after")


def test_the_same_overrides_are_accepted(tmp_path: Path) -> None:
    began = stored(tmp_path, "run_id=run", "task.limit=17", "+engine.env.API_TOKEN=geheim")
    assert resumed(tmp_path, "task.limit=17", "+engine.env.API_TOKEN=geheim") == replace(began, resume="run")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("task.limit=18", "task.limit was 17 when the run began and is 18 now"),
        ("task.limit=null", "task.limit was 17 when the run began and is None now"),
        ("gate=threshold", "gate.name was equivalence when the run began and is threshold now"),
        ("sweep.hit_rates=[0.5]", "sweep.hit_rates was ['full'] when the run began and is [0.5] now"),
        ("+engine.env.NEW=1", "engine.env.NEW was nothing when the run began and is 1 now"),
        ("check.cell=[clear,{pass: warm}]", "check.cell was "),
    ],
)
def test_a_changed_field_is_named_with_both_values(tmp_path: Path, override: str, told: str) -> None:
    stored(tmp_path, "task.limit=17")
    with pytest.raises(UsageError) as caught:
        resumed(tmp_path, "task.limit=17", override)
    assert str(caught.value).startswith("resume=run: ") and told in str(caught.value)
    assert "same overrides as before or none at all" in str(caught.value)


def test_a_start_that_took_too_long_may_be_given_more_time(tmp_path: Path) -> None:
    stored(tmp_path, "task.limit=17")
    given = resumed(tmp_path, "task.limit=17", "servers.vllm.start_timeout_s=900")
    assert given.servers.vllm.start_timeout_s == 900


def test_a_secret_that_was_not_stored_has_to_be_given_again(tmp_path: Path) -> None:
    stored(tmp_path, "+engine.env.API_TOKEN=geheim")
    with pytest.raises(
        UsageError, match=r"does not hold the secret in engine\.env\.API_TOKEN: resume it with the same"
    ):
        resumed(tmp_path, bare=True)


def test_a_run_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "resume=nope", f"results_dir={tmp_path}"]) == 2
    assert f"{tmp_path} holds no run of that name" in capsys.readouterr().err


def test_a_run_is_named_by_its_folder_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_run_path(["resume=night/run"]) == ["results_dir=night", "resume=run"]
    assert with_run_path([f"resume={tmp_path}/run/"]) == [f"results_dir={tmp_path}", "resume=run"]
    assert with_run_path(["resume=run", "results_dir=night"]) == ["resume=run", "results_dir=night"]
    with pytest.raises(UsageError, match="leave results_dir out, or write resume=run"):
        with_run_path(["resume=night/run", "results_dir=night"])
    monkeypatch.chdir(tmp_path)
    assert main(["run", "resume=night/nope"]) == 2
    assert f"resume=nope: {tmp_path / 'night'} holds no run of that name" in capsys.readouterr().err


def test_the_folder_of_several_arms_says_how_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms" / "attribution.json").write_text("{}")
    assert main(["run", f"resume={tmp_path / 'arms'}"]) == 2
    assert "holds the arms of one run: go on with +check=all" in capsys.readouterr().err


def test_differences() -> None:
    assert difference({"a": 1, "b": {"c": [1], "d": {}}}, {"b": {"d": {}, "c": [1]}, "a": 1}) is None
    assert difference({"a": {"b": 1}}, {"a": {"b": 2}}) == ("a.b", 1, 2)
    assert difference({"a": {"b": 1}}, {"a": {"b": 2}}, free=("a.b",)) is None
    assert difference({"a": {}}, {"a": {"b": 2}}) is not None
    assert difference({"a": 1}, {}) == ("a", 1, "nothing")


def test_other_programs_are_refused() -> None:
    before = {"versions": {"vllm": {"vllm": "0.32.0"}}}
    check_versions(before, before)
    with pytest.raises(UsageError, match=r"vllm\.vllm was 0\.32\.0 when the run began and is 0\.33\.0 now"):
        check_versions(before, {"versions": {"vllm": {"vllm": "0.33.0"}}})


# --- the folder --------------------------------------------------------------------------------------------


def killed_run(results: Path) -> RunFolder:
    """What a killed run left: one whole cell, half of another, and a launch; unlocked, since its process is gone."""
    folder = RunFolder.create(results, "run")
    write_json(folder.path / "run.json", {"status": "running"})
    finished_cell(folder, "whole", folder.launch("budget64-r1"))
    (folder.path / "cells" / "half.tmp-4711").mkdir()
    (folder.path / "cells" / "half.tmp-4711" / "cell.json").write_text("{}")
    folder.unlock()
    return folder


def finished_cell(folder: RunFolder, name: str, launch: Path, prompt_set: str = FACTS.prompt_set_sha256) -> None:
    """A cell that passed, written as a run does."""
    facts = replace(healthy().facts, cell_id=name, prompt_set_sha256=prompt_set)
    cell = write_cell(folder.cell(name), replace(healthy(), facts=facts), launch / "passes" / name)
    write_json(cell / "cell.json", judge_cell(read_evidence(cell), GateConfig(name="test")))


def test_half_a_cell_is_cleared_away_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    killed_run(tmp_path)
    folder = RunFolder.reopen(tmp_path, "run")
    assert sorted(path.name for path in (folder.path / "cells").iterdir()) == ["whole"]
    assert (folder.path / ".reserve").stat().st_size > 0


@pytest.mark.parametrize("run_id", ["", "..", "a/b"])
def test_resumed_ids_stay_inside_the_results_folder(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError, match=r"resume=.* must be a plain folder name"):
        RunFolder.reopen(tmp_path, run_id)


def test_a_folder_without_a_record_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match=r"resume=run: .* holds no run of that name"):
        RunFolder.reopen(tmp_path, "run")


def test_a_run_that_still_goes_on_is_left_alone(tmp_path: Path) -> None:
    going_on = RunFolder.create(tmp_path, "run")
    write_json(going_on.path / "run.json", {})
    half = going_on.path / "cells" / "half.tmp-1"
    half.mkdir()
    with pytest.raises(UsageError, match="is being written by another process"):
        RunFolder.reopen(tmp_path, "run")
    assert half.is_dir()
    going_on.unlock()
    RunFolder.reopen(tmp_path, "run").unlock()


def test_a_killed_process_holds_no_run(tmp_path: Path) -> None:
    script = "import sys, time; from pathlib import Path; from harness.store import RunFolder\n"
    script += "folder = RunFolder.create(Path(sys.argv[1]), 'run'); (folder.path / 'run.json').write_text('{}')\n"
    script += "print('up', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"up\n"
    with pytest.raises(UsageError, match="another process"):
        RunFolder.reopen(tmp_path, "run")
    holder.kill()
    holder.wait()
    RunFolder.reopen(tmp_path, "run").unlock()


def test_an_earlier_attempt_at_a_launch_is_set_aside(tmp_path: Path) -> None:
    folder = killed_run(tmp_path)
    folder.set_aside("budget64-r1")
    (folder.launch("budget64-r1") / "vllm.log").write_text("second")
    folder.set_aside("budget64-r1")
    folder.set_aside("never-launched")
    assert sorted(path.name for path in (folder.path / "launches").iterdir()) == [
        "budget64-r1.cut-1",
        "budget64-r1.cut-2",
    ]
    assert (folder.path / "launches" / "budget64-r1.cut-2" / "vllm.log").read_text() == "second"


# --- the walk ----------------------------------------------------------------------------------------------


class Servers:
    """Replaces launches: cells are written without servers, until one of them is the last that this process lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[str] = []
        self.dies_at = ""
        self.prompt_set = FACTS.prompt_set_sha256
        monkeypatch.setattr(runner, "run_launch", self.launch)
        monkeypatch.setattr(runner, "check_installed", lambda config: None)
        monkeypatch.setattr(runner, "load_task", lambda *_: None)
        monkeypatch.setattr(runner, "provenance", lambda *_: {"versions": {}})

    def launch(self, config: RunConfig, check: Any, launch: Launch, record: RunRecord, *_: Any) -> None:
        folder = record.folder.launch(launch.id)
        (folder / "passes").mkdir()  # as a pass does, and not twice
        record.data["launches"][launch.id] = {}
        record.prompts_built(self.prompt_set)
        for cell in launch.cells:
            self.cell(record.folder, cell, folder)

    def cell(self, folder: RunFolder, cell: Cell, launch: Path) -> None:
        if cell.id == self.dies_at:
            with NewFolder(folder.cell(cell.id)) as half:
                (half / "requests.parquet").write_text("half")
                raise HarnessError("vLLM exited with code 1.")
        self.measured.append(cell.id)
        finished_cell(folder, cell.id, launch, self.prompt_set)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    return Servers(monkeypatch)


def begin(results: Path) -> tuple[RunFolder, dict[str, Any], int]:
    return run(composed(f"results_dir={results}", "run_id=run", "sweep.budgets=[N,2N-1]", RATES), RunProgress())


def go_on(results: Path, *overrides: str) -> tuple[RunFolder, dict[str, Any], int]:
    return run(resumed(results, *overrides, bare=not overrides), RunProgress())


@pytest.mark.parametrize("dies_at", CELLS)
def test_no_cell_is_repeated_and_none_is_lost(tmp_path: Path, servers: Servers, dies_at: str) -> None:
    servers.dies_at = dies_at
    with pytest.raises(HarnessError):
        begin(tmp_path)
    assert read_json(tmp_path / "run" / "run.json")["status"] == "failed"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "cells").glob("*/cell.json")}
    assert {path.parent.name for path in before} == set(CELLS[: CELLS.index(dies_at)])

    servers.dies_at = ""
    folder, record, code = go_on(tmp_path)
    assert servers.measured == CELLS, "each once, in the order of the sweep"
    assert (record["status"], record["verdict"], record["error"], code) == ("complete", "pass", None, 0)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {cell["cell"] for cell in folder.cells()} == set(CELLS)
    assert len(record["resumed"]) == 1
    assert not (folder.path / ".reserve").exists()


def test_a_complete_run_goes_on_to_nothing(tmp_path: Path, servers: Servers) -> None:
    begin(tmp_path)
    _, record, code = go_on(tmp_path)
    assert servers.measured == CELLS
    assert (record["status"], record["verdict"], code) == ("complete", "pass", 0)


def test_a_run_may_be_resumed_again_and_again(tmp_path: Path, servers: Servers) -> None:
    for servers.dies_at in CELLS[:3]:
        with pytest.raises(HarnessError):
            begin(tmp_path) if servers.dies_at == CELLS[0] else go_on(tmp_path)
    servers.dies_at = ""
    _, record, _ = go_on(tmp_path)
    assert servers.measured == CELLS
    assert len(record["resumed"]) == 3
    assert record["config"]["resume"] is None and record["config"]["run_id"] == "run"


def test_other_prompts_are_refused(tmp_path: Path, servers: Servers) -> None:
    servers.dies_at = CELLS[2]
    with pytest.raises(HarnessError):
        begin(tmp_path)
    servers.dies_at, servers.prompt_set = "", "0f" * 32
    with pytest.raises(UsageError, match=r"\(hash 0f0f0f0f0f0f\) are not those .* \(5e5e5e5e5e5e\)"):
        go_on(tmp_path)
    assert servers.measured == CELLS[:2]


def test_other_versions_are_refused(tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    servers.dies_at = CELLS[0]
    with pytest.raises(HarnessError):
        begin(tmp_path)
    monkeypatch.setattr(runner, "provenance", lambda *_: {"versions": {"vllm": {"vllm": "9"}}})
    with pytest.raises(UsageError, match=r"vllm\.vllm was nothing when the run began and is 9 now"):
        go_on(tmp_path)


def test_a_refused_resume_leaves_the_run_as_it_was(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.dies_at = CELLS[2]
    with pytest.raises(HarnessError):
        begin(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    monkeypatch.setattr(runner, "provenance", lambda *_: {"versions": {"vllm": {"vllm": "9"}}})
    with pytest.raises(UsageError):
        go_on(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    RunFolder.reopen(tmp_path, "run").unlock()


@pytest.mark.parametrize("schema", [2, 0, "1", True, None])
def test_a_run_of_another_layout_is_refused_by_whoever_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schema: object
) -> None:
    stored(tmp_path)
    path = tmp_path / "run" / "run.json"
    write_json(path, read_json(path) | {"schema": schema})
    for command in (["run", f"results_dir={tmp_path}", "resume=run"], ["report", str(tmp_path / "run")]):
        assert main(command) == 2
        assert (
            f"run.json has schema {schema!r}, and this version of the harness reads up to 1" in capsys.readouterr().err
        )


def test_half_written_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    folder = killed_run(tmp_path)
    (folder.path / ".run.json.tmp-4711").write_text("{")
    RunFolder.reopen(tmp_path, "run").unlock()
    assert sorted(path.name for path in folder.path.iterdir()) == [".reserve", "cells", "launches", "run.json"]
