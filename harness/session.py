"""One server launch: its prompts, and the steps of a check taken on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from harness.blocks import blocks_of, check_questions
from harness.checking import first_line
from harness.config import RunConfig
from harness.corruption import KINDS, NONE, Corruption, corrupt_files, damage_files, damaged_documents, read_stored
from harness.equivalence.evidence import CellFacts, as_evidence, collect_cell, gather_cell, read_evidence
from harness.equivalence.judge import judge_cell
from harness.errors import HarnessError
from harness.report.progress import RunProgress
from harness.repro.bundle import Bundle, write_bundle
from harness.servers.damage import fingerprint
from harness.servers.files import copy_aside, put_back
from harness.servers.stack import Stack
from harness.steps import DIVERGING, Step, primed_blocks
from harness.store import NewFolder, RunFolder, write_frame, write_json
from harness.sweep import Cell, Launch
from harness.workload.passes import run_pass, seed_prefixes, warm_up
from harness.workload.prompts import Prompt, as_frame, set_hash, shared_first_blocks
from harness.workload.seeding import (
    check_divergence,
    check_primed,
    check_target,
    diverging,
    first_blocks,
    first_chunks,
    prefixes,
)
from harness.workload.tasks import build_prompts, load_task, part_of_task

SOUND, STALE = "sound", "stale"
"""Names under which a damaging check keeps what its cold pass and what other weights have stored."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What steps left behind: what each of them saw, and the folders of their passes, in order."""

    events: list[dict[str, Any]]
    passes: list[Path]

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.events + other.events, self.passes + other.passes)


@dataclass(frozen=True, slots=True)
class Asked:
    """The documents that passes send."""

    prompts: Sequence[Prompt]
    task: Any
    """The lm-eval task of these documents."""
    block: int | None = None
    """Number of the block that they are, from 1; None for all of them."""


