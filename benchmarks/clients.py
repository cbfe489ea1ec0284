"""The harness's client and that of ``vllm bench serve``, each in a process of its own that is told what to send; and
GuideLLM by its command."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path[:0] = [str(Path(__file__).parent.parent)]

from harness.pocket import CHECKPOINT  # noqa: E402
from harness.servers.environment import OVERLAY  # noqa: E402

EXTRA = {"return_token_ids": True, "return_tokens_as_token_ids": True}
"""What the harness asks for beside logprobs, and what vLLM's client is told to ask for as well."""


@dataclass(frozen=True)
class Load:
    """What is sent: prompts as token ids, so that nothing is tokenized; ``scored`` for answers that end in #### 7."""

    url: str
    model: str
    prompts: tuple[tuple[int, ...], ...]
    output: int
    concurrency: int
    scored: bool = False


class Client(Protocol):
    def prepare(self, load: Load) -> Any:
        """What is made once per launch and not per pass: prompts and the task."""

    def send(self, load: Load, prepared: Any) -> list[float]:
        """Sends everything and returns the TTFT in seconds of every request that was answered."""


class Ours:
    """What a pass of the harness does: sends, samples the batch at 10 Hz, writes its files, and has lm-eval score."""

    def prepare(self, load: Load) -> tuple[list[Any], Any]:
        from harness.workload.prompts import Prompt
        from harness.workload.tasks import stored_task

        prompts = [Prompt(i, f"Question {i}", ids, (), load.output) for i, ids in enumerate(load.prompts)]
        task = stored_task("gsm8k", [prompt.text for prompt in prompts], ["#### 7"] * len(prompts))
        return prompts, task

    def send(self, load: Load, prepared: tuple[list[Any], Any]) -> list[float]:
        from harness.interrupts import run_async
        from harness.measure.batch import BatchSampler
        from harness.store import write_frame
        from harness.workload.client import Target, send_all
        from harness.workload.passes import requests_frame, timeline_frame
        from harness.workload.stream import RequestRecord

        prompts, task = prepared
        sampler = BatchSampler(load.url, 10.0)
        records: list[RequestRecord] = []

        async def sending() -> None:
            async with sampler:
                await send_all(prompts, Target(load.url, load.model), self.limits(load), records.append)

        def send() -> list[RequestRecord]:
            run_async(sending())
            with tempfile.TemporaryDirectory() as folder:
                lengths = {prompt.doc_id: len(prompt.token_ids) for prompt in prompts}
                write_frame(Path(folder) / "requests.parquet", requests_frame("cold", records, lengths))
                write_frame(Path(folder) / "timeline.parquet", timeline_frame("cold", sampler.samples))
            return records

        if load.scored:
            self.score(prompts, task, send)
        else:
            send()
        return [record.ttft_s if record.error is None else failed(record.error) for record in records]  # type: ignore[misc]

    def limits(self, load: Load) -> Any:
        from harness.config import LoadConfig

        return LoadConfig(concurrency=load.concurrency)

    def score(self, prompts: Sequence[Any], task: Any, send: Callable[[], Any]) -> None:
        from harness.config import TaskConfig
        from harness.workload.scoring import score_pass

        config = TaskConfig(name="gsm8k", filter="flexible-extract", metric="exact_match", limit=None)
        scores = score_pass(task, config, prompts, send)
        assert scores["score"].mean() == 1.0, scores


