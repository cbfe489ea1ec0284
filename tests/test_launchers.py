"""Multiruns whose jobs run in other processes: what each is given, and the exit code that comes back."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_support import left_of, make_python, run_arguments
from hydra.core.plugins import Plugins

from harness import cli
from harness.cli import compose_config
from harness.cli.jobs import Job, JobEnd, differing
from harness.cli.output import Output
from harness.errors import HarnessError
from harness.overrides import LAUNCHERS
from harness.runner import new_run_id
from harness.servers.ports import free_ports, give_back

Captured = pytest.CaptureFixture[str]

needs_submitit = pytest.mark.skipif(
    find_spec("submitit") is None or find_spec("hydra_plugins.hydra_submitit_launcher") is None,
    reason="needs hydra-submitit-launcher: pip install -e '.[cluster]'",
)
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None or find_spec("hydra_plugins.hydra_ray_launcher") is None,
    reason="needs hydra-ray-launcher: pip install -e '.[cluster]'",
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitit gives a result that is not there 15 s to appear, as shared file systems need."""
    pytest.importorskip("submitit")
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 0.5)


@pytest.fixture(autouse=True)
def own_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray keeps its cluster's token there


def ends(out: str) -> list[dict[str, Any]]:
    """What format=json says of each job."""
    return [json.loads(line) for line in out.splitlines()]


# --- what is known of jobs ---------------------------------------------------------------------------------


def test_a_job_goes_to_another_process_without_its_stream(tmp_path: Path) -> None:
    job = Job(Output(stdout=sys.stdout, quiet=True), bare=True)
    job.ended(0, (), JobEnd(4, {"path": "x"}))
    there = pickle.loads(pickle.dumps(job))
    assert (there.output.stdout, there.output.quiet, there.bare, there.ends) == (None, True, True, {})
    assert job.worst == 4


def test_a_multirun_of_which_nothing_is_known_is_no_pass() -> None:
    with pytest.raises(HarnessError, match="No job said how it ended") as caught:
        _ = Job(Output(), bare=False).worst
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("end", [None, "pass", 0, JobEnd(77)])
def test_what_is_no_exit_code_is_a_failure(end: object) -> None:
    job = Job(Output(), bare=False)
    job.ended(0, (), end)
    assert job.worst == 3


def test_the_first_word_counts(capsys: Captured) -> None:
    """A launcher tells a job at once, and the sweeper all of them again at the end."""
    job = Job(Output(form="json"), bare=False)
    job.ended(0, ["a=1"], JobEnd(0, {"exit_code": 0}))
    job.ended(0, ["a=1"], JobEnd(1, {"exit_code": 1}))
    assert job.worst == 0 and ends(capsys.readouterr().out) == [{"exit_code": 0}]


def test_jobs_are_told_apart_by_what_differs() -> None:
    assert differing([["a=1", "b=2"], ["a=1", "b=3"]]) == [["b=2"], ["b=3"]]
    assert differing([["a=1"]]) == [[]] and differing([]) == []


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_cluster_for_one_run_needs_the_switch(name: str, capsys: Captured) -> None:
    assert cli.main(["run", "engine=cpu", f"hydra/launcher={name}"]) == 2
    assert capsys.readouterr().err == (
        f"error: hydra/launcher={name} is for a multirun: add -m, for a single job as well.\n"
    )


def test_launchers_are_those_of_the_folder() -> None:
    assert sorted(LAUNCHERS) == sorted(each.stem for each in (cli.configs_folder() / "hydra/launcher").glob("*.yaml"))


