"""The command as a user types it, on the real servers: to the end, and cut short by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest
from stack_support import server_processes, shared_memory

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


def start(results: Path, *overrides: str, run: str = "run_id=run") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", "run", f"results_dir={results}", run, *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def completions(log: Path) -> int:
    """Requests that vLLM has begun to answer."""
    return log.read_text().count("POST /v1/completions")


def wait_while(run: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Waits until a condition no longer holds, while the run goes on."""
    deadline = time.monotonic() + 300
    while condition():
        assert time.monotonic() < deadline and run.poll() is None, run.communicate()[1]
        time.sleep(0.1)


def listening(*processes: psutil.Process) -> set[int]:
    """Ports that processes listen on; without any, all of the machine."""
    found = [c for p in processes for c in p.net_connections("tcp")] if processes else psutil.net_connections("tcp")
    return {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN and c.laddr}


def test_the_main_job_passes(tmp_path: Path) -> None:
    before = shared_memory()
    run = start(tmp_path, "task.limit=100")
    out, err = run.communicate()
    assert run.returncode == 0, err
    assert "PASS: the score is unchanged over 100 questions" in " ".join(out.split())
    assert "cold pass" in err and "warm pass" in err

    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["schema"], record["status"], record["verdict"]) == (1, "complete", "pass")
    assert (record["model"], record["unified_block_size"]) == ("pocket", 64)
    assert record["provenance"]["versions"]["vllm"]["vllm"] == "0.32.0+cpu"
    assert record["launches"]["budget127-r1"]["commands"]["vllm"][:2] == ["vllm", "serve"]

    (folder,) = (tmp_path / "run" / "cells").iterdir()
    cell = json.loads((folder / "cell.json").read_text())
    rate = cell["hit_rate"]
    assert rate["measured"] >= 0.9 * rate["reachable"]
    assert set(cell["passes"]) == {"control", "cold", "local_warm", "warm"}
    assert cell["passes"]["warm"]["ttft_s"]["p50"] < cell["passes"]["cold"]["ttft_s"]["p50"]
    requests = pd.read_parquet(folder / "requests.parquet")
    orders = {name: tuple(rows.sort_values("sent_s")["doc_id"]) for name, rows in requests.groupby("pass")}
    assert len(set(orders.values())) == 4, "every pass has an order of its own"

    assert server_processes(tmp_path) == []
    assert shared_memory() <= before


def test_gross_damage_ends_a_quick_run_early(tmp_path: Path) -> None:
    run = start(tmp_path, "gate=quick", "check=flipped_bytes", "task.limit=200")
    _, err = run.communicate()
    assert run.returncode == 1, err
    (folder,) = (tmp_path / "run" / "cells").iterdir()
    cell = json.loads((folder / "cell.json").read_text())
    assert cell["verdict"] == "fail"
    assert 40 <= cell["passes"]["warm"]["n"] < 200
    assert server_processes(tmp_path) == []


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_and_keeps_what_was_measured(tmp_path: Path, stop: signal.Signals) -> None:
    before = shared_memory()
    run = start(tmp_path, "task.limit=100")
    try:
        launch = tmp_path / "run" / "launches" / "budget127-r1"
        cold = launch / "passes" / "cold"
        wait_while(run, lambda: not cold.is_dir())
        answered = completions(launch / "vllm.log")
        wait_while(run, lambda: completions(launch / "vllm.log") < answered + 10)
        harness = psutil.Process(run.pid)
        ports = listening(*harness.children(recursive=True))
        assert ports
        run.send_signal(stop)
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["verdict"]) == ("interrupted", None)
    assert len(pd.read_parquet(cold.parent / "control" / "requests.parquet")) == 100
    assert 0 < len(pd.read_parquet(cold / "requests.parquet")) < 100
    assert server_processes(tmp_path) == []
    assert shared_memory() <= before
    assert not ports & listening()


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL in the second cell's warm pass: the first cell is kept, the second measured, and nothing is left."""
    before = shared_memory()
    run = start(tmp_path, "task.limit=30", "sweep.hit_rates=[full,0.5]", "check.launch=[clear,{pass: cold}]")
    folder = tmp_path / "run"
    warm = folder / "launches" / "budget127-r1" / "passes" / "budget127-hit0.50-r1" / "warm"
    try:
        wait_while(run, lambda: not warm.is_dir())
    finally:
        run.kill()
        run.communicate()
    kept = folder / "cells" / "budget127-full-r1" / "cell.json"
    written = kept.stat().st_mtime_ns
    assert json.loads((folder / "run.json").read_text())["status"] == "running"

    changed = start(tmp_path, "task.limit=31", run="resume=run")
    assert changed.wait() == 2
    again = start(tmp_path, run="resume=run")
    _, err = again.communicate()
    assert again.returncode == 4, err  # 30 questions are too few to tell
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["verdict"], len(record["resumed"])) == ("complete", "inconclusive", 1)
    assert sorted(path.name for path in (folder / "cells").iterdir()) == ["budget127-full-r1", "budget127-hit0.50-r1"]
    assert kept.stat().st_mtime_ns == written
    assert server_processes(tmp_path) == []
    assert shared_memory() <= before


def test_a_failed_run_is_replayed(tmp_path: Path) -> None:
    """Damage breaks answers again when the same prompts are sent to new servers, and none breaks without it."""
    before = shared_memory()
    run = start(tmp_path, "task.limit=60", "check=flipped_bytes")
    _, err = run.communicate()
    assert run.returncode == 1, err
    cell = tmp_path / "run" / "cells" / "budget127-full-r1"
    sent = [json.loads(line) for line in (cell / "repro" / "prompts.jsonl").read_text().splitlines()]
    assert len(sent) == 20 and all(prompt["differed"] for prompt in sent)

    for check, differ in (("flipped_bytes", 10), ("reset_warm", 0)):
        again = start(tmp_path, f"replay={cell / 'repro'}", f"check={check}", run=f"run_id={check}")
        out, err = again.communicate()
        assert again.returncode == (1 if differ else 4), err
        assert "20 prompts that differed then differ now" in " ".join(out.split())
        replayed = tmp_path / check / "cells" / "budget127-full-r1"
        told = json.loads((replayed / "cell.json").read_text())["replay"]
        assert (told["of"], told["prompts"], told["differed_then"]) == ("run/budget127-full-r1", 20, 20)
        assert differ <= told["of_these_differ_now"] <= (20 if differ else 0)
        requests = pd.read_parquet(replayed / "requests.parquet")
        assert set(requests["prompt_sha256"]) == {prompt["sha256"] for prompt in sent}
        cold = requests[requests["pass"] == "cold"].sort_values("sent_s")["doc_id"]
        assert list(cold) != [prompt["doc_id"] for prompt in sent], "in an order of their own"
    assert server_processes(tmp_path) == []
    assert shared_memory() <= before
