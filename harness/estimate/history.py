"""What a run has measured of time: its passes, and what lies between them, from run.json and cell.json alone.

Nothing is written down for this: a cell says when its warm pass began and how long each pass took, so what is left
between two warm passes is the rest (waiting until stores have landed, scoring, clearing, judging, saving), and what is
left before the first one of a launch is its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import chain
from statistics import median
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config import CheckConfig, LoadConfig, SweepConfig
from harness.errors import UsageError
from harness.estimate.rates import Rates, Timed, fit_rates
from harness.estimate.scheduler import Asked, Work, work_of
from harness.estimate.workload import Questions, launch_passes
from harness.steps import Check, Step, parse_check
from harness.sweep import Launch, launches

Typed = TypeVar("Typed", CheckConfig, LoadConfig, SweepConfig)

STOPS_WITHIN_S = 600.0
"""Longer than any stop: servers that do not end are killed."""


@dataclass(frozen=True, slots=True)
class Began:
    """A launch as it was measured, without what other attempts at it have left."""

    launch: str
    cells: Sequence[Mapping[str, Any]]
    """Contents of cell.json, in order."""


@dataclass(slots=True)
class History:
    """Times of a run, in seconds."""

    run_id: str
    check: Check
    questions: Questions
    """What it sent; lengths and answers are means of what was measured."""
    passes: list[Timed] = field(default_factory=list)
    starts: list[tuple[float, Sequence[Timed]]] = field(default_factory=list)
    """From the beginning of a launch to its first warm pass, less all passes and restarts before that, with what its
    first cell has seeded meanwhile."""
    stops: list[float] = field(default_factory=list)
    """From the end of the last pass of a launch to the end of its servers."""
    betweens: list[Timed] = field(default_factory=list)
    """What each cell but the first of a launch takes besides its passes and restarts, with what it seeds meanwhile."""
    server_s: dict[str, float] = field(default_factory=dict)
    """Server -> from its start to its first healthy answer."""

    def start_s(self, rates: Rates) -> float:
        """What a launch takes besides its cells, its passes and its end: servers, prompts, warming up, settling."""
        starts = [
            seconds - sum(rates.seconds(each.work, each.budget) for each in seeded) for seconds, seeded in self.starts
        ]
        return max(0.0, median(starts)) if starts else 0.0

    @property
    def stop_s(self) -> float:
        """From the last pass of a launch to the end of its servers."""
        return median(self.stops) if self.stops else 0.0

    @property
    def budgets(self) -> list[int]:
        """Budgets of which passes were measured."""
        return sorted({each.budget for each in self.passes})

    def rates(self) -> Rates:
        """What work costs."""
        return fit_rates([*self.passes, *self.betweens])

    def restarts_s(self, steps: Iterable[Step]) -> float:
        """How long it takes to start what steps restart."""
        seconds = 0.0
        for step in steps:
            if step.action in ("serve", "restart"):
                seconds += self.server_s.get("vllm", 0.0)
            if step.action == "restart" and step.argument == "lmcache":
                seconds += self.server_s.get("lmcache", 0.0)
        return seconds


def read_history(record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> History:
    """Times of a run that has at least one complete cell.

    Args:
        record: contents of run.json.
        cells: contents of every complete cell's cell.json, in the order in which they were measured.

    Raises:
        UsageError: no cell is complete, or none has a pass whose every request was answered.
    """
    run_id = str(record.get("run_id"))
    if not cells:
        raise UsageError(f"run {run_id} has no complete cell, so it tells no times: name another one, or resume it.")
    try:
        return _read(run_id, record, cells)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OmegaConfBaseException) as error:
        raise UsageError(
            f"run {run_id} lacks what times are taken from ({type(error).__name__}: {error}): name another one."
        ) from error


def _read(run_id: str, record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> History:
    config, block_size = record["config"], int(cells[0]["unified_block_size"])
    steps = _typed(CheckConfig, config["check"])
    check = parse_check(steps)
    load = _typed(LoadConfig, config["load"])
    chunk_size = int(cells[0].get("chunk_size") or block_size)
    clean = [
        entry for cell in cells for entry in cell["passes"].values() if not entry["errors"] and entry["prompt_tokens"]
    ]
    if not clean:
        raise UsageError(f"run {run_id} has no pass whose every request was answered: name another run.")
    asked = sum(int(entry["n"]) for entry in clean)
    total, count = int(clean[0]["prompt_tokens"]), int(clean[0]["n"])
    questions = Questions(
        lengths=[total * (number + 1) // count - total * number // count for number in range(count)],
        output_tokens=sum(float(entry["output_tokens"]) for entry in clean) / asked,
        block_size=block_size,
        chunk_size=chunk_size,
        concurrency=load.concurrency,
        connector=steps.connector,
        file_l2=steps.file_l2,
    )
    history = History(run_id, check, questions, server_s=_server_s(record))
    sweep = _typed(SweepConfig, config["sweep"])
    known = {each.id: each for each in launches(sweep, int(record["predicted_block_size"]), list(check.variants))}
    end = None
    for began in _attempts(cells, check):
        end = _add_launch(history, known, began, record, end)
    if not history.passes:
        raise UsageError(f"run {run_id} has no pass that took any time: name another run.")
    return history


def _typed(schema: type[Typed], stored: Mapping[str, Any]) -> Typed:
    """A part of a stored configuration; what other versions of the harness have had besides is left out."""
    names = {each.name for each in fields(schema)}
    known = {name: value for name, value in stored.items() if name in names}
    typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), known))
    assert isinstance(typed, schema)
    return typed


def _server_s(record: Mapping[str, Any]) -> dict[str, float]:
    """Median start-up time of each server."""
    told: dict[str, list[float]] = {}
    for launch in record["launches"].values():
        for server, seconds in (launch.get("started_s") or {}).items():
            told.setdefault(server, []).append(float(seconds))
    return {server: median(each) for server, each in told.items()}


def _attempts(cells: Sequence[Mapping[str, Any]], check: Check) -> Iterator[Began]:
    """Cells that share the passes of their launch: a launch that was resumed has taken those again."""
    once = [str(step.argument) for step in check.launch if step.action == "pass"]
    of_launch: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        mark = (cell["launch"], *(cell["passes"][name]["wall_s"] for name in once))
        of_launch.setdefault(mark, []).append(cell)
    return (Began(str(mark[0]), group) for mark, group in of_launch.items())


def _add_launch(
    history: History, known: Mapping[str, Launch], began: Began, record: Mapping[str, Any], end_before: float | None
) -> float:
    """Adds the passes of a launch and the times between them.

    Args:
        history: added to.
        known: the launches of the run's sweep, by id.
        began: the launch.
        record: contents of run.json.
        end_before: when the last pass of the launch before it ended; None for the first.

    Returns:
        When its own last pass ended.
    """
    launch = known[began.launch]
    by_id = {cell.id: cell for cell in launch.cells}
    once, sent = launch_passes(history.check, launch, history.questions)
    shared = [each.name for each in once if each.name]
    concurrency = {each.name: each.asked.concurrency for each in chain(once, *sent.values())}
    first = began.cells[0]
    for name in shared:
        _add_pass(history, launch.budget, first["passes"][name], concurrency[name])
    end: float | None = None
    for told in began.cells:
        cell_id, own = str(told["cell"]), [name for name in told["passes"] if name not in shared]
        before = own[: own.index("warm")]
        for name in own:
            _add_pass(history, launch.budget, told["passes"][name], concurrency[name])
        steps = history.check.steps_for(by_id[cell_id])
        began_s = _seconds(told["measured_at"]) - _walls(told, before) - history.restarts_s(steps)
        seeds = [_timed(history, launch.budget, each.asked) for each in sent[cell_id] if not each.name]
        if end is None:
            passes_s = _walls(told, shared) + history.restarts_s(history.check.launch)
            begun = _begun(launch, record, began_s - passes_s, end_before)
            history.starts.append((began_s - passes_s - begun, seeds))
        elif len(seeds) <= 1 and began_s > end:
            seeded = seeds[0] if seeds else Timed(launch.budget, Work(), 0.0)
            history.betweens.append(replace(seeded, seconds=began_s - end, between=True))
        end = _seconds(told["measured_at"]) + _walls(told, own[len(before) :])
    assert end is not None
    _add_stop(history, began, record, end)
    return end


def _add_pass(history: History, budget: int, told: Mapping[str, Any], concurrency: int) -> None:
    """Adds a pass that every request of which was answered, with the hits that were measured."""
    if told["errors"] or not told["prompt_tokens"] or not told["wall_s"]:
        return
    asked = Asked(
        int(told["n"]),
        int(told["prompt_tokens"]),
        int(told["output_tokens"]),
        int(told["local_hit_tokens"]),
        int(told["external_hit_tokens"]),
        concurrency,
    )
    history.passes.append(replace(_timed(history, budget, asked), seconds=float(told["wall_s"])))


def _timed(history: History, budget: int, asked: Asked) -> Timed:
    """Work whose time is to be filled in."""
    return Timed(budget, work_of(asked, budget, history.questions.block_size), 0.0)


def _begun(launch: Launch, record: Mapping[str, Any], at_last: float, end_before: float | None) -> float:
    """When a launch began.

    One of an earlier version does not say so: then it was when the launch before it had ended its last pass, and its
    start holds the stop of that.

    Args:
        launch: which.
        record: contents of run.json.
        at_last: when it had begun for certain.
        end_before: when the last pass of the launch before it ended; None for the first.
    """
    stated = record["launches"].get(launch.id, {}).get("started_at")
    moments = [
        record["started_at"],
        *(each["at"] for each in record.get("resumed") or []),
        *([stated] if stated else []),
    ]
    begins = [_seconds(each) for each in moments] + ([end_before] if end_before is not None else [])
    return max(each for each in begins if each <= at_last)


def _add_stop(history: History, began: Began, record: Mapping[str, Any], end: float) -> None:
    stated = record["launches"].get(began.launch, {}).get("finished_at")
    # Of an attempt that was cut short, what is stated is about the next one. Whole seconds are stated, rounded down.
    if stated and -1 < (seconds := _seconds(stated) - end) < STOPS_WITHIN_S:
        history.stops.append(max(0.0, seconds))


def _walls(told: Mapping[str, Any], names: Iterable[str]) -> float:
    return sum(float(told["passes"][name]["wall_s"]) for name in names)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
