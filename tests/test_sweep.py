"""Budgets in words of N, and the launches that a sweep comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from stack_support import composed
from tokenizers import Tokenizer

from harness.cli import configs_folder
from harness.config import SweepConfig
from harness.errors import UsageError
from harness.pocket import CHECKPOINT
from harness.pocket.ruler import POCKET_RULER
from harness.steps import check_cells, parse_check
from harness.sweep import Launch, budget_tokens, hit_rate_target, launches, missing
from harness.workload.pocket import pocket_problems
from harness.workload.seeding import check_divergence, check_target, reachable_rate


def sweep(
    *budgets: object, hit_rates: Sequence[object] = ("full",), after: Sequence[object] = (), repeats: int = 1
) -> SweepConfig:
    return SweepConfig("test", list(budgets), list(hit_rates), list(after), repeats=repeats)


def ids(plan: list[Launch]) -> list[str]:
    return [cell.id for launch in plan for cell in launch.cells]


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [
        ("N", 784),
        ("1N", 784),
        ("2N-1", 1567),
        ("2N - 1", 1567),
        (" 2 * N - 1 ", 1567),
        ("1.5N", 1176),
        ("4N", 3136),
        ("16N+3", 12547),
        ("N+784", 1568),
        (1567, 1567),
        ("1567", 1567),
    ],
)
def test_budgets(budget: object, tokens: int) -> None:
    assert budget_tokens(budget, 784) == tokens


def test_published_recipes() -> None:
    assert [budget_tokens("2N-1", n) for n in (784, 544, 400)] == [1567, 1087, 799]


@pytest.mark.parametrize(
    "budget", ["", "2M-1", "N2", "2N-", "2N-1-1", "-5", "n", "1e3", "²", "2N-1.5", 127.0, True, None, [127]]
)
def test_what_is_no_budget(budget: object) -> None:
    with pytest.raises(UsageError, match=r"is no budget: write a number or N, 1\.5N, 2N-1, 4N") as caught:
        budget_tokens(budget, 64)
    assert repr(str(budget)) in str(caught.value)


@pytest.mark.parametrize("budget", [783, "783", 0, "0.5N", "N-1", "2N-785", "0N"])
def test_less_than_a_block_is_answered_with_the_recipe(budget: object) -> None:
    """The refusal's own advice in old LMCache releases, N, is the slow setting."""
    with pytest.raises(UsageError, match=r"less than one block of N = 784.*\[2N-1\], which is 1567"):
        budget_tokens(budget, 784)


def test_a_launch_per_budget_and_repeat() -> None:
    plan = launches(sweep("N", "2N-1", repeats=2), 64)
    assert [launch.id for launch in plan] == ["budget64-r1", "budget127-r1", "budget64-r2", "budget127-r2"]
    assert [launch.budget for launch in plan] == [64, 127, 64, 127]
    for launch in plan:
        (cell,) = launch.cells
        assert cell.budget == launch.budget
        assert cell.target is None
    assert [launch.cells[0].id for launch in plan] == [
        "budget64-full-r1",
        "budget127-full-r1",
        "budget64-full-r2",
        "budget127-full-r2",
    ]
    assert [launch.cells[0].repeat for launch in plan] == [1, 1, 2, 2]


def test_the_same_budget_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names the same budget twice at N = 64: \[127, 127\]"):
        launches(sweep("2N-1", 127), 64)


def test_every_budget_is_checked_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="less than one block"):
        launches(sweep("2N-1", 10), 64)


def test_a_cell_per_hit_rate_and_the_full_one_first() -> None:
    """The full cell retrieves what cold has stored, and every seeded one begins by clearing it."""
    plan = launches(sweep("N", "2N-1", hit_rates=(0, 0.5, "full", 0.97), repeats=2), 64)
    assert [launch.id for launch in plan] == ["budget64-r1", "budget127-r1", "budget64-r2", "budget127-r2"]
    assert [cell.target for cell in plan[1].cells] == [None, 0.0, 0.5, 0.97]
    assert ids(plan[1:2]) == [
        "budget127-full-r1",
        "budget127-hit0.00-r1",
        "budget127-hit0.50-r1",
        "budget127-hit0.97-r1",
    ]
    assert len(set(ids(plan))) == 16
    assert all(cell.budget == launch.budget for launch in plan for cell in launch.cells)


def test_hit_rates_keep_their_digits_in_names() -> None:
    close = (0.5, 0.501, 0.125, 0.12, 1)
    assert ids(launches(sweep("N", hit_rates=close), 64)) == [
        "budget64-hit0.50-r1",
        "budget64-hit0.501-r1",
        "budget64-hit0.125-r1",
        "budget64-hit0.12-r1",
        "budget64-hit1.00-r1",
    ]


@pytest.mark.parametrize("rate", ["", "half", "0.5", "Full", -0.1, 1.01, 97, True, None, float("nan"), [0.5]])
def test_what_is_no_hit_rate(rate: object) -> None:
    with pytest.raises(UsageError, match="is no hit rate: write a number from 0 to 1, or full") as caught:
        hit_rate_target(rate)
    assert repr(rate) in str(caught.value)


def test_the_same_hit_rate_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="names the same hit rate twice"):
        launches(sweep("N", hit_rates=(0, 0.5, 0.0)), 64)


