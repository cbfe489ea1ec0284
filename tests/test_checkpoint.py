"""A checkpoint behind a link, and its perturbed copy."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from harness.errors import HarnessError
from harness.pocket import CHECKPOINT
from harness.servers.checkpoint import LinkedCheckpoint, perturbed_copy


def test_noise_is_a_multiple_of_each_tensors_own(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    torch.manual_seed(1)
    weights = {
        "wide": 3 * torch.randn(200, 200),
        "narrow": (0.01 * torch.randn(200, 200)).to(torch.bfloat16),
        "counts": torch.arange(5),
        "scalar": torch.tensor([2.0]),
    }
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text("{}")
    perturbed_copy(source, tmp_path / "a", 0.5)
    perturbed_copy(source, tmp_path / "b", 0.5)
    changed = load_file(tmp_path / "a" / "model.safetensors")
    for name in ("wide", "narrow"):
        moved = (changed[name].float() - weights[name].float()).std() / weights[name].float().std()
        assert float(moved) == pytest.approx(0.5, rel=0.05)
        assert changed[name].dtype == weights[name].dtype
    assert torch.equal(changed["counts"], weights["counts"]) and torch.equal(changed["scalar"], weights["scalar"])
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert (tmp_path / "a" / "config.json").read_text() == "{}"


def test_the_path_stays_and_what_is_behind_it_changes(tmp_path: Path) -> None:
    linked = LinkedCheckpoint(CHECKPOINT, tmp_path)
    linked.point(0)
    assert linked.path.resolve() == CHECKPOINT
    linked.point(0.5)
    assert linked.path.resolve() == tmp_path / "perturbed-0.5"
    assert (linked.path / "model.safetensors").read_bytes() != (CHECKPOINT / "model.safetensors").read_bytes()
    assert (linked.path / "tokenizer.json").read_bytes() == (CHECKPOINT / "tokenizer.json").read_bytes()
    linked.point(0)
    assert linked.path.resolve() == CHECKPOINT


def test_a_checkpoint_that_cannot_be_copied(tmp_path: Path) -> None:
    linked = LinkedCheckpoint(tmp_path / "missing", tmp_path)
    with pytest.raises(HarnessError, match=r"perturbed copy of .*missing can't be made"):
        linked.point(1)
