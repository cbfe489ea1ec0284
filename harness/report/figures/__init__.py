"""Figures of a run, from its results folder alone: pure functions from a folder's data to a matplotlib Figure."""

from harness.report.cells import Spread, slowdown
from harness.report.figures.data import NothingToDraw, RunData, load_run, run_data
from harness.report.figures.draw import FIGURES, batch_size, hit_rate, reuse, slowdown_figure, throughput, ttft
from harness.report.figures.files import Drawn, rendered, write_figures
from harness.report.figures.judged import drift, latency, score
from harness.report.figures.selftest import selftest

__all__ = [
    "FIGURES",
    "Drawn",
    "NothingToDraw",
    "RunData",
    "Spread",
    "batch_size",
    "drift",
    "hit_rate",
    "latency",
    "load_run",
    "rendered",
    "reuse",
    "run_data",
    "score",
    "selftest",
    "slowdown",
    "slowdown_figure",
    "throughput",
    "ttft",
    "write_figures",
]
