"""What ran, on what: configuration, commands, launches and provenance."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from harness.report.forms import number
from harness.report.many import MOST_LAUNCHES
from harness.report.runs import Run, find
from harness.report.table import Column, Table, measured, without_empty_columns, word_columns, words
from harness.resume import leaves


def configuration_tables(run: Run) -> list[Table]:
    """Every field of the resolved configuration."""
    config = run.record.get("config") or {}
    rows = tuple((words(name), words(_plain(value))) for name, value in leaves(config))
    return [Table("Every field", word_columns("field", "value"), rows, folded=True)] if rows else []


def launch_tables(run: Run) -> list[Table]:
    """Server launches with their start-up times, and what a person would type to start them."""
    launches = run.record.get("launches") or {}
    if not launches:
        return []
    columns = (
        *word_columns("launch"),
        Column("budget", "tokens"),
        Column("N", "tokens"),
        Column("chunk size", "tokens"),
        Column("LMCache up after", "s"),
        Column("vLLM up after", "s"),
    )
    first = list(launches.items())[:MOST_LAUNCHES]
    rows = tuple(
        (
            words(name),
            *(measured(each, ",", part) for part in _SIZES),
            *(measured(each, ".1f", "started_s", part) for part in _SERVERS),
        )
        for name, each in first
    )
    commands = tuple(
        (words(name), words(server), words(shlex.join(map(str, command))))
        for name, each in first
        for server, command in (find(each, "commands") or {}).items()
    )
    more = len(launches) - len(first)
    note = f"{more:,} more launches are in run.json." if more else ""
    environment = {
        (str(variable), str(value))
        for each in launches.values()
        for variable, value in (find(each, "environment") or {}).items()
    }
    return [
        without_empty_columns(Table("Launches", columns, rows, note)),
        Table("Commands", word_columns("launch", "server", "command"), commands, note, folded=True),
        Table(
            "Environment of the servers",
            word_columns("variable", "value"),
            tuple((words(variable), words(value)) for variable, value in sorted(environment)),
            folded=True,
        ),
    ]


def provenance_tables(run: Run) -> list[Table]:
    """Machine, versions and code."""
    facts = tuple((words(name), words(value)) for name, value in _facts(run.record))
    versions = find(run.record, "provenance", "versions") or {}
    packages = dict.fromkeys(package for each in versions.values() for package in each)
    rows = tuple(
        (words(package), *(words(find(versions, server, package)) for server in versions)) for package in packages
    )
    tables = [Table("Where and when", word_columns("what", "value"), facts)]
    if rows:
        tables.append(Table("Versions", word_columns("package", *(f"{server}'s Python" for server in versions)), rows))
    return tables


_SIZES = ("budget", "unified_block_size", "chunk_size")

_SERVERS = ("lmcache", "vllm")


def _facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine, code = find(record, "provenance", "machine") or {}, find(record, "provenance", "harness") or {}
    for name in ("started_at", "finished_at"):
        if value := record.get(name):
            yield name.replace("_at", ""), str(value).removesuffix("+00:00").replace("T", " ") + " UTC"
    for each in record.get("resumed") or []:
        yield "resumed", str(find(each, "at"))
    sizes = [record.get(name) for name in ("unified_block_size", "predicted_block_size")]
    yield "N, measured and predicted", f"{number(sizes[0], ',')} and {number(sizes[1], ',')} tokens"
    if find(record, "provenance", "attached"):
        yield "servers", "ran already; their machine, environment and logs are not known, versions as they say"
    if machine:
        memory = machine.get("memory_bytes")
        told = "" if memory is None else f", {memory / 2**30:.1f} GiB of memory"
        yield "machine", f"{machine.get('processor')}, {machine.get('cores')} logical cores{told}"
        yield "system", f"{machine.get('system')}, {machine.get('architecture')}"
    for gpu in find(record, "provenance", "gpus") or []:
        yield "GPU", ", ".join(str(find(gpu, name)) for name in ("name", "memory", "driver"))
    if code.get("commit"):
        changed = ", with changes that are not committed" if code.get("dirty") else ""
        yield "harness", f"commit {code['commit']}{changed}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
