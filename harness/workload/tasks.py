"""lm-eval tasks: gsm8k from the hub or from a folder, and the pocket problems; prompts built to cover N."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import UndefinedError

from harness.config import TaskConfig
from harness.errors import UsageError
from harness.workload.lengths import padded
from harness.workload.pocket import (
    POCKET,
    dataset,
    needed_facts,
    pocket_problems,
    pocket_scoring,
    pocket_task,
    ruler_of,
)
from harness.workload.prompts import Prompt, whole_blocks

if TYPE_CHECKING:
    from lm_eval.api.task import ConfigurableTask

FEWSHOT_SEED = 1234
"""lm-eval's own default; its sampler is sequential, so the seed is set anew before every building."""

DEFAULT_ANSWER_TOKENS = 256
"""lm-eval's default for generation tasks that state no limit."""

Tokenize = Callable[[str], Sequence[int]]


def load_task(config: TaskConfig, block_size: int, model_path: str) -> ConfigurableTask:
    """The lm-eval task that a config names.

    Args:
        config: names it.
        block_size: N in tokens.
        model_path: folder or hub id of the model whose tokenizer the pocket problems are laid out for.

    Raises:
        UsageError: its data can't be had, or the pocket problems don't fit N.
    """
    manager = _manager_of(config.name)
    if config.name == POCKET:
        spec: Any = pocket_task(pocket_problems(config, block_size, ruler_of(model_path)))
    elif config.data_dir is not None:
        spec = local_task(config.name, Path(config.data_dir).expanduser(), manager)
    else:
        spec = config.name
    try:
        (task,) = manager.load([spec])["tasks"].values()
    except UndefinedError as error:
        raise UsageError(f"A row of task {config.name} lacks a field that its prompts need: {error}.") from error
    except (OSError, ConnectionError) as error:
        raise UsageError(
            f"The data of task {config.name} can't be loaded from the hub ({type(error).__name__}): "
            "give a folder with train.jsonl and test.jsonl as task.data_dir=PATH."
        ) from error
    return task


def stored_task(name: str, prompts: Sequence[str], targets: Sequence[str]) -> ConfigurableTask:
    """A task that asks stored prompts in their order and scores the answers as the named task does.

    Args:
        name: of the task.
        prompts: texts, sent as they are.
        targets: what each answer is compared with.
    """
    manager = _manager_of(name)
    if name == POCKET:
        scoring = pocket_scoring()
    else:
        own = _own_config(name, manager)
        scoring = {key: own[key] for key in ("output_type", "filter_list", "metric_list")}
    rows = [{"text": text, "target": target} for text, target in zip(prompts, targets, strict=True)]
    spec = scoring | {
        "task": name,
        "custom_dataset": lambda **_: {"test": dataset(rows)},
        "test_split": "test",
        # Names of columns, so that nothing in them is taken for a template.
        "doc_to_text": "text",
        "doc_to_target": "target",
        "num_fewshot": 0,
    }
    (task,) = manager.load([spec])["tasks"].values()
    return task


def part_of_task(task: ConfigurableTask, name: str, prompts: Sequence[Prompt]) -> ConfigurableTask:
    """Some documents of a task as a task of their own, numbered from 0: the same prompts, targets and scoring.

    lm-eval can choose documents itself, but draws their few-shot examples anew then, so that prompts would be others.

    Args:
        task: all documents.
        name: of the task.
        prompts: of the chosen documents, in any order.
    """
    targets = [str(task.doc_to_target(task.eval_docs[prompt.doc_id])) for prompt in prompts]
    return stored_task(name, [prompt.text for prompt in prompts], targets)


def _manager_of(name: str) -> Any:
    """lm-eval's task manager, with only this task's folder: the index of all its tasks takes seconds to read."""
    import lm_eval.tasks

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    folder = Path(lm_eval.tasks.__file__).parent / name
    return lm_eval.tasks.TaskManager(include_defaults=False, include_path=str(folder) if folder.is_dir() else None)


def _own_config(name: str, manager: Any) -> dict[str, Any]:
    """lm-eval's own configuration of a task."""
    config: dict[str, Any] = yaml.safe_load(Path(manager.task_index[name].yaml_path).read_text())
    return config


