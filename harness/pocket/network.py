"""The pocket model's network: its sizes, how it starts out, and a training forward pass with wipes.

transformers has the architecture; what is here makes it learn this task in minutes on a CPU core: an
initialisation that remembers, and a faster kernel for the gated delta rule. Both leave the model what it is.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.pocket.transformers_cpu import import_transformers

CHUNK_TOKENS = 32
"""Chunk length of the kernel: on a CPU faster than transformers' 64, with the same result."""

# Log decay that leaves nothing of a state: exp(-30) is below float32's resolution.
_FORGET = -30.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of the network: three Gated-DeltaNet layers, then one of full attention."""

    hidden: int = 128
    mlp: int = 256
    layers: int = 4
    attention_heads: int = 4
    recurrent_heads: int = 2
    head: int = 64


def make_model(vocabulary_size: int, sizes: Sizes, seed: int) -> Any:
    """Makes an untrained model in float32; the same arguments give the same weights."""
    transformers = import_transformers()
    config = transformers.Qwen3_5TextConfig(
        vocab_size=vocabulary_size,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.mlp,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.attention_heads,
        num_key_value_heads=sizes.attention_heads,
        head_dim=sizes.head,
        linear_key_head_dim=sizes.head,
        linear_value_head_dim=sizes.head,
        linear_num_key_heads=sizes.recurrent_heads,
        linear_num_value_heads=sizes.recurrent_heads,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        max_position_embeddings=8192,
    )
    torch.manual_seed(seed)
    model = transformers.Qwen3_5ForCausalLM(config).float()
    with torch.no_grad():
        _initialise(model)
    return model


def _initialise(model: Any) -> None:
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            _remember(layer.linear_attn)
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            into_residual = any(part in name for part in ("o_proj", "out_proj", "down_proj"))
            weight.normal_(0, weight.shape[1] ** -0.5 * (0.5 if into_residual else 1))
    model.model.embed_tokens.weight.normal_(0, 0.4)
    # The final norm scales by 1 + weight. Starting small keeps the tied embedding's first logits small.
    model.model.norm.weight.fill_(-0.75)


def _remember(recurrent: Any) -> None:
    """Lets a layer keep its state for tens to hundreds of tokens, as in Mamba.

    With the library's own values it forgets within a token, and never finds out that remembering pays.
    """
    recurrent.A_log.copy_(torch.empty_like(recurrent.A_log).uniform_(0.5, 2).log())
    fastest, slowest = math.log(0.05), math.log(0.001)
    step = torch.exp(torch.rand_like(recurrent.dt_bias) * (fastest - slowest) + slowest)
    recurrent.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus gives the step back
    _look_back(recurrent.conv1d.weight, recurrent.num_k_heads)


RECALL, BRING = (1, 2, 0), (0, 0, 2)
"""How many tokens a head's queries, keys and values look back, for text like ` Uri has 4`. A recalling head stores
each token under the one two before it, and asks for what is stored under the one before. A bringing head gives each
token the one two before it, by which attention can find it later."""


def _look_back(convolution: Tensor, heads: int) -> None:
    """Lets the heads of a layer recall and bring in turn.

    Where all channels blur four tokens at random, queries and keys agree on a name in few of them: about half of
    such models recall people with half the accuracy, and for good.
    """
    channels, _, kernel = convolution.shape  # queries, keys and values of all heads, one after the other
    size = channels // (3 * heads)
    convolution.uniform_(-0.1, 0.1)
    for head in range(heads):
        for part, tokens_back in enumerate(BRING if head % 2 else RECALL):
            start = (part * heads + head) * size
            convolution[start : start + size, 0, kernel - 1 - tokens_back] += 1


def hidden_states(model: Any, tokens: Tensor, forget_at: Tensor, blind_before: Tensor) -> Tensor:
    """Runs the model's layers on samples of which some lose one kind of state on the way.

    Must run within `fast_kernels`, whose kernel is the one that knows wipes.

    Args:
        model: the causal language model.
        tokens: ids, (samples, length).
        forget_at: per sample, the token before which the recurrent state is lost; -1 for none.
        blind_before: per sample, the token from which on attention sees nothing that stood before it; -1 for none.
    """
    length = tokens.shape[1]
    forget = torch.arange(length) == forget_at[:, None]
    masks = {"full_attention": attention_mask(length, blind_before), "linear_attention": None}
    output = model.model(input_ids=tokens, attention_mask=masks, use_cache=False, forget=forget)
    states: Tensor = output.last_hidden_state
    return states


def attention_mask(length: int, blind_before: Tensor) -> Tensor | None:
    """What each token may attend to, (samples, 1, length, length); None where the plain causal mask will do."""
    if (blind_before < 0).all():
        return None
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    start = blind_before[:, None, None]
    hidden = (query >= start) & (key < start) & (start >= 0)
    return ((query >= key) & ~hidden)[:, None]


@contextmanager
def fast_kernels() -> Iterator[None]:
    """Replaces transformers' reference kernel of the gated delta rule while it is open."""
    import_transformers()
    from transformers.models.qwen3_5 import modeling_qwen3_5

    reference = modeling_qwen3_5.torch_chunk_gated_delta_rule
    modeling_qwen3_5.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
    try:
        yield
    finally:
        modeling_qwen3_5.torch_chunk_gated_delta_rule = reference


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    forget: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule over whole sequences: the same result as transformers' torch_chunk_gated_delta_rule.

    Faster on a CPU, because the triangular system of a chunk is solved by a few matrix products: for the
    strictly triangular P of a chunk, (1 - P)^-1 = (1 + P)(1 + P^2)(1 + P^4)... ends after log2(chunk) factors.

    Args:
        query: (batch, length, heads, key size), as key; value likewise with the value size.
        key: see query. Queries and keys are normalised here.
        value: see query.
        g: log decay per token and head, (batch, length, heads).
        beta: write strength per token and head.
        initial_state: (batch, heads, key size, value size).
        output_final_state: whether the state after the last token is returned too.
        forget: tokens before which the state is lost, (batch, length).
    """
    batch, length, heads, key_size = key.shape
    dtype = query.dtype
    if forget is not None:
        g = g.masked_fill(forget.unsqueeze(-1), _FORGET)
    query, key, value, beta, g = (x.transpose(1, 2).float() for x in (query, key, value, beta, g))
    query, key = _normalised(query) * key_size**-0.5, _normalised(key)
    padding = -length % CHUNK_TOKENS
    if padding:
        query, key, value = (functional.pad(x, (0, 0, 0, padding)) for x in (query, key, value))
        beta, g = (functional.pad(x, (0, padding)) for x in (beta, g))
    query, key, value = (x.reshape(batch, heads, -1, CHUNK_TOKENS, x.shape[-1]) for x in (query, key, value))
    beta = beta.reshape(batch, heads, -1, CHUNK_TOKENS, 1)
    decay = g.reshape(batch, heads, -1, CHUNK_TOKENS).cumsum(-1)

    later = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool).triu(1)
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    since_start = decay.exp().unsqueeze(-1)
    until_end = (decay[..., -1:] - decay).exp().unsqueeze(-1)
    written, transposed = key * beta, key.transpose(-1, -2)
    within = (query @ transposed) * between
    system = -(written @ transposed * between).tril(-1)
    solved = _solve(system, torch.cat([value * beta, written * since_start], -1))
    new_values, read_keys = solved[..., : value.shape[-1]], solved[..., value.shape[-1] :]

    state = (
        initial_state.float() if initial_state is not None else value.new_zeros(batch, heads, key_size, value.shape[-1])
    )
    outputs = []
    chunks = (new_values, read_keys, within, query * since_start, (key * until_end).transpose(-1, -2))
    whole_decay = decay[..., -1].exp()[..., None, None].unbind(2)
    for new, read, inside, asked, stored, fade in zip(*(x.unbind(2) for x in chunks), whole_decay, strict=True):
        change = new - read @ state
        outputs.append(asked @ state + inside @ change)
        state = state * fade + stored @ change
    output = torch.stack(outputs, 2).reshape(batch, heads, -1, value.shape[-1])[:, :, :length]
    return output.transpose(1, 2).contiguous().to(dtype), state if output_final_state else None


def _normalised(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + 1e-6)


def _solve(system: Tensor, right: Tensor) -> Tensor:
    """Solves (1 - system) x = right for strictly lower triangular matrices of CHUNK_TOKENS rows."""
    factors = CHUNK_TOKENS.bit_length() - 1
    for factor in range(factors):
        right = right + system @ right
        if factor < factors - 1:
            system = system @ system
    return right
