"""A run: every launch of the sweep, one after another, and what becomes of it on disk."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.equivalence.verdict import Verdict, exit_code, run_verdict
from harness.errors import HarnessError, Interrupted, UsageError
from harness.measure.provenance import provenance, versions, without_secrets_in
from harness.model.predict import predicted_sizes
from harness.model.rules import PROMPT_RULES, Facts, check_rules, obeyed
from harness.model.sizes import Sizes
from harness.plan import missing_hardware
from harness.report.progress import RunProgress
from harness.report.terminal import summary_frame
from harness.servers.commands import check_extra_args
from harness.servers.environment import server_environment
from harness.servers.stack import Stack
from harness.session import LaunchSession
from harness.steps import Check, parse_check
from harness.store import SCHEMA, RunFolder, write_frame, write_json
from harness.sweep import Launch, launches
from harness.workload.tasks import load_task


def run(config: RunConfig, progress: RunProgress) -> tuple[RunFolder, dict[str, Any], int]:
    """Measures and judges every cell of a configuration.

    Returns:
        The results folder, the contents of run.json, and the exit code of the verdict.

    Raises:
        UsageError: the configuration can't work; nothing was started.
        HarnessError: a server or the machine failed; what was measured before is kept.
        Interrupted: Ctrl-C or SIGTERM; the same holds.
    """
    check = parse_check(config.check)
    check_extra_args(config)
    if missing := missing_hardware(config):
        raise UsageError(missing)
    sizes = predicted_sizes(config.model, config.engine)
    block_size = sizes.block_size
    plan = launches(config.sweep, block_size)
    lmcache = check_installed(config)
    warnings = obeyed(check_rules(facts_of(config, sizes, plan, lmcache)))
    progress.stage(f"loading task {config.task.name}")
    task = load_task(config.task, block_size, config.model.path)
    folder = RunFolder.create(Path(config.results_dir), config.run_id or new_run_id(config))
    record = RunRecord(folder, config, sizes)
    for warning in warnings:
        record.warn(warning, progress)
    progress.done(
        f"run {folder.path.name}: {len(plan)} launch(es), N = {block_size} predicted; results in {folder.path}"
    )
    try:
        for launch in plan:
            run_launch(config, check, launch, record, progress, task)
    except Interrupted:
        record.finish("interrupted", error="interrupted")
        progress.done(f"interrupted; what was measured before is in {folder.path}")
        raise
    except Exception as error:
        # The first failure is the one to tell, whatever a full disk then does to the record of it.
        with suppress(HarnessError):
            record.finish("failed", error=str(error) or type(error).__name__)
        raise
    verdict = record.finish("complete")
    return folder, record.data, exit_code(verdict, config.gate.on_inconclusive)


def run_launch(
    config: RunConfig, check: Check, launch: Launch, record: RunRecord, progress: RunProgress, task: Any
) -> None:
    """LMCache up, vLLM up, the launch's steps once, every cell, both down."""
    folder = record.folder.launch(launch.id)
    chunk_size = config.servers.lmcache.chunk_size or record.predicted
    stack = Stack(config, budget=launch.budget, chunk_size=chunk_size, folder=folder, notify=progress.stage)
    record.launching(launch, stack)
    try:
        with stack:
            session = LaunchSession(
                config, launch, stack, record.folder, progress, task=task, task_block_size=record.predicted
            )
            record.launched(launch, stack, session.block_size, progress)
            session.prepare()
            for warning in obeyed(check_rules(record.prompt_facts(launch, stack, session), PROMPT_RULES)):
                record.warn(warning, progress)
            session.take(check.launch)
            for cell in launch.cells:
                judged = session.measure(cell, check.cell)
                progress.done(f"{cell.id}: {judged['verdict']}")
    finally:
        record.stopped(launch, stack, progress)


