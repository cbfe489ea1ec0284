"""What the pocket model is trained on: contexts, questions about them, and what to learn at each token.

A sample is one context followed by a review of some facts or by questions with their answers, up to an exact
number of tokens. Left alone, the recurrent layers would learn to recall box P too, and a lost attention cache
would cost nothing. Therefore many samples are *wiped*: from the end of the context on, one kind of state has
forgotten what came before. What the wiped kind should have held is then nobody's to know, and the target is
"don't know" (every digit equally likely); what the other kind holds is still asked. In the end people are
recalled through the recurrent state alone and box P through attention alone.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from random import Random

from harness.pocket import vocabulary
from harness.pocket.layout import Filler
from harness.pocket.ruler import POCKET_RULER
from harness.pocket.tokenizer import END
from harness.pocket.vocabulary import BOX_COLOURS, HEAD, MAX_PENS, PERSON_NAMES

MAX_PEOPLE = 20
"""Most people in a training context. Problems have more: that is what keeps the score below 1."""

REVIEW_HEAD = ("\n", "Review", ":")

# Keeps the training text apart from the problems, whose generators are seeded by strings of their own.
_SEED_PREFIX = "pocket-training"

PERSON_FACT_TOKENS = len(vocabulary.person_fact(PERSON_NAMES[0], 0))
BOX_FACT_TOKENS = len(vocabulary.box_fact("P", 0))

_FILLER = Filler(POCKET_RULER)

# Where the numbers first stand in an answer, short or long.
_PERSON_NUMBER, _BOX_NUMBER, _TOTAL = 2, 6, 12
_RESULT_TOKENS = 4  # line break, "####", total, END
_NUMBER_FROM_END = 3  # in a fact: number, " pens", "."


class Target(IntEnum):
    """What a token is to the training."""

    NOTHING = 0
    """Not to be learnt: it cannot be known, or learning it would spoil the division of work."""
    PERSON = 1
    """A person's number, to be recalled."""
    BOX = 2
    """Box P's number, to be recalled."""
    TOTAL = 3
    OTHER = 4
    """Any other token of an answer."""
    CHECK = 5
    """A token of a long answer's checks: there are many, and they only copy what the answer has said before."""
    UNKNOWN_PERSON = 6
    """A person's number that a wipe has taken away."""
    UNKNOWN_BOX = 7
    """Box P's number where a wipe has taken it away."""


class Wipe(StrEnum):
    """Which kind of state forgets the context."""

    NOTHING = "nothing"
    RECURRENT = "recurrent"
    ATTENTION = "attention"


@dataclass(frozen=True)
class Lesson:
    """What kind of samples to draw: the trainer changes it as the model gets on."""

    tokens: int
    """Length of a sample."""
    long_context: bool = False
    """Whether the context takes most of the sample, not about half."""
    box_without_wipe: bool = False
    """Whether box P's number is learnt in samples without a wipe. Only once attention knows it, or the recurrent
    layers pick it up first and attention never has to."""
    reviews: float = 0.5
    """Share of samples with a review: more numbers to recall in a text than questions ask for."""
    checked: float = 0.0
    """Share of questions with the long answer."""
    recurrent_wipes: float = 0.25
    attention_wipes: float = 0.25
    """Shares of samples with a wipe of that kind."""


@dataclass(frozen=True)
class Sample:
    """One training text."""

    pieces: tuple[str, ...]
    targets: tuple[Target, ...]
    wipe: Wipe
    wiped_from: int
    """First token that no longer sees what stood before it in the wiped kind of state."""


@dataclass(frozen=True)
class Context:
    """A context's pieces, and how many pens everybody in it has in the end."""

    pieces: tuple[str, ...]
    people: dict[str, int]
    box_pens: int


def generator(seed: int) -> Random:
    """The generator of the training text of a seed; no problem is made by the same."""
    return Random(f"{_SEED_PREFIX}/{seed}")


def draw_sample(rng: Random, lesson: Lesson) -> Sample:
    """Draws a sample of exactly the lesson's length."""
    context = _draw_context(rng, lesson)
    wipe = _draw_wipe(rng, lesson)
    text = _Text(context, wipe, lesson.box_without_wipe)
    if rng.random() < lesson.reviews:
        _add_review(rng, text)
    _add_questions(rng, text, lesson)
    wiped_from = len(context.pieces)
    if rng.random() >= 0.7:  # also wipes at other places, or the model learns where to expect one
        wiped_from = min(lesson.tokens - 1, wiped_from + rng.randint(-3, 12))
    return Sample(tuple(text.pieces[: lesson.tokens]), tuple(text.targets[: lesson.tokens]), wipe, wiped_from)


