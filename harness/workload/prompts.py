"""Prompts of a launch: built once, stored, hashed, and sent unchanged in every pass."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True, slots=True)
class Prompt:
    """One document's prompt, as every pass sends it."""

    doc_id: int
    text: str
    token_ids: tuple[int, ...]
    stop: tuple[str, ...]
    max_tokens: int
    needed: tuple[tuple[str, int], ...] = ()
    """Facts that the answer needs and the token of the prompt at which each starts, where the task knows them."""
    sha256: str = field(init=False)
    """Hash of what is sent: token ids, stop strings and the token limit; made once, not while requests are timed."""

    def __post_init__(self) -> None:
        sent = f"{self.token_ids}|{self.stop}|{self.max_tokens}"
        object.__setattr__(self, "sha256", hashlib.sha256(sent.encode()).hexdigest())


def whole_blocks(tokens: int, block_size: int) -> int:
    """Blocks of a prompt that a cache can serve: its last token is always computed."""
    return max(0, tokens - 1) // block_size


def reachable_tokens(lengths: Iterable[int], chunk_size: int) -> int:
    """Tokens of prompts of these lengths that LMCache can serve at best: it stores and finds whole chunks."""
    return sum(whole_blocks(int(length), chunk_size) * chunk_size for length in lengths)


def shared_first_blocks(prompts: Sequence[Prompt], block_size: int) -> int:
    """Prompts whose first block another, earlier prompt has too: those would hit within a cold pass."""
    firsts = [prompt.token_ids[:block_size] for prompt in prompts if len(prompt.token_ids) > block_size]
    return len(firsts) - len(set(firsts))


def order_for(traversal: str, count: int, seed: int) -> list[int]:
    """Positions 0..count-1 in the order of one traversal: the same for a seed, another one for every traversal.

    Warm must not follow the order of cold, of what seeded it, or of another cell's warm: a load that does nothing
    could then find its old, still correct block in place.

    Args:
        traversal: what tells it from all others of a launch: the pass, and the cell where it belongs to one.
        count: prompts.
        seed: of the run.
    """
    order = list(range(count))
    random.Random(f"{seed}/{traversal}").shuffle(order)
    return order


def set_hash(prompts: Sequence[Prompt]) -> str:
    """One hash for the whole set, independent of order."""
    return hashlib.sha256("".join(sorted(prompt.sha256 for prompt in prompts)).encode()).hexdigest()


def as_frame(prompts: Sequence[Prompt]) -> pd.DataFrame:
    """One row per prompt, for prompts.parquet."""
    return pd.DataFrame(
        {
            "doc_id": [prompt.doc_id for prompt in prompts],
            "prompt_sha256": [prompt.sha256 for prompt in prompts],
            "prompt_tokens": [len(prompt.token_ids) for prompt in prompts],
            "text": [prompt.text for prompt in prompts],
            "token_ids": [list(prompt.token_ids) for prompt in prompts],
            "stop": [list(prompt.stop) for prompt in prompts],
            "max_tokens": [prompt.max_tokens for prompt in prompts],
            "needed": [json.dumps(dict(prompt.needed)) for prompt in prompts],
        }
    )


def from_frame(frame: pd.DataFrame) -> list[Prompt]:
    """Prompts as :func:`as_frame` has stored them; earlier harness versions stored no ``needed``."""
    needed = frame["needed"] if "needed" in frame else pd.Series("{}", index=frame.index)
    return [
        Prompt(
            doc_id=int(row["doc_id"]),
            text=str(row["text"]),
            token_ids=tuple(int(token) for token in row["token_ids"]),
            stop=tuple(str(each) for each in row["stop"]),
            max_tokens=int(row["max_tokens"]),
            needed=tuple(json.loads(facts).items()),
        )
        for (_, row), facts in zip(frame.iterrows(), needed, strict=True)
    ]
