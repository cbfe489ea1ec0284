"""Problems for the pocket model: small questions about facts far back in a prompt, made from a seed.

A problem has gsm8k's form: a context, a question, a worked answer and its number after `####`. It asks how
many pens one person and box P have together. The pocket model recalls the person with its recurrent layers and
the box with its attention layer, so the score falls when either kind of cached state is wrong. The text only
needs looking up and adding, so the same problems serve any other model: give its tokenizer's ruler, and examples.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.pocket import vocabulary
from harness.pocket.layout import Filler, Layout, NoRoomError, Placement, Region, draw_start, sentences_until
from harness.pocket.ruler import POCKET_RULER, Ruler
from harness.pocket.shape import TAIL_MARGINS, Limits, Shape
from harness.pocket.vocabulary import (
    BOX_COLOURS,
    HEAD,
    MAX_PENS,
    NUMBER_IN_PERSON_FACT,
    OPENING_PIECES,
    PERSON_NAMES,
    Pieces,
)

PERSON_SHARES = {Placement.OLD: 0.42, Placement.RECENT: 0.33, Placement.STRADDLE: 0.25}
"""How often the fact about the asked person stands where."""

BOX_SHARES = {Placement.OLD: 0.6, Placement.RECENT: 0.4}
"""How often the fact about box P stands where."""

# Keeps these problems apart from the training data, whose generators are seeded by strings of their own.
_SEED_PREFIX = "pocket-problems"

_MAX_DRAWS = 200


@dataclass(frozen=True)
class Problem:
    """One problem; its prompt is `context` followed by `question`."""

    id: int
    """Position in its set, from 0."""
    context: str
    question: str
    """Any examples, the question, and how the answer begins: ` Uri has`."""
    answer: str
    """The rest of the worked answer, ending in `#### gold`."""
    gold: str
    prompt_tokens: int
    cached_tokens: int
    """Tokens in the prompt's whole blocks: all that a cache can restore. The last token is never restored."""
    answer_tokens: int
    person_start: int
    """Index in the prompt's tokens at which the statement about the asked person that counts starts."""
    box_start: int
    """Index in the prompt's tokens at which the statement about box P starts."""
    person_placement: Placement
    box_placement: Placement
    first_block: str
    """The sentences inside the first block that is not shared. They are unique in the set, so that no cold
    request can hit another's blocks."""

    @property
    def prompt(self) -> str:
        """The text to send."""
        return self.context + self.question


def make_problems(count: int, seed: int, shape: Shape | None = None, ruler: Ruler = POCKET_RULER) -> list[Problem]:
    """Makes a set of problems: the same arguments give the same set, and a smaller count gives its beginning.

    Args:
        count: how many problems; their ids are 0 to count - 1.
        seed: which set.
        shape: their common sizes; `Shape()` by default.
        ruler: measures text in the tokens of the model that gets the prompts.

    Raises:
        ValueError: the sizes cannot hold the facts or their distances, or the tokenizer does not keep sentences
            apart; the sentence has the numbers.
    """
    if count < 0:
        raise ValueError(f"count={count} problems cannot be made: give 0 or more")
    maker = _Maker(seed, shape or Shape(), ruler)
    problems: list[Problem] = []
    first_blocks: set[str] = set()
    for number in range(count):
        problem = maker.make(number, first_blocks)
        first_blocks.add(problem.first_block)
        problems.append(problem)
    return problems


@dataclass(frozen=True)
class _Person:
    name: str
    pens: int
    shared_start: int | None = None
    """Where the shared prefix states them."""

    @property
    def fact(self) -> Pieces:
        return vocabulary.person_fact(self.name, self.pens)


@dataclass(frozen=True)
class _Facts:
    """What a problem's context says, beside what the shared prefix says."""

    person: _Person
    """Who is asked for."""
    others: Sequence[_Person]
    restated: int
    """How many statements are outdated by a later one, of the asked person's or the first of the others'."""
    boxes: Mapping[str, int]
    box_pens: int
    """How many pens box P has."""
    person_placement: Placement
    box_placement: Placement
    person_block: int
    """Block of the asked person's statement where it is an old one."""
    box_block: int
    tail: int
    """One of the shape's tail_tokens, or of TAIL_MARGINS."""