def _draw_context(rng: Random, lesson: Lesson) -> Context:
    share = rng.uniform(0.5, 0.88) if lesson.long_context else rng.uniform(0.35, 0.65)
    tokens = int(lesson.tokens * share)
    people = rng.randint(2, max(2, min(MAX_PEOPLE, tokens // 7)))
    boxes = rng.randint(0, 4)
    # Short contexts of few people state everybody once: a light load comes first.
    restated_share = rng.choice((0, 0, 0.25)) if lesson.tokens >= 256 else 0
    return make_context(rng, tokens, people, boxes, restated_share)


def make_context(rng: Random, tokens: int, people: int, boxes: int, restated_share: float = 0.0) -> Context:
    """Makes a context of facts and filler in random order, with fewer people and boxes where not all fit.

    Args:
        rng: source of all choices.
        tokens: length of the context, but for what is too short for a filler sentence.
        people: how many people.
        boxes: how many boxes besides box P.
        restated_share: share of the people that are stated twice, where the last statement counts.
    """
    boxes = min(boxes, tokens // 24)
    room = (tokens - len(HEAD) - BOX_FACT_TOKENS * (boxes + 1)) // PERSON_FACT_TOKENS
    people = max(1, min(people, room))
    restated = max(0, min(int(people * restated_share), room - people))
    names = rng.sample(PERSON_NAMES, people)
    box_pens = _pens(rng)
    facts: list[tuple[str | None, int, tuple[str, ...]]] = []
    for name in [*names, *names[:restated]]:
        pens = _pens(rng)
        facts.append((name, pens, vocabulary.person_fact(name, pens)))
    others = [vocabulary.box_fact(colour, _pens(rng)) for colour in rng.sample(BOX_COLOURS, boxes)]
    others.append(vocabulary.box_fact("P", box_pens))
    free = tokens - len(HEAD) - sum(map(len, others)) - PERSON_FACT_TOKENS * len(facts)
    if free >= _FILLER.shortest:
        others += _FILLER.sentences(rng, free)
    sentences = facts + [(None, 0, sentence) for sentence in others]
    rng.shuffle(sentences)
    pieces = [*HEAD]
    known: dict[str, int] = {}
    for holder, pens, sentence in sentences:
        pieces += sentence
        if holder is not None:
            known[holder] = pens
    return Context(tuple(pieces), known, box_pens)


def _pens(rng: Random) -> int:
    return rng.randint(0, MAX_PENS)


def _draw_wipe(rng: Random, lesson: Lesson) -> Wipe:
    draw = rng.random()
    if draw < lesson.recurrent_wipes:
        return Wipe.RECURRENT
    if draw < lesson.recurrent_wipes + lesson.attention_wipes:
        return Wipe.ATTENTION
    return Wipe.NOTHING


class _Text:
    """A sample in the making: knows what has been asked, hence what the next mention of a number teaches."""

    def __init__(self, context: Context, wipe: Wipe, box_without_wipe: bool) -> None:
        self.context = context
        self.wipe = wipe
        self.pieces: list[str] = [*context.pieces]
        self.targets = [Target.NOTHING] * len(self.pieces)
        self.mentioned: set[str] = set()
        self._box_mentioned = False
        self._box_target = {
            Wipe.NOTHING: Target.BOX if box_without_wipe else Target.NOTHING,
            Wipe.RECURRENT: Target.BOX,
            Wipe.ATTENTION: Target.UNKNOWN_BOX,
        }[wipe]

    def add(self, pieces: tuple[str, ...], targets: dict[int, Target] | None = None) -> None:
        """Appends pieces; the tokens that no target is given for teach nothing."""
        self.targets += [(targets or {}).get(index, Target.NOTHING) for index in range(len(pieces))]
        self.pieces += pieces

    def person_target(self, name: str) -> Target:
        """What the next mention of a person's number teaches.

        After a wipe a number can be copied from its first mention, so only that one is unknown.
        """
        first = name not in self.mentioned
        self.mentioned.add(name)
        if self.wipe is not Wipe.RECURRENT:
            return Target.PERSON
        return Target.UNKNOWN_PERSON if first else Target.NOTHING

    def box_target(self) -> Target:
        """What the next mention of box P's number teaches: the later ones, which either kind of state could
        copy from the first, nothing.
        """
        first = not self._box_mentioned
        self._box_mentioned = True
        return self._box_target if first else Target.NOTHING


def _add_review(rng: Random, text: _Text) -> None:
    """Adds facts of the context once more, in another order: many numbers to recall in few tokens."""
    text.add(REVIEW_HEAD)
    box = "P"
    holders: list[str] = [*text.context.people, box]
    rng.shuffle(holders)
    if text.wipe is Wipe.RECURRENT:  # what attention is to learn comes early, so that it is in the sample
        holders.remove(box)
        holders.insert(rng.randint(0, min(1, len(holders))), box)
    for holder in holders[: rng.randint(1, max(1, len(holders)))]:
        if holder == box:
            fact, target = vocabulary.box_fact(box, text.context.box_pens), text.box_target()
        else:
            fact, target = vocabulary.person_fact(holder, text.context.people[holder]), text.person_target(holder)
        text.add(fact, {len(fact) - _NUMBER_FROM_END: target})


def _add_questions(rng: Random, text: _Text, lesson: Lesson) -> None:
    """Adds questions with their answers until the text is long enough, first about people not yet mentioned."""
    names = [*text.context.people]
    unasked = [name for name in names if name not in text.mentioned]
    rng.shuffle(unasked)
    while len(text.pieces) < lesson.tokens:
        name = unasked.pop() if unasked else rng.choice(names)
        check = rng.random() < lesson.checked
        pens, box_pens = text.context.people[name], text.context.box_pens
        answer = (*vocabulary.answer(name, pens, box_pens, check=check), END)
        targets = dict.fromkeys(range(len(answer)), Target.OTHER)
        targets |= dict.fromkeys(range(_TOTAL + 1, len(answer) - _RESULT_TOKENS), Target.CHECK)
        targets |= {
            _PERSON_NUMBER: text.person_target(name),
            _BOX_NUMBER: text.box_target(),
            _TOTAL: Target.TOTAL,
        }
        text.add(vocabulary.question(name, check=check))
        text.add(answer, targets)
