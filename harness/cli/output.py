"""What ``run`` says of its jobs: progress, summary and JSON, each where it belongs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console

from harness.cli.options import JSON, TEXT
from harness.report.progress import RunProgress
from harness.store import finite


@dataclass(frozen=True, slots=True)
class Output:
    """What a run says, and where."""

    form: str = TEXT
    quiet: bool = False
    stdout: TextIO | None = None
    """Where JSON goes; None is wherever stdout is."""
    began: float = field(default_factory=time.monotonic)
    """When the command began: one clock for all that it tells."""

    def progress(self) -> RunProgress:
        """Progress on stderr; of a quiet run warnings alone."""
        return RunProgress(quiet=self.quiet, began=self.began)

    def summary(self) -> Console:
        """Where the summary of a run goes: it makes room for JSON."""
        return Console(stderr=self.form == JSON)

    def tell(self, text: str) -> None:
        """A line about a job that runs elsewhere, on stderr."""
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)

    def emit(self, data: Mapping[str, Any]) -> None:
        """One line of JSON."""
        print(json.dumps(finite(data), ensure_ascii=False), file=self.stdout or sys.stdout, flush=True)
