"""Prompts of chosen lengths relative to block boundaries, for tasks that do not lay their prompts out themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice

from harness.workload.prompts import Prompt

FILLER = "The next problems do not depend on each other. "
"""What stands before a prompt to make it longer: it says nothing that an answer could need."""


def padded(
    prompts: Sequence[Prompt],
    tails: Sequence[int],
    block_size: int,
    tokenize: Callable[[str], Sequence[int]],
    seed: int,
) -> list[Prompt]:
    """The same questions behind a preamble that makes each prompt k N + t tokens long.

    k is the smallest that is possible, t is drawn from ``tails`` for each document. The preamble begins with the
    document's number, so that no two prompts share their first block. It follows what the tokenizer puts before every
    text. Texts are left as the task has them: token ids are what is sent.

    Args:
        prompts: of the task.
        tails: tokens beyond whole blocks, negative ones before them.
        block_size: N in tokens.
        tokenize: text -> token ids, special tokens as for a completion.
        seed: of the draw.
    """
    special = list(tokenize(""))
    filler = list(tokenize(FILLER))[len(special) :]
    return [_padded(prompt, tails, block_size, special, filler, tokenize, seed) for prompt in prompts]


def _padded(
    prompt: Prompt,
    tails: Sequence[int],
    block_size: int,
    special: list[int],
    filler: list[int],
    tokenize: Callable[[str], Sequence[int]],
    seed: int,
) -> Prompt:
    tail = random.Random(f"{seed}/length/{prompt.doc_id}").choice(list(tails))
    missing = (tail - len(prompt.token_ids)) % block_size
    number = list(tokenize(f"Set {prompt.doc_id}. "))[len(special) :]
    preamble = islice([*number, *islice(cycle(filler), missing)], missing)
    ids = list(prompt.token_ids)
    begun = len(special) if ids[: len(special)] == special else 0
    return replace(prompt, token_ids=(*ids[:begun], *preamble, *ids[begun:]))
