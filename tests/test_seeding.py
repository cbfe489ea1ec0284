"""Which first chunks are seeded for a hit rate: as near as can be, spread evenly, never more than a prompt has."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from harness.errors import UsageError
from harness.workload.prompts import Prompt, whole_blocks
from harness.workload.seeding import check_target, first_chunks, prefixes, reachable_rate, total_chunks

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
    with pytest.raises(UsageError, match=r"0\.02 is less than half a chunk of 64 tokens, of 1,000 prompt tokens"):
        check_target([1000], 64, 0.02)