class _Maker:
    """Makes the problems of one set; raises ValueError where none can be."""

    def __init__(self, seed: int, shape: Shape, ruler: Ruler) -> None:
        self._shape, self._ruler, self._filler = shape, ruler, Filler(ruler)
        sizes = f"{shape.blocks}x{shape.block_size}{shape.tail_tokens or ''}-{shape.shared_blocks}"
        self._seed = f"{_SEED_PREFIX}/{sizes}-{shape.people}-{shape.boxes}/{seed}"
        self._limits = Limits(shape, ruler, self._filler)
        self._limits.check()
        self._prefix, self._shared = self._share(Random(f"{self._seed}/shared"))
        self._names = [name for name in PERSON_NAMES if name not in {person.name for person in self._shared}]
        self._statements = min(self._limits.people - len(self._shared), 2 * len(self._names) - 1)

    def make(self, number: int, taken: set[str]) -> Problem:
        """Makes a problem whose first block is not among those taken."""
        for draw in range(_MAX_DRAWS):
            rng = Random(f"{self._seed}/{number}/{draw}")
            facts = self._draw_facts(number, rng)
            try:
                problem = self._lay_out(number, facts, rng)
            except NoRoomError:
                continue
            if problem.first_block not in taken and self._confirmed(problem, facts):
                return problem
        raise ValueError(
            f"problem {number} came out right in none of {_MAX_DRAWS} draws: the sizes leave too little freedom, or "
            "the tokenizer merges text across sentences"
        )

    def _share(self, rng: Random) -> tuple[list[Pieces], list[_Person]]:
        """The sentences that all prompts start with, and the people in them, each stated once."""
        end = self._shape.shared_blocks * self._shape.block_size
        if not end:
            return [HEAD], []
        head = self._ruler.head()
        layout = Layout(Region(head, end, end, self._shape.block_size), (), self._ruler, self._filler)
        people = [_Person(name, _pens(rng)) for name in rng.sample(PERSON_NAMES, self._limits.shared_people)]
        for person in people:
            layout.put(rng, person.fact)
        sentences = layout.write(rng)
        starts = dict(
            zip(sentences, itertools.accumulate(map(self._ruler.length, sentences), initial=head), strict=False)
        )
        placed = [replace(person, shared_start=starts[person.fact]) for person in people]
        return [HEAD, *sentences], placed

    def _draw_facts(self, number: int, rng: Random) -> _Facts:
        restated = max(self._statements // 4, self._statements - len(self._names))
        person, *others = (_Person(name, _pens(rng)) for name in rng.sample(self._names, self._statements - restated))
        placement = _choose(rng, PERSON_SHARES)
        tail = rng.choice(self._shape.tail_tokens or TAIL_MARGINS)
        # Both facts pass through the blocks before the last one in turn, and through every pair of blocks.
        block_size, shared = self._shape.block_size, self._shape.shared_blocks
        blocks = self._limits.boundary(tail) // block_size - 1
        person_block, box_block = number % blocks, shared + number // blocks % (blocks - shared)
        there = [each for each in self._shared if (each.shared_start or 0) // block_size == person_block]
        if placement is Placement.OLD and there:
            others, person = [person, *others], rng.choice(there)
        return _Facts(
            person,
            others,
            restated,
            boxes={colour: _pens(rng) for colour in rng.sample(BOX_COLOURS, self._shape.boxes)},
            box_pens=_pens(rng),
            person_placement=placement,
            box_placement=_choose(rng, BOX_SHARES),
            person_block=max(person_block, 0 if there else shared),
            box_block=box_block,
            tail=tail,
        )

    def _lay_out(self, number: int, facts: _Facts, rng: Random) -> Problem:
        name, check = facts.person.name, self._shape.check
        answer = vocabulary.answer(name, facts.person.pens, facts.box_pens, check=check)
        asked = vocabulary.question(name, check=check) + answer[:OPENING_PIECES]
        question, answer = self._examples(facts, rng) + asked, answer[OPENING_PIECES:]
        region = self._region(self._ruler.length(question), facts.tail)
        starts, placement, layout = self._place(facts, region, rng)
        restated = facts.restated
        # An old fact may stand too near the beginning for an outdated one before it.
        if restated and placement is not Placement.OLD and rng.random() < 0.5:
            outdated = vocabulary.person_fact(facts.person.name, _pens(rng, other_than=facts.person.pens))
            layout.put(rng, outdated, before=starts[0])
            restated -= 1
        for fact in _unasked_facts(facts, restated, rng):
            layout.put(rng, fact)
        own = layout.write(rng)
        own_block_end = (self._shape.shared_blocks + 1) * self._shape.block_size
        return Problem(
            id=number,
            context=_text(*self._prefix, *own),
            question=_text(question),
            answer=_text(answer),
            gold=str(facts.person.pens + facts.box_pens),
            prompt_tokens=region.end + self._ruler.length(question),
            cached_tokens=region.boundary,
            answer_tokens=self._ruler.length(answer),
            person_start=starts[0],
            box_start=starts[1],
            person_placement=placement,
            box_placement=facts.box_placement,
            first_block=_text(*sentences_until(own_block_end, region.start, own, self._ruler)),
        )

    def _place(self, facts: _Facts, region: Region, rng: Random) -> tuple[tuple[int, int], Placement, Layout]:
        """Puts the needed facts in place: where they start, how the person's is placed, and the layout to fill."""
        person, box = facts.person, vocabulary.box_fact("P", facts.box_pens)
        placement = facts.person_placement
        if placement is Placement.STRADDLE and not region.starts(placement, 0, person.fact, self._ruler):
            placement = Placement.RECENT  # the question begins before a fact across the boundary would end

        def layout(*needed: tuple[int, Pieces]) -> Layout:
            return Layout(region, needed, self._ruler, self._filler)

        needed: list[tuple[int, Pieces]] = []
        person_start = person.shared_start
        if person_start is None:
            starts = region.starts(placement, facts.person_block, person.fact, self._ruler)
            person_start = draw_start(rng, starts, lambda start: layout((start, person.fact)))
            needed.append((person_start, person.fact))
        starts = region.starts(facts.box_placement, facts.box_block, box, self._ruler)
        box_start = draw_start(rng, starts, lambda start: layout(*needed, (start, box)))
        return (person_start, box_start), placement, layout(*needed, (box_start, box))

    def _region(self, question_tokens: int, tail: int) -> Region:
        tokens = tail + (question_tokens if self._shape.tail_tokens is None else 0)
        prompt = self._shape.blocks * self._shape.block_size + tokens
        start = self._shape.shared_blocks * self._shape.block_size or self._ruler.head()
        return Region(start, prompt - question_tokens, self._limits.boundary(tail), self._shape.block_size)

    def _examples(self, facts: _Facts, rng: Random) -> Pieces:
        """Worked examples about people that are stated once, and other boxes than P."""
        people = [each for each in (*facts.others[facts.restated :], *self._shared) if each != facts.person]
        boxes = rng.sample(sorted(facts.boxes.items()), self._shape.examples)
        examples: Pieces = ()
        check = self._shape.check
        for person, (colour, pens) in zip(rng.sample(people, self._shape.examples), boxes, strict=True):
            examples += vocabulary.question(person.name, colour, check=check)
            examples += vocabulary.answer(person.name, person.pens, pens, colour, check=check)
        return examples

    def _confirmed(self, problem: Problem, facts: _Facts) -> bool:
        """Measures the text as a whole: its length, and where the person's number and box P's fact start."""
        name, number = facts.person.fact[:NUMBER_IN_PERSON_FACT], facts.person.fact[NUMBER_IN_PERSON_FACT:]
        person = problem.context.rindex(_text(name, number))
        box = problem.context.rindex(_text(vocabulary.box_fact("P", facts.box_pens)))
        cuts = {
            person + len(_text(name)): problem.person_start + self._ruler.length(name),
            box: problem.box_start,
            len(problem.prompt): problem.prompt_tokens,
        }
        return self._ruler.confirms(problem.prompt, cuts)


def _text(*sentences: Pieces) -> str:
    return "".join(itertools.chain(*sentences))


def _choose(rng: Random, shares: Mapping[Placement, float]) -> Placement:
    return rng.choices(list(shares), list(shares.values()))[0]


def _pens(rng: Random, other_than: int | None = None) -> int:
    return rng.choice([pens for pens in range(MAX_PENS + 1) if pens != other_than])


def _unasked_facts(facts: _Facts, restated: int, rng: Random) -> list[Pieces]:
    """Facts beside the needed ones, in random order; the first `restated` people get two that disagree."""
    unasked = [person.fact for person in facts.others]
    for person in facts.others[:restated]:
        unasked.append(vocabulary.person_fact(person.name, _pens(rng, other_than=person.pens)))
    unasked += [vocabulary.box_fact(colour, pens) for colour, pens in facts.boxes.items()]
    rng.shuffle(unasked)
    return unasked
