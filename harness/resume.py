"""Going on with a run that was cut short: with the configuration it began with, and with nothing else changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.config import RunConfig, load_config
from harness.errors import UsageError
from harness.redaction import HIDDEN, without_secrets_in
from harness.store import RECORD, read_record

NAMING = ("resume", "run_id", "results_dir")
"""Fields that say which run and where, not what it measures."""

FREE = (*NAMING, "servers.vllm.start_timeout_s", "servers.lmcache.start_timeout_s")
"""Fields that may change in between: no measured number depends on them, and a start that took too long needs it."""

NOTHING = "nothing"
"""Shown for a field that only one side has."""


def is_bare(overrides: list[str]) -> bool:
    """Whether a command line resumes a run and leaves what it measures to the stored configuration."""
    names = {override.lstrip("+~").split("=", 1)[0] for override in overrides}
    return "resume" in names and names <= set(NAMING)


def resumed_config(given: RunConfig, *, bare: bool) -> RunConfig:
    """The configuration to go on with.

    Args:
        given: as composed from the command line; its ``resume`` names the run.
        bare: whether the command line only named the run.

    Raises:
        UsageError: there is no such run, its configuration is another one, or it holds a secret that was not stored.
    """
    path = Path(given.results_dir) / str(given.resume) / RECORD
    if not path.is_file():
        raise UsageError(_missing_run(given))
    stored = load_config(OmegaConf.create(read_record(path.parent)["config"]))
    if bare:
        if hidden := [name for name, value in leaves(asdict(stored)) if HIDDEN in str(value)]:
            raise UsageError(
                f"{path} does not hold the secret in {hidden[0]}: resume it with the same overrides as before."
            )
        return replace(stored, resume=given.resume, results_dir=given.results_dir)
    if changed := difference(asdict(stored), without_secrets_in(asdict(given)), free=FREE):
        name, before, now = changed
        raise UsageError(
            f"resume={given.resume}: {name} was {before} when the run began and is {now} now, so its cells could not "
            "be compared: give the same overrides as before or none at all, or begin a new run."
        )
    return replace(given, run_id=stored.run_id)


def _missing_run(given: RunConfig) -> str:
    folder = Path(given.results_dir).absolute()
    if (folder / str(given.resume) / "attribution.json").is_file():
        return (
            f"resume={given.resume}: {folder / str(given.resume)} holds the arms of one run: go on with +check=all, or "
            "the arms that were chosen, and the same overrides as before."
        )
    return f"resume={given.resume}: {folder} holds no run of that name; results_dir=… names another folder."


def check_versions(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses to go on with other programs than those that measured the first cells.

    Args:
        earlier: ``provenance`` of run.json.
        now: the same of this machine.

    Raises:
        UsageError: in one sentence, with the package and both versions.
    """
    if changed := difference(earlier["versions"], now["versions"]):
        name, before, after = changed
        raise UsageError(
            f"{name} was {before} when the run began and is {after} now, so its cells could not be compared: begin a "
            "new run."
        )


def difference(
    before: Mapping[str, Any], now: Mapping[str, Any], free: tuple[str, ...] = ()
) -> tuple[str, Any, Any] | None:
    """The first field, by its dotted name, that is not the same in both, and its two values; None where all are."""
    old, new = dict(leaves(before)), dict(leaves(now))
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in free and old.get(name, NOTHING) != new.get(name, NOTHING):
            return name, old.get(name, NOTHING), new.get(name, NOTHING)
    return None


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything that is no mapping itself."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
