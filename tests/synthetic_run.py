"""A synthetic results folder with known numbers: nothing in it was measured, and its model is called so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.store import write_frame, write_json

N = 64
MODEL = "synthetic (nothing measured)"
RATES = (0.0, 0.5, 0.97)
BUDGETS = (64, 80, 96, 127, 128, 256)

THROUGHPUT = {64: 20.0, 80: 60.0, 96: 80.0, 127: 100.0, 128: 110.0, 256: 160.0}
"""Budget -> output tokens per second at hit rate 0 in the first repeat."""

GAIN = {0.0: {64: 1.0, 127: 1.0}, 0.5: {64: 2.0, 127: 1.5}, 0.97: {64: 9.0, 127: 3.0}}
"""Hit rate -> factor on it at N and elsewhere: N is 5, 3.75 and 1.667 times slower than 2N-1."""

REPEAT = {1: 1.0, 2: 1.2, 3: 0.9}
"""Repeat -> factor on the throughput of budgets beyond N."""

Cell = dict[str, Any]


def speed(budget: int, rate: float, repeat: int = 1) -> float:
    """Output tokens per second of warm."""
    gain = GAIN[rate][64 if budget == 64 else 127]
    return THROUGHPUT[budget] * gain * (REPEAT[repeat] if budget > 64 else 1.0)


def cell(budget: int, rate: float, repeat: int = 1, **changes: Any) -> Cell:
    """What figures read of a cell.json: as docs/results.md has it."""
    value = speed(budget, rate, repeat)
    warm = {
        "n": 40,
        "wall_s": 40.0 if budget == 64 else 8.0,
        "output_tokens_per_s": value,
        "ttft_s": {"p50": 50.0 / value, "p95": 90.0 / value, "p99": 99.0 / value},
        "running": {"mean": 1.0 if budget == 64 else 6.0, "max": 1.0 if budget == 64 else 8.0, "waiting_mean": 2.0},
    }
    return {
        "cell": f"budget{budget}-hit{rate:.2f}-r{repeat}",
        "measured_at": f"2026-01-01T00:00:{repeat:02}.{budget:03}+00:00",
        "verdict": "pass",
        "budget": budget,
        "repeat": repeat,
        "unified_block_size": N,
        "hit_rate": {"target": rate, "reachable": rate, "measured": rate},
        "passes": {"warm": warm},
        "reuse": None,
    } | changes


def diverging(budget: int, k: int, hit: float, *, prompts: int = 40, blocks: int = 8) -> Cell:
    """A cell of a divergence workload in which ``hit`` blocks of each prompt were reused on average."""
    data = {
        "diverges_after_blocks": k,
        "blocks": blocks,
        "shared_tokens": prompts * k * N,
        "hit_tokens": prompts * hit * N,
    }
    return cell(127, 0.97, cell=f"budget{budget}-diverge{k}-r1", reuse=data) | {"budget": budget}


def sweep(budgets: Iterable[int] = BUDGETS, rates: Iterable[float] = RATES, repeats: int = 1) -> list[Cell]:
    """All points of a sweep."""
    rates = list(rates)
    return [cell(b, rate, r) for r in range(1, repeats + 1) for b in budgets for rate in rates]


def timeline(budget: int) -> pd.DataFrame:
    """A batch stuck at one request for 40 s at N, and one of 6 to 8 for 8 s elsewhere; a cold pass before it."""
    running = [1.0] * 800 if budget == N else [6.0 + (look // 20) % 3 for look in range(160)]
    warm = pd.DataFrame({"t_s": [0.05 * look for look in range(len(running))], "running": running})
    cold = pd.DataFrame({"t_s": [0.0, 99.0], "running": [50.0, 50.0]})
    return pd.concat([cold.assign(**{"pass": "cold"}), warm.assign(**{"pass": "warm"})]).assign(waiting=2.0)


def write_run(
    path: Path, cells: Iterable[Cell], looks: Callable[[int], pd.DataFrame] | None = timeline, **record: Any
) -> Path:
    """Writes a results folder; ``looks`` is None for one without timelines."""
    told: Mapping[str, Any] = {
        "schema": 1,
        "status": "complete",
        "verdict": "pass",
        "error": None,
        "model": MODEL,
        "predicted_block_size": N,
        "config": {"engine": {"name": "none"}, "load": {"concurrency": 8}},
    }
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "run.json", {**told, **record})
    for each in cells:
        folder = path / "cells" / str(each["cell"])
        folder.mkdir(parents=True)
        write_json(folder / "cell.json", each)
        if looks:
            write_frame(folder / "timeline.parquet", looks(int(each["budget"])))
    return path
