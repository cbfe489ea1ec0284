"""N predicted from geometry alone: every published and measured value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.model.geometry import Geometry, geometry_from_config, read_geometry, unified_block_size


def hybrid(key_heads: int, value_heads: int, kv_heads: int, head_dim: int, dim: int = 128) -> Geometry:
    return Geometry(key_heads, value_heads, dim, dim, 4, kv_heads, head_dim)


@pytest.mark.parametrize(
    ("geometry", "kv_cache_dtype", "tp", "expected"),
    [
        pytest.param(hybrid(16, 48, 4, 256), "auto", 1, 784, id="Qwen3.6-27B"),
        pytest.param(hybrid(16, 16, 2, 256), "auto", 1, 544, id="Qwen3.5-0.8B"),
        pytest.param(hybrid(16, 48, 2, 256), "auto", 8, 400, id="Qwen3.8-Flash-Next"),
        pytest.param(hybrid(16, 32, 4, 256), "auto", 1, 528, id="Qwen3.5-9B"),
        pytest.param(hybrid(16, 32, 2, 256), "fp8", 1, 2096, id="Qwen3.5-35B-A3B"),
    ],
)
def test_published_block_sizes(geometry: Geometry, kv_cache_dtype: str, tp: int, expected: int) -> None:
    assert unified_block_size(geometry, kv_cache_dtype=kv_cache_dtype, tensor_parallel_size=tp) == expected


def test_alignment_is_the_unit() -> None:
    assert unified_block_size(hybrid(16, 16, 2, 256), kernel_alignment=128) == 640
    assert unified_block_size(hybrid(16, 16, 2, 256), kernel_alignment=32) == 544


def test_multimodal_checkpoints_keep_it_in_text_config() -> None:
    text = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "dtype": "bfloat16",
    }
    assert geometry_from_config({"text_config": text}) == geometry_from_config(text)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_key_value_heads": 8, "head_dim": 128}))
    with pytest.raises(UsageError, match="linear_num_key_heads"):
        read_geometry(tmp_path)


def test_missing_and_broken_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No config\.json"):
        read_geometry(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        read_geometry(tmp_path)
