"""Prompts: what a cache can reach of them, their order, and the hash that proves they did not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.workload.prompts import (
    Prompt,
    as_frame,
    order_for,
    reachable_tokens,
    set_hash,
    shared_first_blocks,
    whole_blocks,
)

N = 784


def prompt(doc_id: int = 0, length: int = 10, first: int = 1) -> Prompt:
    return Prompt(doc_id, f"text {doc_id}", (first, *range(2, length + 1)), ("\nQuestion:",), 24)


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [
        (0, 0), (1, 0), (N - 1, 0), (N, 0), (N + 1, 1),
        (2 * N - 1, 1), (2 * N, 1), (2 * N + 1, 2),
        (9 * N - 1, 8), (9 * N, 8), (9 * N + 1, 9),
    ],
)  # fmt: skip
def test_whole_blocks_leave_the_last_token_to_be_computed(tokens: int, blocks: int) -> None:
    assert whole_blocks(tokens, N) == blocks


def test_reachable_tokens_are_whole_chunks() -> None:
    lengths = [64, 65, 200]
    assert reachable_tokens(lengths, 64) == 0 + 64 + 192
    assert reachable_tokens(lengths, 128) == 0 + 0 + 128
    assert reachable_tokens([6401], 64) == 6400


def test_order_is_reproducible_and_differs_between_passes() -> None:
    orders = {name: order_for(name, 300, 0) for name in ("cold", "local_warm", "control", "warm")}
    assert all(sorted(order) == list(range(300)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    assert all(order != list(range(300)) for order in orders.values())
    assert orders["cold"] == order_for("cold", 300, 0)
    assert orders["cold"] != order_for("cold", 300, 1)
    assert order_for("cold", 0, 0) == []


def test_order_is_the_same_in_every_process_and_release() -> None:
    """A resumed run must send what the first one did."""
    assert order_for("cold", 8, 0) == [4, 5, 2, 1, 7, 0, 3, 6]


def test_hash_covers_ids_stop_and_limit_and_nothing_else() -> None:
    base = prompt()
    changed = [
        replace(base, token_ids=(*base.token_ids[:-1], 99)),
        replace(base, token_ids=base.token_ids[:-1]),
        replace(base, token_ids=base.token_ids[::-1]),
        replace(base, stop=("\nQuestion",)),
        replace(base, stop=()),
        replace(base, stop=("\n", "Question:")),
        replace(base, max_tokens=25),
    ]
    hashes = {base.sha256, *(each.sha256 for each in changed)}
    assert len(hashes) == len(changed) + 1
    assert replace(base, doc_id=5, text="the same ids").sha256 == base.sha256
    assert len(base.sha256) == 64


def test_set_hash_ignores_order_and_sees_every_prompt() -> None:
    prompts = [prompt(i, 10, first=i) for i in range(4)]
    assert set_hash(prompts) == set_hash(prompts[::-1])
    assert set_hash(prompts) != set_hash(prompts[:-1])
    assert set_hash(prompts) != set_hash([*prompts, prompts[0]])
    assert set_hash(prompts) != set_hash([*prompts[:-1], replace(prompts[-1], max_tokens=1)])


def test_shared_first_blocks() -> None:
    assert shared_first_blocks([prompt(0, 65, 1), prompt(1, 65, 2)], 64) == 0
    assert shared_first_blocks([prompt(0, 65, 1), prompt(1, 200, 1), prompt(2, 90, 1)], 64) == 2
    assert shared_first_blocks([prompt(0, 64, 1), prompt(1, 64, 1)], 64) == 0, "too short to be cached at all"


def test_frame_has_a_row_per_prompt() -> None:
    prompts = [prompt(3, 10), prompt(4, 20)]
    frame = as_frame(prompts)
    assert frame["doc_id"].tolist() == [3, 4]
    assert frame["prompt_tokens"].tolist() == [10, 20]
    assert frame["prompt_sha256"].tolist() == [each.sha256 for each in prompts]
    assert frame["token_ids"].tolist() == [list(each.token_ids) for each in prompts]
    assert frame["stop"].tolist() == [["\nQuestion:"]] * 2
    assert frame["max_tokens"].tolist() == [24, 24]
