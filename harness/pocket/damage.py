"""Ways in which a restored state can be wrong, done to a transformers cache at the last block boundary."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Restored:
    """What a prompt's whole blocks left behind, for a batch of prompts of one length."""

    cache: Any
    """transformers' cache after the last whole block."""
    block_before: Any
    """The same one block earlier."""
    block_size: int


@dataclass(frozen=True)
class Damage:
    """One way to damage a cache."""

    title: str
    recurrent: Callable[[Tensor, Tensor, Tensor, Tensor], None] | None = None
    """Changes a layer's convolution and SSM state in place, given both as they were a block earlier."""
    attention: Callable[[Tensor, Tensor, int], None] | None = None
    """Changes a layer's keys and values in place, given the block size."""

    def apply(self, restored: Restored) -> Any:
        """Returns a damaged copy of the cache."""
        cache = copy.deepcopy(restored.cache)
        for layer, before in zip(cache.layers, restored.block_before.layers, strict=True):
            if hasattr(layer, "recurrent_states"):
                if self.recurrent:
                    states = layer.conv_states[0], layer.recurrent_states[0]
                    self.recurrent(*states, before.conv_states[0], before.recurrent_states[0])
            elif self.attention:
                self.attention(layer.keys, layer.values, restored.block_size)
        return cache


def _zero_both(convolution: Tensor, ssm: Tensor, *_: Tensor) -> None:
    convolution.zero_()
    ssm.zero_()


def _one_block_stale(convolution: Tensor, ssm: Tensor, old_convolution: Tensor, old_ssm: Tensor) -> None:
    convolution.copy_(old_convolution)
    ssm.copy_(old_ssm)


def _of_another_prompt(convolution: Tensor, ssm: Tensor, *_: Tensor) -> None:
    for state in (convolution, ssm):
        state.copy_(state.roll(1, 0))


def _zero_convolution(convolution: Tensor, *_: Tensor) -> None:
    convolution.zero_()


def _ssm_to_fp8(_: Tensor, ssm: Tensor, *__: Tensor) -> None:
    ssm.copy_(ssm.to(torch.float8_e4m3fn).to(ssm.dtype))


def _zero_attention(keys: Tensor, values: Tensor, _: int) -> None:
    keys.zero_()
    values.zero_()


def _attention_of_another_prompt(keys: Tensor, values: Tensor, _: int) -> None:
    for state in (keys, values):
        state.copy_(state.roll(1, 0))


def _shift_blocks(keys: Tensor, values: Tensor, block_size: int) -> None:
    """Each block holds what belongs into the one before; the first stands there twice, the last is lost."""
    for state in (keys, values):
        state[:, :, block_size:] = state[:, :, :-block_size].clone()


def _permute_blocks(keys: Tensor, values: Tensor, block_size: int) -> None:
    for state in (keys, values):
        state.copy_(state.roll(block_size, 2))


def block_zeroed(number: int) -> Damage:
    """The loss of one attention block, counted from 1."""

    def zero(keys: Tensor, values: Tensor, block_size: int) -> None:
        for state in (keys, values):
            state[:, :, (number - 1) * block_size : number * block_size] = 0

    return Damage(f"attention block {number} zeroed", attention=zero)


UNDAMAGED = Damage("none")
DAMAGES = (
    UNDAMAGED,
    Damage("GDN state zeroed", recurrent=_zero_both),
    Damage("attention KV zeroed", attention=_zero_attention),
    Damage("GDN state one block stale", recurrent=_one_block_stale),
    Damage("GDN state of another prompt", recurrent=_of_another_prompt),
    Damage("attention KV of another prompt", attention=_attention_of_another_prompt),
    Damage("attention blocks shifted by one", attention=_shift_blocks),
    Damage("conv state zeroed", recurrent=_zero_convolution),
    Damage("SSM state rounded to fp8", recurrent=_ssm_to_fp8),
    Damage("attention blocks permuted", attention=_permute_blocks),
)
"""Nothing, and then everything that the README's table lists."""
