"""Kinds of damage, in the order in which they are shown, and the verdict that each of them must end in."""

from __future__ import annotations

from harness.equivalence.verdict import Verdict
from harness.errors import UsageError

NONE = "none"
"""The kind of a cell whose cache was left alone."""

EXPECTED: dict[str, Verdict] = {
    "stale_checkpoint": Verdict.FAIL,
    "other_prompt": Verdict.FAIL,
    "gdn_only": Verdict.FAIL,
    "attention_only": Verdict.FAIL,
    "flipped_bytes": Verdict.FAIL,
    "skipped_loads": Verdict.FAIL,
    # Noticed and recomputed: the answers are right, and nothing was tested.
    "truncated": Verdict.INVALID,
    "failed_loads": Verdict.INVALID,
}


def expected_verdict(kind: str) -> Verdict:
    """The verdict that damage of this kind must end in, if there is enough of it.

    Raises:
        UsageError: the kind is not known.
    """
    try:
        return EXPECTED[kind]
    except KeyError:
        raise UsageError(
            f"damage of kind {kind!r} is not known, so that nothing is expected of it; known: {', '.join(EXPECTED)}."
        ) from None


def order(kind: str) -> int:
    """Place of a kind in tables and figures: undamaged first."""
    return 0 if kind == NONE else 1 + list(EXPECTED).index(kind)


def words(kind: str) -> str:
    """A kind as people read it."""
    return kind.replace("_", " ").replace("gdn", "GDN")
