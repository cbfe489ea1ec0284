"""The evidence of a cell: what its passes wrote, as files and back.

A verdict is reached from these files alone, on any machine, without servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.measure.counters import Snapshot, Tokens, token_flow
from harness.store import read_json, write_frame, write_json

TABLES = ("requests", "samples", "timeline")


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


def gather_cell(
    folder: Path, facts: CellFacts, pass_folders: Sequence[Path], events: Sequence[Mapping[str, Any]]
) -> None:
    """Puts the evidence of one cell together from the folders of its passes."""
    for table in TABLES:
        frames = [pd.read_parquet(path / f"{table}.parquet") for path in pass_folders]
        write_frame(folder / f"{table}.parquet", pd.concat(frames, ignore_index=True))
    passes = {path.name: read_json(path / "pass.json") for path in pass_folders}
    write_json(folder / "counters.json", {name: entry.pop("counters") for name, entry in passes.items()})
    write_json(folder / "evidence.json", {"facts": asdict(facts), "passes": passes, "events": list(events)})


def read_evidence(folder: Path) -> Evidence:
    """Reads what :func:`gather_cell` wrote."""
    told = read_json(folder / "evidence.json")
    counters = read_json(folder / "counters.json")
    tables = {table: pd.read_parquet(folder / f"{table}.parquet") for table in TABLES}

    def of_pass(table: str, name: str) -> pd.DataFrame:
        rows = tables[table]
        return rows[rows["pass"] == name].reset_index(drop=True)

    passes = {
        name: PassEvidence(
            name=name,
            wall_s=float(entry["wall_s"]),
            started_at=str(entry["started_at"]),
            requests=of_pass("requests", name),
            samples=of_pass("samples", name),
            timeline=of_pass("timeline", name),
            flow=token_flow(Snapshot.from_json(counters[name]["before"]), Snapshot.from_json(counters[name]["after"])),
        )
        for name, entry in told["passes"].items()
    }
    facts = told["facts"] | {"differed_then": tuple(told["facts"].get("differed_then", ()))}
    return Evidence(CellFacts(**facts), passes, told["events"])
