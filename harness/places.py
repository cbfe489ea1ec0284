"""Files and folders that a configuration names: whether they are there, looked at before anything starts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.config import RunConfig

HUB_ID = re.compile(r"^(?!.*(?:--|\.\.))\w[\w.-]{0,95}(/\w[\w.-]{0,95})?$", re.ASCII)
"""``name`` or ``owner/name``."""


def check_places(config: RunConfig) -> None:
    """Refuses a configuration whose files and folders are not there.

    Raises:
        UsageError: one sentence with the field, its value and the accepted form.
    """
    _check_model_path(config)
    _check_data_dir(config)
    _check_results_dir(config)


def expanded(path: str) -> Path | None:
    """A path with ``~`` expanded; None where it names nobody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return None


def _check_model_path(config: RunConfig) -> None:
    path = config.model.path
    folder = expanded(path) if path else None
    if folder is not None and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UsageError(f"model.path={path} holds no config.json: give a checkpoint folder, or a hub id.")
        return
    if not path or folder is None or path.startswith(("/", "./", "../", "~")) or path in (".", ".."):
        raise UsageError(
            f"model.path={path} is not a folder: give a checkpoint folder that holds config.json, or a hub id."
        )
    if not HUB_ID.match(path):
        raise UsageError(
            f"model.path={path} is neither a folder nor a hub id: give a checkpoint folder that holds config.json, or "
            "an id such as Qwen/Qwen3.6-27B."
        )
    if config.check.linked_checkpoint:
        raise UsageError(
            f"check={config.check.name} exchanges the weights behind a path, and model.path={path} is no folder: give "
            "a checkpoint folder."
        )


def _check_data_dir(config: RunConfig) -> None:
    told = config.task.data_dir
    if told is None:
        return
    folder = expanded(told) if told else None
    missing = [
        name for name in ("train.jsonl", "test.jsonl") if folder is None or not (folder / name).is_file()
    ]  # fmt: skip
    if missing:
        raise UsageError(
            f"task.data_dir={told} holds no {' and no '.join(missing)}: give a folder with train.jsonl and test.jsonl, "
            "or leave it out."
        )


def _check_results_dir(config: RunConfig) -> None:
    """The nearest folder above that exists is one, and can be written."""
    told = config.results_dir
    if not told.strip():
        raise UsageError(f"results_dir={told} names no folder: give one, such as results_dir=results.")
    folder = Path(told).absolute()
    there = next(each for each in (folder, *folder.parents) if each.exists() or each.is_symlink())
    if not there.is_dir():
        raise UsageError(f"results_dir={told} can't be a folder, since {there} is a file: give a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"results_dir={told} can't be written: {there} is not yours to write; give another folder.")
