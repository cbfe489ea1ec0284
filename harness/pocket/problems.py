"""Problems for the pocket model: small questions about facts far back in a prompt, made from a seed.

A problem has gsm8k's form: a context, a question, a worked answer and its number after `####`. It asks how
many pens one person and box P have together. The model recalls the person with its recurrent layers and the
box with its attention layer, so the score falls when either kind of cached state is wrong.

A prompt ends 27 to 51 tokens after its last whole block, so a cache holds its first `blocks` blocks and no
more. The two needed facts stand at chosen distances from that boundary, so that not only a lost state costs
points, but also one that is a block old, shifted, or without its last tokens.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from harness.pocket import vocabulary
from harness.pocket.vocabulary import (
    BOX_COLOURS,
    BOX_FACT_TOKENS,
    HEAD,
    MAX_PENS,
    PERSON_FACT_TOKENS,
    PERSON_NAMES,
    QUESTION_TOKENS,
    Pieces,
)

TAIL_TOKENS = (27, 35, 43, 51)
"""How many tokens a prompt has after its last whole block."""

MIN_BLOCKS = 3
"""An old fact ends two blocks before the boundary, so there must be a block before those two."""

MAX_PEOPLE_STATEMENTS = 2 * len(PERSON_NAMES) - 1
"""Nobody is stated more than twice, and somebody only once: the asked person, or another in their place."""

# Keeps these problems apart from the training data, whose generators are seeded by bare numbers.
_SEED_PREFIX = "pocket-problems"

# Three gaps surround the two needed facts. A statement of 6 tokens may fail to fit a gap that has up to 9
# tokens left (10 would leave 4, enough for filler), so while 3 * 9 + 1 tokens are left, its own 6 among them,
# it fits somewhere. With this many tokens to spare, no order of statements gets stuck.
_SPARE_TOKENS = 3 * (BOX_FACT_TOKENS + vocabulary.MIN_FILLER_TOKENS - 1) + 1 - BOX_FACT_TOKENS


class Placement(StrEnum):
    """Where a needed fact stands, relative to the last block boundary of the prompt."""

    OLD = "old"
    """It ends at least two blocks before the boundary."""
    RECENT = "recent"
    """It lies inside the last block before the boundary."""
    STRADDLE = "straddle"
    """Its name is the last but one token before the boundary, its number the first one after."""


PERSON_SHARES = {Placement.OLD: 0.42, Placement.RECENT: 0.33, Placement.STRADDLE: 0.25}
"""How often the fact about the asked person stands where."""

BOX_SHARES = {Placement.OLD: 0.6, Placement.RECENT: 0.4}
"""How often the fact about box P stands where."""


@dataclass(frozen=True)
class Problem:
    """One problem; its prompt is `context` followed by `question`."""

    id: int
    """Position in its set, from 0."""
    context: str
    question: str
    answer: str
    """The worked answer that continues the prompt, ending in `#### gold`."""
    gold: str
    prompt_tokens: int
    cached_tokens: int
    """Tokens in the prompt's whole blocks: all that a cache can restore."""
    person_start: int
    """Index in the prompt's tokens at which the statement about the asked person that counts starts."""
    box_start: int
    """Index in the prompt's tokens at which the statement about box P starts."""
    person_placement: Placement
    box_placement: Placement
    first_block: str
    """Text of the prompt's first block. It is unique in its set, so no cold request can hit another's."""

    @property
    def prompt(self) -> str:
        """The text to send."""
        return self.context + self.question


def make_problem(
    seed: int, *, blocks: int = 6, block_size: int = 64, people: int | None = None, boxes: int = 3
) -> Problem:
    """Makes the first problem of the set that `make_problems` makes of the same arguments."""
    return make_problems(1, seed, blocks=blocks, block_size=block_size, people=people, boxes=boxes)[0]


