"""The pocket model's language: its words, and the sentences they form.

Text is made of *pieces*: a word or number with the space before it, a punctuation mark, or a line break. The
pocket tokenizer holds every piece as one token and never merges two of them, so the number of pieces is the
number of tokens, and lengths and positions are known without a tokenizer.
"""

import itertools
from collections.abc import Sequence

Pieces = tuple[str, ...]

PERSON_NAMES = (
    *("Mia", "Omar", "Ana", "Ben", "Cal", "Dan", "Eva", "Fay", "Gus", "Hal", "Ian", "Jan"),
    *("Kim", "Leo", "Max", "Ned", "Oda", "Pam", "Quin", "Ray", "Sam", "Tom", "Uma", "Val"),
    *("Wes", "Xia", "Yan", "Zoe", "Abe", "Bea", "Cleo", "Dora", "Eli", "Finn", "Gia", "Hugo"),
    *("Ida", "Jack", "Kai", "Lena", "Milo", "Nora", "Otis", "Pia", "Rex", "Sara", "Theo", "Uri"),
)
BOX_COLOURS = ("red", "blue", "green", "black", "white", "pink", "gray", "gold")
ADJECTIVES = ("old", "big", "shy", "odd", "calm", "warm", "dark", "tall", "slow", "wild")
NOUNS = ("dog", "cat", "sun", "wind", "tree", "road", "boat", "bird", "lamp", "door", "rain", "hill")
VERBS = ("ran", "slept", "waited", "moved", "fell", "stopped", "turned", "shone", "sang", "left")

MAX_PENS = 9
"""Most pens that one holder has; the fewest is 0."""

HEAD: Pieces = ("Facts", ":")
MAX_ADJECTIVES = 3

_FRAME_PIECES: Pieces = (
    *("Facts", ":", " has", " pens", ".", " Box", " P", " The"),
    *("\n", "Question", " How", " many", " do", " and", " box", " have", "?", "Answer"),
    *(" +", " =", "####", " Check"),
    "Review",  # heads a section that only the training text has
)
PIECES: Pieces = (
    *_FRAME_PIECES,
    *(f" {word}" for word in (*PERSON_NAMES, *BOX_COLOURS, *ADJECTIVES, *NOUNS, *VERBS)),
    *(f" {number}" for number in range(2 * MAX_PENS + 1)),
)
"""Every piece of the language, each one token."""


def person_fact(name: str, pens: int) -> Pieces:
    """Says how many pens a person has: ` Uri has 4 pens.`"""
    return (f" {name}", " has", f" {pens}", " pens", ".")


def box_fact(label: str, pens: int) -> Pieces:
    """Says how many pens a box holds: ` Box P has 0 pens.`"""
    return (" Box", f" {label}", " has", f" {pens}", " pens", ".")


NUMBER_IN_PERSON_FACT = 2
"""Where the number stands in the pieces of a person's fact."""


def question(name: str, box: str = "P", *, check: bool = False) -> Pieces:
    """Asks how many pens a person and a box have together, and for `checked_answer` if `check` is set."""
    asked = (" How", " many", " pens", " do", f" {name}", " and", " box", f" {box}", " have", "?")
    return ("\n", "Question", ":", *asked, *((" Check", ".") if check else ()), "\n", "Answer", ":")


ANSWER = r"#### (\-?[0-9\.\,]+)"
"""Pattern of the number that counts in a worked answer: gsm8k's strict match."""


CHECKS = 6
"""Lines of a long answer that check its sum."""

OPENING_PIECES = 2
"""So many pieces of an answer, ` Uri has`, are part of a prompt: the first token to generate is then a number that
only the cached state knows, not the name that the question gives."""


def worked_answer(name: str, person_pens: int, box_pens: int, box: str = "P") -> Pieces:
    """Answers the question in gsm8k's form: both facts, their sum, then `#### sum` (16 pieces)."""
    return (*_working(name, person_pens, box_pens, box), *_result(person_pens + box_pens))


def checked_answer(name: str, person_pens: int, box_pens: int, box: str = "P") -> Pieces:
    """The long form of `worked_answer`, for load tests: the sum is checked six times, in either order (64 pieces)."""
    lines = [_working(name, person_pens, box_pens, box)]
    for number in range(1, CHECKS + 1):
        terms = (box_pens, person_pens) if number % 2 else (person_pens, box_pens)
        lines.append(("\n", f" {number}", ".", *_sum(*terms)))
    return (*itertools.chain(*lines), *_result(person_pens + box_pens))


def answer(name: str, person_pens: int, box_pens: int, box: str = "P", *, check: bool = False) -> Pieces:
    """What `question` asks for with the same `check`: the long form or the short one."""
    return (checked_answer if check else worked_answer)(name, person_pens, box_pens, box)


def _working(name: str, person_pens: int, box_pens: int, box: str) -> Pieces:
    return (*person_fact(name, person_pens), f" {box}", f" {box_pens}", ".", *_sum(person_pens, box_pens))


def _sum(first: int, second: int) -> Pieces:
    return (f" {first}", " +", f" {second}", " =", f" {first + second}")


def _result(total: int) -> Pieces:
    return ("\n", "####", f" {total}")


def filler(noun: str, verb: str, adjectives: Sequence[str]) -> Pieces:
    """A sentence without facts: ` The slow big hill turned.`"""
    return (" The", *(f" {adjective}" for adjective in adjectives), f" {noun}", f" {verb}", ".")
