"""Overrides: what is meant by ours, what Hydra says about them in one sentence, and what it lets through."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import MISSING

from harness.checking import first_line, nearest
from harness.config import RunConfig, with_nearest_key
from harness.errors import UsageError

APPENDING = re.compile(r" To append to your config use \S+")
"""Hydra's advice for an unknown field; here every field is known, so that it could only fail again."""

UNKNOWN_CHOICE = re.compile(r"Could not find '(?P<group>[\w/]+)/(?P<word>[^'/]*)'.*Available options in '[^']*': (?P<known>.*)$")  # fmt: skip # noqa: E501

UNKNOWN_FIELD = re.compile(r"Could not override '(?P<name>[^']*)'")

NO_LIST = re.compile(r"Error merging override (?P<name>[\w.]+)=(?P<value>.*?): .*is not a ListConfig, list or tuple")

ON_AND_OFF = ("true", "false")

MULTIRUN = ("-m", "--multirun")

LAUNCHERS = ("slurm", "local", "ray_job")
"""Options of ``configs/hydra/launcher``."""

WHOLE = "all"
"""The check that consists of others."""

FOR_ARM = {"sweep.diverge_after": "divergence", "check.kv_blocks_per_request": "preemption"}
"""Fields that only one arm knows what to do with, and that arm."""


def hydra_sentence(error: Exception) -> str:
    """Hydra's complaint and its cause, without tracebacks, search paths and links, with the nearest known word."""
    told = " ".join(str(error).split("Config search path")[0].split("See https://")[0].split())
    told = APPENDING.sub("", told).rstrip(".")
    cause = f": {first_line(error.__cause__)}" if error.__cause__ else ""
    hint = " (quote values that hold =, ~ or spaces: 'field=[\"--name=value\"]')" if "viable" in told.lower() else ""
    if found := UNKNOWN_CHOICE.search(told):
        return _ended(f"{told}; {nearest(found['word'], found['known'].split())}") if _close(found) else f"{told}."
    if found := NO_LIST.search(told + cause):
        return f"{found['name']}={found['value']}: a list stands in brackets, {found['name']}=[{found['value']}]."
    if found := UNKNOWN_FIELD.search(told):
        known = [name for name, _ in fields_of(RunConfig)]
        return _ended(f"{told}{cause}; {_nearest_field(found['name'], known)}")
    return _ended(f"{with_nearest_key(told + cause)}{hint}")


def check_switches(overrides: Sequence[str]) -> None:
    """Refuses numbers and words for fields that are on or off: OmegaConf takes any number for on.

    Raises:
        UsageError: naming the field, its value, and true and false.
    """
    switches = {name for name, kind in fields_of(RunConfig) if kind == "bool"}
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        words = [word.strip().lower() for word in value.split(",")]
        if name in switches and not value.startswith("$") and not set(words) <= set(ON_AND_OFF):
            raise UsageError(f"{name}={value} is not a valid bool: write true or false.")


def is_multirun(overrides: Sequence[str]) -> bool:
    """Whether one run is asked for of each of the values behind commas."""
    return any(word in MULTIRUN for word in overrides)


def check_launcher(overrides: Sequence[str]) -> None:
    """Refuses a cluster for a single run, which Hydra would run here without a word.

    Raises:
        UsageError: in one sentence.
    """
    others = ("hydra.mode=", "--cfg", "-c", "--info")
    several = is_multirun(overrides) or any(word.startswith(others) for word in overrides)
    for word in overrides:
        if word.lstrip("+") in [f"hydra/launcher={name}" for name in LAUNCHERS] and not several:
            raise UsageError(f"{word} is for a multirun: add -m, for a single job as well.")


def check_missing(overrides: Sequence[str]) -> None:
    """Refuses ``???``, which OmegaConf takes for a value that is still to come, and a checked class for none.

    Raises:
        UsageError: naming the field.
    """
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        if value.strip("'\"") == MISSING:
            raise UsageError(f"{name}={MISSING} stands for a missing value: give one, or leave it out.")


