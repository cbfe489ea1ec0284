"""Replaying a bundle: its own configuration with whatever was given beside it, and its prompts as an lm-eval task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from harness.config import RunConfig, load_config
from harness.errors import UsageError
from harness.redaction import HIDDEN
from harness.repro.bundle import Bundle, read_bundle
from harness.resume import leaves
from harness.workload.tasks import stored_task

if TYPE_CHECKING:
    from lm_eval.api.task import ConfigurableTask

OF_THIS_RUN = ("replay", "run_id", "results_dir")
"""Fields that name the new run; they are never taken from the stored configuration."""

SCORING = ("task.filter", "task.metric", "task.floor")
"""What may change of the task: the prompts stay what they are."""


def replayed_config(composed: DictConfig, overrides: Sequence[str]) -> RunConfig:
    """The configuration that a bundle holds, with overrides on top.

    Args:
        composed: as Hydra composed it from these overrides; ``replay`` names the bundle.
        overrides: as they were typed.

    Raises:
        UsageError: there is no such bundle, an override would change what is sent, or a value is wrong.
    """
    path = Path(str(composed.replay)).expanduser()
    bundle = read_bundle(path)
    given = OmegaConf.to_container(composed, resolve=True)
    config = OmegaConf.create(dict(bundle.config))
    for name in _replaced(overrides):
        OmegaConf.update(config, name, _at(given, name), merge=False, force_add=True)
    for name in OF_THIS_RUN:
        OmegaConf.update(config, name, _at(given, name), force_add=True)
    OmegaConf.update(config, "replay", str(path))
    OmegaConf.update(config, "task.limit", len(bundle.prompts))
    # Few, and chosen because they differed: there is nothing to look at before all of them were asked.
    OmegaConf.update(config, "gate.looks", 1, force_add=True)
    checked = load_config(config)
    if hidden := [name for name, value in leaves(asdict(checked)) if HIDDEN in str(value)]:
        raise UsageError(
            f"{path} does not hold the secret in {hidden[0]}: give it beside replay=, as {hidden[0]}=VALUE."
        )
    return checked


def replayed_task(bundle: Bundle, name: str) -> ConfigurableTask:
    """A bundle's prompts and targets as an lm-eval task that scores as the named one does."""
    return stored_task(name, [each.prompt.text for each in bundle.prompts], [each.target for each in bundle.prompts])


def _replaced(overrides: Sequence[str]) -> Iterator[str]:
    """Dotted names of what overrides replace in the stored configuration; a whole group by its name.

    Raises:
        UsageError: one of them can't stand beside ``replay``.
    """
    for override in overrides:
        name = override.lstrip("+").partition("=")[0]
        if name.startswith("~"):
            raise UsageError(f"{override} can't be given beside replay=: give the value that is wanted instead.")
        if name == "resume":
            raise UsageError(
                "replay= and resume= can't be given together: a replay that was cut short is resumed alone."
            )
        if name == "model" or (name.partition(".")[0] == "task" and name not in SCORING):
            raise UsageError(
                f"{override} can't be given beside replay=, which sends exactly the stored prompts, as tokens of the "
                f"model that they were made for; what may change of the task: {', '.join(SCORING)}."
            )
        if name not in OF_THIS_RUN:
            yield name


def _at(data: Any, name: str) -> Any:
    try:
        for part in name.split("."):
            data = data[part]
    except (KeyError, TypeError) as error:  # a part of a list
        raise UsageError(f"{name} can't be given beside replay=: give the whole field.") from error
    return data
