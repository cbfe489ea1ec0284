"""N of a configured model before anything runs: from its checkpoint folder or, for a hub id, its config.json there."""

from __future__ import annotations

from pathlib import Path

from harness.config import EngineConfig, ModelConfig
from harness.errors import UsageError
from harness.model.geometry import Geometry, read_geometry, unified_block_size


def predicted_block_size(model: ModelConfig, engine: EngineConfig) -> int:
    """Predicted N in tokens for a model on an engine.

    Raises:
        UsageError: the checkpoint's config.json can't be had or is of another architecture, or its heads can't be
            divided among the GPUs.
    """
    geometry, ranks = model_geometry(model), model.tensor_parallel_size
    if geometry.key_heads % ranks or geometry.value_heads % ranks:
        raise UsageError(
            f"model.tensor_parallel_size={ranks} does not divide the model's {geometry.key_heads} key and "
            f"{geometry.value_heads} value heads of its recurrent layers."
        )
    alignment = engine.kernel_alignment
    if engine.default_block_size is not None:
        alignment = max(alignment, model.block_size or engine.default_block_size)
    return unified_block_size(
        geometry,
        kv_cache_dtype=model.kv_cache_dtype,
        tensor_parallel_size=ranks,
        kernel_alignment=alignment,
    )


def model_geometry(model: ModelConfig) -> Geometry:
    """Geometry of a model's checkpoint; raises as :func:`predicted_block_size`."""
    folder = Path(model.path).expanduser()
    return read_geometry(folder if folder.is_dir() else _from_hub(model.path))


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, "config.json")).parent
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model.path={hub_id} is no folder, and its config.json can't be had from the hub "
            f"({type(error).__name__}): check the name and the network, or give a checkpoint folder as model.path=PATH."
        ) from error
