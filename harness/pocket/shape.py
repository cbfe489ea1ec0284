"""What the problems of a set have in common, and whether that can be laid out."""

from dataclasses import dataclass

from harness.pocket import vocabulary
from harness.pocket.layout import Filler, spare_tokens
from harness.pocket.ruler import Ruler
from harness.pocket.vocabulary import BOX_COLOURS, MAX_PENS, OPENING_PIECES, PERSON_NAMES, Pieces

TAIL_MARGINS = (9, 17, 25, 33)
"""By default a prompt goes on after its last whole block for one of these and the length of its question: room
for a fact across the boundary, and requests of different lengths."""

MAX_PEOPLE_STATEMENTS = 2 * len(PERSON_NAMES) - 1
"""Nobody is stated more than twice, and somebody only once: the asked person, or another in their place."""

DEFAULT_PEOPLE_STATEMENTS = len(PERSON_NAMES) * 4 // 3
"""Most statements by default, however long the context: everybody, and a quarter of the statements outdated."""


@dataclass(frozen=True)
class Shape:
    """What the problems of a set have in common."""

    blocks: int = 6
    """Blocks in each prompt, before its tail."""
    block_size: int = 64
    """Tokens per block."""
    tail_tokens: tuple[int, ...] | None = None
    """Tokens by which prompts are longer than `blocks` blocks, drawn from these: (-1,), (0,) and (1,) give prompts of
    k N - 1, k N and k N + 1 tokens. By default the question's length and one of TAIL_MARGINS."""
    shared_blocks: int = 0
    """Blocks at the beginning that are the same in all prompts of the set. Box P is never in them."""
    people: int | None = None
    """Statements about people in each context, about a quarter of them outdated by a later one about the same
    person. By default 4 and one for every 7 tokens (of the pocket tokenizer: as dense in any), as
    many as fit, DEFAULT_PEOPLE_STATEMENTS at most: the load at which the committed checkpoint's score was measured."""
    boxes: int = 3
    """Boxes besides box P in each context."""
    examples: int = 0
    """Worked examples before the question, about other people and boxes of the same context, for a model that was
    not trained on the form of the answers."""
    check: bool = False
    """Whether the answer is the long one, of about 64 tokens."""


