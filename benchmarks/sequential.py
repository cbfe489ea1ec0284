"""Error rates and cost of looks in between (gate=quick), against the gate that asks all questions at once.

    python benchmarks/sequential.py [questions=300,1319] [runs=4000] [format=text|json]

Two ways, on the rules of harness/equivalence/looks.py themselves: *exactly*, by enumeration of every table of broken
and mended questions at every look (score alone), and by simulation of single documents (score and drift, with the noise
that is assumed below). Nothing of vLLM or LMCache is measured here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.config import GateConfig
from harness.equivalence.drift import LEVELS
from harness.equivalence.looks import ends, levels, questions_at
from harness.equivalence.paired import PairedTable, loss_p, mcnemar_p, tost_p
from harness.selftest.rates import rate_of

FloatArray = NDArray[np.float64]

QUICK = GateConfig(name="quick", looks=5)
FIXED = GateConfig(name="equivalence")

NEGLIGIBLE = 1e-13
"""Tables less likely than this are left out: together they weigh less than 1e-8."""

NOISE_MEDIAN, NOISE_SIGMA = 0.15, 0.80
"""Of healthy |Δlogprob| on a GPU in nats, lognormal (95 % below 0.56): the guess of docs/verdict.md, section 4."""

DAMAGE_NATS = 2.0
BREAKS = 2 / 3
"""Share of damaged answers that break: 1 % of the state's bytes inverted broke a third and drifted in a half."""


@dataclass(frozen=True, slots=True)
class World:
    """What is true of every document."""

    name: str
    breaks: float = 0.0
    """Chance that an answer goes from right to wrong; ``mends`` the other way round."""
    mends: float = 0.0
    noisy: bool = False
    """Whether logprobs have the noise of a GPU in warm and local_warm; else they are exact."""
    damaged: float = 0.0
    """Share of documents whose state is damaged, on top."""


@dataclass(frozen=True, slots=True)
class Came:
    """How often each verdict is reached, and after how many questions; ``n`` is a mean."""

    fails: float
    passes: float
    n: float
    early: float
    """How often a look before the last ended it."""


def verdict_by(p: tuple[float, float, float, float | None], level: float) -> str:
    """The ordinary gate's verdict from p of TOST, McNemar, the loss and drift: docs/verdict.md, section 5."""
    tost, mcnemar, loss, drift = p
    if drift is not None and drift < level:
        return "fail"
    if tost < level:
        return "pass"
    return "fail" if min(mcnemar, loss) < level else "inconclusive"


@cache
def score_p(n: int, b: int, c: int, margin: float) -> tuple[float, float, float]:
    """P-values of TOST, McNemar and a loss beyond the margin."""
    table = PairedTable(n, b, c)
    return tost_p(table, margin), mcnemar_p(table), loss_p(table, margin)


def at_look(
    number: int, n: int, b: int, c: int, gate: GateConfig, drift_p: float | None = None, excess: int | None = None
) -> tuple[str, bool]:
    """Verdict of a look, and whether it ends the run."""
    p, level = (*score_p(n, b, c, gate.margin), drift_p), levels(gate)[number - 1]
    verdict = verdict_by(p, level)
    look = {"look": number, "level": level, "verdict": verdict, "b": b, "c": c, "mcnemar_p": p[1], "loss_p": p[2]}
    look |= {"drift_p": drift_p, "drift_excess": excess}
    return verdict, ends(look, (), gate)


def exactly(questions: int, breaks: float, mends: float, gate: GateConfig) -> Came:
    """Score alone, every table weighed by its probability; flips of documents are independent."""
    most = int(binom.isf(1e-12, questions, max(breaks, mends, 1e-9))) + 1
    state: FloatArray = np.zeros((most + 1, most + 1))
    state[0, 0] = 1.0
    came, before = {"fail": 0.0, "pass": 0.0, "inconclusive": 0.0, "n": 0.0, "early": 0.0}, 0
    for number, n in enumerate(questions_at(questions, gate.looks), start=1):
        added = fftconvolve(state, _one_block(n - before, breaks, mends, most))
        state, before = added[: most + 1, : most + 1].clip(min=0.0), n
        for b, c in np.argwhere(state > NEGLIGIBLE):
            if b + c > n:
                continue
            verdict, ended = at_look(number, n, int(b), int(c), gate)
            if ended:
                mass = float(state[b, c])
                state[b, c] = 0.0
                came[verdict] += mass
                came["n"] += mass * n
                came["early"] += mass * (number < gate.looks)
    return Came(came["fail"], came["pass"], came["n"], came["early"])


def _one_block(n: int, breaks: float, mends: float, most: int) -> FloatArray:
    """P(b broke, c mended) of n documents, as a matrix."""
    counts = np.arange(most + 1)
    return np.array(
        [binom.pmf(b, n, breaks) * binom.pmf(counts, n - b, mends / (1.0 - breaks)) for b in counts if b <= n]
        + [np.zeros(most + 1)] * max(0, most - n)
    )