class Vllm:
    """The function behind ``vllm bench serve``, which scores nothing."""

    def prepare(self, load: Load) -> list[Any]:
        from vllm.benchmarks.datasets import SampleRequest

        return [SampleRequest(list(ids), len(ids), load.output) for ids in load.prompts]

    def send(self, load: Load, prepared: list[Any]) -> list[float]:
        from vllm.benchmarks.serve import TaskType, benchmark

        with contextlib.redirect_stdout(io.StringIO()):
            told = asyncio.run(
                benchmark(
                    task_type=TaskType.GENERATION,
                    endpoint_type="openai",
                    api_url=f"{load.url}/v1/completions",
                    base_url=load.url,
                    model_id=load.model,
                    model_name=load.model,
                    tokenizer=None,
                    input_requests=prepared,
                    logprobs=2,
                    request_rate=float("inf"),
                    burstiness=1.0,
                    disable_tqdm=True,
                    num_warmups=0,
                    profile=False,
                    selected_percentile_metrics=["ttft"],
                    selected_percentiles=[99.0],
                    ignore_eos=False,
                    goodput_config_dict={},
                    max_concurrency=load.concurrency,
                    lora_modules=None,
                    extra_headers=None,
                    extra_body=EXTRA | {"temperature": 0.0},
                    ready_check_timeout_sec=0,
                )
            )
        if told["completed"] < len(prepared):  # seen at 512 at once; its records say no more than that
            print(f"vllm bench: {told['completed']} of {len(prepared)} requests were answered", file=sys.stderr)
        return [each for each in told["ttfts"] if each > 0]


def guidellm(program: str, load: Load) -> tuple[float, float]:
    """One ``guidellm run`` of as many prompts of that length: its own requests/s, and CPU seconds of all its processes.

    The CPU includes its start, which a run of one request tells.
    """
    words = {
        "--backend": {
            "kind": "openai_http",
            "target": load.url,
            "model": load.model,
            "request_format": "/v1/completions",
        },
        "--profile": {"kind": "concurrent", "streams": load.concurrency},
        "--constraint": {"kind": "max_requests", "count": len(load.prompts)},
        "--data": {"kind": "synthetic_text", "prompt_tokens": len(load.prompts[0]), "output_tokens": load.output},
        "--tokenizer": {"kind": "hf_auto", "model": CHECKPOINT},
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words["--output"] = {"kind": "json", "path": report}
        command = [program, "run", "--disable-console"]
        for option, given in words.items():
            command += [option, ",".join(f"{name}={value}" for name, value in given.items())]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = os.environ | {"PYTHONPATH": str(OVERLAY)}
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    # It ends at its limit, sometimes with a few requests less.
    assert told["request_totals"]["successful"] >= 0.98 * len(load.prompts), told["request_totals"]
    cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return float(told["requests_per_second"]["successful"]["mean"]), cpu_s


CLIENTS: dict[str, type[Client]] = {"ours": Ours, "vllm": Vllm}


@dataclass(frozen=True)
class Sent:
    """What one sending took of its client's process."""

    requests: int
    """That were answered."""
    wall_s: float
    cpu_s: float
    ttft_s: list[float]

    @property
    def per_s(self) -> float:
        """Answered requests per second."""
        return self.requests / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per answered request."""
        return 1e3 * self.cpu_s / self.requests


class Worker:
    """A client in a process of its own."""

    def __init__(self, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(OVERLAY) if name == "vllm" else ""  # vLLM's CPU build does not import without
        os.environ["TQDM_DISABLE"] = "1"
        self.process = spawn.Process(target=work, args=(name, theirs), daemon=True)
        self.process.start()
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)

    def send(self, load: Load) -> Sent:
        self.pipe.send(load)
        answer: Sent = self.pipe.recv()
        return answer

    def end(self) -> None:
        self.pipe.send(None)
        self.process.join()


@contextlib.contextmanager
def workers(names: Sequence[str] = tuple(CLIENTS)) -> Iterator[dict[str, Worker]]:
    """One of each; ended on the way out."""
    started = {name: Worker(name) for name in names}
    try:
        yield started
    finally:
        for worker in started.values():
            worker.end()


def work(name: str, pipe: Any) -> None:
    """Measures what it is asked to send, until it is asked for nothing."""
    client = CLIENTS[name]()
    while (load := pipe.recv()) is not None:
        prepared = client.prepare(load)
        gc.collect()  # what the sending before has left is not this one's
        began, cpu = time.perf_counter(), time.process_time()
        ttft_s = client.send(load, prepared)
        pipe.send(Sent(len(ttft_s), time.perf_counter() - began, time.process_time() - cpu, ttft_s))


def failed(error: str) -> float:
    raise SystemExit(f"A request failed: {error}")
