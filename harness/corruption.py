"""Damage of known kind and dose to what LMCache holds on disk: a gate that was never seen failing is not trusted.

Works on the files of LMCache's file-system L2, whose names end in ``@<object group>@<chunk hash>.data``; on a
hybrid with separate object groups, group 0 holds recurrent state and group 1 attention KV.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError


@dataclass(frozen=True, slots=True)
class Corruption:
    """What is done to the files of one object group."""

    kind: str
    group: int
    share: float
    """``flipped_bytes``: fraction of a file's bytes that are inverted."""
    seed: int = 0


KINDS = ("flipped_bytes",)


def check_corruption(argument: Mapping[str, Any], where: str) -> Corruption:
    """Reads the argument of a ``corrupt`` step.

    Raises:
        UsageError: an unknown kind or field, or a value out of range.
    """
    try:
        corruption = Corruption(**{str(name): value for name, value in argument.items()})
    except TypeError as error:
        raise UsageError(
            f"{where}: corrupt takes kind, group, share and seed, and got {', '.join(map(str, argument))}."
        ) from error
    if corruption.kind not in KINDS:
        raise UsageError(f"{where}: corrupt kind={corruption.kind} is not known; known: {', '.join(KINDS)}.")
    if not isinstance(corruption.share, float | int) or not 0 < corruption.share <= 1:
        raise UsageError(f"{where}: corrupt share={corruption.share} must be above 0 and at most 1.")
    if not isinstance(corruption.group, int) or corruption.group < 0:
        raise UsageError(f"{where}: corrupt group={corruption.group} must be an object group number, 0 or more.")
    return corruption


def corrupt_files(folder: Path, corruption: Corruption) -> dict[str, int]:
    """Damages every stored file of one object group, in place.

    Returns:
        ``{"files": n, "bytes": inverted}``.

    Raises:
        HarnessError: no file of that group is there, so nothing could be damaged.
    """
    files = sorted(path for path in folder.rglob("*.data") if object_group(path) == corruption.group)
    if not files:
        raise HarnessError(f"LMCache's L2 in {folder} holds no file of object group {corruption.group}.")
    inverted = sum(_flip(path, corruption.share, random.Random(f"{corruption.seed}/{path.name}")) for path in files)
    return {"files": len(files), "bytes": inverted}


def object_group(path: Path) -> int | None:
    """Object group of a stored file by its name; None when the name is of another form."""
    parts = path.name.removesuffix(".data").split("@")
    try:
        return int(parts[2], 16)
    except (IndexError, ValueError):
        return None


def _flip(path: Path, share: float, rng: random.Random) -> int:
    data = bytearray(path.read_bytes())
    count = min(len(data), max(1, round(len(data) * share)))
    for position in rng.sample(range(len(data)), count):
        data[position] ^= 0xFF
    path.write_bytes(data)
    return count
