"""Unified block size N of a hybrid model, predicted from its ``config.json`` alone.

vLLM gives attention and recurrent layers of a hybrid model pages of one size, so a block must hold enough tokens
for its attention page to be at least as large as the recurrent state (vLLM, ``HybridAttentionMambaModelConfig``).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError

BYTES_PER_ELEMENT = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a Gated-DeltaNet hybrid, whole model (before tensor parallelism)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    ssm_dtype: str = "float32"


def geometry_from_config(config: dict[str, Any]) -> Geometry:
    """Reads the geometry of a Qwen3.5-architecture checkpoint; a multimodal one keeps it in ``text_config``.

    Raises:
        UsageError: naming the first field that is missing, as in a model without recurrent layers.
    """
    text = config.get("text_config", config)
    try:
        return Geometry(
            key_heads=text["linear_num_key_heads"],
            value_heads=text["linear_num_value_heads"],
            key_dim=text["linear_key_head_dim"],
            value_dim=text["linear_value_head_dim"],
            conv_kernel=text["linear_conv_kernel_dim"],
            kv_heads=text["num_key_value_heads"],
            head_dim=text["head_dim"],
            dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "bfloat16"),
            ssm_dtype=str(text.get("mamba_ssm_dtype") or "float32"),
        )
    except KeyError as missing:
        raise UsageError(
            f"config.json has no {missing}: the block size of this architecture can't be predicted; "
            "this harness covers Gated-DeltaNet hybrids (Qwen3.5 architecture)."
        ) from missing


def read_geometry(checkpoint: Path) -> Geometry:
    """Geometry of a checkpoint folder.

    Raises:
        UsageError: no readable ``config.json`` there, or one of another architecture.
    """
    path = checkpoint / "config.json"
    try:
        return geometry_from_config(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"No config.json in {checkpoint}: {error.strerror}.") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error


def recurrent_page_bytes(geometry: Geometry, *, tensor_parallel_size: int = 1) -> int:
    """Bytes of one layer's recurrent state on one rank: conv state + SSM state.

    ``conv = (kernel - 1) * (2 * k_heads * k_dim + v_heads * v_dim) / tp`` elements of the model's dtype,
    ``ssm = v_heads / tp * k_dim * v_dim`` elements of the SSM dtype (vLLM, ``MambaStateShapeCalculator``).
    """
    g, tp = geometry, tensor_parallel_size
    conv = (g.conv_kernel - 1) * (2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim) // tp
    ssm = g.value_heads // tp * g.key_dim * g.value_dim
    return conv * BYTES_PER_ELEMENT[g.dtype] + ssm * BYTES_PER_ELEMENT[g.ssm_dtype]


def attention_bytes_per_token(
    geometry: Geometry, *, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1
) -> int:
    """Bytes of K and V of one token in one attention layer on one rank."""
    dtype = geometry.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    heads = max(1, geometry.kv_heads // tensor_parallel_size)
    return 2 * heads * geometry.head_dim * BYTES_PER_ELEMENT[dtype]


def unified_block_size(
    geometry: Geometry,
    *,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    kernel_alignment: int = 16,
) -> int:
    """Predicted N in tokens: ``A * ceil(recurrent page / (A * attention bytes per token))``, A the alignment."""
    page = recurrent_page_bytes(geometry, tensor_parallel_size=tensor_parallel_size)
    per_token = attention_bytes_per_token(
        geometry, kv_cache_dtype=kv_cache_dtype, tensor_parallel_size=tensor_parallel_size
    )
    return kernel_alignment * math.ceil(page / (kernel_alignment * per_token))