@pytest.mark.parametrize(("name", "package"), [("slurm", "submitit"), ("local", "submitit"), ("ray_job", "ray")])
def test_a_plugin_that_is_missing(
    name: str, package: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    Plugins.instance()  # it looks for plugins once in a process: not while they are hidden
    for module in (package, "hydra_plugins.hydra_submitit_launcher.submitit_launcher"):
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["run", "-m", "engine=cpu", f"hydra/launcher={name}", f"results_dir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: hydra/launcher={name} needs ") and "pip install -e" in err and err.count("\n") == 1


# --- two jobs on one machine -------------------------------------------------------------------------------


def test_ports_are_not_given_twice(tmp_path: Path) -> None:
    """Servers bind theirs long after they were chosen, and another run may be choosing on the same machine."""
    mine = free_ports(2)
    script = "import sys; from harness.servers.ports import _claim; print([_claim(int(p)) for p in sys.argv[1:]])"

    def others_may_have() -> str:
        words = [sys.executable, "-c", script, *map(str, mine)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert others_may_have() == "[False, False]"
    give_back(mine)
    assert others_may_have() == "[True, True]"


def test_two_multiruns_of_one_second_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.run.run_one", lambda *_, **__: 0)
    for _ in range(2):
        argv = ["run", "-m", "engine=cpu", f"results_dir={tmp_path}", "load.seed=1,2"]
        assert cli.main([*argv, "hydra.job.name=x"]) == 0
    assert len(list((tmp_path / "multirun").iterdir())) == 2


def test_names_of_the_runs_of_a_multirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def one(composed: Any, *_: object, **__: object) -> int:
        asked.append(composed.run_id)
        return 0

    monkeypatch.setattr("harness.cli.run.run_one", one)
    argv = ["run", "-m", "engine=cpu", f"results_dir={tmp_path}", "load.seed=1,2", "run_id=night-${hydra:job.num}"]
    assert cli.main(argv) == 0
    assert asked == ["night-0", "night-1"]


def test_a_shard_is_named_in_the_run_id(tmp_path: Path) -> None:
    config = compose_config(["engine=cpu", f"results_dir={tmp_path}", "sweep.shard=2/3"])
    assert new_run_id(config).endswith("-pocket-smoke-2of3")


# --- submitit's own executor -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Whose temporary folder tells the servers of this test from others."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    yield tmp_path
    for each in left_of(tmp_path / "t"):
        each.kill()


@needs_submitit
def test_exit_codes_come_back_and_a_job_that_died_is_a_failure(impatient: None, folder: Path, capfd: Captured) -> None:
    """The second job is killed by its LMCache, before it can say anything."""
    own = [each for each in run_arguments(folder)[1:] if not each.startswith(("gate.", "servers.lmcache.python"))]
    killer = make_python(folder / "killer")
    killer.write_text(killer.read_text().replace("exec ", 'case "$*" in *lmcache.cli*) kill -9 $PPID;; esac\nexec ', 1))
    pythons = f"servers.lmcache.python={folder / 'python'},{killer}"
    code = cli.main(["run", "-m", "format=json", "hydra/launcher=local", *own, pythons])
    out, err = capfd.readouterr()
    assert code == 3, err
    well, died = ends(out)
    assert well["exit_code"] == 4 and well["run"]["verdict"] == "inconclusive" and well["cells"]
    assert died == {"exit_code": 3, "error": died["error"]}
    assert re.search(r"^the job ended without a result \(\w+\); it said last: .* Its log: /", died["error"])
    assert f"job 1 (servers.lmcache.python={killer}): exit code 3: the job ended without" in " ".join(err.split())
    runs = [each.parent for each in (folder / "results").glob("*/run.json")]
    assert len(runs) == 2, "each has its own folder"
    assert {json.loads((each / "run.json").read_text())["status"] for each in runs} == {"complete", "running"}
    assert cli.main(["report", str(folder / "results"), f"out={folder / 'both'}"]) == 0
    page = (folder / "both" / "report.html").read_text()
    assert all(each.name in page for each in runs)
    assert cli.main(["clean", str(folder / "results")]) == 0, "what the killed job has left"
    assert left_of(folder / "t") == []


@needs_submitit
def test_an_interruption_ends_the_jobs_and_their_servers(folder: Path) -> None:
    """A Ctrl-C of the terminal reaches the whole group."""
    own = [*run_arguments(folder)[1:], "load.seed=1,2", "hydra/launcher=local"]
    slow = {"STANDIN_FAULTS": json.dumps({"vllm": {"token_pause_s": 0.5}})}
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", "-m", *own],
        env=os.environ | slow,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 200
    while len(list((folder / "results").glob("*/launches/*/vllm.log"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130 and err.rstrip().endswith("interrupted"), err
    assert left_of(folder / "t") == []
    assert not any("harness" in " ".join(each.cmdline()) for each in psutil.Process(os.getpid()).children())
    records = [json.loads(each.read_text()) for each in (folder / "results").glob("*/run.json")]
    assert [each["status"] for each in records] == ["interrupted"] * 2


@needs_submitit
def test_an_exit_code_comes_back_through_a_plugins_own_launcher(tmp_path: Path, capfd: Captured) -> None:
    argv = ["engine=cpu", f"results_dir={tmp_path}", "servers.vllm.python=/nonexistent/python"]
    assert cli.main(["run", "-m", "hydra/launcher=submitit_local", *argv]) == 2
    assert "job 0: exit code 2: servers.vllm.python=/nonexistent/python is not a Python" in capfd.readouterr().err


@needs_submitit
def test_jobs_that_would_share_gpus(tmp_path: Path, capsys: Captured) -> None:
    argv = ["run", "-m", "model=qwen3_5_0_8b,qwen3_6_27b", "hydra/launcher=local", f"results_dir={tmp_path}"]
    assert cli.main(argv) == 2
    assert "starts 2 jobs at once, which would all take the same GPUs" in capsys.readouterr().err


# --- Slurm -------------------------------------------------------------------------------------------------

SBATCH = """#!/bin/sh
number=$(ls {folder} | wc -l)
cp "$1" {folder}/$number.sh
echo "Submitted batch job 7$number"
"""
SACCT = """#!/bin/sh
echo "JobID|State|NodeList"
for each in 70 71; do echo "$each|OUT_OF_MEMORY|node1"; done
"""


@pytest.fixture
def slurm(impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands, of a cluster where every job runs out of memory; and where scripts are kept."""
    kept, programs = tmp_path / "kept", tmp_path / "bin"
    kept.mkdir()
    programs.mkdir()
    texts = {"sbatch": SBATCH.format(folder=kept), "sacct": SACCT, "srun": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return kept


def submitted(argv: Sequence[str], kept: Path) -> list[str]:
    """The scripts that sbatch gets, each without what names a folder of the test."""
    assert cli.main(["run", "-m", "hydra/launcher=slurm", *argv]) == 3
    return [each.read_text() for each in sorted(kept.iterdir())]


@needs_submitit
def test_every_job_asks_for_the_gpus_of_its_own_model(slurm: Path, tmp_path: Path, capsys: Captured) -> None:
    models = "model=qwen3_6_27b,qwen3_8_flash_next"
    one, eight = submitted([models, f"results_dir={tmp_path}", "hydra.launcher.partition=h200"], slurm)
    assert "#SBATCH --gpus-per-node=1\n" in one and "#SBATCH --job-name=harness-qwen3_6_27b\n" in one
    for line in (
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --job-name=harness-qwen3_8_flash_next",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --time=240",
        "#SBATCH --signal=USR2@120",
        "#SBATCH --partition=h200",
    ):
        assert f"{line}\n" in eight, eight
    assert "srun --unbuffered --output" in eight and "-m submitit.core._submit" in eight
    assert "--array" not in eight, "an array's jobs would all ask for the same"
    err = capsys.readouterr().err
    assert err.count("exit code 3: the job ended without a result (OUT_OF_MEMORY); it said nothing") == 2


@needs_submitit
def test_no_gpus_are_not_asked_for(slurm: Path, tmp_path: Path) -> None:
    (script,) = submitted(["engine=cpu", f"results_dir={tmp_path}", "hydra.launcher.mem_gb=8"], slurm)
    assert "#SBATCH --gpus" not in script and "#SBATCH --mem=8GB\n" in script


@needs_submitit
def test_the_script_in_the_docs_is_the_one(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (script,) = submitted(["model=qwen3_8_flash_next", "results_dir=SHARED"], slurm)
    page = (Path(__file__).parent.parent / "docs" / "clusters.md").read_text()
    shown = [line for line in script.splitlines() if line.startswith("#SBATCH") and str(tmp_path) not in line]
    assert len(shown) > 8
    for line in shown:
        assert line in page, line


@needs_submitit
def test_a_machine_without_slurm(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["run", "-m", "engine=cpu", "hydra/launcher=slurm", f"results_dir={tmp_path}"]) == 2
    assert "hydra/launcher=slurm: " in capsys.readouterr().err


@needs_submitit
def test_a_wrong_job_is_refused_before_any_is_queued(slurm: Path, tmp_path: Path, capsys: Captured) -> None:
    argv = ["engine=cpu", "hydra/launcher=slurm", f"results_dir={tmp_path}", "load.concurrency=8,0"]
    assert cli.main(["run", "-m", *argv]) == 2
    assert "load.concurrency=0 is out of range" in capsys.readouterr().err
    assert list(slurm.iterdir()) == []


# --- Ray ---------------------------------------------------------------------------------------------------


@needs_ray
def test_ray_hands_back_exit_codes(tmp_path: Path, capfd: Captured) -> None:
    argv = ["engine=cpu", f"results_dir={tmp_path}", "load.seed=1,2", "servers.vllm.python=/nonexistent/python"]
    assert cli.main(["run", "-m", "format=json", "hydra/launcher=ray_job", *argv]) == 2
    first, second = ends(capfd.readouterr().out)
    assert first["exit_code"] == second["exit_code"] == 2
    assert "servers.vllm.python=/nonexistent/python is not a Python that runs" in first["error"]
    assert len(list(tmp_path.glob("multirun/*/[01]/job.log"))) == 2


@needs_ray
def test_ray_has_to_have_the_gpus(tmp_path: Path, capfd: Captured) -> None:
    """A task that asks for what no machine has would wait for ever."""
    argv = ["model=qwen3_8_flash_next", "model.gpus=1000", f"results_dir={tmp_path}", "hydra/launcher=ray_job"]
    assert cli.main(["run", "-m", *argv]) == 2
    assert "needs 1000 GPUs, and Ray would be started on this machine, which has " in capfd.readouterr().err
