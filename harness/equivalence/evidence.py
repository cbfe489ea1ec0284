"""The evidence of a cell: what its passes wrote, as files and back.

A verdict is reached from these files alone, on any machine, without servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.measure.counters import Snapshot, Tokens, token_flow
from harness.store import read_json, write_frame, write_json

TABLES = ("requests", "samples", "timeline")

CLOCKS = ("sent_s", "finished_s", "t_s")
"""Columns of times that count from the start of their pass; ``token_times_s``, a list, is another one."""


@dataclass(frozen=True, slots=True)
class CellFacts:
    """What was fixed before the cell's first request; sizes in tokens."""

    cell_id: str
    launch_id: str
    budget: int
    repeat: int
    block_size: int
    chunk_size: int
    target: float | None
    """Hit rate asked for; None is all that can be reached."""
    floor: float
    """Cold scores at or below this prove nothing."""
    prompt_set_sha256: str
    diverges_after: int | None = None
    """Blocks of N that what was stored shares with the prompts; None: the prompts themselves were stored."""
    replay_of: str | None = None
    """``<run id>/<cell id>`` whose prompts are sent again; None where they were built."""
    differed_then: Sequence[int] = ()
    """Of a replay: documents that differed between cold and warm there."""
    warm_from: str = "lmcache"
    """What has to have served the warm pass: ``lmcache``, ``mixed``, ``vllm`` or ``nothing``; see CheckConfig."""
    primed_blocks: int = 0
    """Blocks of N of every prompt that vLLM's own cache is to serve in warm."""
    preempts: bool = False
    """Whether requests have to be preempted in warm."""
    damage: Mapping[str, Any] | None = None
    """What was damaged before warm: ``kind``, ``dose`` (fraction of prompts) and ``documents``; None: the check damages
    nothing."""
    looks: int = 1
    """Blocks of documents that were planned, each with its passes and a look at the end; 1: all documents at once."""
    questions: int | None = None
    """Documents of all planned blocks; None with one look."""

    @property
    def speed_only(self) -> bool:
        """Whether nothing is to be retrieved, so that there is nothing to judge but speed."""
        return self.target == 0


