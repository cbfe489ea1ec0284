"""A run: every launch of the sweep, one after another, and what becomes of it on disk."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.ahead import await_imports, import_ahead
from harness.blocks import check_of, check_questions
from harness.config import RunConfig
from harness.equivalence.verdict import Verdict, exit_code, judge_run
from harness.errors import HarnessError, Interrupted, UsageError
from harness.estimate.forecast import Outlook
from harness.interrupts import held
from harness.measure.provenance import provenance, versions_of
from harness.model.predict import predicted_sizes
from harness.model.rules import PROMPT_RULES, Facts, check_rules, obeyed
from harness.model.sizes import Sizes
from harness.plan import check_reach, lengths_are_estimated, missing_hardware, prompt_lengths, rule_facts
from harness.redaction import known_secrets, redacted, without_secrets_in
from harness.report.forms import counted
from harness.report.progress import RunProgress
from harness.report.terminal import summary_frame
from harness.repro.bundle import Bundle, read_bundle
from harness.repro.replay import replayed_task
from harness.resume import check_versions
from harness.servers.attached import AttachedStack, check_attachable, said_versions
from harness.servers.commands import check_extra_args
from harness.servers.environment import check_variables, server_environment
from harness.servers.leftovers import clear, find_leftovers
from harness.servers.stack import Stack
from harness.session import LaunchSession
from harness.steps import Check, check_cells
from harness.store import SCHEMA, FolderExistsError, RunFolder, read_record, write_frame, write_json
from harness.sweep import Launch, launches, missing
from harness.workload.prompts import set_hash
from harness.workload.tasks import load_task

TRIES = 20
"""Names that are tried for a run; more than runs begin in one second."""


def run(config: RunConfig, progress: RunProgress) -> tuple[RunFolder, dict[str, Any], int]:
    """Measures and judges every cell of a configuration.

    Returns:
        The results folder, the contents of run.json, and the exit code of the verdict.

    Raises:
        UsageError: the configuration can't work; nothing was started.
        HarnessError: the machine lacks a GPU, or a server or the machine failed; what was measured before is kept.
        Interrupted: Ctrl-C or SIGTERM; the same holds.
    """
    check = check_of(config)
    check_extra_args(config)
    check_variables(config)
    if not config.servers.attach and (missing := missing_hardware(config)):
        # A machine that lacks GPUs is no wrong configuration; a model for GPUs on the CPU engine is.
        raise HarnessError(missing) if config.engine.name == "gpu" else UsageError(missing)
    sizes = predicted_sizes(config.model, config.engine)
    block_size = sizes.block_size
    plan = launches(config.sweep, block_size, list(check.variants))
    check_cells(check, (cell for launch in plan for cell in launch.cells))
    if config.servers.attach:
        check_attachable(check, plan)
    said = said_versions(config) if config.servers.attach else {}
    # Rules know releases; what runs may be a build of one: 0.5.6-g3e11e108.
    lmcache = said["lmcache"].get("lmcache", "").split("-")[0] or None if said else check_installed(config)
    bundle = read_bundle(Path(config.replay)) if config.replay else None
    lengths = bundle.prompt_tokens if bundle else prompt_lengths(config, block_size)[0]
    check_questions(len(lengths), config.gate.looks)
    if bundle is not None or not lengths_are_estimated(config):
        check_reach(check, plan, lengths, block_size, config.chunk_size(block_size))
    warnings = obeyed(check_rules(rule_facts(config, sizes, plan, lmcache, lengths)))
    progress.stage(f"loading task {config.task.name}")
    task = replayed_task(bundle, config.task.name) if bundle else load_task(config.task, block_size, config.model.path)
    folder = new_folder(config) if config.resume is None else RunFolder.reopen(Path(config.results_dir), config.resume)
    try:
        if config.resume is None:
            record = RunRecord(folder, config, sizes)
        else:
            record = RunRecord(folder, config, sizes, earlier=read_record(folder.path))
            plan = left_to_do(plan, folder, progress)
    except BaseException:
        # Refused, interrupted, or no room for the record: the run is as it was before, and free for others.
        folder.give_up()
        raise
    for warning in [*warnings, *warnings_of_leftovers(Path(config.results_dir))]:
        record.warn(warning, progress)
    progress.done(
        f"run {folder.path.name}: {counted(len(plan), 'launch')}, N = {block_size} predicted; results in {folder.path}"
    )
    progress.expect_cells(sum(len(launch.cells) for launch in plan))
    outlook = Outlook(plan, check, folder.cells())
    import_ahead()
    try:
        for launch in plan:
            run_launch(config, check, launch, record, progress, task, bundle, outlook)
    except Interrupted as stop:
        stop.goes_on = f"python -m harness run resume={folder.path}"
        with held(), suppress(HarnessError):
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


def new_folder(config: RunConfig) -> RunFolder:
    """The folder of a new run; one that is named by the clock takes the next name where another run was faster.

    Raises:
        UsageError: run_id is taken, or the folder can't be written.
    """
    results = Path(config.results_dir)
    if config.run_id is not None:
        return RunFolder.create(results, config.run_id)
    for _ in range(TRIES):
        with suppress(FolderExistsError):
            return RunFolder.create(results, new_run_id(config))
    return RunFolder.create(results, new_run_id(config))


def warnings_of_leftovers(results: Path) -> list[str]:
    """What killed runs beside this one have left running or lying about, each with the command that clears it."""
    warnings = []
    for leftover in find_leftovers(results):
        if leftover:
            run = leftover.ledger.parent.parent.parent
            warnings.append(
                f"Run {run.name} was killed and has left {leftover.in_words()}, which take memory and time from this "
                f"one. To end and remove them: python -m harness clean {run}"
            )
    return warnings


def left_to_do(plan: list[Launch], folder: RunFolder, progress: RunProgress) -> list[Launch]:
    """The launches that a resumed run still needs, with room made for them.

    A launch whose cells are partly finished is launched again, for the others only: its cold pass runs again, since
    what the first one stored went with its servers.
    """
    leftovers = find_leftovers(folder.path)
    clear(leftovers)
    for leftover in leftovers:
        if leftover:
            progress.warn(f"the killed run had left {leftover.in_words()}: ended and removed.")
    cells = [cell.id for launch in plan for cell in launch.cells]
    done = {str(cell["cell"]) for cell in folder.cells()}
    left = missing(plan, done)
    for launch in left:
        folder.set_aside(launch.id)
    progress.done(f"{len(done)} of {len(cells)} cells were finished before and are kept")
    return left


def run_launch(
    config: RunConfig,
    check: Check,
    launch: Launch,
    record: RunRecord,
    progress: RunProgress,
    task: Any,
    bundle: Bundle | None,
    outlook: Outlook,
) -> None:
    """LMCache up, vLLM up, the launch's steps once, every cell, both down."""
    folder = record.folder.launch(launch.id)
    chunk_size = config.chunk_size(record.predicted)
    kind = AttachedStack if config.servers.attach else Stack
    stack = kind(config, budget=launch.budget, chunk_size=chunk_size, folder=folder, notify=progress.stage)
    record.launching(launch, stack)
    try:
        with stack:
            await_imports()
            session = LaunchSession(
                config,
                launch,
                stack,
                record.folder,
                progress,
                task=task,
                task_block_size=record.predicted,
                bundle=bundle,
            )
            if isinstance(stack, AttachedStack):
                for warning in stack.warnings:
                    record.warn(warning, progress)
            record.launched(launch, stack, session.block_size, progress)
            session.prepare()
            for warning in obeyed(check_rules(record.prompt_facts(launch, stack, session), PROMPT_RULES)):
                record.warn(warning, progress)
            record.prompts_built(set_hash(session.prompts))
            session.take(check.launch)
            for cell in launch.cells:
                judged = session.measure(cell, check.steps_for(cell))
                progress.cell_done(f"{cell.id}: {judged['verdict']}", outlook.after(judged, record.data))
    finally:
        record.stopped(launch, stack, progress)


