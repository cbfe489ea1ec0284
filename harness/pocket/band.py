"""The scores between which the pocket model is a good witness: right often enough, and never without its state."""

from collections.abc import Mapping

from harness.pocket.evaluate import Score

LOWEST, HIGHEST = 0.6, 0.95
"""Score without damage: far enough above chance to fall, and below 1, where small damage hides."""

NEAR_CHANCE = 0.2
"""Highest score once a kind of state is gone. Chance is 0.1: the lost one of two digits is guessed."""

STALE_COST = 0.2
"""What a recurrent state that is one block old costs at least."""


def shortfalls(scores: Mapping[str, Score]) -> list[str]:
    """What is wrong with a model's scores, by title of damage; an empty list for a good witness."""
    clean, stale = scores["none"].share, scores["GDN state one block stale"].share
    found = []
    if not LOWEST <= clean <= HIGHEST:
        found.append(f"its score {clean:.2f} is outside {LOWEST} to {HIGHEST}")
    for title in ("GDN state zeroed", "attention KV zeroed"):
        if scores[title].share > NEAR_CHANCE:
            found.append(f"with {title} it still scores {scores[title].share:.2f}, above {NEAR_CHANCE}")
    if clean - stale < STALE_COST:
        found.append(f"a GDN state one block stale costs {clean - stale:.2f}, less than {STALE_COST}")
    return found
