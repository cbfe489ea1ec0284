"""``python -m harness clean``: what killed runs have left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.clean import clean
from harness.errors import UsageError


def clean_command(arguments: Sequence[str]) -> int:
    """``clean``: what was cleared away on stdout.

    Raises:
        UsageError: no folder was named, one holds no run, or its run still goes on.
        ServerError: a process can't be ended.
    """
    if not arguments:
        raise UsageError("clean needs a results folder: python -m harness clean results/<run id>, or results for all")
    told = clean([Path(argument) for argument in arguments])
    for sentence in told or ["nothing was left of killed runs"]:
        print(sentence)
    return 0
