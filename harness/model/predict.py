"""Sizes of a configured model before anything runs: from its checkpoint folder, its YAML, or the hub's config.json."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from harness.config import EngineConfig, ModelConfig
from harness.errors import UsageError
from harness.model.geometry import Geometry, geometry_from_config, read_config
from harness.model.sizes import Serving, Sizes, sizes_of


def predicted_sizes(model: ModelConfig, engine: EngineConfig) -> Sizes:
    """Sizes of a model on an engine, N among them.

    Raises:
        UsageError: the checkpoint's config.json can't be had or is of another architecture, or its heads can't be
            divided among the GPUs.
    """
    alignment = engine.kernel_alignment
    if engine.default_block_size is not None:
        alignment = max(alignment, model.block_size or engine.default_block_size)
    serving = Serving(model.kv_cache_dtype, model.tensor_parallel_size, alignment)
    return sizes_of(model_geometry(model), serving)


def predicted_block_size(model: ModelConfig, engine: EngineConfig) -> int:
    """Predicted N in tokens; raises as :func:`predicted_sizes`."""
    return predicted_sizes(model, engine).block_size


def model_geometry(model: ModelConfig) -> Geometry:
    """Geometry of a model: of its checkpoint folder, else of its YAML, else of the hub's config.json.

    Raises:
        UsageError: see :func:`predicted_sizes`.
    """
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        return geometry_from_config(read_config(folder))
    if model.geometry is not None:
        return Geometry(**asdict(model.geometry))
    return geometry_from_config(read_config(_from_hub(model.path)))


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, "config.json"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.path={hub_id} is no folder, and its config.json can't be had from the hub "
            f"({type(error).__name__}): check the name and the network, or give a checkpoint folder as model.path=PATH."
        ) from error
