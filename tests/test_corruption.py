"""Damage of a known dose to the right files, and to no others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from harness.corruption import Corruption, check_corruption, corrupt_files, object_group
from harness.errors import HarnessError, UsageError

# As LMCache 0.5.6 names them: model path @ rank mask @ object group (hex) @ chunk hash [@ salt].
MODEL = "-SEP-work-SEP-pocket-SEP-checkpoint@0x01000100"

GOOD: dict[str, Any] = {"kind": "flipped_bytes", "group": 0, "share": 0.01}


def stored(folder: Path, group: int, chunk: str, size: int = 10_000) -> Path:
    path = folder / f"{MODEL}@{group:x}@{chunk}.data"
    path.write_bytes(random.Random(chunk).randbytes(size))
    return path


def changed(path: Path, before: bytes) -> list[int]:
    after = path.read_bytes()
    assert len(after) == len(before)
    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        (f"{MODEL}@0@294379.data", 0),
        (f"{MODEL}@1@81fda3.data", 1),
        (f"{MODEL}@a@81fda3.data", 10),
        (f"{MODEL}@1@81fda3@salt.data", 1),
        ("@".join(["model", "0x1", "x", "81"]) + ".data", None),
        ("index.data", None),
        ("model@0x01.data", None),
    ],
)
def test_object_groups_by_name(name: str, group: int | None) -> None:
    assert object_group(Path("/l2") / name) == group


def test_a_share_of_every_file_of_one_group_is_inverted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    hit = [stored(tmp_path, 0, "aa"), stored(tmp_path / "deep", 0, "bb")]
    spared = [stored(tmp_path, 1, "aa"), stored(tmp_path, 16, "aa")]
    other = tmp_path / f"{MODEL}@0@cc.meta"
    other.write_bytes(b"x" * 100)
    before = {path: path.read_bytes() for path in [*hit, *spared, other]}
    assert corrupt_files(tmp_path, Corruption("flipped_bytes", 0, 0.01)) == {"files": 2, "bytes": 200}
    for path in hit:
        positions = changed(path, before[path])
        assert len(positions) == 100
        assert all(path.read_bytes()[i] == before[path][i] ^ 0xFF for i in positions)
        assert max(positions) - min(positions) > 5_000, "spread over the file"
    for path in [*spared, other]:
        assert changed(path, before[path]) == []


def test_the_same_seed_does_the_same_damage(tmp_path: Path) -> None:
    def positions(name: str, seed: int) -> list[int]:
        folder = tmp_path / name
        folder.mkdir()
        path = stored(folder, 0, "aa")
        before = path.read_bytes()
        corrupt_files(folder, Corruption("flipped_bytes", 0, 0.01, seed))
        return changed(path, before)

    first = positions("a", 0)
    assert positions("b", 0) == first
    assert positions("c", 1) != first


def test_files_are_damaged_in_different_places(tmp_path: Path) -> None:
    paths = [stored(tmp_path, 0, "aa"), stored(tmp_path, 0, "bb")]
    before = [path.read_bytes() for path in paths]
    corrupt_files(tmp_path, Corruption("flipped_bytes", 0, 0.01))
    first, second = (changed(path, old) for path, old in zip(paths, before, strict=True))
    assert first != second


@pytest.mark.parametrize(
    ("size", "share", "inverted"), [(10, 0.01, 1), (10, 1.0, 10), (1000, 1e-9, 1), (1, 0.5, 1), (0, 0.5, 0)]
)
def test_doses(tmp_path: Path, size: int, share: float, inverted: int) -> None:
    path = stored(tmp_path, 0, "aa", size)
    before = path.read_bytes()
    assert corrupt_files(tmp_path, Corruption("flipped_bytes", 0, share)) == {"files": 1, "bytes": inverted}
    assert len(changed(path, before)) == inverted


def test_nothing_to_damage_is_an_error(tmp_path: Path) -> None:
    """A demonstration that damaged nothing would pass, and prove nothing."""
    stored(tmp_path, 1, "aa")
    with pytest.raises(HarnessError, match=r"holds no file of object group 0\.") as caught:
        corrupt_files(tmp_path, Corruption("flipped_bytes", 0, 0.01))
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(HarnessError):
        corrupt_files(tmp_path / "gone", Corruption("flipped_bytes", 0, 0.01))


def test_arguments() -> None:
    assert check_corruption(GOOD, "here") == Corruption("flipped_bytes", 0, 0.01, seed=0)
    assert check_corruption(GOOD | {"share": 1, "group": 3, "seed": 7}, "here") == Corruption("flipped_bytes", 3, 1, 7)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": "melted"}, "corrupt kind=melted is not known; known: flipped_bytes."),
        ({"share": 0}, "share=0 must be above 0 and at most 1"),
        ({"share": 1.5}, "share=1.5 must be"),
        ({"share": float("nan")}, "share=nan must be"),
        ({"share": "1 %"}, "share=1 % must be"),
        ({"share": None}, "share=None must be"),
        ({"group": -1}, "group=-1 must be an object group number"),
        ({"group": "0"}, "group=0 must be"),
        ({"group": 0.5}, "group=0.5 must be"),
        ({"dose": 1}, "corrupt takes kind, group, share and seed, and got kind, group, share, dose."),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_corruption(GOOD | changes, "check x: cell, step 2")
    assert str(caught.value).startswith("check x: cell, step 2: corrupt ")
    assert told in str(caught.value)


def test_missing_arguments() -> None:
    with pytest.raises(UsageError, match="and got kind"):
        check_corruption({"kind": "flipped_bytes"}, "here")
