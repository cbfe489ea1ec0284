"""The summary that a run ends with: its passes, its verdict and the reason, on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.equivalence.reuse import mean_blocks
from harness.report.forms import STYLES, milliseconds, number, share, times
from harness.report.many import MOST_CELLS, MOST_IN_FULL, left_out, some_lines, telling_cells
from harness.report.runs import find
from harness.report.sweep import recommendation, sweep_table
from harness.repro.bundle import FOLDER, replay_command

FEW_CELLS = 2
"""Up to so many cells are told in full; of more, one line each, and in full what did not pass."""


def print_run(console: Console, run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], path: str) -> None:
    """Prints every cell's passes and verdict, and where the results lie."""
    unwrapped = not console.is_terminal
    if "config" in run:
        console.print(Text(what_ran(run["config"])), soft_wrap=unwrapped)
    selftest = any(cell.get("damage") for cell in cells)
    in_full = cells if len(cells) <= FEW_CELLS else [cell for cell in cells if cell["verdict"] != "pass"]
    if selftest and len(cells) > FEW_CELLS:
        # Its cells fail on purpose, and which of them must is told by its own summary.
        in_full = []
        told = f"{len(cells)} cells, most of them damaged on purpose: python -m harness selftest from={path}"
        console.print(Text(told), soft_wrap=True)
    elif len(cells) > MOST_CELLS and len(in_full) > MOST_IN_FULL:
        told = f"{len(in_full):,} of {len(cells):,} cells did not pass; the {MOST_IN_FULL} most telling in full:"
        console.print(Text(told), soft_wrap=unwrapped)
        in_full = telling_cells(in_full, MOST_IN_FULL)
    for cell in in_full:
        console.print(pass_table(cell))
        console.print()
        console.print(verdict_line(cell), soft_wrap=unwrapped)
        if cell.get("replay"):
            console.print(Text(replay_line(cell)), soft_wrap=unwrapped)
        for line in notes(cell):
            console.print(Text(f"  {line}", style="dim"), soft_wrap=unwrapped)
        repro = Path(path) / "cells" / str(cell["cell"]) / FOLDER
        if repro.is_dir():
            console.print(Text(f"worst prompts side by side: {repro / 'README.md'}"), soft_wrap=True)
            console.print(Text(f"the same prompts again: {replay_command(repro)}"), soft_wrap=True)
    if len(cells) > FEW_CELLS and not selftest:
        shown = telling_cells(cells)
        console.print(sweep_table(shown))
        console.print()
        if len(shown) < len(cells):
            console.print(Text(f"{left_out(len(shown), len(cells))}."), soft_wrap=unwrapped)
        for sentence in recommendation(cells):
            console.print(Text(sentence), soft_wrap=unwrapped)
    if any(cell.get("reuse") for cell in cells):
        console.print(reuse_table(telling_cells(cells)))
        console.print()
    if run["verdict"] is None:
        told = f": {run['error']}" if run["error"] and run["error"] != run["status"] else ""
        console.print(Text(f"run: {run['status']}, no verdict{told}"))
    elif len(cells) != 1:
        console.print(Text(f"run: {run['verdict']}", style=STYLES.get(str(run["verdict"]), "")))
        for reason in some_lines(run.get("reasons", []), "run.json has all"):
            console.print(Text(f"  {reason}", style="dim"), soft_wrap=unwrapped)
    console.print(f"results: {path}", soft_wrap=True, highlight=False, markup=False)


