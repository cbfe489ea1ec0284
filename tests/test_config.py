"""Values are checked before anything starts, each refusal in one sentence with the field and what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.checking import CHOICES, RANGES, value_at
from harness.config import RunConfig, load_config
from harness.errors import UsageError

BASE: dict[str, Any] = {
    "model": {"name": "m", "path": "Qwen/Qwen3.5-0.8B"},
    "sweep": {"name": "s"},
    "task": {"name": "gsm8k"},
    "engine": {"name": "gpu"},
    "gate": {"name": "g"},
    "check": {"name": "c"},
}


def loaded(**fields: Any) -> RunConfig:
    """The base configuration with fields set by their dotted names, ``__`` for the dot."""
    config = OmegaConf.create(BASE)
    for name, value in fields.items():
        OmegaConf.update(config, name.replace("__", "."), value, force_add=True)
    return load_config(config)


def refusal(**fields: Any) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(**fields)
    told = str(caught.value)
    assert "\n" not in told
    return told


def test_defaults_are_within_what_is_accepted() -> None:
    config = loaded()
    assert config.gate.margin == 0.03
    assert config.gate.drift_margin_nats == 0.1
    assert config.sweep.budgets == ["2N-1"]
    assert config.model.kv_cache_dtype == "auto"


@pytest.mark.parametrize("name", RANGES)
def test_every_range_is_enforced_at_both_ends(name: str) -> None:
    low, high = RANGES[name]
    whole = isinstance(low, int) and isinstance(high, int) and not isinstance(value_at(loaded(), name), float)
    for value in (low - 1 if whole else low - 0.1, high + 1 if whole else high + 0.1):
        told = refusal(**{name.replace(".", "__"): value})
        assert told.startswith(f"{name}={value}")
        assert f"between {low:g} and {high:g}" in told


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_out_of_range(value: float) -> None:
    assert "gate.margin=" in refusal(gate__margin=value)


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_is_enforced(name: str) -> None:
    assert refusal(**{name.replace(".", "__"): "nonsense"}).startswith(f"{name}=nonsense is not known; ")
    for value in CHOICES[name]:
        assert value_at(loaded(**{name.replace(".", "__"): value}), name) == value


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"gate__mode": "tots"}, "gate.mode=tots is not known; did you mean tost?"),
        ({"task__limit": "abc"}, "task.limit: Value 'abc' of type 'str' could not be converted to Integer."),
        ({"nope": 1}, "Key 'nope' not in 'RunConfig'"),
        ({"model__nope": 1}, "Key 'nope' not in 'ModelConfig'"),
        ({"sweep__budgets": []}, "sweep.budgets is empty"),
        ({"model__path": ""}, "model.path= is not a folder"),
        ({"model__path": "/nonexistent"}, "model.path=/nonexistent is not a folder"),
        ({"model__path": "./nonexistent"}, "or a hub id"),
        ({"model__path": "~nobody_at_all/x"}, "model.path=~nobody_at_all/x is not a folder"),
        ({"task__min_fewshot": 9, "task__max_fewshot": 8}, "task.min_fewshot=9 is more than task.max_fewshot=8"),
        ({"gate__drift_margin_nats": 0}, "gate.drift_margin_nats=0.0 is out of range"),
        ({"gate__margin": 0.05}, "gate.margin=0.05 must be smaller than task.floor=0.05"),
        (
            {"task__name": "pocket", "task__blocks": 64, "model__block_size": 64, "model__max_model_len": 4096},
            "task.blocks=64 makes prompts of at least 4097 tokens, and model.max_model_len=4096 has no room",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], told: str) -> None:
    assert told in refusal(**fields)


def test_what_is_missing_is_named() -> None:
    config = OmegaConf.create({name: group for name, group in BASE.items() if name != "model"})
    with pytest.raises(UsageError, match=r"model\.name: .*missing mandatory value"):
        load_config(config)


def test_limits_that_are_left_open() -> None:
    assert loaded(task__limit=None, model__max_model_len=None, servers__lmcache__chunk_size=None).task.limit is None
    assert loaded(task__num_fewshot=5, task__min_fewshot=9, task__max_fewshot=8).task.num_fewshot == 5
    assert loaded(gate__mode="threshold", gate__margin=0.5).gate.margin == 0.5
    fits = loaded(task__name="pocket", task__blocks=63, model__block_size=64, model__max_model_len=4096)
    assert fits.task.blocks == 63


def test_a_checkpoint_folder_is_accepted(tmp_path: Path) -> None:
    assert "holds no config.json: give a checkpoint folder" in refusal(model__path=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert loaded(model__path=str(tmp_path)).model.path == str(tmp_path)
