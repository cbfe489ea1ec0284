"""How many scheduler steps a pass takes, and what they compute: vLLM's rules for a hybrid model, played through.

A budget decides how long a pass takes mostly by how many steps it needs, so a time per token can't be carried from one
budget to another, and a time per step can. The rules are those of vLLM's V1 scheduler with chunked prefill and
``--mamba-cache-mode align`` (vllm/v1/core/sched/scheduler.py, ``schedule`` and ``_mamba_block_aligned_split``, 0.32.0):

* a step has room for ``budget`` tokens; running requests come first, in their order, then waiting ones;
* a decoding request takes one token, a prefilling one as many as there is room for;
* a part of a prompt that is not its last one ends at a multiple of N, and the one that reaches the last multiple of
  N before the prompt's end stops there, so that its state can be kept;
* the first waiting request that nothing can be given to ends the step: at a budget of N one decoding request leaves
  less than a block, and nobody else begins.

Not played through: preemption, limits on running requests (``--max-num-seqs``), and the time that a client takes
between an answer and its next request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

MOST_PLAYED = 240
"""Requests that are played through; a larger pass is so many times that. A whole multiple of usual concurrencies, and
enough that a batch which fills and empties once weighs little."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests that are sent at once, in total numbers; tokens are spread evenly over them."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    local_tokens: int = 0
    """Of the prompt tokens, those that vLLM's own cache serves."""
    external_tokens: int = 0
    """Those that LMCache serves."""
    concurrency: int = 1
    """Requests that are open at once."""

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that no cache serves."""
        return self.prompt_tokens - self.local_tokens - self.external_tokens


@dataclass(frozen=True, slots=True)
class Work:
    """What the servers do for it."""

    steps: float = 0.0
    computed: float = 0.0
    """Prompt tokens."""
    decoded: float = 0.0
    """Output tokens but each request's first, which its prefill gives."""
    retrieved: float = 0.0
    """Prompt tokens from LMCache."""


@dataclass(slots=True)
class _Request:
    """One request: tokens of its prompt that are there, tokens of it in all, answers still to give."""

    at: int
    prompt: int
    left: int


@lru_cache(maxsize=4096)
def work_of(asked: Asked, budget: int, block_size: int) -> Work:
    """Plays a pass through; a run asks for the same ones after each of its cells.

    Args:
        asked: its requests.
        budget: tokens per step.
        block_size: N in tokens.
    """
    if not asked.requests:
        return Work()
    # Where N was mispredicted a block may be wider than a step, which then ends within it.
    block_size = min(block_size, budget)
    played = min(asked.requests, MOST_PLAYED)
    factor = asked.requests / played
    steps, computed, decoded = _play(_requests(asked, played, factor, block_size), budget, block_size, asked)
    return Work(factor * steps, factor * computed, factor * decoded, float(asked.external_tokens))


def _requests(asked: Asked, played: int, factor: float, block_size: int) -> Iterable[_Request]:
    """Requests with the same totals; what is cached is whole blocks, and never a prompt's last token."""
    cached = round((asked.local_tokens + asked.external_tokens) / block_size / factor)
    totals = (cached, round(asked.prompt_tokens / factor), round(asked.output_tokens / factor))
    for number in range(played):
        blocks, prompt, output = (total * (number + 1) // played - total * number // played for total in totals)
        yield _Request(max(0, min(blocks * block_size, prompt - 1)), prompt, max(1, output))


def _play(requests: Iterable[_Request], budget: int, block_size: int, asked: Asked) -> tuple[int, int, int]:
    """Steps, computed prompt tokens and decoded tokens."""
    to_send, waiting, running = deque(requests), deque[_Request](), list[_Request]()
    steps = computed = decoded = 0
    while to_send or waiting or running:
        while to_send and len(running) + len(waiting) < asked.concurrency:
            waiting.append(to_send.popleft())
        room = budget
        for request in running:
            if request.at < request.prompt:
                part = prefill_part(request.at, request.prompt, room, block_size)
                computed += part
            else:
                part = min(1, room)
                decoded += part
                request.left -= part
            room -= part
            _advance(request, part)
        while waiting and (part := prefill_part(waiting[0].at, waiting[0].prompt, room, block_size)):
            running.append(waiting.popleft())
            computed += part
            room -= part
            _advance(running[-1], part)
        steps += 1
        running = [request for request in running if request.left > 0]
    return steps, computed, decoded


def _advance(request: _Request, part: int) -> None:
    """The end of a prompt gives the first token of its answer."""
    if part and request.at < request.prompt:
        request.at += part
        request.left -= request.at == request.prompt


def prefill_part(start: int, prompt: int, room: int, block_size: int) -> int:
    """Tokens of a prompt that one step computes.

    Args:
        start: tokens of it that are there.
        prompt: its tokens.
        room: what the step has left, in tokens.
        block_size: N in tokens.
    """
    end = min(prompt, start + room)
    last = (prompt - 1) // block_size * block_size
    if end < prompt:
        end = end // block_size * block_size
    if start < last < end:
        end = last
    return max(0, end - start)
