"""Prompts padded to lengths around block boundaries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.workload.lengths import padded
from harness.workload.prompts import Prompt, shared_first_blocks

N = 64
BOUNDARY = (-1, 0, 1, 2, 10)


def tokenizer(special: tuple[int, ...]) -> Callable[[str], list[int]]:
    return lambda text: [*special, *(ord(letter) for letter in text)]


def prompts(special: tuple[int, ...]) -> list[Prompt]:
    return [
        Prompt(doc, f"question {doc}", tuple(tokenizer(special)("Question: " * 9 + str(doc))), ("\n",), 16)
        for doc in range(40)
    ]


@pytest.mark.parametrize("special", [(), (7,), (7, 8)])
def test_every_prompt_has_a_chosen_length_and_ends_as_it_did(special: tuple[int, ...]) -> None:
    before = prompts(special)
    after = padded(before, BOUNDARY, N, tokenizer(special), seed=0)
    tails = {(len(prompt.token_ids) + 1) % N - 1 for prompt in after}
    assert tails == set(BOUNDARY)
    for old, new in zip(before, after, strict=True):
        assert 0 <= len(new.token_ids) - len(old.token_ids) < N
        assert new.token_ids[: len(special)] == special
        assert new.token_ids[len(new.token_ids) - len(old.token_ids) + len(special) :] == old.token_ids[len(special) :]
        assert (new.doc_id, new.text, new.stop, new.max_tokens) == (old.doc_id, old.text, old.stop, old.max_tokens)
        assert (new.sha256 == old.sha256) == (new.token_ids == old.token_ids)


def test_prompts_share_no_first_block_although_they_begin_alike() -> None:
    before = prompts(())
    assert shared_first_blocks(before, N) == len(before) - 1
    assert shared_first_blocks(padded(before, [5], N, tokenizer(()), seed=0), N) == 0


def test_the_same_seed_gives_the_same_prompts() -> None:
    one, other, again = (padded(prompts(()), BOUNDARY, N, tokenizer(()), seed=seed) for seed in (0, 1, 0))
    assert one == again != other