def simulated(questions: int, world: World, gates: Sequence[GateConfig], runs: int, seed: int = 0) -> list[Came]:
    """Score and drift of single documents, the same ones for every gate."""
    rng, results = np.random.default_rng(seed), [[] for _ in gates]  # type: ignore[var-annotated]
    for _ in range(runs):
        flips, beyond = _documents(questions, world, rng)
        for gate, came in zip(gates, results, strict=True):
            came.append(_one_run(questions, flips, beyond, gate))
    return [Came(*np.mean(np.array(each, dtype=float), axis=0)) for each in results]


def _documents(n: int, world: World, rng: np.random.Generator) -> tuple[Any, Any]:
    """Running counts over documents in the order in which they are asked: (broke, mended), and of each drift level
    (beyond in warm only, beyond in local_warm only)."""
    damaged, draw = rng.random(n) < world.damaged, rng.random(n)
    broke = (draw < world.breaks) | (damaged & (rng.random(n) < BREAKS))
    mended = (draw > 1 - world.mends) & ~broke
    noise = [np.exp(rng.normal(np.log(NOISE_MEDIAN), NOISE_SIGMA, n)) if world.noisy else np.zeros(n) for _ in "wl"]
    warm, null = np.maximum(noise[0], damaged * DAMAGE_NATS), noise[1]
    beyond = [
        (np.cumsum((warm > nats) & (null <= nats)), np.cumsum((null > nats) & (warm <= nats)))
        for nats in FIXED.drift_margin_nats * np.array(LEVELS)
    ]
    return (np.cumsum(broke), np.cumsum(mended)), beyond


def _one_run(questions: int, flips: Any, beyond: Any, gate: GateConfig) -> tuple[bool, bool, int, bool]:
    for number, n in enumerate(questions_at(questions, gate.looks), start=1):
        b, c = (int(each[n - 1]) for each in flips)
        counts = [(int(one[n - 1]), int(other[n - 1])) for one, other in beyond]
        drift_p = min(1.0, len(counts) * min(mcnemar_p(PairedTable(n, *count)) for count in counts))
        verdict, ended = at_look(number, n, b, c, gate, drift_p, max(one - other for one, other in counts))
        if ended:
            return verdict == "fail", verdict == "pass", n, number < gate.looks
    raise AssertionError("the last look ends every run")


def exact_rows(questions: int, gate: GateConfig = QUICK) -> Iterator[tuple[str, Came, Came]]:
    """Name, quick and fixed gate, by the score alone."""
    for name, breaks, mends in (
        ("no damage, no flip", 0.0, 0.0),
        ("no damage, flip rate 0.01", 0.005, 0.005),
        ("no damage, flip rate 0.05", 0.025, 0.025),
        ("no damage, flip rate 0.20", 0.10, 0.10),
        ("loss 0.02, only broken", 0.02, 0.0),
        ("loss 0.03 = margin, only broken", 0.03, 0.0),
        ("loss 0.03 = margin, flip rate 0.05", 0.04, 0.01),
        ("loss 0.03 = margin, flip rate 0.20", 0.115, 0.085),
        ("gain 0.03 = margin, flip rate 0.05", 0.01, 0.04),
        ("loss 0.05, flip rate 0.07", 0.06, 0.01),
        ("loss 0.10, flip rate 0.12", 0.11, 0.01),
    ):
        yield name, exactly(questions, breaks, mends, gate), exactly(questions, breaks, mends, FIXED)


WORLDS = (
    World("CPU, nothing damaged"),
    *(World(f"CPU, {share:.0%} of documents damaged", damaged=share) for share in (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)),
    World("GPU noise, nothing damaged", 0.025, 0.025, noisy=True),
    *(
        World(f"GPU noise, {share:.0%} of documents damaged", 0.025, 0.025, noisy=True, damaged=share)
        for share in (0.02, 0.05, 0.10, 0.20, 0.50)
    ),
)


def main(arguments: Sequence[str]) -> None:
    """Prints both tables."""
    given = dict(each.split("=", 1) for each in arguments)
    runs = int(given.get("runs", 4000))
    told: list[dict[str, Any]] = []
    for questions in map(int, given.get("questions", "300,1319").split(",")):
        for name, quick, fixed in exact_rows(questions):
            told.append({"how": "exact, score", "n": questions, "world": name, "quick": quick, "fixed": fixed})
        for world in WORLDS:
            quick, fixed = simulated(questions, world, (QUICK, FIXED), runs)
            told.append({"how": f"{runs} runs", "n": questions, "world": world.name, "quick": quick, "fixed": fixed})
    if given.get("format") == "json":
        print(json.dumps([row | {gate: asdict(row[gate]) for gate in ("quick", "fixed")} for row in told], indent=1))
        return
    for row in told:
        quick, fixed, half = row["quick"], row["fixed"], ""
        if row["how"].endswith("runs"):
            rate = rate_of([1.0] * round(quick.fails * runs) + [0.0] * (runs - round(quick.fails * runs)))
            half = f" [{rate.low:.4f}, {rate.high:.4f}]"
        print(
            f"{row['how']:>12} n={row['n']:<5} {row['world']:<40} quick: fail {quick.fails:.4f}{half} "
            f"pass {quick.passes:.4f} mean n {quick.n:6.1f} early {quick.early:.3f} | all at once: fail "
            f"{fixed.fails:.4f} pass {fixed.passes:.4f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
