"""lm-eval drives a pass: it asks our model for answers, we send the stored prompts, it scores what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate

from harness.config import TaskConfig
from harness.errors import HarnessError
from harness.workload.prompts import Prompt
from harness.workload.stream import RequestRecord
from harness.workload.tasks import FEWSHOT_SEED

Send = Callable[[], Sequence[RequestRecord]]
"""Sends every stored prompt once and returns one record per document."""


class StoredPromptsModel(LM):  # type: ignore[misc]
    """An lm-eval model that answers with what the stored prompts of the launch got.

    lm-eval's API models truncate long prompts, sort requests and replay answers from a cache; this one sends what
    was stored, once, and refuses when lm-eval asks for anything else.

    Args:
        prompts: the launch's prompts by the number that lm-eval gives to their document.
        send: sends all of them.
    """

    def __init__(self, prompts: Mapping[int, Prompt], send: Send) -> None:
        super().__init__()
        self._prompts = prompts
        self._send = send

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """One text per instance; a failed request answers with an empty text and is scored as wrong.

        Raises:
            HarnessError: lm-eval built other prompts than those stored.
        """
        asked = {int(request.doc_id): request.args[0] for request in requests}
        stored = {number: prompt.text for number, prompt in self._prompts.items()}
        if asked != stored or len(requests) != len(stored):
            differing = [number for number in sorted(stored | asked) if asked.get(number) != stored.get(number)]
            raise HarnessError(
                f"lm-eval asks for {len(requests)} prompts and {len(stored)} are stored; documents "
                f"{differing[:5]} differ: the task does not build the same prompts twice."
            )
        texts = {record.doc_id: "" if record.error else record.text for record in self._send()}
        return [texts[self._prompts[int(request.doc_id)].doc_id] for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Not supported: tasks must generate."""
        raise HarnessError("Only generation tasks can be measured: this one asks for log-likelihoods.")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Not supported: tasks must generate."""
        raise HarnessError("Only generation tasks can be measured: this one asks for log-likelihoods.")


def score_pass(task: Any, config: TaskConfig, prompts: Sequence[Prompt], send: Send) -> pd.DataFrame:
    """Runs one pass through lm-eval.

    Args:
        task: the lm-eval task; its documents are numbered from 0 in the order of ``prompts``.
        config: names the filter and the metric.
        prompts: the launch's prompts.
        send: sends all of them.

    Returns:
        One row per document: ``doc_id``, ``target``, ``answer`` (what the filter extracted), ``score``.

    Raises:
        HarnessError: the task has no such filter or metric, or builds other prompts than those stored.
    """
    model = StoredPromptsModel(dict(enumerate(prompts)), send)
    # The same building as before: lm-eval's few-shot sampler is sequential.
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    results = evaluate(
        lm=model,
        task_dict={"tasks": {config.name: task}, "groups": {}, "group_map": {}},
        limit=config.limit,
        cache_requests=False,
        bootstrap_iters=0,
        log_samples=True,
    )
    samples = results["samples"][config.name]
    chosen = [sample for sample in samples if sample["filter"] == config.filter]
    if not chosen or config.metric not in chosen[0]:
        filters = sorted({sample["filter"] for sample in samples})
        raise HarnessError(
            f"Task {config.name} has no score {config.metric} under filter {config.filter}: its filters are "
            f"{', '.join(filters)} and its metrics {', '.join(samples[0]['metrics'])} (task.filter, task.metric)."
        )
    return pd.DataFrame(
        {
            "doc_id": [prompts[int(sample["doc_id"])].doc_id for sample in chosen],
            "target": [str(sample["target"]) for sample in chosen],
            "answer": [str(sample["filtered_resps"][0]) for sample in chosen],
            "score": [float(sample[config.metric]) for sample in chosen],
        }
    ).sort_values("doc_id", ignore_index=True)
