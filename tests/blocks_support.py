"""A walk that is taken block of documents by block, over stand-ins for both servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence import BLOCKS, N, flow, healthy, prompt_length, write_passes
from test_session import Walk

from harness.blocks import check_of
from harness.equivalence.evidence import Evidence, PassEvidence
from harness.workload.prompts import Prompt

Spoil = Callable[[str, int, PassEvidence], PassEvidence]
"""Name of a pass, number of its block, what it measured -> what it is to have measured."""


def part(each: PassEvidence, documents: Sequence[int]) -> PassEvidence:
    """What a healthy pass measures of some documents."""
    requests, samples = (
        frame[frame["doc_id"].isin(documents)].reset_index(drop=True) for frame in (each.requests, each.samples)
    )
    whole, asked = flow(each.name, len(documents)), sum(map(prompt_length, documents))
    hits = len(documents) * BLOCKS * N * each.name.endswith("warm")
    measured = replace(whole, prompt=asked, computed=asked - hits)
    return replace(each, flow=measured, requests=requests, samples=samples)


class BlockWalk(Walk):
    """A session with looks, whose passes measure what ``evidence`` holds of the documents that they are asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
        self.documents: list[tuple[str, list[int]]] = []
        self.spoil: Spoil = lambda name, block, measured: measured
        monkeypatch.setattr("harness.session.part_of_task", lambda task, name, prompts: task)
        super().__init__(folder, monkeypatch, "gate=quick", *overrides)
        self.evidence = healthy()

    def run_pass(self, name: str, stack: Any, folder: Path, *, order: str | None, **told: Any) -> None:
        prompts: Sequence[Prompt] = told["prompts"]
        documents = [prompt.doc_id for prompt in prompts]
        assert told["task_config"].limit == len(documents)
        self.asked.append(name)
        self.orders.append(order)
        self.documents.append((name, documents))
        measured = self.spoil(name, int(folder.parent.name[5:]), part(self.evidence.passes[name], documents))
        write_passes(folder.parent, Evidence(self.evidence.facts, {name: measured}, ()))

    def measured(self) -> dict[str, Any]:
        """Takes the whole launch, and returns its one cell.json."""
        check = check_of(self.config)
        self.session.prepare()
        self.session.take(check.launch)
        (cell,) = (self.session.measure(cell, check.steps_for(cell)) for cell in self.launch.cells)
        return cell
