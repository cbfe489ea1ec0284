"""Servers that run already (``servers.attach=true``), as a doctor sees them: asked how they run, and not changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.blocks import check_of
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.model.predict import predicted_sizes
from harness.servers.attached import NOT_KNOWN, AttachedStack, check_attachable
from harness.sweep import launches


@dataclass(frozen=True, slots=True)
class Attached:
    """What both servers say."""

    seen: Mapping[str, Any] = field(default_factory=dict)
    """As run.json has it."""
    warnings: tuple[str, ...] = ()
    """What they do not say."""
    problem: str = ""
    """Why they can't be measured, in the run's own words; empty where they can."""


def look_at(config: RunConfig) -> Attached:
    """Asks the servers of a configuration with ``servers.attach=true`` what a run would ask, and resets nothing."""
    stack: AttachedStack | None = None
    try:
        check, block_size = check_of(config), predicted_sizes(config.model, config.engine).block_size
        plan = launches(config.sweep, block_size, list(check.variants))
        check_attachable(check, plan)
        chunk_size = config.chunk_size(block_size)
        stack = AttachedStack(config, budget=plan[0].budget, chunk_size=chunk_size, folder=Path(config.results_dir))
        stack.look()
    except HarnessError as error:
        return Attached(stack.seen if stack else {}, problem=str(error))
    return Attached(stack.seen, tuple(each for each in stack.warnings if each != NOT_KNOWN))