def local_task(name: str, folder: Path, manager: Any) -> dict[str, Any]:
    """lm-eval's own configuration of a task, with its splits read from ``folder/<split>.jsonl``.

    Raises:
        UsageError: a file is missing or empty, or holds something else than one JSON object per line.
    """
    config = _own_config(name, manager)
    splits = {config[key] for key in ("training_split", "test_split", "fewshot_split") if key in config}
    documents = {split: read_jsonl(folder / f"{split}.jsonl") for split in sorted(splits)}
    data = {split: dataset(rows) for split, rows in documents.items()}
    for key in ("dataset_path", "dataset_name"):
        config.pop(key, None)
    return config | {"custom_dataset": lambda **_: data}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a jsonl file.

    Raises:
        UsageError: it can't be read or is empty, or a line is not a JSON object.
    """
    try:
        # Not splitlines(): it takes other characters, which may stand inside a string, for line ends, too.
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"task.data_dir: {path} is not UTF-8 text ({error.reason}).") from error
    except OSError as error:
        raise UsageError(
            f"task.data_dir: {path} can't be read ({error.strerror}); train.jsonl and test.jsonl are needed."
        ) from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"task.data_dir: {path} line {number} is not JSON: {error.msg}.") from error
        if not isinstance(row, dict):
            raise UsageError(f"task.data_dir: {path} line {number} is not a JSON object.")
        rows.append(row)
    if not rows:
        raise UsageError(f"task.data_dir: {path} holds no rows.")
    return rows


def build_prompts(
    task: ConfigurableTask, config: TaskConfig, tokenize: Tokenize, *, block_size: int, max_model_len: int
) -> list[Prompt]:
    """Prompts that cover ``config.min_blocks`` blocks of N, with the fewest few-shot examples that do.

    Raises:
        UsageError: no allowed number of examples does it within ``max_model_len``, the task has too few of them, or
            its rows lack a field; in one sentence with numbers.
    """
    # The pocket problems hold their examples themselves: before the context they would take its first block.
    fixed = 0 if config.name == POCKET else config.num_fewshot
    shots = range(config.min_fewshot, config.max_fewshot + 1) if fixed is None else range(fixed, fixed + 1)
    shots = _available(shots, task, config)
    shortest = longest = 0
    for count in _promising(shots, task, config, tokenize, block_size):
        prompts = _prompts_with(task, config, tokenize, count)
        if config.name != POCKET and config.tail_tokens:
            prompts = padded(prompts, config.tail_tokens, block_size, tokenize, config.seed)
        lengths = [len(prompt.token_ids) for prompt in prompts]
        shortest, longest = min(lengths), max(lengths)
        room = max_model_len - max(prompt.max_tokens for prompt in prompts)
        if longest > room:
            raise UsageError(
                f"Prompts of task {config.name} with {count} few-shot examples are up to {longest} tokens long, and "
                f"{room} fit (model.max_model_len {max_model_len} less the answer): raise model.max_model_len, or "
                "lower task.min_blocks or task.num_fewshot."
            )
        if whole_blocks(shortest, block_size) >= config.min_blocks:
            return prompts
    raise UsageError(
        f"Prompts of task {config.name} cover {whole_blocks(shortest, block_size)} blocks of N = {block_size} tokens "
        f"(the shortest has {shortest} tokens with {shots[-1]} few-shot examples), and task.min_blocks="
        f"{config.min_blocks} needs {config.min_blocks * block_size + 1}: raise task.max_fewshot or "
        "task.num_fewshot, or lower task.min_blocks."
    )


def _available(shots: range, task: ConfigurableTask, config: TaskConfig) -> range:
    """Few-shot counts that the task has enough examples for."""
    if shots.stop == 1:
        return shots
    examples = len(task.fewshot_docs())
    if shots.start > examples:
        raise UsageError(
            f"Task {config.name} has {examples} rows to draw few-shot examples from, and {shots.start} are asked for: "
            "lower task.num_fewshot or task.min_fewshot."
        )
    return range(shots.start, min(shots.stop, examples + 1))


def _promising(
    shots: range, task: ConfigurableTask, config: TaskConfig, tokenize: Tokenize, block_size: int
) -> Sequence[int]:
    """Few-shot counts worth building in full: from the first whose *first* prompt is long enough."""
    for count in shots:
        (first,) = _instances(task, count, 1)
        if whole_blocks(len(tokenize(first.args[0])), block_size) >= config.min_blocks:
            return range(count, shots.stop)
    return shots[-1:]


def _prompts_with(task: ConfigurableTask, config: TaskConfig, tokenize: Tokenize, fewshot: int) -> list[Prompt]:
    prompts = []
    for instance in _instances(task, fewshot, config.limit):
        text, generation = instance.args
        prompts.append(
            Prompt(
                doc_id=int(instance.doc_id),
                text=text,
                token_ids=tuple(tokenize(text)),
                stop=tuple(generation.get("until", ())),
                max_tokens=config.max_gen_toks or int(generation.get("max_gen_toks", DEFAULT_ANSWER_TOKENS)),
                needed=needed_facts(instance.doc) if config.name == POCKET else (),
            )
        )
    return prompts


def _instances(task: ConfigurableTask, fewshot: int, limit: int | None) -> list[Any]:
    task.set_config(key="num_fewshot", value=fewshot)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    try:
        task.build_all_requests(limit=limit, rank=0, world_size=1)
    except UndefinedError as error:
        raise UsageError(f"A row of the task lacks a field that its prompts need: {error}.") from error
    return list(task.instances)
