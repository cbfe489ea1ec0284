"""Damage of known kind and dose to what LMCache holds or loads: a gate that was never seen failing is not trusted.

Most kinds work on the files of LMCache's file-system L2, whose names end in ``@<object group>@<chunk hash>.data``.
They never write into a file: what a file is replaced by may be a link to an undamaged copy. Which files belong to
which prompt is told by the test-only server module in ``harness/servers/damage_module``, which also spoils loads for
the kinds that leave what is stored as it is.
"""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.checking import nearest
from harness.errors import HarnessError, UsageError


class Groups(StrEnum):
    """Which object groups a kind of damage touches."""

    ALL = "all"
    RECURRENT = "recurrent"
    ATTENTION = "attention"


class Method(StrEnum):
    """What becomes of a stored object, or of its loads."""

    FLIP = "flip"
    TRUNCATE = "truncate"
    EXCHANGE = "exchange"
    STALE = "stale"
    SKIP_LOADS = "skip"
    FAIL_LOADS = "fail"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage."""

    method: Method
    groups: Groups = Groups.ALL

    @property
    def spoils_loads(self) -> bool:
        """Whether what is stored stays as it is."""
        return self.method in (Method.SKIP_LOADS, Method.FAIL_LOADS)


KINDS: dict[str, Kind] = {
    "stale_checkpoint": Kind(Method.STALE),
    "other_prompt": Kind(Method.EXCHANGE),
    "gdn_only": Kind(Method.EXCHANGE, Groups.RECURRENT),
    "attention_only": Kind(Method.EXCHANGE, Groups.ATTENTION),
    "flipped_bytes": Kind(Method.FLIP),
    "truncated": Kind(Method.TRUNCATE),
    "skipped_loads": Kind(Method.SKIP_LOADS),
    "failed_loads": Kind(Method.FAIL_LOADS),
}
"""``stale_checkpoint``: what other weights behind the same path have stored. ``other_prompt``: the next prompt's state
at the same place; ``gdn_only`` and ``attention_only``: of these layers only. ``flipped_bytes``: 1 % of the bytes
inverted. ``truncated``: half of each file. ``skipped_loads``: LMCache says that it has loaded and has not.
``failed_loads``: it says that it could not, and vLLM recomputes."""

NONE = "none"
"""The name of a cell of a damaging check in which nothing is damaged."""

FLIPPED_SHARE = 0.01
"""Fraction of a file's bytes that ``flipped_bytes`` inverts."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What a cell of a damaging check does: a kind, and the fraction of prompts that it hits."""

    kind: str
    dose: float

    @property
    def name(self) -> str:
        """As cell ids have it: ``none``, ``flipped_bytes``, ``flipped_bytes-5pct``."""
        return self.kind if self.dose in (0, 1) else f"{self.kind}-{100 * self.dose:g}pct"


def parse_damage(word: object) -> Damage:
    """Damage from ``none``, ``flipped_bytes`` (all prompts) or ``flipped_bytes@0.05`` (5 % of them).

    Raises:
        UsageError: an unknown kind, or a dose that is not above 0 and at most 1.
    """
    kind, _, dose = str(word).partition("@")
    if kind == NONE and not dose:
        return Damage(NONE, 0.0)
    if kind not in KINDS:
        raise UsageError(f"sweep.damage: {word!r} is no kind of damage; {nearest(kind, [NONE, *KINDS])}")
    try:
        fraction = float(dose or 1)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise UsageError(
            f"sweep.damage: {word!r}: the dose behind @ must be above 0 and at most 1, such as {kind}@0.05."
        )
    return Damage(kind, fraction)


def damage_words(kind: str, dose: float) -> str:
    """Damage as a sweep names it; inverse of :func:`parse_damage`."""
    return kind if dose in (0, 1) else f"{kind}@{dose:g}"


def damaged_documents(documents: Iterable[int], damage: Damage, seed: int) -> list[int]:
    """Documents that a dose hits, in ascending order: the same seed, the same ones, and a higher dose adds to them.

    Args:
        documents: all of them.
        damage: kind and dose; each kind draws its own.
        seed: of the run.
    """
    drawn = sorted(documents)
    random.Random(f"{seed}/damage/{damage.kind}").shuffle(drawn)
    return sorted(drawn[: round(damage.dose * len(drawn))])


@dataclass(frozen=True, slots=True)
class Stored:
    """What LMCache has stored of each prompt, as its test-only module has noted it."""

    chunks: Mapping[int, Sequence[str]]
    """Document -> hashes of its chunks, in order."""
    recurrent_groups: Collection[int]
    """Object groups that hold recurrent state."""


def read_stored(log: Path, fingerprints: Mapping[str, int]) -> Stored:
    """Reads what the test-only module has noted of stores.

    Args:
        log: its file, one JSON object per store.
        fingerprints: of each prompt, as the module makes them -> document.

    Raises:
        HarnessError: it has noted nothing, so the module was not loaded or nothing was stored.
    """
    hashes: dict[int, dict[int, str]] = defaultdict(dict)
    recurrent: set[int] = set()
    for line in log.read_text().splitlines() if log.exists() else ():
        noted = json.loads(line)
        recurrent |= set(noted["recurrent_groups"])
        if (document := fingerprints.get(noted["prompt"])) is not None:
            hashes[document] |= {noted["first_chunk"] + place: each for place, each in enumerate(noted["chunks"])}
    if not hashes:
        raise HarnessError(f"LMCache's test-only module has noted no store of these prompts in {log}.")
    return Stored({doc: [each[place] for place in sorted(each)] for doc, each in hashes.items()}, recurrent)