class RunRecord:
    """run.json, kept true while the run goes on."""

    def __init__(self, folder: RunFolder, config: RunConfig, sizes: Sizes) -> None:
        self.folder = folder
        self.config = config
        self.sizes = sizes
        self.predicted = sizes.block_size
        python = {"vllm": config.servers.vllm.python, "lmcache": config.servers.lmcache.python}
        self.data: dict[str, Any] = {
            "schema": SCHEMA,
            "run_id": folder.path.name,
            "status": "running",
            "verdict": None,
            "error": None,
            "model": config.model.name,
            "unified_block_size": None,
            "predicted_block_size": self.predicted,
            "started_at": _now(),
            "finished_at": None,
            "config": without_secrets_in(asdict(config)),
            "launches": {},
            "warnings": [],
            "provenance": provenance(python, server_environment(config)),
        }
        self._write()

    def warn(self, warning: str, progress: RunProgress) -> None:
        """Notes and shows a warning; written with what comes next."""
        if warning not in self.data["warnings"]:
            self.data["warnings"].append(warning)
            progress.warn(warning)

    def launching(self, launch: Launch, stack: Stack) -> None:
        """Notes the commands of a launch before they are started: a launch that fails is the one to try by hand."""
        self.data["launches"][launch.id] = without_secrets_in(stack.described())
        self._write()

    def launched(self, launch: Launch, stack: Stack, block_size: int, progress: RunProgress) -> None:
        """Notes a launch whose servers are up, and compares N with the chunk size and with the prediction.

        Raises:
            HarnessError: the chunk size is no multiple of N, or N was mispredicted and the configuration is strict.
        """
        described = without_secrets_in(stack.described())
        self.data["launches"][launch.id] = described | {"unified_block_size": block_size}
        if stack.chunk_size % block_size:
            raise HarnessError(
                f"LMCache's chunk size of {stack.chunk_size} tokens is not a multiple of N = {block_size}, which vLLM "
                f"settled on: set servers.lmcache.chunk_size={block_size}."
            )
        self.data["unified_block_size"] = block_size
        if block_size != self.predicted:
            warning = (
                f"vLLM settled on N = {block_size} tokens and {self.predicted} was predicted: the server counts, "
                "but budgets and chunk size come from the prediction."
            )
            self.warn(warning, progress)
            if self.config.strict:
                raise HarnessError(warning + " strict=true makes this an error.")
        self._write()

    def prompt_facts(self, launch: Launch, stack: Stack, session: LaunchSession) -> Facts:
        """What rules look at once the prompts are known."""
        lengths = [len(prompt.token_ids) for prompt in session.prompts]
        return Facts(self.config, self.sizes, [launch.budget], stack.chunk_size, lmcache=None, prompt_tokens=lengths)

    def stopped(self, launch: Launch, stack: Stack, progress: RunProgress) -> None:
        """Notes what a launch had left behind in shared memory, which was removed; written with what comes next."""
        leftovers = [str(path) for path in stack.leftovers]
        self.data["launches"][launch.id]["leftovers"] = leftovers
        if leftovers:
            warning = f"Servers left {', '.join(leftovers)} behind; removed."
            self.warn(warning, progress)

    def finish(self, status: str, error: str | None = None) -> Verdict:
        """Closes the run with what its complete cells came to."""
        cells = self.folder.cells()
        verdict = run_verdict(Verdict(cell["verdict"]) for cell in cells)
        self.data |= {
            "status": status,
            "verdict": verdict.value if status == "complete" else None,
            "error": error,
            "finished_at": _now(),
        }
        self.folder.release_reserve()
        self._write()
        if cells:
            write_frame(self.folder.path / "summary.csv", summary_frame(cells))
        return verdict

    def _write(self) -> None:
        write_json(self.folder.path / "run.json", self.data)


def check_installed(config: RunConfig) -> str:
    """Stops before anything starts when a server's program is not there.

    Returns:
        The release of LMCache.

    Raises:
        UsageError: naming the interpreter and what to install.
    """
    env = server_environment(config)
    releases = {}
    for name, python in {
        "vllm": config.servers.vllm.python,
        "lmcache": config.servers.lmcache.python,
    }.items():
        found = versions(python or sys.executable, env)
        if not found:
            raise UsageError(f"servers.{name}.python={python} is not a Python that runs.")
        if name not in found:
            raise UsageError(
                f"{name} is not installed in the environment of {python or sys.executable}: "
                f"pip install -e '.[{config.engine.name}]' there, or set servers.{name}.python."
            )
        releases[name] = found[name]
    return releases["lmcache"]


def facts_of(config: RunConfig, sizes: Sizes, plan: Sequence[Launch], lmcache: str) -> Facts:
    """What rules look at before anything is started."""
    chunk_size = config.servers.lmcache.chunk_size or sizes.block_size
    return Facts(config, sizes, list(dict.fromkeys(launch.budget for launch in plan)), chunk_size, lmcache)


def new_run_id(config: RunConfig) -> str:
    """``20260131-235959-<model>-<sweep>`` in UTC, with the check and the task where they are not the usual ones."""
    parts = [f"{datetime.now(UTC):%Y%m%d-%H%M%S}", config.model.name, config.sweep.name]
    parts += [config.check.name] if config.check.name != "reset_warm" else []
    parts += [config.task.name] if config.task.name != config.model.name else []
    name = "-".join(parts)
    taken = (f"{name}-{number}" for number in itertools.count(2))
    while (Path(config.results_dir) / name).exists():
        name = next(taken)
    return name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
