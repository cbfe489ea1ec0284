"""LMCache's hma-lm-eval flow beside a run of the harness: the same servers, prompts and load; wall time of the whole.

    python benchmarks/flow.py [questions=300] [repeats=5]

The flow: both servers up; lm_eval (its command line, its own completions model) cold; 20 s for stores to drain; vLLM's
cache reset; lm_eval warm; scores compared; servers down.  Beside it ``python -m harness run`` with the same two passes,
and with the four that it makes by default (control, cold, local_warm, warm).  Report and verdict are in its time.
Needs `pip install "lm-eval[api]"` for lm_eval's own client.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import requests
import yaml
from client import as_table

from harness.cli import compose_config
from harness.pocket import CHECKPOINT
from harness.servers.environment import added_environment
from harness.servers.stack import Stack
from harness.workload.pocket import pocket_problems, pocket_scoring, ruler_of

DRAIN_S = 20.0
CONCURRENCY = 8
TWO_PASSES = "check.launch=[clear,{pass: cold}]"


def write_task(folder: Path, questions: int) -> None:
    """The pocket task as a file that lm_eval's command line reads, with the prompts of the harness's run."""
    problems = [asdict(each) for each in pocket_problems(config(questions).task, 64, ruler_of(str(CHECKPOINT)))]
    rows = [{"prompt": each["context"] + each["question"], "answer": each["answer"]} for each in problems]
    data = folder / "test.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    longest = 2 * max(each["answer_tokens"] for each in problems)
    task = {
        "task": "pocket_file",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "num_fewshot": 0,
        "generation_kwargs": {"until": ["\nQuestion:"], "do_sample": False, "max_gen_toks": longest},
        **pocket_scoring(),
    }
    (folder / "pocket_file.yaml").write_text(yaml.safe_dump(task))


def config(questions: int) -> Any:
    return compose_config(["model=pocket", "engine=cpu", f"task.limit={questions}", TWO_PASSES])


def lm_eval(stack: Stack, folder: Path, name: str, questions: int) -> float:
    """Score of a pass by lm_eval's command line."""
    model = {
        "model": stack.vllm.model,
        "base_url": f"{stack.vllm.http.url}/v1/completions",
        "num_concurrent": CONCURRENCY,
        "tokenizer": CHECKPOINT,
        "max_length": 4096,
    }
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "pocket_file"]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in model.items())]
    command += ["--include_path", folder, "--limit", questions, "--output_path", folder / name, "--log_samples"]
    environment = os.environ | added_environment(config(questions)) | {"TQDM_DISABLE": "1"}
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run([str(word) for word in command], env=environment, stdout=log, stderr=log, check=True)
    (told,) = (folder / name).rglob("results_*.json")
    return float(json.loads(told.read_text())["results"]["pocket_file"]["exact_match,strict-match"])


def flow(questions: int) -> dict[str, float]:
    """LMCache's flow; its wall time and both scores."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_task(folder, questions)
        began = time.perf_counter()
        with Stack(config(questions), budget=127, chunk_size=64, folder=folder / "logs") as stack:
            cold = lm_eval(stack, folder, "cold", questions)
            time.sleep(DRAIN_S)
            requests.post(f"{stack.vllm.http.url}/reset_prefix_cache", timeout=60).raise_for_status()
            warm = lm_eval(stack, folder, "warm", questions)
            assert abs(cold - warm) <= 0.05
        return {"wall_s": time.perf_counter() - began, "cold": cold, "warm": warm}


def harness(questions: int, *overrides: str) -> dict[str, float]:
    """A run of the harness: its wall time, that of stopping servers, and the rest, which is no server's and no pass."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "harness", "run", "model=pocket", "engine=cpu", f"task.limit={questions}"]
        command += [f"load.concurrency={CONCURRENCY}", f"results_dir={name}", *overrides]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        wall_s = time.perf_counter() - began
        assert done.returncode in (0, 4), done.stderr
        (cell,) = Path(name).glob("*/cells/*/cell.json")
        passes = json.loads(cell.read_text())["passes"]
        stops_s = stages(done.stderr, "stopping")
        rest_s = wall_s - stops_s - stages(done.stderr, r"starting|warming up|.* pass\b")
        return {"stops_s": stops_s, "rest_s": rest_s, "rest": rest_s / wall_s} | {
            "wall_s": wall_s,
            "cold": passes["cold"]["score"],
            "warm": passes["warm"]["score"],
        }


def stages(told: str, wanted: str) -> float:
    """Seconds of a run's stages whose line matches a pattern: each lasts until the next one begins."""
    lines = [(float(at), text) for at, text in re.findall(r"^\[ *([\d.]+) s\] (.*)$", told, flags=re.MULTILINE)]
    return sum(end - at for (at, text), (end, _) in itertools.pairwise(lines) if re.match(wanted, text))


def main(arguments: list[str]) -> None:
    given = {"questions": 300, "repeats": 5} | {k: int(v) for k, v in (each.split("=") for each in arguments)}
    ways = {
        "hma-lm-eval flow: cold, warm": flow,
        "harness: cold, warm": lambda questions: harness(questions, TWO_PASSES),
        "harness: control, cold, local_warm, warm": harness,
    }
    tries: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for repeat in range(given["repeats"]):
        for name in list(ways)[:: 1 if repeat % 2 else -1]:
            tries[name].append(ways[name](given["questions"]))
            print(f"repeat {repeat + 1} of {given['repeats']}: {name} {tries[name][-1]}", file=sys.stderr)
    first = tries["hma-lm-eval flow: cold, warm"]
    rows = [
        {
            "what": name,
            "wall, s": statistics.median(each["wall_s"] for each in measured),
            "stops, s": statistics.median(each.get("stops_s", math.nan) for each in measured),
            "rest, s": statistics.median(each.get("rest_s", math.nan) for each in measured),
            "rest": statistics.median(each.get("rest", math.nan) for each in measured),
            "ratio": statistics.median(a["wall_s"] / b["wall_s"] for a, b in zip(measured, first, strict=True)),
            "cold": measured[0]["cold"],
            "warm": measured[0]["warm"],
        }
        for name, measured in tries.items()
    ]
    print(as_table(rows))
    print(json.dumps(tries))


if __name__ == "__main__":
    main(sys.argv[1:])
