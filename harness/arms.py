"""Several checks as arms of one question: each is a run of its own, and together they tell whose fault it is.

The folder of such a run holds one results folder per arm and ``attribution.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.equivalence.verdict import Verdict, exit_code, judge_run
from harness.errors import HarnessError, Interrupted, UsageError
from harness.report.attribution import attribution_json
from harness.report.progress import RunProgress
from harness.runner import new_run_id, run
from harness.store import RunFolder, plain_name, read_json, read_record, write_json

COMPLETE, REFUSED, ERROR = "complete", "refused", "error"
"""What became of an arm: measured; its configuration can't do it; a server or the machine failed."""

SEVERITY = (3, 1, 4, 0)
"""Exit codes of arms from worst to best; an arm that was refused counts for nothing beside others."""


@dataclass(frozen=True, slots=True)
class Arms:
    """What several arms came to."""

    path: Path
    records: list[dict[str, Any]]
    """Of each arm: ``arm``, ``status``, ``verdict``, ``reason``, ``code`` and ``cells``, the contents of cell.json."""

    @property
    def exit_code(self) -> int:
        """The worst of all arms that could be tried; 2 if none could."""
        codes = {int(record["code"]) for record in self.records if record["status"] != REFUSED}
        return next((code for code in SEVERITY if code in codes), UsageError.exit_code)


def run_arms(
    config: RunConfig, compose: Callable[[str], RunConfig], progress: RunProgress, on_arm: Callable[[Path], None]
) -> Arms:
    """Measures every arm, one after another, in a folder of its own below that of the whole.

    An arm that can't be done or whose servers fail is recorded as such, and the others go on. Of a folder that holds
    some of them already, those that are complete are kept (``resume=<run id>``).

    Args:
        config: of the whole; ``check.arms`` names the arms.
        compose: configuration of one arm.
        progress: told what is going on.
        on_arm: called with the results folder of every arm that was measured.

    Raises:
        UsageError: the folder can't be made.
        Interrupted: Ctrl-C or SIGTERM; attribution.json holds what was measured before.
    """
    path = Path(config.results_dir) / (config.resume or config.run_id or new_run_id(config))
    _make(path, resumed=config.resume is not None)
    arms = Arms(path, [])
    for number, arm in enumerate(config.check.arms, start=1):
        progress.done(f"arm {number} of {len(config.check.arms)}: {arm}")
        try:
            arms.records.append(_one_arm(path, arm, compose, progress))
        except Interrupted as stop:
            if arms.records:  # without any there is no attribution.json yet, and the one arm goes on by itself
                stop.goes_on = f"python -m harness run resume={path}, with the same overrides as before"
            raise
        finally:
            if arms.records:
                write_json(path / "attribution.json", attribution_json(arms.records))
        if arms.records[-1]["status"] == COMPLETE:
            on_arm(path / arm)
    return arms


def read_arms(path: Path) -> list[dict[str, Any]]:
    """Records of the arms in a folder, from their results alone, in the order of attribution.json.

    Raises:
        UsageError: it holds no attribution.json.
    """
    # The cells of an arm that has several stand there one by one, as arm:cell.
    told = {
        plain_name("arm", str(each["arm"]).partition(":")[0]): each
        for each in read_json(path / "attribution.json")["arms"]
    }
    return [_measured(path, arm) or _untried(each) for arm, each in told.items()]


def _make(path: Path, *, resumed: bool) -> None:
    if resumed and not (path / "attribution.json").is_file():
        raise UsageError(f"{path.absolute()} holds no attribution.json: there are no arms to go on with.")
    try:
        path.mkdir(parents=True, exist_ok=resumed)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already: choose another run_id or leave it out.") from error
    except OSError as error:
        raise UsageError(f"{path} can't be made: {error.strerror}.") from error


def _one_arm(path: Path, arm: str, compose: Callable[[str], RunConfig], progress: RunProgress) -> dict[str, Any]:
    if (measured := _measured(path, arm)) is not None:
        progress.done(f"{arm} was measured before and is kept")
        return measured
    try:
        config = compose(arm)
        config.results_dir, config.run_id, config.resume = str(path), arm, None
        if (path / arm / "run.json").is_file():
            config.run_id, config.resume = None, arm
        folder, data, code = run(config, progress)
    except Interrupted:
        raise
    except UsageError as error:
        progress.warn(f"{arm} can't be tried: {error}")
        return _record(arm, REFUSED, None, str(error), error.exit_code, [])
    except HarnessError as error:
        progress.warn(f"{arm} failed: {error}")
        return _record(arm, ERROR, None, str(error), error.exit_code, [])
    return _record(arm, COMPLETE, str(data["verdict"]), "; ".join(data["reasons"]), code, folder.cells())


def _measured(path: Path, arm: str) -> dict[str, Any] | None:
    """The record of an arm whose run is complete; None for any other."""
    if not (path / arm / "run.json").is_file():
        return None
    data, cells = read_record(path / arm), RunFolder(path / arm).cells()
    if data["status"] != "complete" or not cells:
        return None
    decision = judge_run(cells)
    code = exit_code(decision.verdict, str(cells[0]["gate"]["on_inconclusive"]))
    return _record(arm, COMPLETE, decision.verdict.value, "; ".join(decision.reasons), code, cells)


def _untried(told: dict[str, Any]) -> dict[str, Any]:
    code = UsageError.exit_code if told["status"] == REFUSED else HarnessError.exit_code
    return _record(str(told["arm"]).partition(":")[0], str(told["status"]), None, str(told["reason"]), code, [])


def _record(
    arm: str, status: str, verdict: str | None, reason: str, code: int, cells: list[dict[str, Any]]
) -> dict[str, Any]:
    if verdict == Verdict.PASS.value:
        reason = ""
    return {"arm": arm, "status": status, "verdict": verdict, "reason": reason, "code": code, "cells": cells}