def make_problems(
    count: int,
    seed: int,
    *,
    blocks: int = 6,
    block_size: int = 64,
    people: int | None = None,
    boxes: int = 3,
) -> list[Problem]:
    """Makes a set of problems: the same arguments give the same set, and a smaller count gives its beginning.

    Args:
        count: how many problems; their ids are 0 to count - 1, and their first blocks all differ.
        seed: which set.
        blocks: whole blocks in each prompt.
        block_size: tokens per block.
        people: statements about people in each context, about a quarter of them outdated by a later statement
            about the same person. By default one for every 8 tokens of the blocks and 4 more, as far as names
            go: the load at which the committed checkpoint's score was measured.
        boxes: boxes besides box P in each context.

    Raises:
        ValueError: the sizes cannot hold the facts or their distances; the sentence has the numbers.
    """
    if count < 0:
        raise ValueError(f"count={count} problems cannot be made: give 0 or more")
    if people is None:
        people = min(blocks * block_size // 8 + 4, MAX_PEOPLE_STATEMENTS)
    load = _Load(blocks=blocks, block_size=block_size, people=people, boxes=boxes)
    load.check()
    problems: list[Problem] = []
    first_blocks: set[str] = set()
    for number in range(count):
        draws = (_draw_problem(number, _generator(seed, number, draw, load), load) for draw in itertools.count())
        problem = next(drawn for drawn in draws if drawn.first_block not in first_blocks)
        first_blocks.add(problem.first_block)
        problems.append(problem)
    return problems


@dataclass(frozen=True)
class _Load:
    """The sizes of every problem in a set."""

    blocks: int
    block_size: int
    people: int
    boxes: int

    @property
    def boundary(self) -> int:
        """Index of the first token after the last whole block."""
        return self.blocks * self.block_size

    @property
    def restated(self) -> int:
        """How many statements about people are outdated by a later one."""
        return max(self.people // 4, self.people - len(PERSON_NAMES))

    def check(self) -> None:
        """Raises ValueError where no problem can be laid out."""
        if self.block_size <= max(TAIL_TOKENS):
            raise ValueError(
                f"block_size={self.block_size} is too small: prompts end up to {max(TAIL_TOKENS)} tokens "
                f"after their last whole block, so a block needs at least {max(TAIL_TOKENS) + 1}"
            )
        if self.blocks < MIN_BLOCKS:
            raise ValueError(
                f"blocks={self.blocks} is too few: an old fact ends two blocks before the last boundary, "
                f"so a prompt needs at least {MIN_BLOCKS}"
            )
        if not 1 <= self.people <= MAX_PEOPLE_STATEMENTS:
            raise ValueError(
                f"people={self.people} is outside 1 to {MAX_PEOPLE_STATEMENTS}, "
                f"the statements that {len(PERSON_NAMES)} names allow"
            )
        if not 0 <= self.boxes <= len(BOX_COLOURS):
            raise ValueError(f"boxes={self.boxes} is outside 0 to {len(BOX_COLOURS)}, the number of colours")
        facts = self.people * PERSON_FACT_TOKENS + (self.boxes + 1) * BOX_FACT_TOKENS
        room = self.boundary + min(TAIL_TOKENS) - QUESTION_TOKENS - len(HEAD) - _SPARE_TOKENS
        if facts > room:
            raise ValueError(
                f"people={self.people} and boxes={self.boxes} need {facts} tokens of facts, but "
                f"{self.blocks} blocks of {self.block_size} tokens have room for {room}"
            )


@dataclass
class _Gap:
    """A stretch of the context before a needed fact or after the last one, and the sentences put there."""

    start: int
    free_tokens: int
    followed_by: Pieces = ()
    sentences: list[Pieces] = field(default_factory=list)

    def takes(self, sentence: Pieces) -> bool:
        """Says whether the sentence fits and filler can take what is left."""
        left = self.free_tokens - len(sentence)
        return left >= 0 and vocabulary.can_fill(left)


def _generator(seed: int, number: int, draw: int, load: _Load) -> Random:
    sizes = f"{load.blocks}x{load.block_size}-{load.people}-{load.boxes}"
    return Random(f"{_SEED_PREFIX}/{sizes}/{seed}/{number}/{draw}")


def _draw_problem(number: int, rng: Random, load: _Load) -> Problem:
    person, *others = rng.sample(PERSON_NAMES, load.people - load.restated)
    person_pens, box_pens = _pens(rng), _pens(rng)
    person_placement, box_placement = _choose(rng, PERSON_SHARES), _choose(rng, BOX_SHARES)
    person_start, box_start = _draw_starts(
        rng,
        _allowed_starts(person_placement, PERSON_FACT_TOKENS, load),
        _allowed_starts(box_placement, BOX_FACT_TOKENS, load),
    )
    needed = {
        person_start: vocabulary.person_fact(person, person_pens),
        box_start: vocabulary.box_fact("P", box_pens),
    }
    context_tokens = load.boundary + rng.choice(TAIL_TOKENS) - QUESTION_TOKENS
    gaps = _gaps_around(needed, context_tokens)

    restated = load.restated
    # An old fact may stand too near the beginning for an outdated one before it.
    if restated and person_placement is not Placement.OLD and rng.random() < 0.5:
        outdated = vocabulary.person_fact(person, _pens(rng, other_than=person_pens))
        _put(rng, outdated, [gap for gap in gaps if gap.start < person_start])
        restated -= 1
    for fact in _unasked_facts(rng, others, restated, load.boxes):
        _put(rng, fact, gaps)

    context = _write(rng, gaps)
    question = vocabulary.question(person)
    prompt = (*context, *question)
    return Problem(
        id=number,
        context="".join(context),
        question="".join(question),
        answer="".join(vocabulary.worked_answer(person, person_pens, box_pens)),
        gold=str(person_pens + box_pens),
        prompt_tokens=len(prompt),
        cached_tokens=load.boundary,
        person_start=person_start,
        box_start=box_start,
        person_placement=person_placement,
        box_placement=box_placement,
        first_block="".join(prompt[: load.block_size]),
    )


def _choose(rng: Random, shares: Mapping[Placement, float]) -> Placement:
    return rng.choices(list(shares), list(shares.values()))[0]


def _pens(rng: Random, other_than: int | None = None) -> int:
    return rng.choice([pens for pens in range(MAX_PENS + 1) if pens != other_than])


def _allowed_starts(placement: Placement, fact_tokens: int, load: _Load) -> range:
    """Every index at which a fact of this length stands where the placement says."""
    match placement:
        case Placement.OLD:
            first, last = len(HEAD), load.boundary - 2 * load.block_size - fact_tokens
        case Placement.RECENT:
            first, last = load.boundary - load.block_size, load.boundary - fact_tokens
        case Placement.STRADDLE:
            first = last = load.boundary - 2
    return range(first, last + 1)


def _draw_starts(rng: Random, person_starts: Iterable[int], box_starts: Iterable[int]) -> tuple[int, int]:
    """Draws where the two needed facts start, such that sentences can fill the tokens around them."""

    def fillable(person_start: int, box_start: int) -> bool:
        if person_start < box_start:
            before, between = person_start, box_start - person_start - PERSON_FACT_TOKENS
        else:
            before, between = box_start, person_start - box_start - BOX_FACT_TOKENS
        return vocabulary.can_fill(before - len(HEAD)) and vocabulary.can_fill(between)

    person_start = rng.choice([start for start in person_starts if vocabulary.can_fill(start - len(HEAD))])
    box_start = rng.choice([start for start in box_starts if fillable(person_start, start)])
    return person_start, box_start


def _unasked_facts(rng: Random, people: Sequence[str], restated: int, boxes: int) -> list[Pieces]:
    """Facts beside the needed ones, in random order; the first `restated` people get two that disagree."""
    facts = []
    for index, name in enumerate(people):
        pens = _pens(rng)
        facts.append(vocabulary.person_fact(name, pens))
        if index < restated:
            facts.append(vocabulary.person_fact(name, _pens(rng, other_than=pens)))
    facts += [vocabulary.box_fact(colour, _pens(rng)) for colour in rng.sample(BOX_COLOURS, boxes)]
    rng.shuffle(facts)
    return facts


def _gaps_around(needed: Mapping[int, Pieces], context_tokens: int) -> list[_Gap]:
    """The gap before each needed fact, given by its start, and the one after the last."""
    gaps, end = [], len(HEAD)
    for start, fact in sorted(needed.items()):
        gaps.append(_Gap(end, start - end, followed_by=fact))
        end = start + len(fact)
    return [*gaps, _Gap(end, context_tokens - end)]


def _put(rng: Random, fact: Pieces, gaps: Sequence[_Gap]) -> None:
    """Puts a fact into a gap that takes it, a roomier one more often, so that facts spread evenly."""
    fitting = [gap for gap in gaps if gap.takes(fact)]
    (gap,) = rng.choices(fitting, [gap.free_tokens for gap in fitting])
    gap.sentences.append(fact)
    gap.free_tokens -= len(fact)


def _write(rng: Random, gaps: Sequence[_Gap]) -> list[str]:
    """Writes the context, with filler in all that is still free."""
    context = [*HEAD]
    for gap in gaps:
        sentences = gap.sentences + vocabulary.filler(rng, gap.free_tokens)
        rng.shuffle(sentences)
        context.extend(itertools.chain(*sentences, gap.followed_by))
    return context
