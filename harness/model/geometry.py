"""Geometry of a Gated-DeltaNet hybrid: what its ``config.json`` says about its layers, heads and dtypes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of the whole model, before tensor parallelism."""

    layers: int
    attention_layers: int
    """How many of them are full attention; the others are recurrent."""
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    ssm_dtype: str = "float32"

    @property
    def recurrent_layers(self) -> int:
        """How many layers keep a recurrent state."""
        return self.layers - self.attention_layers


def geometry_from_config(config: dict[str, Any]) -> Geometry:
    """Reads the geometry of a Qwen3.5-architecture checkpoint; a multimodal one keeps it in ``text_config``.

    Raises:
        UsageError: naming the first field that is missing, as in a model without recurrent layers.
    """
    text = text_config(config)
    try:
        read = Geometry(
            layers=text["num_hidden_layers"],
            attention_layers=_attention_layers(text),
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
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise UsageError(f"config.json is not that of a checkpoint ({type(error).__name__}: {error}).") from error
    for name, value in asdict(read).items():
        if not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(
                f"config.json gives {value!r} for the model's {name}: a whole number from 1 on belongs there."
            )
    return read


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a checkpoint's config."""
    text: dict[str, Any] = config.get("text_config", config)
    return text


def _attention_layers(text: dict[str, Any]) -> int:
    """From the list of layer types, or from how often a full-attention layer comes (Qwen3.5: every fourth)."""
    if text.get("layer_types"):
        return sum(kind == "full_attention" for kind in text["layer_types"])
    return int(text["num_hidden_layers"]) // int(text["full_attention_interval"])


def read_config(path: Path) -> dict[str, Any]:
    """A checkpoint's ``config.json``; ``path`` is the file or its folder.

    Raises:
        UsageError: it can't be read, or is not a JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}; give a checkpoint's config.json.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a JSON object: give a checkpoint's config.json.")
    return config


def read_geometry(checkpoint: Path) -> Geometry:
    """Geometry of a checkpoint folder; raises as :func:`read_config` and :func:`geometry_from_config`."""
    return geometry_from_config(read_config(checkpoint))