@dataclass(frozen=True, slots=True)
class PassEvidence:
    """What one pass wrote."""

    name: str
    wall_s: float
    started_at: str
    requests: pd.DataFrame
    samples: pd.DataFrame
    timeline: pd.DataFrame
    flow: Tokens

    @property
    def scores(self) -> pd.Series[float]:
        """Score by document; of one that was scored twice, the first."""
        return self.samples.drop_duplicates("doc_id").set_index("doc_id")["score"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a cell's verdict may rest on."""

    facts: CellFacts
    passes: Mapping[str, PassEvidence]
    events: Sequence[Mapping[str, Any]]
    """Steps that were taken and what they saw, in order."""
    blocks: Sequence[Mapping[str, PassEvidence]] = ()
    """Passes of every block of documents, where there were looks in between; ``passes`` are all of them together."""

    def until(self, number: int) -> Evidence:
        """What was known at look ``number``, from 1."""
        blocks = self.blocks[:number]
        events = [event for event in self.events if event.get("block", 1) <= number]
        return replace(self, passes=_joined(blocks), events=events, blocks=blocks)

    def of_block(self, number: int) -> Evidence:
        """Block ``number``, from 1, by itself."""
        return replace(self, passes=self.blocks[number - 1], blocks=())


@dataclass(frozen=True, slots=True)
class CellFiles:
    """Contents of the files that a cell's verdict rests on."""

    tables: Mapping[str, pd.DataFrame]
    counters: Mapping[str, Any]
    told: Mapping[str, Any]
    """Of evidence.json."""


def gather_cell(
    folder: Path, facts: CellFacts, pass_folders: Sequence[Path], events: Sequence[Mapping[str, Any]]
) -> None:
    """Puts the evidence of one cell together from the folders of its passes."""
    files = collect_cell(facts, pass_folders, events)
    for table, frame in files.tables.items():
        write_frame(folder / f"{table}.parquet", frame)
    write_json(folder / "counters.json", files.counters)
    write_json(folder / "evidence.json", files.told)


def read_evidence(folder: Path) -> Evidence:
    """Reads what :func:`gather_cell` wrote."""
    tables = {table: pd.read_parquet(folder / f"{table}.parquet") for table in TABLES}
    return as_evidence(CellFiles(tables, read_json(folder / "counters.json"), read_json(folder / "evidence.json")))


def collect_cell(facts: CellFacts, pass_folders: Sequence[Path], events: Sequence[Mapping[str, Any]]) -> CellFiles:
    """What the passes of a cell wrote, together; with looks, folders of a name are those of its blocks, in order."""
    told = {"facts": asdict(facts), "events": list(events)}
    if facts.looks == 1:
        frames = {table: [pd.read_parquet(path / f"{table}.parquet") for path in pass_folders] for table in TABLES}
        passes = {path.name: read_json(path / "pass.json") for path in pass_folders}
        counters: dict[str, Any] = {name: entry.pop("counters") for name, entry in passes.items()}
        return CellFiles(_concatenated(frames), counters, told | {"passes": passes})
    frames, counters = {table: [] for table in TABLES}, {}
    blocks: dict[str, list[dict[str, Any]]] = {}
    for path in pass_folders:
        entry, before = read_json(path / "pass.json"), blocks.setdefault(path.name, [])
        began_s = sum(float(each["wall_s"]) for each in before)
        for table in TABLES:
            frame = pd.read_parquet(path / f"{table}.parquet").assign(block=len(before) + 1)
            frames[table].append(_later(frame, began_s))
        counters.setdefault(path.name, []).append(entry.pop("counters"))
        before.append(entry)
    passes = {name: {"name": name, "blocks": entries} for name, entries in blocks.items()}
    return CellFiles(_concatenated(frames), counters, told | {"passes": passes})


def as_evidence(files: CellFiles) -> Evidence:
    """Evidence from the contents of a cell's files."""
    told = files.told
    facts = CellFacts(**(told["facts"] | {"differed_then": tuple(told["facts"].get("differed_then", ()))}))
    if facts.looks == 1:
        passes = {
            name: _pass(name, entry, files.counters[name], _rows(files.tables, name))
            for name, entry in told["passes"].items()
        }
        return Evidence(facts, passes, told["events"])
    done = max(len(entry["blocks"]) for entry in told["passes"].values())
    blocks = [
        {
            name: _pass(name, entry["blocks"][number], files.counters[name][number], _rows(files.tables, name, number))
            for name, entry in told["passes"].items()
        }
        for number in range(done)
    ]
    return Evidence(facts, _joined(blocks), told["events"], blocks)


def _pass(name: str, entry: Mapping[str, Any], counters: Any, rows: Mapping[str, pd.DataFrame]) -> PassEvidence:
    return PassEvidence(
        name=name,
        wall_s=float(entry["wall_s"]),
        started_at=str(entry["started_at"]),
        flow=token_flow(Snapshot.from_json(counters["before"]), Snapshot.from_json(counters["after"])),
        **rows,
    )


def _rows(tables: Mapping[str, pd.DataFrame], name: str, block: int | None = None) -> dict[str, pd.DataFrame]:
    """Rows of one pass; ``block`` counts from 0, None where there are none."""
    chosen = {}
    for table, rows in tables.items():
        wanted = rows["pass"] == name if block is None else (rows["pass"] == name) & (rows["block"] == block + 1)
        chosen[table] = rows[wanted].reset_index(drop=True)
    return chosen


def _later(frame: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """A block's table with times from the start of the pass's first block, as if blocks had followed at once."""
    # Where no request was answered, a column holds nothing but None.
    moved = {name: pd.to_numeric(frame[name]) + seconds for name in CLOCKS if name in frame}
    if "token_times_s" in frame:
        moved["token_times_s"] = frame["token_times_s"].map(lambda times: [time + seconds for time in times])
    return frame.assign(**moved)


def _joined(blocks: Sequence[Mapping[str, PassEvidence]]) -> dict[str, PassEvidence]:
    """The passes of all blocks together: rows one after another, times and counters added up."""
    together = {}
    for name, first in blocks[0].items():
        parts = [block[name] for block in blocks]
        tables = {table: pd.concat([getattr(each, table) for each in parts], ignore_index=True) for table in TABLES}
        together[name] = replace(
            first,
            wall_s=sum(each.wall_s for each in parts),
            flow=_added([each.flow for each in parts]),
            **tables,
        )
    return together


def _added(flows: Sequence[Tokens]) -> Tokens:
    """Sums of counters; of one that was not reported in every block, None."""
    values = {each.name: [getattr(flow, each.name) for flow in flows] for each in fields(Tokens)}
    return Tokens(**{name: None if None in each else sum(each) for name, each in values.items()})


def _concatenated(frames: Mapping[str, Sequence[pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    return {table: pd.concat(list(each), ignore_index=True) for table, each in frames.items()}