def verdict_of_run(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> Text:
    """The verdict of a run in one line: with its reason where it has one cell, with their counts where it has more."""
    if run.get("verdict") is None:
        told = f"{run.get('status')}, no verdict"
        return Text(f"{told}: {run['error']}" if run.get("error") not in (None, run.get("status")) else told)
    if len(cells) == 1:
        return verdict_line(cells[0])
    counts = Counter(str(cell["verdict"]) for cell in cells)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    text = Text(str(run["verdict"]).upper(), style=STYLES.get(str(run["verdict"]), ""))
    return text.append(f": {len(cells)} cells: {told}." if cells else ".", style="default not bold")


def what_ran(config: Mapping[str, Any]) -> str:
    """What kind of run it was, in one line."""
    kinds = ("model", "task", "check", "gate", "engine")
    return ", ".join(f"{kind} {config[kind]['name']}" for kind in kinds)


def pass_table(cell: Mapping[str, Any]) -> Table:
    """One row per pass of a cell, in the order in which they ran."""
    rate = cell["hit_rate"]
    table = Table(
        title=f"{cell['cell']}: budget {cell['budget']}, N = {cell['unified_block_size']}, "
        f"n = {cell['passes']['cold']['n']}\nhit rate: target {number(rate['target'], '.3f')}, "
        f"reachable {number(rate['reachable'], '.3f')}, measured {number(rate['measured'], '.3f')}"
        f"{reuse_line(cell)}",
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    # All of it fits 80 columns; in a narrower terminal numbers go on below rather than being cut.
    table.add_column("pass", overflow="fold")
    for heading in (
        "score",
        "TTFT ms\np50/p95",
        "output\ntok/s",
        "prompt\ntok/s",
        "running\navg/max",
        "LMCache\nhits",
        "vLLM\nhits",
    ):
        table.add_column(heading, justify="right", overflow="fold")
    for name, each in cell["passes"].items():
        table.add_row(
            name,
            number(each["score"], ".3f"),
            f"{milliseconds(each['ttft_s']['p50'])}/{milliseconds(each['ttft_s']['p95'])}",
            number(each["output_tokens_per_s"], ".0f"),
            number(each["prompt_tokens_per_s"], ".0f"),
            f"{number(each['running']['mean'], '.1f')}/{number(each['running']['max'], '.0f')}",
            share(each["external_hit_tokens"], each["prompt_tokens"]),
            share(each["local_hit_tokens"], each["prompt_tokens"]),
        )
    return table


def reuse_line(cell: Mapping[str, Any]) -> str:
    """How much of what is shared was found, on a line of its own; nothing for a cell without divergence."""
    if not (reuse := cell.get("reuse")):
        return ""
    found, shared = mean_blocks(cell)
    return (
        f"\nreuse: diverges after {reuse['diverges_after_blocks']} of {number(reuse['blocks'], '.3g')} blocks, "
        f"{number(found, '.1f')} of {number(shared, '.3g')} found"
    )


def reuse_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    """Mean blocks of a prompt that were found, by launch and by the blocks after which what is stored diverges."""
    diverging = [cell for cell in cells if cell.get("reuse")]
    found = {(cell["launch"], cell["reuse"]["diverges_after_blocks"]): mean_blocks(cell)[0] for cell in diverging}
    afters = dict.fromkeys(after for _, after in found)
    table = Table(
        title="reuse: blocks found",
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("shared", overflow="fold")
    for after in afters:
        table.add_column(str(after), justify="right", overflow="fold")
    for launch in dict.fromkeys(launch for launch, _ in found):
        table.add_row(launch, *(number(found.get((launch, after)), ".1f") for after in afters))
    return table


def verdict_line(cell: Mapping[str, Any]) -> Text:
    """The verdict and its reason in one sentence."""
    text = Text(str(cell["verdict"]).upper(), style=STYLES.get(str(cell["verdict"]), ""))
    return text.append(f": {'; '.join(cell['reasons'])}.", style="default not bold")


def replay_line(cell: Mapping[str, Any]) -> str:
    """What became of the prompts of a replay."""
    replay = cell["replay"]
    others = replay["prompts"] - replay["differed_then"]
    beside = f", and {replay['others_differ_now']} of the {others} that did not" if others else ""
    return (
        f"Replay of {replay['of']}: {replay['of_these_differ_now']} of the {replay['differed_then']} prompts that "
        f"differed then differ now{beside} (in score, or by more than {cell['gate']['drift_margin_nats']:g} nats "
        "in some token)."
    )


def damage(cell: Mapping[str, Any]) -> list[str]:
    """What was damaged on purpose between the passes of a cell."""
    return [
        f"damaged on purpose: {event['argument']['kind']} in {event['damaged']['files']} files of object group "
        f"{event['argument']['group']} ({event['damaged']['bytes']:,} bytes)"
        for event in cell.get("events", [])
        if event["step"] == "corrupt"
    ]


def notes(cell: Mapping[str, Any]) -> list[str]:
    """What stands beside the verdict: speed, agreement of tokens, and the questions TOST needs."""
    told = damage(cell)
    ratios = cell["speed"]
    valid = cell["verdict"] != "invalid"
    if valid and ratios["ttft_p50_cold_over_warm"] and ratios["throughput_warm_over_cold"]:
        told.append(
            f"warm against cold: median TTFT {times(1 / ratios['ttft_p50_cold_over_warm'])}, "
            f"output throughput {times(ratios['throughput_warm_over_cold'])}"
        )
    for name, each in cell["agreement"].items():
        if each["same_text"] is not None:
            told.append(
                f"{name} against cold: {each['same_text']:.1%} of texts the same, first token's logprob exact in "
                f"{number(each['first_token_logprob_exact'], '.1%')} (largest difference "
                f"{number(each['first_token_logprob_max_difference'], '.2g')} nats)"
            )
    # Results of earlier harness versions have neither drift nor LMCache's rule.
    if drift := cell.get("drift"):
        counts = ", ".join(f"{name} {each['beyond']} of {each['n']}" for name, each in drift["passes"].items())
        told.append(f"answers further from cold than {drift['margin_nats']:g} nats in some token: {counts}")
    if rule := cell.get("lmcache_ci"):
        told.append(f"beside it, {rule['verdict']} by {rule['reason']}")
    if valid and cell["paired"]:
        paired = cell["paired"]
        told.append(
            f"questions needed for margin {paired['margin']:g} at the observed flip rate of "
            f"{paired['flip_rate']:.3f}: {paired['needed_n']}; asked: {paired['n']}"
        )
    return told


def summary_frame(cells: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per pass of every cell, for summary.csv; empty where a cell of another version lacks something."""
    rows = []
    for cell in cells:
        for name, each in (cell.get("passes") or {}).items():
            rows.append(
                {
                    "cell": cell.get("cell"),
                    "verdict": cell.get("verdict"),
                    "budget": cell.get("budget"),
                    "repeat": cell.get("repeat"),
                    "hit_rate_target": find(cell, "hit_rate", "target"),
                    "hit_rate_reachable": find(cell, "hit_rate", "reachable"),
                    "hit_rate_measured": find(cell, "hit_rate", "measured"),
                    "diverges_after_blocks": find(cell, "reuse", "diverges_after_blocks"),
                    "shared_tokens": find(cell, "reuse", "shared_tokens"),
                    "pass": name,
                    "score": find(each, "score"),
                    "n": find(each, "n"),
                    "wall_s": find(each, "wall_s"),
                    "ttft_p50_s": find(each, "ttft_s", "p50"),
                    "ttft_p95_s": find(each, "ttft_s", "p95"),
                    "output_tokens_per_s": find(each, "output_tokens_per_s"),
                    "prompt_tokens_per_s": find(each, "prompt_tokens_per_s"),
                    "running_mean": find(each, "running", "mean"),
                    "running_max": find(each, "running", "max"),
                    "external_hit_tokens": find(each, "external_hit_tokens"),
                    "local_hit_tokens": find(each, "local_hit_tokens"),
                }
            )
    return pd.DataFrame(rows)
