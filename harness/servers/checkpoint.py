"""A checkpoint behind a link, and a perturbed copy of it: what a stale cache is made of.

LMCache's key holds the model's *path*. A link that points to other weights while a pass stores, and to the real ones
afterwards, therefore leaves entries that look right and are not.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from harness.errors import HarnessError


class LinkedCheckpoint:
    """A link under a fixed path, and the checkpoints that it points to in turn.

    Args:
        source: the real checkpoint's folder.
        folder: where the link and perturbed copies go; of one launch, removed with it.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.source = source.resolve()
        self.path = folder / "checkpoint"
        self._folder = folder

    def point(self, noise: float) -> None:
        """Points the link to the real weights, or to a copy with noise added.

        Args:
            noise: standard deviation of what is added to each weight, as a multiple of its tensor's own; 0 is the
                real checkpoint.

        Raises:
            HarnessError: the checkpoint can't be copied.
        """
        target = self.source
        if noise:
            target = self._folder / f"perturbed-{noise:g}"
            try:
                if not target.exists():
                    perturbed_copy(self.source, target, noise)
            except OSError as error:
                raise HarnessError(f"A perturbed copy of {self.source} can't be made: {error}.") from error
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(target)


def perturbed_copy(source: Path, target: Path, noise: float, seed: int = 0) -> None:
    """Copies a checkpoint folder and adds Gaussian noise to every floating-point weight; the same seed, the same copy.

    Raises:
        OSError: a file can't be read or written.
    """
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    generator = torch.Generator().manual_seed(seed)
    for file in sorted(source.glob("*.safetensors")):
        weights: dict[str, Any] = load_file(file)
        for name, weight in weights.items():
            if weight.is_floating_point() and weight.numel() > 1:
                drawn = torch.randn(weight.shape, generator=generator)
                weights[name] = (weight.float() + noise * weight.float().std() * drawn).to(weight.dtype)
        save_file(weights, target / file.name, metadata={"format": "pt"})
