"""Arms and a short selftest on the real servers, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stack_support import server_processes, shared_memory

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

QUESTIONS = 90
"""Enough for an equal pair to pass: 88 at the default margin."""


def harness(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True)


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def cells(run: Path) -> dict[str, dict[str, Any]]:
    return {each["cell"]: each for each in map(read, run.glob("cells/*/cell.json"))}


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = tmp_path_factory.mktemp("results"), shared_memory()
    chosen = "+check=[mixed,no_connector,restart_lmcache,bypassed,unreset]"
    done = harness("run", chosen, f"task.limit={QUESTIONS}", f"results_dir={folder}", "run_id=arms")
    (folder / "told.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 4, done.stderr
    assert not server_processes(folder)
    assert shared_memory() <= before
    return folder / "arms"


def test_every_arm_is_a_run_of_its_own(arms: Path) -> None:
    told = read(arms / "attribution.json")
    verdicts = {each["arm"]: each["verdict"] for each in told["arms"]}
    assert verdicts == {
        "mixed": "pass",
        "no_connector": "pass",
        "restart_lmcache": "pass",
        "bypassed": "invalid",
        "unreset": "invalid",
    }
    assert told["row"] == "ok_where_exercised"
    assert "ok_where_exercised" in (arms.parent / "told.txt").read_text()
    assert (arms / "report.html").is_file()


def test_warm_was_served_by_what_the_arm_is_for(arms: Path) -> None:
    served = {}
    for arm in ("mixed", "no_connector", "restart_lmcache"):
        (cell,) = cells(arms / arm).values()
        warm = cell["passes"]["warm"]
        served[arm] = (
            (warm["external_hit_tokens"] or 0) / warm["prompt_tokens"],
            warm["local_hit_tokens"] / warm["prompt_tokens"],
        )
    assert served["no_connector"] == (0, 0)
    assert served["mixed"][0] == pytest.approx(2 * served["mixed"][1])
    assert served["restart_lmcache"] == (pytest.approx(0.907, abs=0.01), 0)
    assert "lmcache.log" not in {path.name for path in (arms / "no_connector" / "launches" / "budget127-r1").iterdir()}


def test_a_cache_that_was_passed_by_is_invalid_and_says_how(arms: Path) -> None:
    (bypassed,) = cells(arms / "bypassed").values()
    assert any(
        "LMCache did not serve what the warm pass was to retrieve: 0.000" in each for each in bypassed["reasons"]
    )
    (unreset,) = cells(arms / "unreset").values()
    assert any("was served by vLLM's own prefix cache" in each for each in unreset["reasons"])


def test_damage_of_two_kinds_is_seen_and_none_is_not(tmp_path: Path) -> None:
    """One kind that fails, one that is noticed and recomputed, so that nothing was tested."""
    damage = "sweep.damage=[none,other_prompt,failed_loads]"
    done = harness("selftest", "short", damage, f"task.limit={QUESTIONS}", f"results_dir={tmp_path}", "run_id=run")
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {name: cell["verdict"] for name, cell in cells(tmp_path / "run").items()}
    assert verdicts == {
        "budget127-none-r1": "pass",
        "budget127-other_prompt-r1": "fail",
        "budget127-failed_loads-r1": "invalid",
    }
    summary = read(tmp_path / "run" / "selftest.json")
    assert summary["exit_code"] == 0
    assert not server_processes(tmp_path)
