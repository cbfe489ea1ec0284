"""What a geometry takes in memory, and the unified block size N that follows from it. Pure arithmetic.

vLLM gives attention and recurrent layers of a hybrid model pages of one size, so a block must hold enough tokens
for its attention page to be at least as large as the recurrent state (vLLM, ``HybridAttentionMambaModelConfig``).
The recurrent layers' pages are padded to the size of the attention page, and LMCache stores whole pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import UsageError
from harness.model.geometry import Geometry

BYTES_PER_ELEMENT = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}

GIB = 2**30

L1_WATERMARK = 0.8
"""Share of its L1 at which LMCache starts to evict (``--eviction-trigger-watermark``, default in LMCache 0.5.6)."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served, as far as it changes sizes."""

    kv_cache_dtype: str = "auto"
    """Of the attention layers' cache; auto is the model's own."""
    tensor_parallel_size: int = 1
    kernel_alignment: int = 16
    """Tokens that N is a multiple of; depends on the attention backend."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a served model in bytes, and N in tokens."""

    geometry: Geometry
    serving: Serving

    @property
    def conv_state(self) -> int:
        """Convolution state of one layer on one rank.

        ``(kernel - 1) * (2 * k_heads * k_dim + v_heads * v_dim) / tp`` elements of the model's dtype (vLLM,
        ``MambaStateShapeCalculator``).
        """
        g = self.geometry
        channels = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim
        return (g.conv_kernel - 1) * channels // self._ranks * bytes_per_element(g.dtype)

    @property
    def ssm_state(self) -> int:
        """SSM state of one layer on one rank: ``v_heads / tp * k_dim * v_dim`` elements of the SSM dtype."""
        g = self.geometry
        return g.value_heads // self._ranks * g.key_dim * g.value_dim * bytes_per_element(g.ssm_dtype)

    @property
    def recurrent_page(self) -> int:
        """Recurrent state of one layer on one rank."""
        return self.conv_state + self.ssm_state

    @property
    def attention_per_token(self) -> int:
        """K and V of one token in one layer on one rank: ``2 * max(1, kv_heads / tp) * head_dim`` elements."""
        g = self.geometry
        dtype = g.dtype if self.serving.kv_cache_dtype == "auto" else self.serving.kv_cache_dtype
        return 2 * max(1, g.kv_heads // self._ranks) * g.head_dim * bytes_per_element(dtype)

    @property
    def block_size(self) -> int:
        """N in tokens: ``A * ceil(recurrent page / (A * attention bytes per token))``, A the kernel alignment."""
        alignment = self.serving.kernel_alignment
        return alignment * math.ceil(self.recurrent_page / (alignment * self.attention_per_token))

    @property
    def page(self) -> int:
        """Page of one layer on one rank, of either kind: N tokens of attention."""
        return self.block_size * self.attention_per_token

    @property
    def padding(self) -> int:
        """Bytes of a recurrent layer's page that hold nothing."""
        return self.page - self.recurrent_page

    @property
    def kv_per_token(self) -> int:
        """K and V of one token in all attention layers on all ranks."""
        return self.geometry.attention_layers * self.attention_per_token * self._ranks

    @property
    def state_per_sequence(self) -> int:
        """Recurrent state of one sequence in all recurrent layers on all ranks, however long it is."""
        return self.geometry.recurrent_layers * self.recurrent_page * self._ranks

    @property
    def stored_block(self) -> int:
        """What LMCache stores for one block of N tokens: a whole page of every layer on every rank, padding included.

        The recurrent layers' share is the state at the end of the block, so it is stored once per block.
        """
        return self.geometry.layers * self.page * self._ranks

    @property
    def pages_per_block(self) -> int:
        """Pages that vLLM sets apart together, on one rank, when it hands out one block.

        vLLM puts layers into groups of equal size that share their memory; the size is that of the larger kind
        where it has less than 1.5 times as many layers, else that of the smaller (vLLM 0.32, kv_cache_utils).
        """
        fewer, more = sorted((self.geometry.attention_layers, self.geometry.recurrent_layers))
        return more if more < 1.5 * fewer else fewer

    @property
    def _ranks(self) -> int:
        return self.serving.tensor_parallel_size

    def l1_bytes(self, prompt_tokens: Iterable[int]) -> int:
        """L1 that holds every whole block of these prompts without evicting any."""
        blocks = sum(max(0, tokens - 1) // self.block_size for tokens in prompt_tokens)
        return math.ceil(blocks * self.stored_block / L1_WATERMARK)

    def blocks_in(self, kv_bytes: int) -> int:
        """Blocks that vLLM has on a rank with so much memory for its cache.

        Every running sequence holds one for its recurrent state, so it is also the largest safe ``max_num_seqs``.
        """
        return kv_bytes // (self.page * self.pages_per_block)


def sizes_of(geometry: Geometry, serving: Serving) -> Sizes:
    """Sizes of a served model.

    Raises:
        UsageError: its heads can't be divided among the GPUs, or a dtype is not known.
    """
    ranks = serving.tensor_parallel_size
    if geometry.key_heads % ranks or geometry.value_heads % ranks:
        raise UsageError(
            f"model.tensor_parallel_size={ranks} does not divide the model's {geometry.key_heads} key and "
            f"{geometry.value_heads} value heads of its recurrent layers."
        )
    for dtype in (geometry.dtype, geometry.ssm_dtype):
        bytes_per_element(dtype)
    return Sizes(geometry, serving)


def bytes_per_element(dtype: str) -> int:
    """Bytes of one element.

    Raises:
        UsageError: the dtype is not known.
    """
    try:
        return BYTES_PER_ELEMENT[dtype]
    except KeyError:
        raise UsageError(f"dtype {dtype} is not known; known: {', '.join(BYTES_PER_ELEMENT)}.") from None
