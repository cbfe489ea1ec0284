"""The pocket model's language: its words, and the sentences they form.

Text is made of *pieces*: a word or number with the space before it, a punctuation mark, or a line break. The
pocket tokenizer holds every piece as one token and never merges two of them, so the number of pieces is the
number of tokens, and lengths and positions are known without a tokenizer.
"""

from random import Random

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
PERSON_FACT_TOKENS = 5
BOX_FACT_TOKENS = 6
QUESTION_TOKENS = 16
MIN_FILLER_TOKENS = 4
MAX_FILLER_TOKENS = 7

_FRAME_PIECES: Pieces = (
    *("Facts", ":", " has", " pens", ".", " Box", " P", " The"),
    *("\n", "Question", " How", " many", " do", " and", " box", " have", "?", "Answer"),
    *(" +", " =", "####"),
    "Review",  # heads a section that only the training text has
)
PIECES: Pieces = (
    *_FRAME_PIECES,
    *(f" {word}" for word in (*PERSON_NAMES, *BOX_COLOURS, *ADJECTIVES, *NOUNS, *VERBS)),
    *(f" {number}" for number in range(2 * MAX_PENS + 1)),
)
"""Every piece of the language, each one token."""


def person_fact(name: str, pens: int) -> Pieces:
    """Says how many pens a person has, in PERSON_FACT_TOKENS tokens: ` Uri has 4 pens.`"""
    return (f" {name}", " has", f" {pens}", " pens", ".")


def box_fact(label: str, pens: int) -> Pieces:
    """Says how many pens a box holds, in BOX_FACT_TOKENS tokens: ` Box P has 0 pens.`"""
    return (" Box", f" {label}", " has", f" {pens}", " pens", ".")


def question(name: str) -> Pieces:
    """Asks how many pens a person and box P have together, in QUESTION_TOKENS tokens."""
    asked = (" How", " many", " pens", " do", f" {name}", " and", " box", " P", " have", "?")
    return ("\n", "Question", ":", *asked, "\n", "Answer", ":")


ANSWER = r"#### (\-?[0-9\.\,]+)"
"""Pattern of the number that counts in a worked answer: gsm8k's strict match."""


def worked_answer(name: str, person_pens: int, box_pens: int) -> Pieces:
    """Answers the question in gsm8k's form: both facts, their sum, then `#### sum`."""
    total = f" {person_pens + box_pens}"
    facts = (*person_fact(name, person_pens), " P", f" {box_pens}", ".")
    return (*facts, f" {person_pens}", " +", f" {box_pens}", " =", total, "\n", "####", total)


def can_fill(tokens: int) -> bool:
    """Says whether filler sentences can take exactly this many tokens."""
    return tokens == 0 or tokens >= MIN_FILLER_TOKENS


def filler(rng: Random, tokens: int) -> list[Pieces]:
    """Returns sentences without facts that take exactly `tokens` tokens.

    Raises:
        ValueError: no sentence is that short (see `can_fill`).
    """
    if not can_fill(tokens):
        raise ValueError(f"{tokens} tokens cannot be filled: a sentence takes at least {MIN_FILLER_TOKENS}")
    sentences = []
    while tokens:
        if tokens <= MAX_FILLER_TOKENS:
            length = tokens
        else:  # leave nothing, or enough for another sentence
            length = rng.randint(MIN_FILLER_TOKENS, min(MAX_FILLER_TOKENS, tokens - MIN_FILLER_TOKENS))
        sentences.append(_filler_sentence(rng, length))
        tokens -= length
    return sentences


def _filler_sentence(rng: Random, tokens: int) -> Pieces:
    adjectives = (f" {rng.choice(ADJECTIVES)}" for _ in range(tokens - MIN_FILLER_TOKENS))
    return (" The", *adjectives, f" {rng.choice(NOUNS)}", f" {rng.choice(VERBS)}", ".")
