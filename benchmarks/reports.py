"""How long report, compare and trend take, and in how much memory, as results folders grow.

    python benchmarks/reports.py [cells=20,200,2000] [repeats=3] [out=FILE.json] [folder=DIR]

Makes complete runs in a temporary folder: made up, so that run.json calls the model so, but judged and written by the
code of a run (tests/many_cells.py), 500 requests a cell. ``report`` reads one run of all cells, ``compare`` two of
them, and ``trend`` the cells of one split over 20 runs. Every command runs as a process of its own; seconds and memory
are the kernel's account of it (wait4), imports included. Prints medians, lowest and highest as a Markdown table.
Nothing of vLLM or LMCache is measured here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from many_cells import REQUESTS, Pattern, places  # noqa: E402

RUNS = 20
"""Runs of a trend: the cells are split over them."""

PAGE = "report.html"

LAUNCHER = """
import json, os, subprocess, sys, time
began = time.monotonic()
child = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, used = os.wait4(child.pid, 0)
wall_s, code = time.monotonic() - began, os.waitstatus_to_exitcode(status)
print(json.dumps([code, wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""Starts a command from a small process: a child's peak memory is never below what its parent had when it began."""


def make(folder: Path, one: Pattern, other: Pattern, cells: int) -> dict[str, list[str]]:
    """Writes the runs of one size; the arguments of each command."""
    every = places(cells)
    a = one.write(folder / "runs", "A", every, seed=0, day=1)
    b = other.write(folder / "runs", "B", every, seed=1, day=2)
    for night in range(RUNS):
        pattern = one if night < RUNS // 2 else other
        share = places(max(1, cells // RUNS))
        pattern.write(folder / "nights", f"night{night:02}", share, seed=night, day=night + 1)
    return {
        "report": ["report", str(a)],
        "compare": ["compare", str(a), str(b)],
        "trend": ["trend", str(folder / "nights")],
    }


def measure(arguments: Sequence[str]) -> dict[str, float]:
    """Runs one command; seconds of wall time and of CPU, and the most memory it had, in MB.

    Raises:
        RuntimeError: it failed; with the end of what it wrote.
    """
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", "harness", *arguments]
    with tempfile.TemporaryFile() as out:
        told = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=out, check=True).stdout
        code, wall_s, cpu_s, peak_kib = json.loads(told)
        # compare's exit code 1 is a regression that it found.
        if code not in ((0, 1) if arguments[0] == "compare" else (0,)):
            out.seek(0)
            raise RuntimeError(f"{' '.join(arguments)} ended with {code}: {out.read()[-2000:].decode()}")
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_kib * 1024 / 1e6}


def measured(commands: Mapping[str, list[str]], cells: int, repeats: int) -> Iterator[dict[str, Any]]:
    """One row per command."""
    for name, arguments in commands.items():
        times = [measure(arguments) for _ in range(repeats)]
        row: dict[str, Any] = {"command": name, "cells": cells, "requests": cells * REQUESTS, "repeats": repeats}
        for what in ("wall_s", "cpu_s", "peak_mb"):
            values = [each[what] for each in times]
            row |= {what: median(values), f"{what}_low": min(values), f"{what}_high": max(values)}
        row["load_average"] = os.getloadavg()[0]
        if name == "report":
            row["page_mb"] = (Path(arguments[1]) / PAGE).stat().st_size / 1e6
        yield row


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: each row, and how many times the CPU seconds of the size before it takes."""
    yield "| command | requests | cells | wall, s | CPU, s | CPU ÷ size before | peak memory, MB | load average |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        before = [each for each in rows if each["command"] == row["command"] and each["cells"] < row["cells"]]
        ratio = f"{row['cpu_s'] / before[-1]['cpu_s']:.1f}" if before else "-"
        yield (
            f"| {row['command']} | {row['requests']:,} | {row['cells']:,} | {_spread(row, 'wall_s')} | "
            f"{_spread(row, 'cpu_s')} | {ratio} | {row['peak_mb']:.0f} | {row['load_average']:.1f} |"
        )


def _spread(row: Mapping[str, Any], what: str) -> str:
    return f"{row[what]:.1f} ({row[f'{what}_low']:.1f}-{row[f'{what}_high']:.1f})"


@contextmanager
def _place(told: Mapping[str, str]) -> Iterator[Path]:
    """Where the runs are made, and gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="made-up-runs-", dir=told.get("folder")) as name:
        yield Path(name)


def main() -> None:
    """Makes, measures and prints."""
    told = dict(word.split("=", 1) for word in sys.argv[1:])
    rows: list[dict[str, Any]] = []
    with _place(told) as folder:
        patterns = Pattern(folder / "one", seed=0), Pattern(folder / "other", seed=1)
        for cells in map(int, told.get("cells", "20,200,2000").split(",")):
            commands = make(folder / str(cells), *patterns, cells)
            for row in measured(commands, cells, int(told.get("repeats", 3))):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
            shutil.rmtree(folder / str(cells))
    print("\n".join(table(sorted(rows, key=lambda row: (row["command"], row["cells"])))))
    if "out" in told:
        Path(told["out"]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
