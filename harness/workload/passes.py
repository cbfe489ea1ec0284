"""One pass: the launch's prompts sent once, scored by lm-eval, timed, and counted by both servers.

Everything is written down the moment it is known, so that a later failure loses nothing: requests as they were
answered, then scores, then, once LMCache has settled, the counters.  ``pass.json`` comes last and completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config import LoadConfig, TaskConfig
from harness.errors import ServerError
from harness.measure.batch import BatchSample, BatchSampler, check_reported
from harness.measure.counters import token_flow
from harness.servers.stack import Stack
from harness.store import write_frame, write_json
from harness.workload.client import Target, send_all
from harness.workload.prompts import Prompt, order_for
from harness.workload.stream import RequestRecord
from harness.workload.watch import Watch

WARM_UP_PROMPTS = 8
"""Enough to fill the batch once at the default concurrency."""


def run_pass(
    name: str,
    stack: Stack,
    folder: Path,
    *,
    task: Any,
    task_config: TaskConfig,
    load: LoadConfig,
    prompts: Sequence[Prompt],
    order: str | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> None:
    """Sends and scores the prompts in the order of this pass, then waits until LMCache has settled.

    Args:
        name: of the pass.
        stack: servers that are up.
        folder: where the pass is written; made here.
        task: the lm-eval task that the prompts were built from.
        task_config: which of its scores counts.
        load: concurrency and limits.
        prompts: what is sent, each once.
        order: seeds the order of the prompts; None is the name, which does where no other pass has it.
        on_done: called after every request.

    Raises:
        ServerError: a server ended or hangs, or stores never land; what was answered before is written.
        HarnessError: lm-eval can't score it, or the disk refuses.
    """
    from harness.workload.scoring import score_pass

    folder.mkdir(parents=True)
    stack.note()
    before = stack.snapshot()
    check_reported(before.vllm, stack.vllm.http.url)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    ordered = [prompts[index] for index in order_for(order or name, len(prompts), load.seed)]
    sending = _Sending(name, stack, folder, load, ordered, on_done)
    samples = score_pass(task, task_config, prompts, sending.send)
    write_frame(folder / "samples.parquet", samples.assign(**{"pass": name}))
    settled = stack.settle()
    write_json(
        folder / "pass.json",
        {
            "name": name,
            "started_at": started_at,
            "concurrency": load.concurrency,
            "wall_s": sending.wall_s,
            "missed_looks": sending.sampler.missed,
            "settled": settled,
            "counters": {"before": before.as_json(), "after": stack.snapshot().as_json()},
        },
    )


def warm_up(stack: Stack, load: LoadConfig, prompts: Sequence[Prompt]) -> None:
    """Sends a few prompts twice before anything is timed: the first requests after a start take seconds.

    Twice, so that LMCache's retrieve path is warm as well; the caller clears both caches afterwards.
    """
    few = list(prompts[:WARM_UP_PROMPTS])
    for _ in range(2):
        _send_watched("warm-up", stack, load, few, lambda _: None)
        stack.settle()
        stack.vllm.reset_prefix_cache()


def seed_prefixes(
    stack: Stack, load: LoadConfig, requests: Sequence[Prompt], on_done: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Sends the prefixes that are to be in LMCache, and waits until their stores have landed.

    Args:
        stack: servers that are up, both caches empty.
        load: concurrency and limits.
        requests: see :func:`harness.workload.seeding.prefixes`.
        on_done: called after every request.

    Returns:
        What was seen: requests, tokens, and the chunks that LMCache wrote, all of its object groups together (null
        where it does not report them).

    Raises:
        ServerError: a request was not answered, so its prefix may be missing; or stores never land.
    """
    records: list[RequestRecord] = []

    def done(record: RequestRecord) -> None:
        records.append(record)
        on_done()

    before = stack.snapshot()
    ordered = [requests[index] for index in order_for("seed", len(requests), load.seed)]
    _send_watched("seeding", stack, load, ordered, done)
    if failed := [record.error for record in records if record.error]:
        raise ServerError(
            f"{len(failed)} of {len(requests)} prefixes were not seeded, the first because {failed[0]}: LMCache does "
            "not hold what the cell's hit rate needs."
        )
    stack.settle()
    return {
        "requests": len(requests),
        "tokens": sum(len(request.token_ids) for request in requests),
        "chunks_written": token_flow(before, stack.snapshot()).chunks_written,
    }


def _send_watched(
    during: str,
    stack: Stack,
    load: LoadConfig,
    prompts: Sequence[Prompt],
    on_done: Callable[[RequestRecord], None],
) -> None:
    watch = Watch(stack, load, lambda: during)

    def done(record: RequestRecord) -> None:
        watch.saw(record)
        on_done(record)

    watch.run(send_all(prompts, Target(stack.vllm.http.url, stack.vllm.model), load, done))


class _Sending:
    """The timed part of a pass; its requests and timeline are written even when it is cut short."""

    def __init__(
        self,
        name: str,
        stack: Stack,
        folder: Path,
        load: LoadConfig,
        ordered: Sequence[Prompt],
        on_done: Callable[[], None],
    ) -> None:
        self.name, self.folder, self.load, self.on_done = name, folder, load, on_done
        self.watch = Watch(stack, load, self._during)
        self.target = Target(stack.vllm.http.url, stack.vllm.model)
        self.ordered = ordered
        self.sampler = BatchSampler(self.target.url, load.sample_hz)
        self.records: list[RequestRecord] = []
        self.wall_s = 0.0

    def send(self) -> Sequence[RequestRecord]:
        """Sends everything once."""
        try:
            self.wall_s = self.watch.run(self._send())
        finally:
            sent_tokens = {prompt.doc_id: len(prompt.token_ids) for prompt in self.ordered}
            write_frame(self.folder / "requests.parquet", requests_frame(self.name, self.records, sent_tokens))
            write_frame(self.folder / "timeline.parquet", timeline_frame(self.name, self.sampler.samples))
        return self.records

    async def _send(self) -> float:
        async with self.sampler:
            return await send_all(self.ordered, self.target, self.load, self._done)

    def _during(self) -> str:
        return f"the {self.name} pass, after {len(self.records)} of {len(self.ordered)} requests"

    def _done(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.watch.saw(record)
        self.on_done()


def requests_frame(name: str, records: Sequence[RequestRecord], sent_tokens: Mapping[int, int]) -> pd.DataFrame:
    """One row per request, ordered by document; ``sent_tokens`` are prompt lengths as they left the client."""
    names = [each.name for each in fields(RequestRecord)]
    frame = pd.DataFrame({name: [getattr(record, name) for record in records] for name in names})
    frame.insert(0, "pass", name)
    frame.insert(3, "sent_tokens", [sent_tokens[doc_id] for doc_id in frame["doc_id"]])
    return frame.sort_values("doc_id", ignore_index=True)


def timeline_frame(name: str, looks: Sequence[BatchSample]) -> pd.DataFrame:
    """One row per look at the batch."""
    frame = pd.DataFrame([asdict(look) for look in looks], columns=["t_s", "running", "waiting"])
    return frame.assign(**{"pass": name})