class RunRecord:
    """run.json, kept true while the run goes on.

    Args:
        folder: of the run.
        config: its configuration.
        sizes: what the model implies, N among it.
        earlier: what run.json held when the run is resumed; None for a new run.

    Raises:
        UsageError: the servers are other versions than they were when the run began.
    """

    def __init__(
        self, folder: RunFolder, config: RunConfig, sizes: Sizes, earlier: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.config = config
        self.sizes = sizes
        self.predicted = sizes.block_size
        self.prompt_sets = {str(cell["prompt_set_sha256"]) for cell in folder.cells()}
        self.data: dict[str, Any] = {
            "schema": SCHEMA,
            "run_id": folder.path.name,
            "status": "running",
            "verdict": None,
            "reasons": [],
            "error": None,
            "model": config.model.name,
            "unified_block_size": None,
            "predicted_block_size": self.predicted,
            "started_at": _now(),
            "finished_at": None,
            "resumed": [],
            "config": without_secrets_in(asdict(replace(config, resume=None))),
            "launches": {},
            "warnings": [],
            "provenance": _provenance(config),
        }
        if earlier is not None:
            self._go_on(earlier)
        self._write()

    def warn(self, warning: str, progress: RunProgress) -> None:
        """Notes and shows a warning; written with what comes next."""
        if warning not in self.data["warnings"]:
            self.data["warnings"].append(warning)
            progress.warn(warning)

    def _go_on(self, earlier: Mapping[str, Any]) -> None:
        now = self.data["provenance"]
        check_versions(earlier["provenance"], now)
        resumed = [*earlier.get("resumed", []), {"at": _now(), "provenance": now}]
        kept = ("unified_block_size", "started_at", "launches", "warnings", "provenance")
        self.data |= {"resumed": resumed} | {name: earlier[name] for name in kept}

    def prompts_built(self, prompt_set: str) -> None:
        """Compares a launch's prompts with those that the cells of a resumed run were measured with.

        Raises:
            UsageError: they are others.
        """
        if self.prompt_sets - {prompt_set}:
            raise UsageError(
                f"The prompts built now (hash {prompt_set[:12]}) are not those that the finished cells of "
                f"{self.folder.path} were asked ({', '.join(sorted(each[:12] for each in self.prompt_sets))}): the "
                "task's data or the tokenizer has changed. Begin a new run."
            )

    def launching(self, launch: Launch, stack: Stack) -> None:
        """Notes the commands of a launch before they are started: a launch that fails is the one to try by hand."""
        self.data["launches"][launch.id] = {"started_at": _now()} | without_secrets_in(stack.described())
        self._write()

    def launched(self, launch: Launch, stack: Stack, block_size: int, progress: RunProgress) -> None:
        """Notes a launch whose servers are up, and compares N with the chunk size and with the prediction.

        Raises:
            HarnessError: the chunk size is no multiple of N, or N was mispredicted and the configuration is strict.
        """
        described = without_secrets_in(stack.described())
        self.data["launches"][launch.id] |= described | {"unified_block_size": block_size}
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
        self.data["launches"][launch.id] |= {"finished_at": _now(), "leftovers": leftovers}
        if leftovers:
            warning = f"Servers left {', '.join(leftovers)} behind; removed."
            self.warn(warning, progress)

    def finish(self, status: str, error: str | None = None) -> Verdict:
        """Closes the run with what its complete cells came to."""
        cells = self.folder.cells()
        decision = judge_run(cells)
        self.data |= {
            "status": status,
            "verdict": decision.verdict.value if status == "complete" else None,
            "reasons": list(decision.reasons) if status == "complete" else [],
            # Of a crash: any text at all, with anything that a server's log had to say.
            "error": None if error is None else redacted(error, known_secrets(server_environment(self.config))),
            "finished_at": _now(),
        }
        self.folder.release_reserve()
        self._write()
        if cells:
            write_frame(self.folder.path / "summary.csv", summary_frame(cells))
        self.folder.unlock()
        return decision.verdict

    def _write(self) -> None:
        write_json(self.folder.path / "run.json", without_secrets_in(self.data))


def check_installed(config: RunConfig) -> str:
    """Stops before anything starts when a server's program is not there.

    Returns:
        The release of LMCache.

    Raises:
        UsageError: naming the interpreter and what to install.
    """
    pythons = config.servers.pythons
    releases = {}
    for name, found in versions_of(pythons, server_environment(config)).items():
        python = pythons[name]
        if not found:
            raise UsageError(
                f"servers.{name}.python={python} is not a Python that runs: give an interpreter, such as "
                f"/opt/{name}/bin/python."
            )
        if name not in found:
            raise UsageError(
                f"{name} is not installed in the environment of {python or sys.executable}: "
                f"pip install -e '.[{config.engine.name}]' there, or set servers.{name}.python."
            )
        releases[name] = found[name]
    return releases["lmcache"]


def new_run_id(config: RunConfig) -> str:
    """``20260131-235959-<model>-<sweep>`` in UTC, with the check and the task where they are not the usual ones,
    ``-1of2`` for a shard and ``-replay`` for a replay.

    A check of the sweep's own name is the usual one of that sweep.
    """
    parts = [f"{datetime.now(UTC):%Y%m%d-%H%M%S}", config.model.name, config.sweep.name]
    parts += [config.check.name] if config.check.name not in ("reset_warm", config.sweep.name) else []
    parts += [config.task.name] if config.task.name != config.model.name else []
    parts += [config.sweep.shard.replace("/", "of")] if config.sweep.shard else []
    parts += ["replay"] if config.replay else []
    name = "-".join(parts)
    taken = (f"{name}-{number}" for number in itertools.count(2))
    while (Path(config.results_dir) / name).exists():
        name = next(taken)
    return name


def _provenance(config: RunConfig) -> dict[str, Any]:
    """Where results come from; of attached servers only what they say themselves."""
    if config.servers.attach:
        own = provenance({}, {})
        return own | {"gpus": [], "versions": said_versions(config), "attached": True}
    return provenance(config.servers.pythons, server_environment(config))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
