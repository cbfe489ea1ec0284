"""Figures as files: PNG and SVG, whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.errors import HarnessError
from harness.report.figures.data import NothingToDraw, load_run
from harness.report.figures.draw import FIGURES
from harness.store import own_folder, write_bytes

FOLDER = "figures"

Format = Literal["png", "svg"]

FORMATS: tuple[Format, ...] = ("png", "svg")


@dataclass(slots=True)
class Drawn:
    """What became of a run's figures."""

    written: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Name of a figure -> what the run has no data for."""


def write_figures(path: Path, only: Collection[str] = FIGURES) -> Drawn:
    """Writes every figure that a results folder has the data for into its ``figures/``.

    Args:
        path: the folder.
        only: names of those that are asked for.

    Raises:
        UsageError: the folder holds no run.
        HarnessError: it can't be written.
    """
    run, drawn = load_run(path), Drawn()
    folder = own_folder(path / FOLDER, path)
    for name in only:
        try:
            figure = FIGURES[name](run)
        except NothingToDraw as reason:
            drawn.skipped[name] = str(reason)
            continue
        _make(folder)
        for form in FORMATS:
            file = folder / f"{name}.{form}"
            write_bytes(file, rendered(figure, form))
            drawn.written.append(file)
    return drawn


def rendered(figure: Figure, form: Format) -> bytes:
    """A figure as PNG (200 dots per inch) or SVG; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    dated: dict[str, Any] = {"Date": None} if form == "svg" else {}
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "harness"}):
        figure.savefig(out, format=form, dpi=200, metadata=dated)
    return out.getvalue()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise HarnessError(f"{folder} can't be written: {error.strerror or error}.") from error
