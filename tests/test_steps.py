"""Checks as ``configs/check`` lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli import configs_folder
from harness.config import CheckConfig
from harness.corruption import Corruption, Damage
from harness.errors import UsageError
from harness.steps import DIVERGING, Check, Step, check_cells, parse_check, primed_blocks
from harness.sweep import Cell

SHIPPED = sorted((configs_folder() / "check").glob("*.yaml"))

COLD: dict[str, Any] = {"pass": "cold"}
WARM: dict[str, Any] = {"pass": "warm"}
CORRUPT: dict[str, Any] = {"corrupt": {"kind": "flipped_bytes", "group": 0, "share": 0.01}}


FULL, HALF, NOTHING = (Cell("cell", 127, 1, target) for target in (None, 0.5, 0.0))
DIVERGED = Cell("cell", 127, 1, diverges_after=4)


def check(launch: list[Any], cell: list[Any], *, seeded: list[Any] | None = None, file_l2: bool = False) -> Check:
    return parse_check(CheckConfig("test", launch, cell, seeded or [], file_l2))


def test_there_are_checks() -> None:
    assert {"reset_warm", "bypassed", "flipped_bytes", "divergence"} <= {path.stem for path in SHIPPED}


def shipped(path: Path) -> CheckConfig:
    """A check of configs/check; one that sets fields of other groups as well has its own under ``check``."""
    told = yaml.safe_load(path.read_text())
    return CheckConfig(**told.get("check", told))


@pytest.mark.parametrize("path", [path for path in SHIPPED if path.stem != "all"], ids=lambda path: path.stem)
def test_every_shipped_check_can_be_read(path: Path) -> None:
    parsed = parse_check(shipped(path))
    assert parsed.name == path.stem
    assert {"cold", "warm"} <= set(parsed.passes)
    for steps in parsed.variants.values() if parsed.variants else [parsed.launch]:
        assert steps[0] == Step("clear"), "what the last launch or run left must not serve a cold pass"


def test_the_main_check() -> None:
    (path,) = (path for path in SHIPPED if path.stem == "reset_warm")
    parsed = parse_check(shipped(path))
    assert parsed.passes == ("control", "cold", "local_warm", "warm")
    assert parsed.cell == (Step("reset_local"), Step("pass", "warm"))
    # Warm retrieves what the cold pass it is compared with has stored, so nothing is cleared in between.
    steps = parsed.launch + parsed.cell
    assert Step("clear") not in steps[steps.index(Step("pass", "cold")) :]
    # A target hit rate: what cold has stored must not be there.
    seeded = (Step("clear"), Step("seed"), Step("reset_local"), Step("pass", "warm"))
    assert parsed.steps_for(HALF) == parsed.steps_for(NOTHING) == seeded
    assert parsed.steps_for(FULL) == parsed.cell
    assert not parsed.diverges


def test_the_check_of_divergence() -> None:
    (path,) = (path for path in SHIPPED if path.stem == "divergence")
    parsed = parse_check(shipped(path))
    assert parsed.passes == ("cold", "local_warm", "warm")
    seeded = (Step("clear"), Step("seed", DIVERGING), Step("reset_local"), Step("pass", "warm"))
    assert parsed.steps_for(DIVERGED) == seeded
    assert parsed.steps_for(FULL) == (Step("reset_local"), Step("pass", "warm"))
    assert parsed.diverges


def test_steps() -> None:
    parsed = check(["clear", COLD], ["clear_l1", CORRUPT, "reset_local", WARM], file_l2=True)
    assert parsed.launch == (Step("clear"), Step("pass", "cold"))
    assert parsed.cell == (
        Step("clear_l1"),
        Step("corrupt", Corruption("flipped_bytes", 0, 0.01)),
        Step("reset_local"),
        Step("pass", "warm"),
    )


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("claer", "launch, step 2: 'claer' is no step; did you mean clear?"),
        ("warp", "'warp' is no step; known: clear, clear_l1, reset_local, seed, damage, pass, corrupt, serve, prime"),
        ({"reboot": None}, "'reboot' is no step"),
        ({"restart": None}, "is not complete"),
        ({"restart": "vlm"}, "'vlm' can't be restarted; did you mean vllm?"),
        ({"prime": 0}, "is not complete"),
        ({"prime": True}, "is not complete"),
        ({"keep": "../sound"}, "is not complete"),
        ({"pass": {"name": "cold", "concurrency": 0}}, "concurrency=0 is no number of requests"),
        ({"pass": {"name": "cold", "order": 1}}, "pass takes a name, or name and concurrency"),
        ({"pass": {"concurrency": 1}}, "pass takes a name, or name and concurrency"),
        ({"damage": "all"}, "damage takes no argument: write `- damage`"),
        ({"seed": 0.5}, "seed takes no argument but diverging: write `- seed` or `- seed: diverging`."),
        ({"seed": None}, "seed takes no argument but diverging"),
        ({"seed": {"diverging": True}}, "seed takes no argument but diverging"),
        ({"clear": None}, "clear takes no argument: write `- clear`, without a colon."),
        ({"reset_local": "vllm"}, "reset_local takes no argument"),
        ("pass", "'pass' is not complete: write `pass: NAME`"),
        ({"pass": None}, "is not complete: write `pass: NAME`"),
        ({"pass": 3}, "is not complete: write `pass: NAME`"),
        ({"pass": "Cold"}, "a pass can't be called 'Cold': small letters, digits and _ make a name."),
        ({"pass": "../cold"}, "a pass can't be called '../cold'"),
        ({"corrupt": None}, "is not complete"),
        ({"corrupt": "flipped_bytes"}, "is not complete"),
        ({"pass": "cold", "clear": None}, "is not complete"),
        ({}, "'{}' is no step"),
        (None, "'None' is no step"),
        (["clear"], "is no step"),
    ],
)
def test_what_is_no_step(step: Any, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(["clear", step, COLD], [WARM])
    assert str(caught.value).startswith("check test: launch, step 2: ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("launch", "cell", "told"),
    [
        ([], [], "has 0 passes called cold"),
        ([COLD], [], "has 0 passes called warm"),
        ([WARM], [WARM, COLD], "has 2 passes called warm"),
        ([COLD, COLD], [WARM], "has 2 passes called cold"),
        ([COLD, {"pass": "control"}, {"pass": "control"}], [WARM], "names a pass twice: cold, control, control, warm"),
    ],
)
def test_a_check_compares_one_cold_with_one_warm_pass(launch: list[Any], cell: list[Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check(launch, cell)


@pytest.mark.parametrize(
    ("seeded", "told"),
    [
        (["clear", "seed"], "seeded_cell has the passes none and cell has warm: they must be the same"),
        (["clear", "seed", WARM, {"pass": "again"}], "seeded_cell has the passes warm, again and cell has warm"),
        (["seed", WARM], "seeded_cell must begin with clear and have one seed step"),
        (["seed", "clear", WARM], "must begin with clear"),
        (["clear", WARM], "have one seed step"),
        (["clear", "seed", "seed", WARM], "have one seed step"),
        (["clear", "seed", {"seed": "diverging"}, WARM], "have one seed step"),
        (["clear", "sede", WARM], "seeded_cell, step 2: 'sede' is no step; did you mean seed?"),
        (["clear", "seed", CORRUPT, WARM], "has a corrupt step, which needs file_l2: true"),
    ],
)
def test_a_seeded_cell_clears_seeds_and_measures_what_the_other_cells_do(seeded: list[Any], told: str) -> None:
    assert check([COLD], [WARM], seeded=["clear", "seed", "reset_local", WARM]).seeded_cell
    with pytest.raises(UsageError, match=told):
        check([COLD], [WARM], seeded=seeded)


@pytest.mark.parametrize(
    ("launch", "cell"),
    [([COLD, "seed"], [WARM]), ([COLD], ["seed", WARM]), ([COLD], [{"seed": "diverging"}, WARM])],
)
def test_seeding_needs_a_target(launch: list[Any], cell: list[Any]) -> None:
    with pytest.raises(UsageError, match="seed belongs into seeded_cell"):
        check(launch, cell)


def test_a_check_without_seeded_cells_refuses_target_hit_rates() -> None:
    plain = check([COLD], [WARM])
    check_cells(plain, [FULL])
    check_cells(check([COLD], [WARM], seeded=["clear", "seed", WARM]), [FULL, HALF, NOTHING])
    for cell in (HALF, NOTHING):
        with pytest.raises(UsageError, match=r"check test has no seeded_cell.*sweep\.hit_rates=\[full\]"):
            check_cells(plain, [FULL, cell])


def test_hit_rates_and_divergence_need_seeds_of_their_own() -> None:
    diverging = check([COLD], [WARM], seeded=["clear", {"seed": "diverging"}, WARM])
    check_cells(diverging, [FULL, DIVERGED])
    with pytest.raises(UsageError, match=r"check test seeds prompts that diverge, so .* or check=reset_warm"):
        check_cells(diverging, [HALF])
    for other in (check([COLD], [WARM]), check([COLD], [WARM], seeded=["clear", "seed", WARM])):
        with pytest.raises(UsageError, match=r"no step `seed: diverging`, .*=\[\] or check=divergence"):
            check_cells(other, [FULL, DIVERGED])


def test_corruption_needs_files() -> None:
    with pytest.raises(UsageError, match="has a corrupt step, which needs file_l2: true"):
        check([COLD], [CORRUPT, WARM])


def test_a_wrong_corruption_names_its_step() -> None:
    with pytest.raises(UsageError, match="check test: cell, step 1: corrupt kind=melted is not known"):
        check([COLD], [{"corrupt": {"kind": "melted", "group": 0, "share": 0.1}}, WARM], file_l2=True)


def test_serve_steps_exchange_weights_behind_a_link() -> None:
    steps: list[Any] = ["clear", {"serve": {"noise": 0.5}}, {"pass": "store"}, {"serve": {"noise": 0}}, WARM]
    parsed = parse_check(CheckConfig("test", [COLD], steps, linked_checkpoint=True))
    assert [step.argument for step in parsed.cell if step.action == "serve"] == [0.5, 0.0]
    with pytest.raises(UsageError, match="has a serve step, which needs linked_checkpoint: true"):
        parse_check(CheckConfig("test", [COLD], steps))


@pytest.mark.parametrize(
    "argument", [{}, {"noise": -1}, {"noise": 11}, {"noise": True}, {"noise": "0.5"}, {"sigma": 1}]
)
def test_a_serve_step_that_is_not_clear(argument: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"check test: cell, step 1: serve takes noise, from 0 .* and got"):
        parse_check(CheckConfig("test", [COLD], [{"serve": argument}, WARM], linked_checkpoint=True))


def parsed(**fields: Any) -> Check:
    return parse_check(CheckConfig(**{"name": "test", "launch": [COLD], "cell": [WARM]} | fields))


def test_all_names_checks_that_are_there() -> None:
    arms = yaml.safe_load((configs_folder() / "check" / "all.yaml").read_text())["arms"]
    assert set(arms) <= {path.stem for path in SHIPPED}
    assert len(set(arms)) == len(arms) == 12


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"connector": False}, "connector: false, so LMCache can't serve its warm pass"),
        ({"connector": False, "warm_from": "mixed"}, "connector: false, so LMCache can't serve its warm pass"),
        ({"connector": False, "warm_from": "vllm", "cell": ["clear_l1", WARM]}, "there is no LMCache for clear_l1"),
        ({"cell": ["damage", WARM]}, "a damage step, which needs file_l2: true"),
        ({"cell": ["damage", WARM], "file_l2": True}, "a damage step, which needs damage_module: true"),
        ({"cell": [{"restore": "sound"}, WARM], "file_l2": True}, "restores sound, which no keep step has kept"),
        ({"cell": [{"keep": "sound"}, WARM]}, "a keep step, which needs file_l2: true"),
        ({"warm_from": "mixed"}, "warm_from=mixed and a prime step in its cell belong together"),
        ({"cell": [{"prime": 2}, WARM]}, "warm_from=mixed and a prime step in its cell belong together"),
        ({"variants": {"one": [WARM]}}, "has variants, so it can't have a cell"),
        ({"cell": [], "variants": {"One": [WARM]}}, "a variant can't be called 'One'"),
        ({"cell": [], "variants": {"one": [WARM], "two": []}}, "has 0 passes called warm"),
        ({"cell": [], "variants": {"one": "warm"}}, "steps are a list, and this is 'warm'"),
    ],
)
def test_a_check_that_lacks_what_its_steps_work_on(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        parsed(**fields)


def test_variants_are_cells_with_steps_of_their_own() -> None:
    alone = [{"pass": {"name": "warm", "concurrency": 1}}]
    both = parsed(cell=[], variants={"alone": alone, "load": ["reset_local", WARM]})
    assert both.steps_for(Cell("cell", 127, 1, variant="alone")) == (Step("pass", "warm", 1),)
    assert both.steps_for(Cell("cell", 127, 1, variant="load")) == (Step("reset_local"), Step("pass", "warm"))
    assert both.passes == ("cold", "warm")


def test_primed_blocks() -> None:
    mixed = parsed(cell=[{"prime": 2}, WARM], warm_from="mixed")
    assert primed_blocks(mixed.cell) == 2
    assert primed_blocks(mixed.launch) == 0


def test_damage_needs_a_check_that_does_it_and_the_other_way_round() -> None:
    damaging = parsed(cell=["damage", WARM], file_l2=True, damage_module=True)
    damaged = Cell("cell", 127, 1, damage=Damage("none", 0.0))
    check_cells(damaging, [damaged])
    for one, cells in ((damaging, [FULL]), (damaging, [damaged, FULL]), (parsed(), [damaged])):
        with pytest.raises(UsageError, match="use check=selftest with sweep=selftest"):
            check_cells(one, cells)
