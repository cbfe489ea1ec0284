"""Live progress on stderr: a moving line on a terminal, one plain line per stage elsewhere."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

COUNTED_SECONDS = re.compile(r" \(\d+ s\)$")


class CountColumn(ProgressColumn):
    """``74/300``, or nothing where the total isn't known."""

    def render(self, task: Task) -> Text:
        """The count of one line."""
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)}")


class RunProgress:
    """Tells what a run is doing; a context manager.

    Args:
        console: where to; None is stderr.
        quiet: whether to tell warnings alone.
        began: what times are told from, on the monotonic clock; None is now.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False, began: float | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._began = time.monotonic() if began is None else began
        self._last_stage = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            CountColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None
        self._cells_total = self._cells_done = 0
        self._cells_began = self._began
        self._foretold: tuple[float, float] | None = None

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._progress.stop()

    def stage(self, text: str, total: int | None = None) -> None:
        """A new thing is going on, of ``total`` steps where that is known; repeated texts only count on."""
        stage = COUNTED_SECONDS.sub("", text)
        if stage != self._last_stage:
            self._last_stage = stage
            if not self.console.is_terminal and not self._quiet:
                self._say(f"[{time.monotonic() - self._began:6.1f} s] {stage}")
            if self._task is not None:
                self._progress.remove_task(self._task)
            shown = f"{self.outlook}: {stage}" if self._cells_done else stage
            self._task = self._progress.add_task(shown, total=total)

    def expect_cells(self, count: int) -> None:
        """So many cells are to be measured from now on; what is left is told from the second on."""
        self._cells_total, self._cells_done, self._cells_began = count, 0, time.monotonic()
        self._foretold = None

    def cell_done(self, text: str, left_s: float | None = None) -> None:
        """A cell is measured: a line that stays, with how much is left.

        Args:
            text: what became of it.
            left_s: how long the others will take, in seconds, as far as anything tells it.
        """
        self._cells_done += 1
        self._foretold = None if left_s is None else (left_s, time.monotonic())
        self.done(text + (f" ({self.outlook})" if self._cells_total > 1 else ""))

    @property
    def outlook(self) -> str:
        """Cells done, and about how long the others take: as foretold when the last one was done, less what has gone by
        since; as long as those where nothing was foretold."""
        done, total = self._cells_done, self._cells_total
        counted = f"{done} of {total} cells"
        if not done or done >= total:
            return counted
        if self._foretold is not None:
            left_s, told_at = self._foretold
            return f"{counted}, {about(max(0.0, left_s - (time.monotonic() - told_at)))} left"
        return f"{counted}, {about((time.monotonic() - self._cells_began) / done * (total - done))} left"

    def step(self) -> None:
        """One step of the current stage is done."""
        if self._task is not None:
            self._progress.advance(self._task)

    def done(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._say(f"[{time.monotonic() - self._began:6.1f} s] {text}")

    def warn(self, text: str) -> None:
        """A warning that stays."""
        self._say(f"warning: {text}", style="yellow")

    def _say(self, text: str, style: str | None = None) -> None:
        # Servers are stopped between two lines: nobody reading any more (a closed pipe) must not prevent that.
        with suppress(OSError):
            self.console.print(text, style=style, soft_wrap=True, markup=False)


def about(seconds: float) -> str:
    """A time as people tell it: ``about 40 s``, ``about 12 min``, ``about 2 h 5 min``."""
    return f"about {duration(seconds)}"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``2 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
