"""What counts as a regression; every field can be given on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from harness.errors import UsageError


@dataclass(frozen=True, slots=True)
class Margins:
    """Margins of a comparison."""

    score_margin: float = 0.03
    """Loss of score that counts, as a fraction of the questions: the gate's own."""
    speed_margin: float = 0.10
    """Change of median TTFT or of throughput that counts, as a fraction of A's."""
    alpha: float = 0.05
    """Level of the one-sided tests of the score, over all of them together; intervals have confidence 1 - 2 alpha."""
    resamples: int = 2000
    """Of the bootstrap."""

    @property
    def confidence(self) -> float:
        """Of all intervals."""
        return 1 - 2 * self.alpha


RANGES = {
    "score_margin": (1e-6, 0.999),
    "speed_margin": (0.0, 100.0),
    "alpha": (1e-6, 0.49),
    "resamples": (100, 100_000),
}
"""Accepted values, both ends included."""

NAMES = tuple(each.name for each in fields(Margins))


def read_margins(words: Mapping[str, str]) -> Margins:
    """Margins from fields of a command line.

    Raises:
        UsageError: a value is no number, or out of range.
    """
    values: dict[str, float] = {}
    for name, word in words.items():
        low, high = RANGES[name]
        try:
            value = int(word) if name == "resamples" else float(word)
        except ValueError as error:
            raise UsageError(f"{name}={word} is no number, such as {name}={getattr(Margins(), name):g}.") from error
        if not low <= value <= high:
            raise UsageError(f"{name}={word} is out of range: it must be between {low:g} and {high:g}.")
        values[name] = value
    return Margins(**values)  # type: ignore[arg-type]
