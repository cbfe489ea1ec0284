"""What is put into LMCache before a pass: first chunks of each prompt for a target hit rate, or prompts that diverge.

LMCache stores and finds whole chunks of C tokens (C = N unless configured), always from a prompt's beginning, and a
prompt's last token is always computed.  So of a prompt of L tokens at most m = floor((L - 1) / C) chunks can hit, and
a set of prompts can hit at the rates K C / sum(L) for K = 0 ... sum(m), and at no others.  For a target rate t:

* K = t sum(L) / C, rounded to the nearest whole number, at most sum(m): no other K is nearer;
* every prompt gets its share of K: prompt i, whose offset u is drawn once from (0, 1), has its chunks j = 1 ... m at
  the places (j - u) / m between 0 and 1, and the K first places of all prompts are seeded.  A prompt's chunks come in
  order, so they are its first ones; prompts of equal length get numbers that differ by one at most; and a higher
  target seeds what a lower one does, and more.

A prompt that diverges is as long as the one that is asked, and the same in its first blocks only. So its prefill goes
on beyond them, and leaves their recurrent state only where one of its steps happened to end there.

Pure: lengths and prompts in, numbers and requests out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

from harness.errors import UsageError
from harness.workload.prompts import Prompt, whole_blocks

FARTHEST = 0.05
"""A target further than this from what can be reached is refused, as a fraction of prompt tokens."""


def total_chunks(lengths: Iterable[int], chunk_size: int, target: float | None) -> int:
    """Chunks of all prompts together that bring the hit rate nearest to a target.

    Args:
        lengths: prompt lengths in tokens.
        chunk_size: C in tokens.
        target: hit rate as a fraction of all prompt tokens; None is all that can be reached.
    """
    counted = list(lengths)
    most = sum(whole_blocks(length, chunk_size) for length in counted)
    return most if target is None else min(most, round(target * sum(counted) / chunk_size))


def reachable_rate(lengths: Iterable[int], chunk_size: int, target: float | None) -> float:
    """The hit rate nearest to a target that these prompts can have, as a fraction of prompt tokens; see above."""
    counted = list(lengths)
    return total_chunks(counted, chunk_size, target) * chunk_size / sum(counted)


def first_chunks(lengths: Mapping[int, int], chunk_size: int, target: float | None, seed: int) -> dict[int, int]:
    """How many first chunks of each prompt to seed for a target hit rate.

    Args:
        lengths: prompt id -> length in tokens.
        chunk_size: C in tokens.
        target: hit rate as a fraction of all prompt tokens; None is all that can be reached.
        seed: of the offsets; the same seed chooses the same chunks, whatever the order of ``lengths``.

    Returns:
        Prompt id -> number of first chunks, 0 included.
    """
    rng = random.Random(f"{seed}/seed")
    places: list[tuple[float, int]] = []
    for doc_id in sorted(lengths):
        most, offset = whole_blocks(lengths[doc_id], chunk_size), rng.random()
        places += [((chunk - offset) / most, doc_id) for chunk in range(1, most + 1)]
    counts = dict.fromkeys(sorted(lengths), 0)
    for _, doc_id in sorted(places)[: total_chunks(lengths.values(), chunk_size, target)]:
        counts[doc_id] += 1
    return counts


def prefixes(prompts: Sequence[Prompt], counts: Mapping[int, int], chunk_size: int) -> list[Prompt]:
    """Requests that leave exactly the chosen first chunks of each prompt in LMCache.

    A request of k C tokens stores k chunks; its one output token, the fewest that vLLM accepts, is never computed
    further, so nothing beyond the prefix is stored.

    Args:
        prompts: what the passes send.
        counts: prompt id -> number of first chunks; prompts with 0 or without an entry are left out.
        chunk_size: C in tokens.

    Raises:
        ValueError: a prompt has fewer whole chunks than asked for.
    """
    seeded = []
    for prompt in prompts:
        count = counts.get(prompt.doc_id, 0)
        if count * chunk_size > len(prompt.token_ids):
            raise ValueError(f"prompt {prompt.doc_id} has {len(prompt.token_ids)} tokens, not {count} x {chunk_size}")
        if count:
            seeded.append(
                replace(prompt, text="", token_ids=prompt.token_ids[: count * chunk_size], stop=(), max_tokens=1)
            )
    return seeded


def first_blocks(prompts: Sequence[Prompt], blocks: int, block_size: int) -> list[Prompt]:
    """Requests after which vLLM's own cache holds exactly the first blocks of each prompt.

    One token longer than the blocks: a prompt's last token is always computed, and so is the block it belongs to.

    Args:
        prompts: what the passes send.
        blocks: how many of N tokens.
        block_size: N in tokens.
    """
    length = blocks * block_size + 1
    return [
        replace(prompt, text="", token_ids=prompt.token_ids[:length], stop=(), max_tokens=1)
        for prompt in prompts
        if len(prompt.token_ids) > length
    ]


def diverging(prompts: Sequence[Prompt], blocks: int, block_size: int) -> list[Prompt]:
    """Requests that share exactly their first blocks with the prompts, and go on differently to the same length.

    A prompt goes on with tokens of the next one, from the same place on or from the first place after it that makes
    it differ at once from its original, and within a block from all other prompts.

    Args:
        prompts: what the passes send.
        blocks: how many are shared.
        block_size: N in tokens.

    Raises:
        ValueError: a prompt has fewer blocks, or can't go on differently.
    """
    shared = blocks * block_size
    begun = prefixes(prompts, {prompt.doc_id: blocks for prompt in prompts}, block_size)
    known = {prompt.token_ids[: shared + block_size] for prompt in prompts}
    seeded = []
    for prefix, prompt, following in zip(begun, prompts, [*prompts[1:], *prompts[:1]], strict=True):
        rest = len(prompt.token_ids) - shared
        for start in range(len(following.token_ids)):
            other = _from(following.token_ids, shared + start, rest)
            differs = other[:1] != prompt.token_ids[shared : shared + 1]
            if differs and prefix.token_ids + other[:block_size] not in known:
                seeded.append(replace(prefix, token_ids=prefix.token_ids + other))
                break
        else:
            raise ValueError(f"prompt {prompt.doc_id} can't go on differently after {shared} tokens")
    return seeded


def shared_tokens(length: int, shared: int, chunk_size: int) -> int:
    """Tokens of a prompt that LMCache can serve when what is stored shares its first ones.

    Args:
        length: of the prompt, in tokens.
        shared: first tokens that are the same.
        chunk_size: C in tokens.
    """
    return min(shared // chunk_size, whole_blocks(length, chunk_size)) * chunk_size


def _from(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """Tokens from a place on, beginning anew at the end."""
    first = start % len(tokens)
    return tuple(islice(cycle([*tokens[first:], *tokens[:first]]), count))


def unreachable(lengths: Sequence[int], chunk_size: int, target: float | None) -> tuple[str, str] | None:
    """Why these prompts can't come near a target hit rate, and what to use instead; None where they can.

    Args:
        lengths: prompt lengths in tokens.
        chunk_size: C in tokens.
        target: hit rate as a fraction of all prompt tokens; None is all that can be reached, whatever it is.
    """
    if not target:
        return None
    reachable, most = (reachable_rate(lengths, chunk_size, each) for each in (target, None))
    if abs(reachable - target) > FARTHEST:
        return (
            f"sweep.hit_rates: {target:g} can't be reached: of the {sum(lengths):,} tokens of {len(lengths)} prompts "
            f"LMCache can serve {most:.3f} in whole chunks of {chunk_size}, and nearest to {target:g} is "
            f"{reachable:.3f}, more than {FARTHEST:g} away",
            "a lower one, longer prompts (task.blocks) or shorter tails (task.tail_tokens)",
        )
    if reachable == 0:
        return (
            f"sweep.hit_rates: {target:g} of {sum(lengths):,} prompt tokens is less than half a chunk of {chunk_size} "
            "tokens, so that nothing would be retrieved",
            "a higher one, more questions (task.limit), or 0 to measure speed only",
        )
    return None


def check_target(lengths: Sequence[int], chunk_size: int, target: float | None) -> None:
    """Refuses a target hit rate that these prompts can't come near; see :func:`unreachable`.

    Raises:
        UsageError: in one sentence, with what can be reached.
    """
    if why := unreachable(lengths, chunk_size, target):
        raise UsageError(f"{why[0]}: use {why[1]}.")


def check_primed(lengths: Sequence[int], block_size: int, blocks: int) -> None:
    """Refuses to prime vLLM's own cache with so many blocks that LMCache has nothing left to serve.

    Args:
        lengths: prompt lengths in tokens.
        block_size: N in tokens.
        blocks: how many vLLM's own cache is to serve of each prompt; 0 primes nothing.

    Raises:
        UsageError: in one sentence, with the numbers.
    """
    most = whole_blocks(min(lengths), block_size)
    if blocks >= most and blocks:
        raise UsageError(
            f"The first {blocks} blocks of every prompt are to come from vLLM's own cache and the next from LMCache, "
            f"but the shortest prompt has {min(lengths)} tokens, of which {most} blocks of N = {block_size} can be "
            "served: make prompts longer (task.blocks, or task.min_blocks for gsm8k)."
        )


def check_divergence(lengths: Sequence[int], block_size: int, chunk_size: int, blocks: int | None) -> None:
    """Refuses a point of divergence that prompts do not reach, or behind which nothing could be found.

    Args:
        lengths: prompt lengths in tokens.
        block_size: N in tokens.
        chunk_size: C in tokens.
        blocks: how many are shared; None where nothing diverges.

    Raises:
        UsageError: in one sentence, with the numbers.
    """
    if blocks is None:
        return
    most = whole_blocks(min(lengths), block_size)
    if blocks > most:
        raise UsageError(
            f"sweep.diverge_after: {blocks} blocks can't be shared: the shortest prompt has {min(lengths)} tokens, and "
            f"{most} blocks of N = {block_size} of it can be found: lower it, or make prompts longer (task.blocks)."
        )
    if blocks * block_size < chunk_size:
        raise UsageError(
            f"sweep.diverge_after: {blocks} blocks are {blocks * block_size} tokens, less than one of LMCache's chunks "
            f"of {chunk_size}: nothing could be found. Raise it, or lower servers.lmcache.chunk_size."
        )
