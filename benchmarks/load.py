"""Load on the harness itself, against stand-in servers: the client at many requests, and a long sweep that is killed.

    python benchmarks/load.py client [requests=10000] [concurrency=1,64,512]
    python benchmarks/load.py sweep [cells=200] [kills=5]

Prints JSON: counts, memory of the harness's own process, seconds.  Nothing of vLLM or LMCache is measured here.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import requests

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from fault_support import left_of, make_python, run_arguments  # noqa: E402
from serving import serving  # noqa: E402

from harness.config import LoadConfig  # noqa: E402
from harness.measure.counters import parse_counters  # noqa: E402
from harness.servers.ports import free_ports  # noqa: E402
from harness.store import RunFolder  # noqa: E402
from harness.workload.client import Target, send_all  # noqa: E402
from harness.workload.prompts import Prompt  # noqa: E402
from harness.workload.stream import RequestRecord  # noqa: E402

PROMPT_TOKENS = 200
NUMBER = 1_000_000
"""The stand-in's id of the number 0; it answers a prompt with the last number in it."""


@contextmanager
def standin(folder: Path) -> Iterator[str]:
    """A vLLM stand-in without LMCache, in a process of its own; its URL."""
    (port,) = free_ports(1)
    command = [
        str(make_python(folder / "python")),
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        "x",
        "--port",
        str(port),
    ]
    env = os.environ | {"TMPDIR": str(folder)}
    with (folder / "log").open("wb") as log, serving(command, port, env=env, stdout=log, stderr=log) as url:
        yield url


def send(url: str, count: int, concurrency: int) -> dict[str, Any]:
    """Sends so many distinct prompts; what came back, counted on both sides."""
    sent = [Prompt(i, "", (*range(PROMPT_TOKENS - 1), NUMBER + i), (), 16) for i in range(count)]
    process = psutil.Process()
    answered: Counter[int] = Counter()
    wrong = ended = 0
    errors, memory = Counter[str](), []

    def done(record: RequestRecord) -> None:
        nonlocal wrong, ended
        ended += 1
        answered[record.doc_id] += 1
        if record.error is not None:
            errors[record.error[:80]] += 1
        elif record.token_ids[-1] != NUMBER + record.doc_id or record.text != f" #### {record.doc_id}":
            wrong += 1
        if ended % max(1, count // 10) == 0:
            memory.append(round(process.memory_info().rss / 1e6, 1))

    load = LoadConfig(concurrency=concurrency, request_timeout_s=120)
    before = parse_counters(requests.get(url + "/metrics", timeout=5).text)
    cpu = process.cpu_times()
    wall_s = asyncio.run(send_all(sent, Target(url, "pocket"), load, done))
    used = process.cpu_times()
    after = parse_counters(requests.get(url + "/metrics", timeout=5).text)
    name = "vllm:prompt_tokens_total"
    return {
        "requests": count,
        "concurrency": concurrency,
        "answered_once": sum(times == 1 for times in answered.values()),
        "lost": count - len(answered),
        "counted_twice": sum(times > 1 for times in answered.values()),
        "wrong_answers": wrong,
        "errors": dict(errors),
        "counted_by_the_server": (after[name] - before[name]) / PROMPT_TOKENS,
        "wall_s": round(wall_s, 1),
        "requests_per_s": round(count / wall_s),
        "client_cpu_ms_per_request": round(1e3 * (used.user + used.system - cpu.user - cpu.system) / count, 2),
        "rss_mb_per_tenth": memory,
    }


def sweep(folder: Path, cells: int, kills: int, seed: int = 0) -> dict[str, Any]:
    """A sweep whose harness is killed with SIGKILL at random moments, and resumed until it is complete."""
    chance = random.Random(seed)
    per_launch = min(20, cells)
    rates = ",".join(["full", *(f"{i / per_launch:.2f}" for i in range(1, per_launch))])
    overrides = [f"sweep.hit_rates=[{rates}]", f"sweep.repeats={cells // per_launch}"]
    temporary = folder / "tmp"
    temporary.mkdir()
    env = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
    began = time.monotonic()
    arguments = run_arguments(folder, "run_id=run", *overrides, count=8)
    run = RunFolder(folder / "results" / "run")
    memory: list[tuple[int, float]] = []
    written: dict[str, int] = {}
    killed_at: list[int] = []
    codes: list[int] = []
    while True:
        with (folder / "err").open("ab") as err:
            child = subprocess.Popen(
                [sys.executable, "-m", "harness", *arguments], cwd=ROOT, env=env, stdout=err, stderr=err
            )
        harness = psutil.Process(child.pid)
        ends = time.monotonic() + chance.uniform(12, 60) if len(killed_at) < kills else None
        while child.poll() is None:
            done = len(list((run.path / "cells").glob("*/cell.json")))
            if rss := harness.memory_info().rss:  # none once it is about to end
                memory.append((done, rss / 1e6))
            if ends is not None and time.monotonic() > ends:
                child.kill()
                killed_at.append(done)
            time.sleep(0.5)
        codes.append(child.wait())
        now = {path.parent.name: path.stat().st_mtime_ns for path in (run.path / "cells").glob("*/cell.json")}
        assert written.items() <= now.items(), "a finished cell was written again or lost"
        written = now
        if codes[-1] != -9:
            break
        if (run.path / "run.json").is_file():
            arguments = ["run", "resume=run", f"results_dir={folder / 'results'}"]
        else:  # killed before it had begun
            shutil.rmtree(run.path, ignore_errors=True)
    record = json.loads((run.path / "run.json").read_text())
    tenths = {done * 10 // cells: rss for done, rss in memory}
    return {
        "cells": len(run.cells()),
        "distinct": len({cell["cell"] for cell in run.cells()}),
        "killed_after_cells": killed_at,
        "exit_codes": codes,
        "status": record["status"],
        "resumed": len(record["resumed"]),
        "rss_mb_by_tenth": {str(tenth): round(rss, 1) for tenth, rss in sorted(tenths.items())},
        "wall_s": round(time.monotonic() - began, 1),
        "processes_left": len(left_of(temporary)),
        "files_left_in_tmp": len(list(temporary.iterdir())),
    }


def main() -> None:
    """Runs what was asked for."""
    what, *words = sys.argv[1:]
    told = dict(word.split("=") for word in words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if what == "sweep":
            print(json.dumps(sweep(folder, int(told.get("cells", 200)), int(told.get("kills", 5))), indent=1))
            return
        with standin(folder) as url:
            for concurrency in map(int, told.get("concurrency", "1,64,512").split(",")):
                print(json.dumps(send(url, int(told.get("requests", 10_000)), concurrency)), flush=True)


if __name__ == "__main__":
    main()
