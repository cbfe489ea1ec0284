"""Which first chunks are seeded for a hit rate: as near as can be, spread evenly, never more than a prompt has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from harness.errors import UsageError
from harness.workload.prompts import Prompt, whole_blocks
from harness.workload.seeding import (
    check_divergence,
    check_target,
    diverging,
    first_chunks,
    prefixes,
    reachable_rate,
    shared_tokens,
    total_chunks,
)

SETS = [[random.Random(seed).randint(1, 900) for _ in range(random.Random(seed).randint(1, 60))] for seed in range(25)]
"""Sets of prompt lengths in tokens, some without a whole chunk."""

TARGETS = [None, 0.0, 0.003, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0]
CHUNKS = [16, 64, 128]


def numbered(lengths: list[int]) -> dict[int, int]:
    return dict(enumerate(lengths, start=100))


def prompt(doc_id: int, tokens: int) -> Prompt:
    return Prompt(doc_id, "text", tuple(range(1000 * doc_id, 1000 * doc_id + tokens)), ("\n",), 28)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("lengths", SETS, ids=len)
def test_no_other_number_of_chunks_is_nearer(lengths: list[int], chunk: int) -> None:
    most = sum(whole_blocks(length, chunk) for length in lengths)
    for target in TARGETS[1:]:
        assert target is not None
        chosen = sum(first_chunks(numbered(lengths), chunk, target, seed=3).values())
        gaps = [abs(total * chunk / sum(lengths) - target) for total in range(most + 1)]
        assert gaps[chosen] == pytest.approx(min(gaps), abs=1e-12)
        assert reachable_rate(lengths, chunk, target) == pytest.approx(chosen * chunk / sum(lengths))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("lengths", SETS, ids=len)
def test_no_prompt_is_seeded_beyond_what_can_hit(lengths: list[int], chunk: int) -> None:
    for target in TARGETS:
        counts = first_chunks(numbered(lengths), chunk, target, seed=3)
        assert list(counts) == list(numbered(lengths))
        for doc_id, length in numbered(lengths).items():
            assert 0 <= counts[doc_id] <= whole_blocks(length, chunk)


@pytest.mark.parametrize("lengths", SETS, ids=len)
def test_a_higher_target_seeds_what_a_lower_one_does(lengths: list[int]) -> None:
    rising = [first_chunks(numbered(lengths), 64, target, seed=3) for target in (*TARGETS[1:], None)]
    for lower, higher in pairwise(rising):
        assert all(lower[doc_id] <= higher[doc_id] for doc_id in lower)


@pytest.mark.parametrize("lengths", SETS, ids=len)
def test_all_that_is_reachable_is_every_whole_chunk(lengths: list[int]) -> None:
    whole = {doc_id: whole_blocks(length, 64) for doc_id, length in numbered(lengths).items()}
    assert first_chunks(numbered(lengths), 64, None, seed=3) == whole
    assert total_chunks(lengths, 64, None) == sum(whole.values())


@pytest.mark.parametrize("target", [0.1, 0.5, 0.63, 0.9])
def test_chunks_are_spread_evenly(target: float) -> None:
    lengths = dict.fromkeys(range(200), 6 * 64 + 30)
    counts = list(first_chunks(lengths, 64, target, seed=0).values())
    assert max(counts) - min(counts) <= 1
    # The longer half of a set is not seeded at another rate than the shorter one.
    mixed = {doc_id: (10 if doc_id % 2 else 5) * 64 + 1 for doc_id in range(200)}
    counts = list(first_chunks(mixed, 64, target, seed=0).values())
    assert sum(counts[1::2]) / 1000 == pytest.approx(sum(counts[0::2]) / 500, abs=0.03)


def test_the_remainder_is_not_always_the_first_prompts() -> None:
    lengths = dict.fromkeys(range(100), 65)
    halves = [
        sum(count for doc_id, count in first_chunks(lengths, 64, 0.5, seed).items() if doc_id < 50) for seed in range(5)
    ]
    assert all(10 < half < 40 for half in halves)
    assert len(set(halves)) > 1, "another seed chooses others"


def test_the_choice_depends_on_nothing_but_lengths_and_seed() -> None:
    lengths = numbered(SETS[0])
    backwards = dict(reversed(lengths.items()))
    assert first_chunks(lengths, 64, 0.5, seed=1) == first_chunks(backwards, 64, 0.5, seed=1)


def test_prefixes_are_whole_chunks_and_ask_for_one_token() -> None:
    prompts = [prompt(1, 200), prompt(2, 200), prompt(3, 200)]
    seeded = prefixes(prompts, {1: 2, 2: 0}, 64)
    assert [each.doc_id for each in seeded] == [1]
    assert seeded[0].token_ids == prompts[0].token_ids[:128]
    assert (seeded[0].max_tokens, seeded[0].stop) == (1, ())
    assert seeded[0].sha256 != prompts[0].sha256


def test_a_prefix_may_be_the_whole_prompt_and_no_more() -> None:
    """Boundary lengths need prompts of exactly k chunks, whose last one can't hit but can be stored."""
    assert prefixes([prompt(1, 128)], {1: 2}, 64)[0].token_ids == prompt(1, 128).token_ids
    with pytest.raises(ValueError, match="prompt 1 has 127 tokens, not 2 x 64"):
        prefixes([prompt(1, 127)], {1: 2}, 64)


