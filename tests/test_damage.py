"""Damage of chosen prompts by kind and dose, on files named as LMCache's file-system L2 names them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.config import SweepConfig
from harness.corruption import (
    KINDS,
    Damage,
    Stored,
    damage_files,
    damage_words,
    damaged_documents,
    parse_damage,
    read_stored,
)
from harness.errors import HarnessError, UsageError
from harness.selftest.kinds import EXPECTED
from harness.servers.damage import PROMPT_TOKENS, DamageModule, fingerprint
from harness.servers.environment import DAMAGE_MODULE
from harness.servers.files import copy_aside, put_back
from harness.sweep import launches

DOCUMENTS, CHUNKS = 3, 2
STORED = Stored({doc: [f"{doc}{chunk}" * 8 for chunk in range(CHUNKS)] for doc in range(DOCUMENTS)}, {0})
"""Group 0 holds recurrent state, group 1 attention."""


def content(doc: int, chunk: int, group: int, origin: str = "sound") -> bytes:
    return f"{origin} document {doc} chunk {chunk} group {group} ".encode() * 20


def name(doc: int, chunk: int, group: int) -> str:
    return f"-SEP-models-SEP-pocket@0x01000100@{group:x}@{STORED.chunks[doc][chunk]}.data"


@pytest.fixture
def l2(tmp_path: Path) -> Path:
    for origin in ("sound", "stale"):
        (tmp_path / "made" / origin).mkdir(parents=True)
        for doc in range(DOCUMENTS):
            for chunk in range(CHUNKS):
                for group in (0, 1):
                    path = tmp_path / "made" / origin / name(doc, chunk, group)
                    path.write_bytes(content(doc, chunk, group, origin))
        copy_aside(tmp_path / "made" / origin, tmp_path / "kept" / origin)
    (tmp_path / "l2").mkdir()
    put_back(tmp_path / "kept" / "sound", tmp_path / "l2")
    return tmp_path / "l2"


def damage(l2: Path, kind: str, documents: list[int]) -> int:
    kept = l2.parent / "kept"
    return damage_files(l2, KINDS[kind], STORED, documents, sound=kept / "sound", stale=kept / "stale")


def now(l2: Path, doc: int, chunk: int, group: int) -> bytes:
    return (l2 / name(doc, chunk, group)).read_bytes()


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("other_prompt", (0, 1)),
        ("gdn_only", (0,)),
        ("attention_only", (1,)),
        ("stale_checkpoint", (0, 1)),
        ("flipped_bytes", (0, 1)),
        ("truncated", (0, 1)),
    ],
)
def test_a_kind_damages_its_groups_of_the_chosen_documents_and_nothing_else(
    l2: Path, kind: str, groups: tuple[int, ...]
) -> None:
    assert damage(l2, kind, [1]) == CHUNKS * len(groups)
    for doc in range(DOCUMENTS):
        for chunk in range(CHUNKS):
            for group in (0, 1):
                sound = now(l2, doc, chunk, group) == content(doc, chunk, group)
                assert sound is not (doc == 1 and group in groups), (doc, chunk, group)
    kept = l2.parent / "kept" / "sound" / name(1, 0, 0)
    assert kept.read_bytes() == content(1, 0, 0), "what is kept must survive"


def test_what_takes_the_place_of_a_state(l2: Path) -> None:
    damage(l2, "other_prompt", [0, 1, 2])
    assert [now(l2, doc, 1, 0) for doc in range(3)] == [content(other, 1, 0) for other in (1, 2, 0)]
    damage(l2, "stale_checkpoint", [0])
    assert now(l2, 0, 1, 1) == content(0, 1, 1, "stale")
    put_back(l2.parent / "kept" / "sound", l2)
    assert now(l2, 0, 1, 1) == content(0, 1, 1)
    damage(l2, "truncated", [0])
    assert now(l2, 0, 0, 0) == content(0, 0, 0)[: len(content(0, 0, 0)) // 2]
    damage(l2, "flipped_bytes", [1])
    changed = sum(a != b for a, b in zip(now(l2, 1, 0, 0), content(1, 0, 0), strict=True))
    assert changed == round(len(content(1, 0, 0)) * 0.01)


def test_every_rank_has_files_of_its_own(l2: Path) -> None:
    kept = l2.parent / "kept" / "sound"
    for path in list(l2.iterdir()):
        other_rank = path.name.replace("0x01000100", "0x02010201")
        for folder in (l2, kept):
            (folder / other_rank).write_bytes(b"rank 1 " + path.read_bytes())
    assert damage(l2, "other_prompt", [0]) == CHUNKS * 2 * 2
    changed = l2 / name(0, 1, 0).replace("0x01000100", "0x02010201")
    assert changed.read_bytes() == b"rank 1 " + content(1, 1, 0)


def test_nothing_to_damage_is_an_error(l2: Path) -> None:
    with pytest.raises(HarnessError, match="holds no file"):
        damage(l2, "other_prompt", [])
    for path in l2.iterdir():
        path.unlink()
    with pytest.raises(HarnessError, match="holds no file"):
        damage(l2, "flipped_bytes", [0])


def test_another_prompt_needs_as_many_chunks(l2: Path) -> None:
    alone = Stored({0: STORED.chunks[0], 1: STORED.chunks[1][:1]}, {0})
    kept = l2.parent / "kept"
    with pytest.raises(HarnessError, match="No other prompt has 2 chunks stored"):
        damage_files(l2, KINDS["other_prompt"], alone, [0], sound=kept / "sound", stale=kept / "stale")


def test_keeping_an_empty_l2_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "l2").mkdir()
    with pytest.raises(HarnessError, match="is empty, so there is nothing to keep"):
        copy_aside(tmp_path / "l2", tmp_path / "kept")


@pytest.mark.parametrize(
    ("word", "damage"),
    [
        ("none", Damage("none", 0.0)),
        ("flipped_bytes", Damage("flipped_bytes", 1.0)),
        ("truncated@0.05", Damage("truncated", 0.05)),
        ("gdn_only@1", Damage("gdn_only", 1.0)),
    ],
)
def test_damage_in_words(word: str, damage: Damage) -> None:
    assert parse_damage(word) == damage
    assert parse_damage(damage_words(damage.kind, damage.dose)) == damage


@pytest.mark.parametrize("word", ["nothing", "none@0.5", "truncated@0", "truncated@1.5", "truncated@half", "", None])
def test_words_that_are_no_damage(word: object) -> None:
    with pytest.raises(UsageError, match=r"^sweep\.damage: "):
        parse_damage(word)


def test_doses_are_nested_and_each_kind_draws_its_own() -> None:
    documents = range(300)
    few, more = (damaged_documents(documents, Damage("truncated", dose), seed=0) for dose in (0.05, 0.2))
    assert (len(few), len(more)) == (15, 60)
    assert set(few) < set(more)
    assert damaged_documents(reversed(documents), Damage("truncated", 0.05), seed=0) == few
    assert damaged_documents(documents, Damage("truncated", 0.05), seed=1) != few
    assert damaged_documents(documents, Damage("gdn_only", 0.05), seed=0) != few
    assert damaged_documents(documents, Damage("none", 0.0), seed=0) == []
    assert damaged_documents(documents, Damage("gdn_only", 1.0), seed=0) == list(documents)


def test_every_kind_has_an_expected_end() -> None:
    assert set(KINDS) == set(EXPECTED)


def test_cells_of_damage() -> None:
    sweep = SweepConfig("test", damage=["none", "truncated"], damage_once=["truncated@0.05"], repeats=2)
    plan = launches(sweep, 64)
    assert [[cell.id for cell in launch.cells] for launch in plan] == [
        ["budget127-none-r1", "budget127-truncated-r1", "budget127-truncated-5pct-r1"],
        ["budget127-none-r2", "budget127-truncated-r2"],
    ]
    for wrong in ({"hit_rates": [0.5]}, {"diverge_after": [1]}):
        with pytest.raises(UsageError, match="fixed for this check"):
            launches(SweepConfig("test", damage=["none"], **wrong), 64)
    with pytest.raises(UsageError, match="name a damage twice"):
        launches(SweepConfig("test", damage=["none"], damage_once=["none"]), 64)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The module that LMCache loads; what it wraps is tried on the real server."""
    path = DAMAGE_MODULE / "harness_test_only_damage.py"
    spec = importlib.util.spec_from_file_location("harness_test_only_damage", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_both_sides_know_a_prompt_by_the_same_mark(module: ModuleType) -> None:
    tokens = list(range(200))
    assert module.PROMPT_TOKENS == PROMPT_TOKENS
    assert module.fingerprint(tokens) == fingerprint(tokens) == fingerprint(tokens[:PROMPT_TOKENS])
    assert fingerprint(tokens) != fingerprint(tokens[1:])


def test_what_is_noted_is_what_is_read(module: ModuleType, tmp_path: Path) -> None:
    prompt = list(range(100))
    entry: Any = SimpleNamespace()
    entry.cache_context = SimpleNamespace(
        kv_layer_groups_manager=SimpleNamespace(get_attn_desc=lambda: SimpleNamespace(num_chunks_in_sw=[1, -1]))
    )
    transfer = SimpleNamespace(get_and_touch_context_entry=lambda instance: entry if instance == 1 else None)
    context = SimpleNamespace(
        chunk_size=32,
        resolve_obj_keys=lambda key, groups: [[SimpleNamespace(chunk_hash=each) for each in key.hashes]],
    )
    notes = module._Notes(tmp_path / "stored.jsonl", context)
    notes.add(transfer, SimpleNamespace(token_ids=prompt, start=32, hashes=[b"\x02", b"\x03"]), 1)
    notes.add(transfer, SimpleNamespace(token_ids=prompt, start=0, hashes=[b"\x01"]), 1)
    notes.add(transfer, SimpleNamespace(token_ids=prompt, start=0, hashes=[b"\x09"]), 2)
    stored = read_stored(tmp_path / "stored.jsonl", {fingerprint(prompt): 7})
    assert stored == Stored({7: ["01", "02", "03"]}, {0})
    with pytest.raises(HarnessError, match="has noted no store of these prompts"):
        read_stored(tmp_path / "stored.jsonl", {"other": 1})
    with pytest.raises(HarnessError, match="has noted no store of these prompts"):
        read_stored(tmp_path / "absent.jsonl", {})


def test_loads_are_spoiled_while_the_file_says_so(module: ModuleType, tmp_path: Path) -> None:
    told = DamageModule(tmp_path)
    control = module._Control(Path(told.argument["config"]["control"]))
    spoiled, sound = [1, 2, 3], [4, 5, 6]
    assert control.of(spoiled) is None
    told.spoil_loads("skip", [fingerprint(spoiled)])
    assert (control.of(spoiled), control.of(sound)) == ("skip", None)
    told.spoil_loads("fail", [fingerprint(sound)])
    assert (control.of(spoiled), control.of(sound)) == (None, "fail")
    told.leave_loads()
    assert control.of(sound) is None


def test_the_module_is_what_lmcache_is_told_to_load() -> None:
    argument = DamageModule(Path("/scratch")).argument
    assert (DAMAGE_MODULE / f"{argument['module_path']}.py").is_file()
    assert json.loads(json.dumps(argument)) == argument