class LaunchSession:
    """A launch whose servers are up.

    Args:
        config: the run's configuration.
        launch: budget and cells.
        stack: both servers.
        run: the run's folder.
        progress: told what is going on.
        task: the lm-eval task, loaded for ``task_block_size``.
        task_block_size: predicted N in tokens.
        bundle: whose prompts are sent again; None builds them.
    """

    def __init__(
        self,
        config: RunConfig,
        launch: Launch,
        stack: Stack,
        run: RunFolder,
        progress: RunProgress,
        *,
        task: Any,
        task_block_size: int,
        bundle: Bundle | None = None,
    ) -> None:
        self.config = config
        self.launch = launch
        self.stack = stack
        self.run = run
        self.progress = progress
        self.folder = run.launch(launch.id)
        self.block_size = stack.vllm.block_size()
        self._of_launch = Taken([], [])
        self.prompts: list[Prompt] = []
        self.bundle = bundle
        # Problems that are laid out along block boundaries are laid out anew where N is not what was predicted.
        same = bundle is not None or self.block_size == task_block_size
        self.task = task if same else load_task(config.task, self.block_size, config.model.path)

    def prepare(self) -> None:
        """Builds and stores the prompts, and warms the servers up.

        Raises:
            UsageError: the task's prompts can't cover what is asked for, a cell's hit rate can't be reached, or they
                end before they are to diverge.
            ServerError: a server does not answer.
        """
        self.prompts = self._build() if self.bundle is None else self._stored(self.bundle)
        write_frame(self.folder / "prompts.parquet", as_frame(self.prompts))
        check_questions(len(self.prompts), self.config.gate.looks)
        lengths, chunk_size = [len(prompt.token_ids) for prompt in self.prompts], self.stack.chunk_size
        for cell in self.launch.cells:
            check_target(lengths, chunk_size, cell.target)
            check_divergence(lengths, self.block_size, chunk_size, cell.diverges_after)
        if shared := shared_first_blocks(self.prompts, self.block_size):
            self.progress.warn(
                f"{shared} of {len(self.prompts)} prompts share their first block with another one: cold requests may "
                "hit what earlier ones stored."
            )
        self.progress.stage("warming up")
        warm_up(self.stack, self.config.load, self.prompts)

    def _build(self) -> list[Prompt]:
        self.progress.stage(f"building the prompts of task {self.config.task.name}")
        return build_prompts(
            self.task,
            self.config.task,
            self.stack.vllm.tokenize,
            block_size=self.block_size,
            max_model_len=self.stack.vllm.max_model_len(),
        )

    def _stored(self, bundle: Bundle) -> list[Prompt]:
        if self.block_size != bundle.block_size:
            self.progress.warn(
                f"the prompts of {bundle.origin} were sent at N = {bundle.block_size} tokens and N is "
                f"{self.block_size} now: blocks begin elsewhere."
            )
        return [each.prompt for each in bundle.prompts]

    def take(self, steps: Sequence[Step]) -> None:
        """Takes the steps of the launch; what they leave is shared by all its cells."""
        self._of_launch = self._take(steps, self.folder / "passes", self._all)

    def measure(self, cell: Cell, steps: Sequence[Step]) -> dict[str, Any]:
        """Takes a cell's own steps, judges it and saves it.

        Returns:
            The contents of cell.json.

        Raises:
            UsageError: the prompts are too short for what its steps do.
        """
        primed = primed_blocks(steps)
        check_primed([len(prompt.token_ids) for prompt in self.prompts], self.block_size, primed)
        facts, passes = self._facts(cell, primed), self.folder / "passes" / cell.id
        if facts.looks == 1:
            taken = self._of_launch + self._take(steps, passes, self._all, cell)
        else:
            taken = self._take_blocks(steps, passes, cell, facts)
        with NewFolder(self.run.cell(cell.id)) as folder:
            gather_cell(folder, facts, taken.passes, taken.events)
            judged = judge_cell(read_evidence(folder), self.config.gate)
            write_json(folder / "cell.json", judged)
        self._keep_repro(cell)
        return judged

    def _facts(self, cell: Cell, primed: int) -> CellFacts:
        looks = self.config.gate.looks
        return CellFacts(
            cell_id=cell.id,
            launch_id=self.launch.id,
            budget=cell.budget,
            repeat=cell.repeat,
            block_size=self.block_size,
            chunk_size=self.stack.chunk_size,
            target=cell.target,
            floor=self.config.task.floor,
            prompt_set_sha256=set_hash(self.prompts),
            diverges_after=cell.diverges_after,
            replay_of=self.bundle.origin if self.bundle else None,
            differed_then=self.bundle.differed if self.bundle else (),
            warm_from=self.config.check.warm_from,
            primed_blocks=primed,
            preempts=self.config.check.preempts,
            damage=self._damage_of(cell),
            looks=looks,
            questions=None if looks == 1 else len(self.prompts),
        )

    def _take_blocks(self, steps: Sequence[Step], passes: Path, cell: Cell, facts: CellFacts) -> Taken:
        """Takes a cell's steps for one block of documents after another, until a look ends it."""
        taken, gate = self._of_launch, self.config.gate
        blocks = blocks_of(len(self.prompts), gate.looks, self.config.load.seed)
        for number, positions in enumerate(blocks, start=1):
            prompts = [self.prompts[position] for position in positions]
            asked = Asked(prompts, part_of_task(self.task, self.config.task.name, prompts), number)
            taken += self._take(steps, passes / f"block{number}", asked, cell)
            seen = as_evidence(collect_cell(facts, taken.passes, taken.events))
            look = judge_cell(seen, gate)["looks"]["looks"][-1]
            self.progress.done(f"{cell.id}: look {number} of {gate.looks}, {look['n']} questions: {look['verdict']}")
            if look["ends"]:
                break
        return taken

    def _keep_repro(self, cell: Cell) -> None:
        """Writes the cell's repro bundle; what it fails of costs the bundle and not the cell, which is complete."""
        try:
            write_bundle(self.run, cell.id)
        except Exception as error:
            told = first_line(error) or type(error).__name__
            self.progress.warn(f"the repro bundle of {cell.id} could not be written ({told}); the cell is complete.")

    @property
    def _all(self) -> Asked:
        return Asked(self.prompts, self.task)

    def _take(self, steps: Sequence[Step], passes: Path, asked: Asked, cell: Cell | None = None) -> Taken:
        """Takes steps in order and notes what each of them saw; their passes are written below ``passes``."""
        taken = Taken([], [])
        for step in steps:
            if step.action == "pass":
                taken.passes.append(self._pass(step, passes, asked, cell))
            seen = {} if step.action == "pass" else self._act(step, cell)
            at: dict[str, Any] = {} if step.concurrency is None else {"concurrency": step.concurrency}
            at |= {} if asked.block is None else {"block": asked.block}
            taken.events.append({"step": step.action, "argument": _shown(step.argument), **at, **seen})
        return taken

    def _act(self, step: Step, cell: Cell | None) -> dict[str, Any]:
        match step.action:
            case "clear":
                return self._clear()
            case "clear_l1":
                return {"lmcache": self.stack.lmcache.clear_l1()}
            case "reset_local":
                return {"vllm": self.stack.vllm.reset_prefix_cache()}
            case "corrupt":
                return self._corrupt(step.argument)
            case "serve":
                return {"started_s": self.stack.serve(step.argument)}
            case "restart":
                return {"started_s": self.stack.restart(step.argument)}
            case "prime":
                return {"primed": self._prime(step.argument)}
            case "keep":
                return {"files": copy_aside(self._l2_dir, self.stack.kept_dir / step.argument)}
            case "restore":
                return {"files": put_back(self.stack.kept_dir / step.argument, self._l2_dir)}
            case "seed" if cell is not None:
                return {"seeded": self._seed(step, cell)}
            case "damage" if cell is not None:
                return {"damaged": self._damage(cell)}
        raise AssertionError(f"{step.action} was let through by parse_check")

    def _clear(self) -> dict[str, Any]:
        # vLLM first: what it still held could be stored again.
        cleared = {"vllm": self.stack.vllm.reset_prefix_cache()}
        return cleared | ({"lmcache": self.stack.lmcache.clear()} if self.stack.has_lmcache else {})

    @property
    def _l2_dir(self) -> Path:
        if self.stack.lmcache.l2_dir is None:
            raise HarnessError("This step works on the files of LMCache's L2 (check.file_l2=true).")
        return self.stack.lmcache.l2_dir

    def _prime(self, blocks: int) -> dict[str, Any]:
        requests = first_blocks(self.prompts, blocks, self.block_size)
        self.progress.stage(f"priming vLLM's own cache with {blocks} blocks each", total=len(requests))
        return seed_prefixes(self.stack, self.config.load, requests, self.progress.step)

    def _damage_of(self, cell: Cell) -> dict[str, Any] | None:
        if cell.damage is None:
            return None
        documents = (prompt.doc_id for prompt in self.prompts)
        return asdict(cell.damage) | {"documents": damaged_documents(documents, cell.damage, self.config.load.seed)}

    def _damage(self, cell: Cell) -> dict[str, Any]:
        """Damages what the cell says; from here on no load is spoiled but those."""
        module = self.stack.damage
        assert module is not None and cell.damage is not None, "parse_check and check_cells refuse it"
        module.leave_loads()
        if cell.damage.kind == NONE:
            return {"files": 0}
        kind = KINDS[cell.damage.kind]
        documents = damaged_documents((prompt.doc_id for prompt in self.prompts), cell.damage, self.config.load.seed)
        marks = {fingerprint(prompt.token_ids): prompt.doc_id for prompt in self.prompts}
        if kind.spoils_loads:
            module.spoil_loads(kind.method, (mark for mark, doc_id in marks.items() if doc_id in documents))
            return {"loads_of": len(documents)}
        kept = self.stack.kept_dir
        stored = read_stored(module.stored, marks)
        count = damage_files(self._l2_dir, kind, stored, documents, sound=kept / SOUND, stale=kept / STALE)
        return {"files": count, "documents": len(documents)}

    def _seed(self, step: Step, cell: Cell) -> dict[str, Any]:
        if step.argument == DIVERGING:
            assert cell.diverges_after is not None, "check_cells refuses it"
            requests = diverging(self.prompts, cell.diverges_after, self.block_size)
        else:
            lengths = {prompt.doc_id: len(prompt.token_ids) for prompt in self.prompts}
            counts = first_chunks(lengths, self.stack.chunk_size, cell.target, self.config.load.seed)
            requests = prefixes(self.prompts, counts, self.stack.chunk_size)
        self.progress.stage(f"seeding {cell.id}", total=len(requests))
        return seed_prefixes(self.stack, self.config.load, requests, self.progress.step)

    def _corrupt(self, corruption: Corruption) -> dict[str, Any]:
        return {"damaged": corrupt_files(self._l2_dir, corruption)}

    def _pass(self, step: Step, passes: Path, asked: Asked, cell: Cell | None) -> Path:
        name, load = str(step.argument), self.config.load
        folder = passes / name
        block = "" if asked.block is None else f"block{asked.block}"
        told = f"{name} pass of {cell.id} {block}".rstrip() if cell else f"{name} pass"
        self.progress.stage(told, total=len(asked.prompts))
        run_pass(
            name,
            self.stack,
            folder,
            task=asked.task,
            # All that are asked, however many the task would have.
            task_config=replace(self.config.task, limit=len(asked.prompts)) if block else self.config.task,
            load=load if step.concurrency is None else replace(load, concurrency=step.concurrency),
            prompts=asked.prompts,
            order="/".join(filter(None, (cell.id, block, name))) if cell else None,
            on_done=self.progress.step,
        )
        return folder


def _shown(argument: Any) -> Any:
    return asdict(argument) if is_dataclass(argument) and not isinstance(argument, type) else argument