def check_dashes(overrides: Sequence[str]) -> None:
    """Refuses ``--field=value``: overrides have no dashes.

    Raises:
        UsageError: naming the override as it is to be written.
    """
    known = {name for name, _ in fields_of(RunConfig)}
    for override in overrides:
        word = override.lstrip("-")
        if override.startswith("-") and "=" in word and word.lstrip("+~").partition("=")[0] in known:
            raise UsageError(f"{override}: write it without --: {word}")


def as_meant(overrides: Sequence[str]) -> list[str]:
    """Overrides as the configuration knows them: with arms (`with_arms`) and with the path of a run to go on with.

    Raises:
        UsageError: the path and results_dir both say where that run lies.
    """
    return with_arms(with_run_path(overrides))


def with_run_path(overrides: Sequence[str]) -> list[str]:
    """Overrides in which ``resume=results/<run id>``, as other commands name a run, is ``results_dir`` and ``resume``.

    Raises:
        UsageError: results_dir is given as well.
    """
    meant: list[str] = []
    for word in overrides:
        name, _, value = word.partition("=")
        path = Path(value.strip("'\""))
        if name.lstrip("+") != "resume" or "/" not in value or "," in value or not path.name:
            meant.append(word)
            continue
        if any(other.lstrip("+").startswith("results_dir=") for other in overrides):
            raise UsageError(f"{word} says where the run lies: leave results_dir out, or write resume={path.name}.")
        meant += [f"results_dir={path.expanduser().parent}", f"resume={path.name}"]
    return meant


def with_arms(overrides: Sequence[str]) -> list[str]:
    """Overrides in which ``+check=all``, ``+check=[a,b]`` and ``check=[a,b]`` are what Hydra knows them as."""
    chosen: list[str] = []
    for word in overrides:
        name, _, value = word.partition("=")
        if name not in ("check", "+check") or not (name == "+check" or value.startswith("[")):
            chosen.append(word)
        elif value == "all":
            chosen.append("check=all")
        else:
            chosen += ["check=all", f"check.arms=[{value.strip('[]')}]"]
    return chosen


def arm_overrides(overrides: Sequence[str], arm: str) -> list[str]:
    """The overrides of one arm: those of the whole, with its own check, less what only another arm understands."""
    kept = []
    for word in overrides:
        name = word.lstrip("+~").partition("=")[0]
        if name in ("check", "check.arms", "run_id", "results_dir", "resume"):
            continue
        if FOR_ARM.get(name, arm) == arm:
            kept.append(word)
    return [*kept, f"check={arm}"]


def check_arms(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuses arms that are no checks, or named twice.

    Raises:
        UsageError: in one sentence.
    """
    for name in names:
        if name not in known:
            raise UsageError(f"check.arms: {name!r} is no check; {nearest(name, list(known))}")
        if name == WHOLE:
            raise UsageError(f"check.arms: {name!r} consists of arms itself: name those that are wanted.")
    if len(set(names)) < len(names):
        raise UsageError(f"check.arms names a check twice: {', '.join(names)}.")


def fields_of(schema: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and type, as it is written, of every field of a config, groups and lists among them."""
    kinds = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kind = kinds[field.name]
        inner = [each for each in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(each)]
        yield f"{prefix}{field.name}", str(field.type)
        for each in inner:
            assert isinstance(each, type)
            yield from fields_of(each, f"{prefix}{field.name}.")


def _nearest_field(name: str, known: Sequence[str]) -> str:
    """The whole name if it is misspelt somewhere, else what there is where it goes wrong."""
    if (told := nearest(name, known)).startswith("did"):
        return told
    parts = name.split(".")
    right = next(n for n in range(len(parts), -1, -1) if n == 0 or ".".join(parts[:n]) in known)
    prefix = ".".join(parts[:right])
    beside = [each for each in known if each.rpartition(".")[0] == prefix]
    return f"known: {', '.join(beside)}." if beside else f"{prefix} has no fields."


def _close(found: re.Match[str]) -> bool:
    return nearest(found["word"], found["known"].split()).startswith("did")


def _ended(told: str) -> str:
    return told if told.endswith(("?", ".", ")")) else f"{told}."
