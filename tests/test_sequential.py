"""Error control of looks in between: exactly by enumeration, and by simulation of documents, on the shipped rules."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.config import GateConfig
from harness.equivalence.looks import levels
from harness.equivalence.paired import PairedTable
from harness.equivalence.score import score_tests
from harness.equivalence.verdict import judge_score

QUICK = GateConfig(name="quick", looks=5)
RUNS = 400


@pytest.fixture(scope="module")
def sequential() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "sequential.py"
    spec = importlib.util.spec_from_file_location("benchmarks_sequential", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_enumerated_rule_is_the_gates_own(sequential: ModuleType) -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        n = int(rng.integers(4, 400))
        b, c = (int(each) for each in rng.multinomial(n, [0.06, 0.03, 0.91])[:2])
        for level in (0.0025, 0.04, 0.05):
            told = judge_score(score_tests(PairedTable(n, b, c), replace(QUICK, alpha=level)))
            assert sequential.verdict_by((*sequential.score_p(n, b, c, 0.03), None), level) == told.verdict.value


@pytest.mark.parametrize("questions", [60, 300])
@pytest.mark.parametrize("flip_rate", [0.005, 0.02, 0.05, 0.20])
def test_an_unchanged_model_fails_by_its_score_with_alpha_at_most(
    sequential: ModuleType, questions: int, flip_rate: float
) -> None:
    """Every table at every look, weighed exactly."""
    came = sequential.exactly(questions, flip_rate / 2, flip_rate / 2, QUICK)
    assert came.fails <= QUICK.alpha
    interim = sum(levels(QUICK)[:-1])
    assert came.early <= 2 * interim, "each early look passes and fails with its level at most"


def test_twenty_looks_err_no_more_often_than_one(sequential: ModuleType) -> None:
    often = replace(QUICK, looks=20, interim_alpha=0.8)
    assert sequential.exactly(100, 0.1, 0.1, often).fails <= often.alpha


def test_without_sharing_alpha_looks_would_err_too_often(
    sequential: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would see: twenty looks at the whole alpha each, ending on McNemar alone."""
    monkeypatch.setattr(sequential, "levels", lambda gate: (gate.alpha,) * gate.looks)
    monkeypatch.setattr(sequential, "ends", lambda look, missed, gate: look["verdict"] == "fail" or look["look"] == 20)
    assert sequential.exactly(100, 0.1, 0.1, replace(QUICK, looks=20)).fails > 2 * QUICK.alpha


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [(0.03, 0.0), (0.035, 0.005), (0.04, 0.01), (0.0, 0.03), (0.01, 0.04)],
)
def test_a_change_at_the_margin_passes_with_alpha_at_most(sequential: ModuleType, breaks: float, mends: float) -> None:
    """Equivalence is claimed wrongly no more often than alpha, over all looks: TOST at its margin, exactly."""
    for questions in (300, 1319):
        assert sequential.exactly(questions, breaks, mends, QUICK).passes <= QUICK.alpha


@pytest.mark.parametrize("questions", [300, 1319])
def test_what_looks_cost_and_save(sequential: ModuleType, questions: int) -> None:
    gross = sequential.exactly(questions, 0.20, 0.02, QUICK)
    assert gross.fails > 0.999 and gross.n < 0.45 * questions
    fixed = sequential.exactly(questions, 0.06, 0.01, sequential.FIXED)
    assert sequential.exactly(questions, 0.06, 0.01, QUICK).fails > fixed.fails - 0.02
    unchanged = sequential.exactly(questions, 0.0, 0.0, QUICK)
    assert unchanged.passes == pytest.approx(1.0)
    assert unchanged.n == (300 if questions == 300 else 263), "without a flip 263 questions do at level 0.0025"
    assert sequential.exactly(questions, 0.0, 0.0, replace(QUICK, early_pass=False)).n == pytest.approx(questions)


def test_enumeration_loses_no_probability(sequential: ModuleType) -> None:
    for breaks, mends in ((0.0, 0.0), (0.02, 0.01), (0.2, 0.1), (0.9, 0.05)):
        came = sequential.exactly(40, breaks, mends, replace(QUICK, looks=1))
        assert came.n == pytest.approx(40, rel=1e-6)


@pytest.mark.parametrize(
    ("flips", "bound"),
    [pytest.param(0.0, 1, id="drift alone"), pytest.param(0.025, 2, id="score and drift")],
)
def test_error_of_drift_and_of_both_together(sequential: ModuleType, flips: float, bound: int) -> None:
    """As in the ordinary gate: alpha by drift, and alpha by the score, over all looks. Seeded, so always the same."""
    world = sequential.World("unchanged, as noisy as a GPU", flips, flips, noisy=True)
    (quick,) = sequential.simulated(300, world, [QUICK], RUNS)
    assert 0 < quick.fails <= bound * QUICK.alpha
    assert quick.early < 0.03


def test_drift_ends_runs_early(sequential: ModuleType) -> None:
    for noisy in (False, True):
        world = sequential.World("damaged", noisy=noisy, damaged=0.2)
        quick, fixed = sequential.simulated(300, world, [QUICK, sequential.FIXED], 100)
        assert quick.fails == fixed.fails == 1.0
        assert quick.n < 100 < fixed.n == 300


def test_simulation_and_enumeration_agree(sequential: ModuleType) -> None:
    """On the score: drift sees nothing where logprobs are exact."""
    world = sequential.World("flips", 0.11, 0.03)
    (quick,) = sequential.simulated(100, world, [QUICK], RUNS)
    exact = sequential.exactly(100, 0.11, 0.03, QUICK)
    assert quick.fails == pytest.approx(exact.fails, abs=0.08)
    assert quick.n == pytest.approx(exact.n, abs=3)
