"""What a geometry takes: every published and measured value."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.model.geometry import Geometry, geometry_from_config, read_config
from harness.model.sizes import GIB, Serving, Sizes, sizes_of


def hybrid(
    key_heads: int, value_heads: int, kv_heads: int, head_dim: int = 256, *, layers: int = 4, attention: int = 1
) -> Geometry:
    return Geometry(layers, attention, key_heads, value_heads, 128, 128, 4, kv_heads, head_dim)


QWEN_27B = hybrid(16, 48, 4, layers=64, attention=16)
QWEN_08B = hybrid(16, 16, 2, layers=24, attention=6)
FLASH_NEXT = hybrid(16, 48, 2, layers=48, attention=12)
QWEN_9B = hybrid(16, 32, 4, layers=32, attention=8)
QWEN_35B = hybrid(16, 32, 2, layers=40, attention=10)
POCKET = Geometry(4, 1, 2, 2, 64, 64, 4, 4, 64)


@pytest.mark.parametrize(
    ("geometry", "serving", "expected"),
    [
        pytest.param(QWEN_27B, Serving(), 784, id="Qwen3.6-27B"),
        pytest.param(QWEN_08B, Serving(), 544, id="Qwen3.5-0.8B"),
        pytest.param(FLASH_NEXT, Serving(tensor_parallel_size=8), 400, id="Qwen3.8-Flash-Next"),
        pytest.param(QWEN_9B, Serving(), 528, id="Qwen3.5-9B"),
        pytest.param(QWEN_35B, Serving("fp8"), 2096, id="Qwen3.5-35B-A3B"),
        pytest.param(QWEN_08B, Serving(kernel_alignment=128), 640, id="CPU, --block-size 128"),
        pytest.param(QWEN_08B, Serving(kernel_alignment=32), 544, id="CPU, --block-size 32"),
        pytest.param(POCKET, Serving(kernel_alignment=64), 64, id="pocket on CPU"),
    ],
)
def test_published_and_measured_block_sizes(geometry: Geometry, serving: Serving, expected: int) -> None:
    assert sizes_of(geometry, serving).block_size == expected


@pytest.mark.parametrize(("kv_cache_dtype", "per_token", "gib"), [("fp8", 10_240, 2.5), ("auto", 20_480, 5)])
def test_kv_of_the_published_long_context(kv_cache_dtype: str, per_token: int, gib: float) -> None:
    sizes = sizes_of(QWEN_35B, Serving(kv_cache_dtype))
    assert sizes.kv_per_token == per_token
    assert sizes.kv_per_token * 262_144 / GIB == gib


def test_kv_if_every_layer_kept_it() -> None:
    every = sizes_of(hybrid(16, 32, 2, layers=40, attention=40), Serving())
    assert every.kv_per_token == 81_920
    assert every.kv_per_token * 262_144 / GIB == 20


def test_pages_of_the_27b_model_by_hand() -> None:
    sizes = sizes_of(QWEN_27B, Serving())
    assert sizes.conv_state == 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert sizes.ssm_state == 48 * 128 * 128 * 4
    assert sizes.recurrent_page == 3_207_168
    assert sizes.attention_per_token == 2 * 4 * 256 * 2
    assert sizes.page == 784 * 4096
    assert sizes.padding == 4096
    assert sizes.state_per_sequence == 48 * 3_207_168
    assert sizes.stored_block == 64 * 784 * 4096


def test_measured_padding_of_the_pocket_model() -> None:
    # vLLM 0.32's log: mamba page padded by 86.86 %, 35,072 -> 65,536 B.
    sizes = sizes_of(POCKET, Serving(kernel_alignment=64))
    assert (sizes.recurrent_page, sizes.page) == (35_072, 65_536)
    assert sizes.padding / sizes.recurrent_page == pytest.approx(0.8686, abs=1e-4)


def test_ranks_share_state_and_repeat_what_cannot_be_divided() -> None:
    one, eight = sizes_of(FLASH_NEXT, Serving()), sizes_of(FLASH_NEXT, Serving(tensor_parallel_size=8))
    assert eight.state_per_sequence == one.state_per_sequence
    # Two KV heads on eight ranks: each rank keeps one, so that all together keep eight.
    assert eight.kv_per_token == 4 * one.kv_per_token
    assert eight.stored_block == 48 * 400 * 1024 * 8


def test_l1_holds_whole_blocks_below_the_watermark() -> None:
    sizes = sizes_of(QWEN_27B, Serving())
    assert sizes.l1_bytes([784, 785, 1568, 1569]) == math.ceil((0 + 1 + 1 + 2) * sizes.stored_block / 0.8)
    assert sizes.l1_bytes([]) == 0


@pytest.mark.parametrize(
    ("layers", "attention", "together"), [(64, 16, 16), (4, 1, 1), (9, 4, 5), (10, 4, 4), (10, 5, 5), (40, 30, 10)]
)
def test_layers_share_memory_in_groups(layers: int, attention: int, together: int) -> None:
    assert sizes_of(hybrid(16, 48, 4, layers=layers, attention=attention), Serving()).pages_per_block == together


def test_blocks_in_memory() -> None:
    sizes = sizes_of(QWEN_27B, Serving())
    assert sizes.blocks_in(600 * 16 * 784 * 4096) == 600
    assert sizes.blocks_in(600 * 16 * 784 * 4096 - 1) == 599


def test_ssm_state_in_another_dtype() -> None:
    geometry = Geometry(4, 1, 16, 48, 128, 128, 4, 4, 256, ssm_dtype="bfloat16")
    assert sizes_of(geometry, Serving()).block_size == 400


def test_blocks_of_the_pocket_model_as_vllm_counts_them() -> None:
    # vLLM 0.32 on 1 GiB: "Maximum concurrency for 4,096 tokens per request: 234.06x": a request takes 64 blocks of
    # attention and two of each of three groups of recurrent layers.
    blocks = sizes_of(POCKET, Serving(kernel_alignment=64)).blocks_in(GIB)
    assert blocks / (64 + 3 * 2) == pytest.approx(234.06, abs=0.005)


@pytest.mark.parametrize("ranks", [3, 5, 32])
def test_heads_that_cannot_be_divided(ranks: int) -> None:
    with pytest.raises(UsageError, match=f"tensor_parallel_size={ranks} does not divide the model's 16 key and 48"):
        sizes_of(QWEN_27B, Serving(tensor_parallel_size=ranks))


def test_a_dtype_that_is_not_known() -> None:
    with pytest.raises(UsageError, match=r"dtype float4 is not known; known: bfloat16"):
        sizes_of(Geometry(4, 1, 16, 48, 128, 128, 4, 4, 256, dtype="float4"), Serving())


TEXT = {
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "dtype": "bfloat16",
}


def test_multimodal_checkpoints_keep_it_in_text_config() -> None:
    assert geometry_from_config({"text_config": TEXT}) == geometry_from_config(TEXT)


def test_attention_layers_are_listed_or_come_at_intervals() -> None:
    assert geometry_from_config(TEXT).attention_layers == 2
    listed = TEXT | {"layer_types": ["linear_attention"] * 5 + ["full_attention"] * 3}
    geometry = geometry_from_config(listed)
    assert (geometry.attention_layers, geometry.recurrent_layers) == (3, 5)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_key_value_heads": 8}))
    with pytest.raises(UsageError, match="full_attention_interval"):
        geometry_from_config(read_config(tmp_path))


@pytest.mark.parametrize(
    ("text", "told"), [(None, "can't be read"), ("{", "not JSON"), ("[]", "not a JSON object"), ("\xff", "not JSON")]
)
def test_missing_and_broken_config(text: str | None, told: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=told):
        read_config(tmp_path)


def test_sizes_are_frozen() -> None:
    assert Sizes(QWEN_27B, Serving()) == sizes_of(QWEN_27B, Serving())
