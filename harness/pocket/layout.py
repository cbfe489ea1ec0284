"""Where a problem's sentences stand: two needed facts at chosen tokens, everything else around them.

The needed facts are placed relative to the last block boundary that a cache can restore up to, and relative to
every earlier one, so that the score falls when any block is lost, when the state at the boundary is a block old
or shifted, and when the last tokens before it are missing.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from harness.pocket import vocabulary
from harness.pocket.ruler import Ruler
from harness.pocket.vocabulary import ADJECTIVES, MAX_ADJECTIVES, NOUNS, NUMBER_IN_PERSON_FACT, VERBS, Pieces


class NoRoomError(Exception):
    """This draw of facts cannot be laid out; another one may."""


class Placement(StrEnum):
    """Where a needed fact stands, relative to the last block boundary that a cache can restore up to."""

    OLD = "old"
    """It starts in a given earlier block, and ends before the last one."""
    RECENT = "recent"
    """It lies inside the last block before the boundary."""
    STRADDLE = "straddle"
    """It starts before the boundary, and its number is the first thing after it."""


@dataclass(frozen=True)
class Region:
    """The stretch of a prompt that is laid out: token indices, and the block boundaries in it."""

    start: int
    """First token to be laid out: after the head, or after a prefix shared with other prompts."""
    end: int
    """First token after the context, where the question starts."""
    boundary: int
    """First token that no cache can restore: all before it is in whole blocks, and is not the last token."""
    block_size: int

    def starts(self, placement: Placement, old_block: int, fact: Pieces, ruler: Ruler) -> range:
        """Every index at which this fact may start to stand where the placement says; `old_block` is for OLD."""
        length = ruler.length(fact)
        match placement:
            case Placement.OLD:
                block = old_block * self.block_size
                first = block
                last = min(block + self.block_size - 1, self.boundary - self.block_size - length)
            case Placement.RECENT:
                first, last = self.boundary - self.block_size, min(self.boundary, self.end) - length
            case Placement.STRADDLE:
                first = self.boundary - ruler.length(fact[:NUMBER_IN_PERSON_FACT])
                last = min(first, self.end - length)
        return range(max(self.start, first), last + 1)


class Filler:
    """Sentences without facts, for every number of tokens from `shortest` on, and for none."""

    def __init__(self, ruler: Ruler) -> None:
        self._adjectives, self._nouns, self._verbs = (ruler.usable(words) for words in (ADJECTIVES, NOUNS, VERBS))
        words = (self._adjectives, self._nouns, self._verbs)
        if not all(words) or len(set(itertools.chain(*words))) < len(words) * 3:
            raise ValueError(
                "the tokenizer has too few of the filler words as single tokens (adjectives: "
                f"{len(words[0])} of {len(ADJECTIVES)}, nouns: {len(words[1])} of {len(NOUNS)}, verbs: "
                f"{len(words[2])} of {len(VERBS)}), so prompts cannot be given an exact length"
            )
        self.shortest = ruler.length(vocabulary.filler(self._nouns[0], self._verbs[0], ()))

    def can_fill(self, tokens: int) -> bool:
        """Says whether filler sentences can take exactly this many tokens."""
        return tokens == 0 or tokens >= self.shortest

    def sentences(self, rng: Random, tokens: int) -> list[Pieces]:
        """Returns sentences that take exactly `tokens` tokens.

        Raises:
            ValueError: no sentence is that short (see `can_fill`).
        """
        if not self.can_fill(tokens):
            raise ValueError(f"{tokens} tokens cannot be filled: a sentence takes at least {self.shortest}")
        longest = self.shortest + MAX_ADJECTIVES
        made = []
        while tokens:
            length = tokens
            if tokens > longest:  # leave enough for another sentence
                length = rng.randint(self.shortest, min(longest, tokens - self.shortest))
            adjectives = [rng.choice(self._adjectives) for _ in range(length - self.shortest)]
            made.append(vocabulary.filler(rng.choice(self._nouns), rng.choice(self._verbs), adjectives))
            tokens -= length
        return made


@dataclass
class _Gap:
    """A stretch of the context before a needed fact or after the last one, and the sentences put there."""

    start: int
    free_tokens: int
    followed_by: Pieces = ()
    sentences: list[Pieces] = field(default_factory=list)


class Layout:
    """A region with its needed facts in place, to be filled.

    Args:
        region: what to lay out.
        needed: start indices, and the facts that must stand exactly there.
        ruler: lengths of sentences.
        filler: takes what is left.
    """

    def __init__(self, region: Region, needed: Iterable[tuple[int, Pieces]], ruler: Ruler, filler: Filler) -> None:
        self._ruler, self._filler = ruler, filler
        self._gaps: list[_Gap] = []
        end = region.start
        for start, fact in sorted(needed):
            self._gaps.append(_Gap(end, start - end, followed_by=fact))
            end = start + ruler.length(fact)
        self._gaps.append(_Gap(end, region.end - end))

    def fillable(self) -> bool:
        """Says whether filler can take every gap as it is; False, too, where needed facts overlap."""
        return all(self._filler.can_fill(gap.free_tokens) for gap in self._gaps)

    def put(self, rng: Random, fact: Pieces, before: int | None = None) -> None:
        """Puts a fact into a gap that takes it, a roomier one more often, so that facts spread evenly.

        Raises:
            NoRoomError: there is none, or none that starts before token `before`.
        """
        length = self._ruler.length(fact)
        fitting = [
            gap
            for gap in self._gaps
            if (before is None or gap.start < before)
            and gap.free_tokens >= length
            and self._filler.can_fill(gap.free_tokens - length)
        ]
        if not fitting:
            raise NoRoomError
        (gap,) = rng.choices(fitting, [gap.free_tokens for gap in fitting])
        gap.sentences.append(fact)
        gap.free_tokens -= length

    def write(self, rng: Random) -> list[Pieces]:
        """Returns the region's sentences in order, with filler in all that is still free."""
        written: list[Pieces] = []
        for gap in self._gaps:
            sentences = gap.sentences + self._filler.sentences(rng, gap.free_tokens)
            rng.shuffle(sentences)
            written += sentences
            if gap.followed_by:
                written.append(gap.followed_by)
        return written


def draw_start(rng: Random, starts: Iterable[int], layout_with: Callable[[int], Layout]) -> int:
    """Draws one of the starts whose layout can be filled.

    Raises:
        NoRoomError: there is none.
    """
    fillable = [start for start in starts if layout_with(start).fillable()]
    if not fillable:
        raise NoRoomError
    return rng.choice(fillable)


def spare_tokens(longest_fact: int, filler: Filler) -> int:
    """Tokens to spare with which no order of statements gets stuck in the three gaps around two needed facts.

    A statement may fail to fit a gap that has up to ``longest_fact + filler.shortest - 1`` tokens left, since one
    more leaves enough for filler. So while ``3 * (that) + 1`` tokens are left, its own among them, it fits somewhere.
    """
    return 3 * (longest_fact + filler.shortest - 1) + 1 - longest_fact


def sentences_until(end: int, start: int, sentences: Sequence[Pieces], ruler: Ruler) -> Sequence[Pieces]:
    """The first sentences, as many as lie before token `end` if the first one starts at token `start`."""
    for count, sentence in enumerate(sentences):
        start += ruler.length(sentence)
        if start > end:
            return sentences[:count]
    return sentences
