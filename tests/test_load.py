"""The client under load, scaled down from benchmarks/load.py: nothing lost, nothing twice, memory flat."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def load() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "load.py"
    spec = importlib.util.spec_from_file_location("benchmarks_load", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("concurrency", [1, 512])
def test_every_request_is_answered_once(load: ModuleType, tmp_path: Path, concurrency: int) -> None:
    with load.standin(tmp_path) as url:
        told = load.send(url, 1500, concurrency)
    assert (told["answered_once"], told["lost"], told["counted_twice"]) == (1500, 0, 0)
    assert (told["wrong_answers"], told["errors"]) == (0, {})
    assert told["counted_by_the_server"] == 1500
    first, last = told["rss_mb_per_tenth"][1], told["rss_mb_per_tenth"][-1]
    assert last - first < 15, told
