"""The repro bundle of a cell: its worst prompts exactly as they were sent, and what is needed to send them again.

cells/<cell id>/repro/  README.md  bundle.json  prompts.jsonl
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.corruption import damage_words
from harness.equivalence.documents import compare_documents
from harness.equivalence.evidence import Evidence, read_evidence
from harness.errors import UsageError
from harness.repro.side_by_side import side_by_side
from harness.store import NewFolder, RunFolder, read_json, read_record, write_json
from harness.sweep import FULL
from harness.workload.prompts import Prompt, from_frame

FOLDER = "repro"
"""Its name in the cell's folder."""

MOST_PROMPTS = 20

UNQUOTED = re.compile(r"[A-Za-z0-9_./+-]+")
"""Paths that neither a shell nor Hydra takes apart."""


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """A prompt of a bundle."""

    prompt: Prompt
    target: str
    """What its answer is compared with."""
    differed: bool
    """Whether cold and warm differed: in score, or by more than ``gate.drift_margin_nats`` in some token."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is replayed."""

    path: Path
    origin: str
    """``<run id>/<cell id>`` that it was made from."""
    block_size: int
    """N in tokens of the server that was asked."""
    config: Mapping[str, Any]
    """The run's configuration, with a sweep of this cell alone (and of a full one, where its prompts diverge)."""
    prompts: tuple[StoredPrompt, ...]

    @property
    def prompt_tokens(self) -> list[int]:
        """Lengths of the prompts."""
        return [len(each.prompt.token_ids) for each in self.prompts]

    @property
    def differed(self) -> tuple[int, ...]:
        """Documents that differed between cold and warm."""
        return tuple(each.prompt.doc_id for each in self.prompts if each.differed)


def write_bundle(run: RunFolder, cell_id: str) -> Path | None:
    """Writes the bundle of a complete cell from the run's files alone.

    Returns:
        Its folder; None for a cell that has nothing to show: neither ``fail`` nor ``invalid``, or one whose cold and
        warm answers can't be compared (other documents, or hit rate 0).

    Raises:
        HarnessError: a file is missing, or the disk refuses.
        OSError: the same.
    """
    folder = run.cell(cell_id)
    cell = read_json(folder / "cell.json")
    if cell["verdict"] not in ("fail", "invalid") or cell["paired"] is None:
        return None
    record, evidence = read_record(run.path), read_evidence(folder)
    sent = pd.read_parquet(run.path / "launches" / cell["launch"] / "prompts.parquet")
    compared = compare_documents(evidence.passes["cold"], evidence.passes["warm"], cell["gate"]["drift_margin_nats"])
    chosen = _choose(from_frame(sent), evidence, compared)
    with NewFolder(folder / FOLDER) as repro:
        write_json(repro / "bundle.json", _origin(record, cell, evidence))
        lines = (json.dumps(_as_json(each), ensure_ascii=False) + "\n" for each in chosen)
        (repro / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
        told = side_by_side(
            cell, evidence, [each.prompt for each in chosen], compared, command=replay_command(folder / FOLDER)
        )
        (repro / "README.md").write_text(told, encoding="utf-8")
    return folder / FOLDER


def replay_command(path: Path) -> str:
    """What to type to replay a bundle."""
    if UNQUOTED.fullmatch(str(path)):
        return f"python -m harness run replay={path}"
    # Hydra's quotes inside the shell's: it takes = , ~ and spaces apart.
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    quoted = shlex.quote(f'replay="{escaped}"')
    return f"python -m harness run {quoted}"


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle.

    Raises:
        UsageError: there is none, or its prompts are not those that were sent.
    """
    if not (path / "bundle.json").is_file():
        raise UsageError(
            f"replay={path} holds no bundle.json: give the repro folder of a cell that ended in fail or invalid, "
            "results/<run id>/cells/<cell id>/repro."
        )
    told = read_json(path / "bundle.json")
    try:
        lines = (path / "prompts.jsonl").read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path / 'prompts.jsonl'} can't be read: {error}.") from error
    prompts = [_from_line(line, f"{path / 'prompts.jsonl'} line {n}") for n, line in enumerate(lines, 1) if line]
    if not prompts:
        raise UsageError(f"{path / 'prompts.jsonl'} holds no prompts.")
    try:
        return Bundle(
            path,
            f"{told['run_id']}/{told['cell']}",
            int(told["unified_block_size"]),
            dict(told["config"]),
            tuple(prompts),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path / 'bundle.json'} is not what the harness wrote ({type(error).__name__}: {error})."
        ) from error


def _choose(prompts: list[Prompt], evidence: Evidence, compared: pd.DataFrame) -> list[StoredPrompt]:
    """The worst prompts, worst first."""
    by_document = {prompt.doc_id: prompt for prompt in prompts}
    cold = evidence.passes["cold"].samples
    targets = dict(zip(cold["doc_id"], cold["target"], strict=True))
    return [
        StoredPrompt(by_document[doc_id], str(targets[doc_id]), bool(compared.loc[doc_id, "differs"]))
        for doc_id in compared.index[:MOST_PROMPTS]
    ]


def _origin(record: Mapping[str, Any], cell: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
    facts = evidence.facts
    sweep = record["config"]["sweep"] | {
        "budgets": [cell["budget"]],
        "hit_rates": [FULL if facts.target is None else facts.target],
        "diverge_after": [] if facts.diverges_after is None else [facts.diverges_after],
        "damage": [] if facts.damage is None else [damage_words(facts.damage["kind"], facts.damage["dose"])],
        "damage_once": [],
        "repeats": 1,
    }
    return {
        "run_id": record["run_id"],
        "cell": cell["cell"],
        "verdict": cell["verdict"],
        "reasons": cell["reasons"],
        "unified_block_size": cell["unified_block_size"],
        "chunk_size": cell["chunk_size"],
        "provenance": record["provenance"],
        "config": record["config"] | {"sweep": sweep, "run_id": None, "resume": None},
    }


def _as_json(stored: StoredPrompt) -> dict[str, Any]:
    prompt = stored.prompt
    return {
        "doc_id": prompt.doc_id,
        "sha256": prompt.sha256,
        "differed": stored.differed,
        "target": stored.target,
        "needed": dict(prompt.needed),
        "stop": prompt.stop,
        "max_tokens": prompt.max_tokens,
        "text": prompt.text,
        "token_ids": prompt.token_ids,
    }


def _from_line(line: str, where: str) -> StoredPrompt:
    try:
        told = json.loads(line)
        prompt = Prompt(
            doc_id=told["doc_id"],
            text=told["text"],
            token_ids=tuple(told["token_ids"]),
            stop=tuple(told["stop"]),
            max_tokens=told["max_tokens"],
            needed=tuple(told["needed"].items()),
        )
        stored = StoredPrompt(prompt, told["target"], told["differed"])
        sha256 = told["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{where} is no prompt of a bundle ({type(error).__name__}: {error}).") from error
    if prompt.sha256 != sha256:
        raise UsageError(
            f"{where}: what it sends has the hash {prompt.sha256[:12]} and {str(sha256)[:12]} was sent: the file was "
            "changed."
        )
    return stored