class Limits:
    """The lengths of a shape's parts in the tokens of a ruler, and what follows from them."""

    def __init__(self, shape: Shape, ruler: Ruler, filler: Filler) -> None:
        self._shape, self._filler = shape, filler
        self._head = ruler.head()
        self._person = max(ruler.length(vocabulary.person_fact(name, MAX_PENS)) for name in PERSON_NAMES)
        self._box = max(ruler.length(vocabulary.box_fact(box, MAX_PENS)) for box in ("P", *BOX_COLOURS))
        self._question = max(ruler.length(_longest_question(name, shape)) for name in PERSON_NAMES)
        self.people: int = self._default_people() if shape.people is None else shape.people

    def _default_people(self) -> int:
        shape = self._shape
        tokens = shape.blocks * shape.block_size
        dense = tokens * 5 // (7 * self._person) + 4
        own_blocks = max(1, shape.blocks - shape.shared_blocks)
        fitting = (self._own_room - self._box_facts) // self._person * shape.blocks // own_blocks
        return max(1, min(dense, fitting, DEFAULT_PEOPLE_STATEMENTS))

    @property
    def shared_people(self) -> int:
        """How many people the shared blocks state: their share of all, while names are left for the others."""
        room = self._shape.shared_blocks * self._shape.block_size - self._head - self._person - self._filler.shortest
        share = self.people * self._shape.shared_blocks // self._shape.blocks
        return max(0, min(share, room // self._person, MAX_PEOPLE_STATEMENTS - self.people))

    def boundary(self, tail: int) -> int:
        """Token index at which the last block ends that a cache can restore.

        The last token of a prompt is never restored: a prompt of k N tokens has k - 1 such blocks.

        Args:
            tail: one of the shape's tail_tokens, or of TAIL_MARGINS where there are none.
        """
        size = self._shape.block_size
        whole = self._shape.blocks * size
        return whole if self._shape.tail_tokens is None else (whole + tail - 1) // size * size

    def check(self) -> None:
        """Raises ValueError where no problem can be laid out."""
        self._check_counts()
        self._check_tails()
        self._check_room()

    def _check_counts(self) -> None:
        shape = self._shape
        if not 1 <= self.people <= MAX_PEOPLE_STATEMENTS:
            raise ValueError(
                f"people={self.people} is outside 1 to {MAX_PEOPLE_STATEMENTS}, "
                f"the statements that {len(PERSON_NAMES)} names allow"
            )
        if not 0 <= shape.boxes <= len(BOX_COLOURS):
            raise ValueError(f"boxes={shape.boxes} is outside 0 to {len(BOX_COLOURS)}, the number of colours")
        once = self.people - max(self.people // 4, self.people - len(PERSON_NAMES)) * 2 - 1
        most = max(0, min(shape.boxes, once))
        if not 0 <= shape.examples <= most:
            raise ValueError(
                f"{shape.examples} worked examples are outside 0 to {most}: each asks for a box of its own besides "
                f"box P, of which there are {shape.boxes}, and for a person who is stated once"
            )
        if shape.shared_blocks < 0:
            raise ValueError(f"shared_blocks={shape.shared_blocks} is negative")

    def _check_tails(self) -> None:
        shape, size = self._shape, self._shape.block_size
        if shape.tail_tokens is None:
            longest = self._question + max(TAIL_MARGINS)
            if size < longest:
                raise ValueError(
                    f"block_size={size} is too small: prompts end up to {longest} tokens after their last whole block"
                    + (f", {self._question} of them question and examples" if shape.examples else "")
                )
        elif not shape.tail_tokens or not all(-size < tail <= size for tail in shape.tail_tokens):
            raise ValueError(
                f"tail_tokens={list(shape.tail_tokens)} must be one or more numbers of tokens from {1 - size} to {size}"
            )
        blocks = min(self.boundary(tail) for tail in self._tails) // size
        if blocks < shape.shared_blocks + 2:
            raise ValueError(
                f"blocks={shape.blocks} is too few: a cache can restore {blocks} blocks of such a prompt, and needed "
                f"facts stand in two or more of them that are not shared (shared_blocks={shape.shared_blocks})"
            )

    def _check_room(self) -> None:
        shape = self._shape
        facts = (self.people - self.shared_people) * self._person + self._box_facts
        if facts > self._own_room:
            raise ValueError(
                f"people={self.people} and boxes={shape.boxes} need {facts} tokens of facts, but "
                f"{shape.blocks - shape.shared_blocks} blocks of {shape.block_size} tokens have room for "
                f"{self._own_room}"
            )
        needed = self._person + self._box + 2 * self._filler.shortest
        for tail in self._tails:
            boundary = self.boundary(tail)
            last = min(boundary, self._context_end(tail)) - (boundary - shape.block_size)
            if last < needed:
                raise ValueError(
                    f"block_size={shape.block_size} is too small: with tail_tokens={tail} the question leaves "
                    f"{max(0, last)} tokens of the last block, and the needed facts take up to {needed}"
                )

    @property
    def _own_room(self) -> int:
        """Tokens that a problem's own facts may take: in its blocks that are not shared, before the question."""
        start = self._shape.shared_blocks * self._shape.block_size or self._head
        end = min((self._context_end(tail) for tail in self._tails), default=start)
        return end - start - spare_tokens(max(self._person, self._box), self._filler)

    @property
    def _box_facts(self) -> int:
        return (self._shape.boxes + 1) * self._box

    @property
    def _tails(self) -> tuple[int, ...]:
        return TAIL_MARGINS if self._shape.tail_tokens is None else self._shape.tail_tokens

    def _context_end(self, tail: int) -> int:
        """First token of the longest question."""
        whole = self._shape.blocks * self._shape.block_size
        return whole + tail - (0 if self._shape.tail_tokens is None else self._question)


def _longest_question(name: str, shape: Shape) -> Pieces:
    """The longest question about this person, with its examples, if all were about the same one."""
    box, check = BOX_COLOURS[0], shape.check
    example = vocabulary.question(name, box, check=check) + vocabulary.answer(name, 9, 9, box, check=check)
    asked = vocabulary.question(name, check=check) + vocabulary.answer(name, 9, 9, check=check)[:OPENING_PIECES]
    return example * shape.examples + asked
