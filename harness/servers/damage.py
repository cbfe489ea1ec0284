"""The test-only LMCache module of a launch: what it is told, and what it has noted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.store import write_json

MODULE = "harness_test_only_damage"
PROMPT_TOKENS = 64
"""Tokens at a prompt's beginning that the module tells prompts by; the same number stands in the module."""


class DamageModule:
    """Files through which the harness and the module talk, in the launch's scratch folder."""

    def __init__(self, folder: Path) -> None:
        self.stored = folder / "stored.jsonl"
        self._control = folder / "damage.json"

    @property
    def argument(self) -> dict[str, Any]:
        """``--server-module`` of LMCache."""
        return {"module_path": MODULE, "config": {"stored": str(self.stored), "control": str(self._control)}}

    def spoil_loads(self, how: str, fingerprints: Iterable[str]) -> None:
        """From now on loads of these prompts are not done (``skip``) or fail (``fail``)."""
        write_json(self._control, {"how": how, "prompts": sorted(fingerprints)})

    def leave_loads(self) -> None:
        """From now on all loads are done."""
        self._control.unlink(missing_ok=True)


def fingerprint(token_ids: Sequence[int]) -> str:
    """What the module knows a prompt by: the SHA-256 of its first tokens."""
    return hashlib.sha256(json.dumps(list(token_ids[:PROMPT_TOKENS])).encode()).hexdigest()
