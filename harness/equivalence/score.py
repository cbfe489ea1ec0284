"""Every test of one paired table, computed once: verdict, reasons and cell.json all read these numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.config import GateConfig
from harness.equivalence.paired import (
    PairedTable,
    loss_p,
    mcnemar_p,
    needed_n,
    score_interval,
    tost_p,
    tost_power,
)


@dataclass(frozen=True, slots=True)
class ScoreTests:
    """Score of cold against warm; formulas and their sources are those of harness/equivalence/paired.py."""

    table: PairedTable
    margin: float
    alpha: float
    low: float
    """Lower end of the interval of the loss, confidence 1 - 2 alpha; positive is a loss."""
    high: float
    tost_p: float
    mcnemar_p: float
    """Damage: more questions broke than mended."""
    gain_p: float
    """The other way round: more mended than broke."""
    loss_p: float
    """A loss beyond the margin."""
    needed_n: int
    """Questions for 90 % power at the observed flip rate, if the true difference is 0."""

    @property
    def confidence(self) -> float:
        """Confidence of the interval that TOST corresponds to."""
        return 1 - 2 * self.alpha

    @property
    def power(self) -> float:
        """Probability of TOST to pass with the questions asked at the observed flip rate, if nothing is lost."""
        return tost_power(self.table.n, self.table.flip_rate, self.margin, alpha=self.alpha)

    def numbers(self) -> dict[str, Any]:
        """What cell.json holds of it; ``difference`` is cold minus warm, so positive is a loss."""
        return {
            "n": self.table.n,
            "b": self.table.b,
            "c": self.table.c,
            "difference": self.table.difference,
            "se": self.table.se,
            "flip_rate": self.table.flip_rate,
            "interval": {"low": self.low, "high": self.high, "confidence": self.confidence},
            "margin": self.margin,
            "tost_p": self.tost_p,
            "mcnemar_p": self.mcnemar_p,
            "gain_p": self.gain_p,
            "loss_p": self.loss_p,
            "needed_n": self.needed_n,
            "power": self.power,
        }


def score_tests(table: PairedTable, gate: GateConfig) -> ScoreTests:
    """All tests of a table at the gate's margin and alpha."""
    low, high = score_interval(table, 1 - 2 * gate.alpha)
    return ScoreTests(
        table=table,
        margin=gate.margin,
        alpha=gate.alpha,
        low=low,
        high=high,
        tost_p=tost_p(table, gate.margin),
        mcnemar_p=mcnemar_p(table),
        gain_p=mcnemar_p(PairedTable(table.n, table.c, table.b)),
        loss_p=loss_p(table, gate.margin),
        needed_n=needed_n(table.flip_rate, gate.margin, alpha=gate.alpha),
    )