def damage_files(
    folder: Path, kind: Kind, stored: Stored, documents: Sequence[int], *, sound: Path, stale: Path
) -> int:
    """Damages what is stored of some documents.

    Args:
        folder: LMCache's L2.
        kind: one that does not spoil loads.
        stored: what belongs to which document.
        documents: those that are damaged.
        sound: undamaged copies of all files.
        stale: what other weights have stored of the same prompts.

    Returns:
        Files that are damaged now.

    Raises:
        HarnessError: none is, or a file that the damage needs is not there.
    """
    files: dict[str | None, list[Path]] = defaultdict(list)
    for path in folder.rglob("*.data"):
        # One for each object group, and of each for every rank.
        if (group := object_group(path)) is not None and _concerns(kind, group, stored):
            files[chunk_hash(path)].append(path)
    ordered, count = sorted(stored.chunks), 0
    for document in documents:
        hashes = stored.chunks.get(document, ())
        other = stored.chunks[_following(ordered, document, len(hashes), stored)] if hashes else ()
        for digest, others in zip(hashes, other, strict=False):
            for path in files[digest]:
                _damage_one(path, kind.method, path.relative_to(folder), (digest, others), sound=sound, stale=stale)
                count += 1
    if not count:
        raise HarnessError(f"LMCache's L2 in {folder} holds no file of {kind.groups} groups that could be damaged.")
    return count


@dataclass(frozen=True, slots=True)
class Corruption:
    """The argument of a ``corrupt`` step: what is done to every file of one object group."""

    kind: str
    group: int
    share: float
    """``flipped_bytes``: fraction of a file's bytes that are inverted."""
    seed: int = 0


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
    if corruption.kind != "flipped_bytes":
        raise UsageError(f"{where}: corrupt kind={corruption.kind} is not known; known: flipped_bytes.")
    if not isinstance(corruption.share, float | int) or not 0 < corruption.share <= 1:
        raise UsageError(f"{where}: corrupt share={corruption.share} must be above 0 and at most 1.")
    if not isinstance(corruption.group, int) or corruption.group < 0:
        raise UsageError(f"{where}: corrupt group={corruption.group} must be an object group number, 0 or more.")
    return corruption


def corrupt_files(folder: Path, corruption: Corruption) -> dict[str, int]:
    """Damages every stored file of one object group.

    Returns:
        ``{"files": n, "bytes": inverted}``.

    Raises:
        HarnessError: no file of that group is there, so nothing could be damaged.
    """
    files = sorted(path for path in folder.rglob("*.data") if object_group(path) == corruption.group)
    if not files:
        raise HarnessError(f"LMCache's L2 in {folder} holds no file of object group {corruption.group}.")
    inverted = 0
    for path in files:
        data, count = flipped(path.read_bytes(), corruption.share, f"{corruption.seed}/{path.name}")
        _rewrite_as(path, data)
        inverted += count
    return {"files": len(files), "bytes": inverted}


def object_group(path: Path) -> int | None:
    """Object group of a stored file by its name; None when the name is of another form."""
    try:
        return int(_name_parts(path)[2], 16)
    except (IndexError, ValueError):
        return None


def chunk_hash(path: Path) -> str | None:
    """Hash of the chunk that a file holds, by its name, in hexadecimal; None when the name is of another form."""
    parts = _name_parts(path)
    return parts[3] if len(parts) > 3 else None


def flipped(data: bytes, share: float, seed: str) -> tuple[bytes, int]:
    """Bytes of which a share, drawn by the seed, is inverted; and how many those are, one at least."""
    changed = bytearray(data)
    count = min(len(changed), max(1, round(len(changed) * share)))
    for position in random.Random(seed).sample(range(len(changed)), count):
        changed[position] ^= 0xFF
    return bytes(changed), count


def _name_parts(path: Path) -> list[str]:
    return path.name.removesuffix(".data").split("@")


def _concerns(kind: Kind, group: int, stored: Stored) -> bool:
    if kind.groups is Groups.ALL:
        return True
    return (group in stored.recurrent_groups) == (kind.groups is Groups.RECURRENT)


def _following(ordered: Sequence[int], document: int, chunks: int, stored: Stored) -> int:
    """The next document, beginning anew at the end, that has at least as many chunks."""
    place = ordered.index(document)
    for each in [*ordered[place + 1 :], *ordered[:place]]:
        if len(stored.chunks[each]) >= chunks:
            return each
    raise HarnessError(f"No other prompt has {chunks} chunks stored, so there is no state of another prompt to put in.")


def _damage_one(path: Path, method: Method, place: Path, digests: tuple[str, str], *, sound: Path, stale: Path) -> None:
    """Damages one file; ``digests`` are of its own chunk and of the one that another prompt has at its place."""
    if method is Method.EXCHANGE:
        _replace_by_link(path, sound / place.with_name(place.name.replace(*digests)))
    elif method is Method.STALE:
        _replace_by_link(path, stale / place)
    else:
        _rewrite(path, method)


def _rewrite(path: Path, method: Method) -> None:
    data = path.read_bytes()
    _rewrite_as(
        path, data[: len(data) // 2] if method is Method.TRUNCATE else flipped(data, FLIPPED_SHARE, path.name)[0]
    )


def _rewrite_as(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.damaged")
    temporary.write_bytes(data)
    temporary.replace(path)


def _replace_by_link(path: Path, source: Path) -> None:
    temporary = path.with_name(f".{path.name}.damaged")
    try:
        os.link(source, temporary)
    except OSError as error:
        raise HarnessError(f"{source} can't take the place of {path.name}: {error.strerror}.") from error
    temporary.replace(path)
