"""How long the problems' text is in tokens: of the pocket tokenizer, or of any other one.

Problems are laid out token by token around block boundaries, from the lengths of single sentences. Tokenizers
that split text into words first, as all common ones do, never merge across the space between two sentences, so
the lengths add up; a text is measured again as a whole before it is used.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from harness.pocket import vocabulary
from harness.pocket.vocabulary import HEAD, Pieces

Tokenize = Callable[[str], Sequence[int]]
"""Token ids of a prompt, with whatever the tokenizer puts before it."""


class Ruler(Hashable, Protocol):
    """Lengths in tokens."""

    def head(self) -> int:
        """Length of what every prompt starts with."""

    def length(self, pieces: Pieces) -> int:
        """How much longer a text gets by these pieces, after a sentence."""

    def usable(self, words: Sequence[str]) -> Sequence[str]:
        """Those of a filler sentence's words that take one token each."""

    def confirms(self, text: str, cuts: Mapping[int, int]) -> bool:
        """Says whether the text, cut before character number `key`, has `value` tokens up to there."""


class PocketRuler:
    """The pocket tokenizer's: every piece is one token, known without the tokenizer."""

    def head(self) -> int:
        """See `Ruler`."""
        return len(HEAD)

    def length(self, pieces: Pieces) -> int:
        """See `Ruler`."""
        return len(pieces)

    def usable(self, words: Sequence[str]) -> Sequence[str]:
        """See `Ruler`."""
        return words

    def confirms(self, text: str, cuts: Mapping[int, int]) -> bool:
        """See `Ruler`."""
        return True


class TokenizerRuler:
    """Any tokenizer's, measured."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._lengths: dict[Pieces, int] = {}

    def head(self) -> int:
        """See `Ruler`."""
        return len(self._tokenize("".join(HEAD)))

    def length(self, pieces: Pieces) -> int:
        """See `Ruler`."""
        if pieces not in self._lengths:
            self._lengths[pieces] = len(self._tokenize(self._sentence + "".join(pieces))) - self._sentence_tokens
        return self._lengths[pieces]

    def usable(self, words: Sequence[str]) -> Sequence[str]:
        """See `Ruler`."""
        article = self.length((" The",))
        return [word for word in words if self.length((" The", f" {word}")) == article + 1]

    def confirms(self, text: str, cuts: Mapping[int, int]) -> bool:
        """See `Ruler`."""
        tokens = list(self._tokenize(text))
        return all(
            count <= len(tokens) and list(self._tokenize(text[:cut])) == tokens[:count] for cut, count in cuts.items()
        )

    @cached_property
    def _sentence_tokens(self) -> int:
        return len(self._tokenize(self._sentence))

    @property
    def _sentence(self) -> str:
        return "".join((*HEAD, *vocabulary.filler("dog", "ran", ())))


POCKET_RULER = PocketRuler()