@pytest.mark.parametrize("target", [None, 0.0, 0.3, 0.5, 0.9, 0.95])
def test_targets_that_can_be_reached(target: float | None) -> None:
    check_target([6 * 64 + 39] * 100, 64, target)


def test_a_target_out_of_reach_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        check_target([6 * 64 + 39] * 100, 64, 0.97)
    told = str(caught.value)
    assert told.startswith("sweep.hit_rates: 0.97 can't be reached: of the 42,300 tokens of 100 prompts LMCache can ")
    assert "0.908 in whole chunks of 64, and nearest to 0.97 is 0.908, more than 0.05 away" in told
    assert "task.blocks" in told and "task.tail_tokens" in told


def test_a_target_between_two_rates_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match=r"can serve 0\.985 in whole chunks of 64, and nearest to 0\.4 is 0\.492"):
        check_target([130], 64, 0.4)


def test_a_target_that_seeds_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.02 of 1,000 prompt tokens is less than half a chunk of 64 tokens"):
        check_target([1000], 64, 0.02)


# --- divergence --------------------------------------------------------------------------------------------


def of_tokens(doc_id: int, *tokens: int) -> Prompt:
    return Prompt(doc_id, "text", tokens, ("\n",), 28)


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first one that differs."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


@pytest.mark.parametrize("blocks", [1, 2, 4, 7, 8])
def test_a_diverging_prompt_shares_exactly_its_first_blocks_and_is_as_long(blocks: int) -> None:
    prompts = [prompt(i, 8 * 64 + 1 + i % 3) for i in range(10)]
    seeded = diverging(prompts, blocks, 64)
    assert [each.doc_id for each in seeded] == [each.doc_id for each in prompts]
    for stored, asked in zip(seeded, prompts, strict=True):
        assert len(stored.token_ids) == len(asked.token_ids)
        assert alike(stored.token_ids, asked.token_ids) == blocks * 64
        assert (stored.max_tokens, stored.stop) == (1, ())
    assert diverging(prompts, blocks, 64) == seeded, "the same every time"


def test_it_goes_on_with_the_next_prompt_from_the_same_place() -> None:
    seeded = diverging([of_tokens(1, 1, 2, 3, 4, 5), of_tokens(2, 6, 7, 8, 9), of_tokens(3, 10, 11, 12)], 1, 2)
    assert [each.token_ids for each in seeded] == [(1, 2, 8, 9, 6), (6, 7, 12, 10), (10, 11, 3)]


def test_it_differs_at_once() -> None:
    """Both ask alike where they diverge: a token that is the same would be shared as well."""
    first, second = diverging([of_tokens(1, 1, 2, 9, 4), of_tokens(2, 5, 6, 9, 8)], 1, 2)
    assert (first.token_ids, second.token_ids) == ((1, 2, 8, 5), (5, 6, 4, 1))
    (alone,) = diverging([of_tokens(1, 1, 2, 3, 4)], 1, 2)
    assert alone.token_ids == (1, 2, 4, 1)
    with pytest.raises(ValueError, match="prompt 1 can't go on differently after 2 tokens"):
        diverging([of_tokens(1, 7, 7, 7, 7)], 1, 2)


def test_it_is_no_other_prompt_either() -> None:
    """Prompts that share their first blocks: gone on with as it is, the next one would be stored, not a stranger."""
    prompts = [of_tokens(i, 1, 2, 10 * i, 10 * i + 1, 10 * i + 2) for i in range(1, 6)]
    asked = {each.token_ids[:4] for each in prompts}
    for stored in diverging(prompts, 1, 2):
        assert stored.token_ids[:2] == (1, 2) and stored.token_ids[:4] not in asked


def test_what_can_be_found_is_shared_and_in_whole_chunks() -> None:
    assert shared_tokens(8 * 64 + 3, 4 * 64, 64) == 4 * 64
    assert shared_tokens(8 * 64 + 3, 7 * 64, 128) == 6 * 64, "half a chunk is not found"
    assert shared_tokens(8 * 64, 8 * 64, 64) == 7 * 64, "the last token is computed"


def test_prompts_must_reach_the_point_of_divergence() -> None:
    check_divergence([100], 64, 64, None)
    check_divergence([513, 515], 64, 64, 8)
    with pytest.raises(UsageError, match=r"8 blocks can't be shared: .* has 512 tokens, and 7 blocks of N = 64 of it"):
        check_divergence([512, 515], 64, 64, 8)
    with pytest.raises(UsageError, match="1 blocks are 64 tokens, less than one of LMCache's chunks of 128"):
        check_divergence([513], 64, 128, 1)
