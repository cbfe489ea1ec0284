"""What differs in how two runs were made: configuration, versions, machine. Pure: contents of run.json in.

A field that a run of an earlier harness lacks had the value that is its default now, as far as anybody can tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from omegaconf import MISSING

from harness.config import RunConfig
from harness.report.runs import find
from harness.resume import NAMING, leaves

ABSENT = "-"
"""Shown for a field that only one side has."""

MACHINE = ("machine.processor", "machine.cores", "machine.architecture", "gpus")
"""Fields of provenance that make timings incomparable where they differ."""

LOAD = ("engine.name", "load.concurrency")
"""Fields of the configuration that do."""


@dataclass(frozen=True, slots=True)
class Change:
    """A field that is not the same in both; values as they are written, or ``-``."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} → {self.after}"


def config_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Fields of the configuration, by their dotted names, and N; names and places of the runs don't count."""
    old, new = (_configuration(record) for record in (before, after))
    return tuple(change for change in _changes(old, new) if change.field not in NAMING)


def provenance_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Versions first, then code, machine and environment.

    A package that changed in the same way in the Pythons of both servers is told once, as ``versions.<package>``.
    """
    return tuple(_changes(_provenance(before), _provenance(after)))


def incomparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Why timings of two runs can't be compared, as a sentence goes on; empty where they can."""
    old, new = _provenance(before), _provenance(after)
    if any(find(record, "provenance", "machine", "processor") is None for record in (before, after)):
        return "it is not recorded on which machine one of them ran"
    configs = _changes(_configuration(before), _configuration(after))
    told = [*(each for each in _changes(old, new) if each.field in MACHINE), *(c for c in configs if c.field in LOAD)]
    return "; ".join(map(str, told))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        if before != after:
            yield Change(name, _written(before), _written(after))


def _configuration(record: Mapping[str, Any]) -> dict[str, Any]:
    size = record.get("unified_block_size")
    # None is a run that ended before it knew.
    told = {} if size is None else {"N (unified block size)": size}
    return told | _defaults() | dict(leaves(find(record, "config") or {}))


@cache
def _defaults() -> dict[str, Any]:
    return {name: value for name, value in leaves(asdict(RunConfig())) if value != MISSING and value != {}}


def _provenance(record: Mapping[str, Any]) -> dict[str, Any]:
    told = find(record, "provenance") or {}
    versions = find(told, "versions") or {}
    found: dict[str, Any] = {}
    packages = dict.fromkeys(package for each in versions.values() for package in each)
    for package in packages:
        by_server = {server: str(each.get(package, ABSENT)) for server, each in versions.items()}
        same = len(set(by_server.values())) == 1
        found |= {f"versions.{package}": min(by_server.values())} if same else {}
        found |= {} if same else {f"versions.{server}.{package}": each for server, each in by_server.items()}
    for name in ("harness", "gpus", "machine", "environment"):
        found |= dict(leaves({name: told[name]})) if told.get(name) is not None else {}
    return found


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