def test_a_cell_per_point_of_divergence_behind_the_full_one() -> None:
    plan = launches(sweep("2N-1", "16N", after=(8, 7, 4)), 64)
    assert ids(plan) == [
        "budget127-full-r1",
        "budget127-after8-r1",
        "budget127-after7-r1",
        "budget127-after4-r1",
        "budget1024-full-r1",
        "budget1024-after8-r1",
        "budget1024-after7-r1",
        "budget1024-after4-r1",
    ]
    assert [cell.diverges_after for cell in plan[0].cells] == [None, 8, 7, 4]
    assert [cell.seeded for cell in plan[0].cells] == [False, True, True, True]
    assert all(cell.target is None for launch in plan for cell in launch.cells)


@pytest.mark.parametrize("blocks", [0, -1, 2.0, 0.5, "4", True, None, [4]])
def test_what_is_no_point_of_divergence(blocks: object) -> None:
    with pytest.raises(UsageError, match="is no number of blocks: write whole numbers from 1 on") as caught:
        launches(sweep("N", after=(2, blocks)), 64)
    assert repr(blocks) in str(caught.value)


def test_the_same_point_of_divergence_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sweep\.diverge_after=\[4, 2, 4\] names the same number of blocks twice"):
        launches(sweep("N", after=(4, 2, 4)), 64)


def test_what_is_left_of_a_plan() -> None:
    plan = launches(sweep("N", "2N-1", hit_rates=("full", 0.5)), 64)
    assert missing(plan, set()) == plan
    left = missing(plan, {"budget64-full-r1", "budget64-hit0.50-r1", "budget127-full-r1", "of another plan"})
    assert [launch.id for launch in left] == ["budget127-r1"]
    assert ids(left) == ["budget127-hit0.50-r1"]
    assert missing(plan, set(ids(plan))) == []


@pytest.mark.parametrize("name", sorted(path.stem for path in (configs_folder() / "sweep").glob("*.yaml")))
def test_shipped_sweeps_can_be_reached_with_the_prompts_that_they_ask_for(name: str) -> None:
    config = composed(f"sweep={name}")
    assert config.sweep.name == name
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    problems = pocket_problems(config.task, 64, POCKET_RULER)
    lengths = [len(tokenizer.encode(problem.context + problem.question).ids) for problem in problems]
    for launch in launches(config.sweep, 64):
        for cell in launch.cells:
            check_target(lengths, 64, cell.target)
            check_divergence(lengths, 64, 64, cell.diverges_after)
            if cell.target is not None:
                assert reachable_rate(lengths, 64, cell.target) == pytest.approx(cell.target, abs=0.001)


def test_the_sweep_of_batched_tokens() -> None:
    plan = launches(composed("sweep=batched_tokens").sweep, 64)
    assert [launch.budget for launch in plan] == [64, 80, 96, 127, 128, 256]
    assert all([cell.target for cell in launch.cells] == [0.0, 0.5, 0.97] for launch in plan)


def test_the_sweep_of_hit_rates() -> None:
    (launch,) = launches(composed("sweep=hit_rate").sweep, 64)
    assert (launch.budget, len(launch.cells)) == (127, 8)


def test_the_sweep_of_divergence_brings_its_check() -> None:
    config = composed("sweep=divergence")
    assert config.check.name == "divergence"
    plan = launches(config.sweep, 64)
    assert [launch.budget for launch in plan] == [127, 1024]
    assert all([cell.diverges_after for cell in launch.cells] == [None, 8, 7, 4, 2] for launch in plan)
    for launch in plan:
        check_cells(parse_check(config.check), launch.cells)
    assert composed("sweep=divergence", "check=reset_warm").check.name == "reset_warm", "what is typed counts"
    assert composed("sweep=hit_rate").check.name == "reset_warm"


def test_a_sweep_may_be_given_other_prompts() -> None:
    task = composed("sweep=hit_rate", "task.tail_tokens=null", "task.blocks=40").task
    assert (task.tail_tokens, task.blocks, task.limit) == (None, 40, 300)


# --- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", range(1, 7))
def test_every_launch_is_in_exactly_one_shard(of: int) -> None:
    """Whatever n is, and always in the same one."""
    whole = sweep("N", "2N-1", "4N", hit_rates=("full", 0.5), repeats=2)
    shards = [launches(replace(whole, shard=f"{number}/{of}"), 64) for number in range(1, of + 1)]
    everything = launches(whole, 64)
    assert sorted(launch.id for shard in shards for launch in shard) == sorted(launch.id for launch in everything)
    assert all(launch in everything for shard in shards for launch in shard), "with all their cells"
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert shards == [launches(replace(whole, shard=f"{number}/{of}"), 64) for number in range(1, of + 1)]


@pytest.mark.parametrize(
    "shard", ["0/2", "3/2", "2", "1/0", "a/b", "1/2/3", "-1/2", "1.0/2", "٣/4", "", " 1/2", "01/2"]
)
def test_what_is_no_shard(shard: str) -> None:
    with pytest.raises(UsageError, match=r"^sweep\.shard=.* is no shard: write i/n with i from 1 to n"):
        launches(replace(sweep("N"), shard=shard), 64)


def test_more_shards_than_launches() -> None:
    """An empty one would end in a verdict over nothing."""
    with pytest.raises(UsageError, match=r"^sweep\.shard=2/3: the sweep has 2 launches .*use sweep\.shard=1/2"):
        launches(replace(sweep("N", "2N-1"), shard="2/3"), 64)
