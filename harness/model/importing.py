"""A model's YAML from its checkpoint's ``config.json``: ``python -m harness model import CONFIG.json``."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError
from harness.model.geometry import geometry_from_config, read_config, text_config

HEADER = """# {title}, imported from its config.json. Set gpus and tensor_parallel_size for your machine.
# Support is unknown until somebody has validated it (features and statuses: harness/model/support.py).
defaults:
  - override /engine@_global_.engine: gpu

"""


def model_yaml(config: dict[str, Any], name: str, path: str) -> str:
    """The YAML of a model.

    Args:
        config: the checkpoint's config.json.
        name: the model's name, as ``model=…`` takes it.
        path: checkpoint folder or hub id.

    Raises:
        UsageError: it is no Gated-DeltaNet hybrid, see :func:`geometry_from_config`.
    """
    geometry = geometry_from_config(config)
    data: dict[str, Any] = {"name": name, "path": path, "gpus": 1}
    longest = text_config(config).get("max_position_embeddings")
    if isinstance(longest, int):
        data["native_context"] = longest
    data["geometry"] = asdict(geometry)
    return HEADER.format(title=path) + yaml.safe_dump(data, sort_keys=False)


def import_model(file: Path, folder: Path, name: str | None = None, path: str | None = None) -> Path:
    """Writes the YAML of a checkpoint into ``folder``.

    Returns:
        The file written.

    Raises:
        UsageError: the config can't be read or is of another architecture, or the model is there already.
    """
    config = read_config(file)
    checkpoint = file if file.is_dir() else file.parent
    path = path or config.get("_name_or_path") or str(checkpoint.resolve())
    name = name or re.sub(r"[^a-z0-9]+", "_", Path(path).name.lower()).strip("_")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_]*", name):
        raise UsageError(f"name={name} can't name a model: small letters, digits and _ make a name.")
    target = folder / f"{name}.yaml"
    text = model_yaml(config, name, path)
    try:
        with target.open("x") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{target} is there already: give another name=…, or remove it.") from None
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}.") from error
    return target
