"""N of a configured model before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from harness.config import EngineConfig, GeometryConfig, ModelConfig
from harness.errors import UsageError
from harness.model.predict import predicted_block_size
from harness.pocket import CHECKPOINT

QWEN_08B = {
    "num_hidden_layers": 24,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "dtype": "bfloat16",
}

GPU = EngineConfig(name="gpu")
CPU = EngineConfig(name="cpu", kernel_alignment=32, default_block_size=128)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": QWEN_08B}))
    return str(tmp_path)


def model(path: str, **fields: Any) -> ModelConfig:
    return ModelConfig(name="m", path=path, **fields)


@pytest.mark.parametrize(
    ("engine", "block_size", "expected"),
    [
        (GPU, None, 544),
        (GPU, 64, 544),  # there N does not follow --block-size
        (CPU, None, 640),
        (CPU, 32, 544),
        (CPU, 16, 544),  # 32 at least
        (CPU, 64, 576),
    ],
)
def test_alignment_on_either_engine(
    checkpoint: str, engine: EngineConfig, block_size: int | None, expected: int
) -> None:
    assert predicted_block_size(model(checkpoint, block_size=block_size), engine) == expected


def test_the_pocket_model_as_it_ships() -> None:
    assert predicted_block_size(model(str(CHECKPOINT), block_size=64), CPU) == 64


def test_dtype_and_ranks_reach_the_formula(checkpoint: str) -> None:
    assert predicted_block_size(model(checkpoint, kv_cache_dtype="fp8"), GPU) == 1072
    # A quarter of the state on each rank, and one of the two attention heads: half of it.
    assert predicted_block_size(model(checkpoint, tensor_parallel_size=4), GPU) == 272


@pytest.mark.parametrize("ranks", [3, 5, 32])
def test_heads_that_cannot_be_divided(checkpoint: str, ranks: int) -> None:
    with pytest.raises(
        UsageError, match=f"tensor_parallel_size={ranks} does not divide the model's 16 key and 16 value"
    ):
        predicted_block_size(model(checkpoint, tensor_parallel_size=ranks), GPU)


def test_the_geometry_of_a_yaml_needs_no_hub_and_yields_to_a_folder(checkpoint: str) -> None:
    flash_next = GeometryConfig(48, 12, 16, 48, 128, 128, 4, 2, 256)
    assert predicted_block_size(model("Qwen/any", geometry=flash_next, tensor_parallel_size=8), GPU) == 400
    assert predicted_block_size(model(checkpoint, geometry=flash_next), GPU) == 544


def test_a_hub_id_is_fetched(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def fetch(repo: str, name: str) -> str:
        asked.append((repo, name))
        return f"{checkpoint}/{name}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    assert predicted_block_size(model("Qwen/Qwen3.5-0.8B"), GPU) == 544
    assert asked == [("Qwen/Qwen3.5-0.8B", "config.json")]


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), ValueError("Repo id must be …"), FileNotFoundError("x")]
)
def test_a_hub_that_does_not_answer(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(repo: str, name: str) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(UsageError) as caught:
        predicted_block_size(model("Qwen/Qwen9"), GPU)
    assert "model.path=Qwen/Qwen9 is no folder" in str(caught.value)
    assert type(error).__name__ in str(caught.value)
