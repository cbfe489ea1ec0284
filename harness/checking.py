"""Values of a configuration: types, ranges, choices and contradictions, each refused in one sentence.

Pure: files and folders are looked at in ``harness/places.py``, steps in ``harness/steps.py``, and what the size of N
decides in ``harness/sweep.py`` and ``harness/model/rules.py``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.model.sizes import BYTES_PER_ELEMENT
from harness.model.support import FEATURES, STATUSES
from harness.redaction import fields_with_secrets

if TYPE_CHECKING:
    from harness.config import RunConfig

MOST_REQUESTS = 10**4
"""That run at once: each takes a socket."""

LARGEST_TAIL = 10**4

CHOICES: dict[str, tuple[str, ...]] = {
    "gate.mode": ("tost", "threshold", "lmcache_ci"),
    "gate.on_inconclusive": ("fail", "warn"),
    "check.warm_from": ("lmcache", "mixed", "vllm", "nothing"),
    "check.load_failures": ("fail", "recompute"),
    "engine.name": ("cpu", "gpu"),
    "task.name": ("pocket", "gsm8k"),
    "model.kv_cache_dtype": ("auto", *BYTES_PER_ELEMENT),
}

RANGES: dict[str, tuple[float, float]] = {
    "sweep.repeats": (1, 1000),
    "task.limit": (1, 10**5),
    "task.floor": (0, 0.999),
    "task.min_blocks": (1, 10**4),
    "task.num_fewshot": (0, 10**4),
    "task.min_fewshot": (0, 10**4),
    "task.max_fewshot": (0, 10**4),
    "task.max_gen_toks": (1, 10**6),
    "task.blocks": (3, 10**4),
    "task.shared_blocks": (0, 10**4),
    "task.seed": (0, 2**32 - 1),
    "load.concurrency": (1, MOST_REQUESTS),
    "load.request_timeout_s": (0.1, 10**6),
    "load.retries": (0, 100),
    "load.seed": (0, 2**32 - 1),
    "load.sample_hz": (10, 1000),
    "model.block_size": (1, 10**4),
    "model.max_model_len": (1, 10**8),
    "model.tensor_parallel_size": (1, 1024),
    "engine.kernel_alignment": (1, 1024),
    "engine.default_block_size": (1, 10**4),
    "engine.gpu_memory_gb": (1, 10**5),
    "model.gpus": (0, 1024),
    "model.parameters_b": (0.001, 10**5),
    "model.l1_size_gb": (0.1, 10**6),
    "model.native_context": (1, 10**9),
    "servers.vllm.start_timeout_s": (1, 10**6),
    "servers.lmcache.start_timeout_s": (1, 10**6),
    "servers.lmcache.l1_size_gb": (0.1, 10**6),
    "servers.lmcache.chunk_size": (1, 10**8),
    "servers.lmcache.max_workers": (1, 4096),
    "check.kv_blocks_per_request": (0.1, 10**4),
    "gate.margin": (1e-6, 0.999),
    "gate.alpha": (1e-9, 0.49),
    "gate.tolerance": (0, 1),
    "gate.drift_margin_nats": (1e-6, 100),
    "gate.hit_rate_tolerance": (0, 1),
    "gate.local_hit_tolerance": (0, 1),
    "gate.looks": (1, 100),
    "gate.interim_alpha": (0.001, 0.9),
}
"""Accepted values, both ends included."""

SCORING: dict[str, dict[str, tuple[str, ...]]] = {
    "gsm8k": {"filter": ("strict-match", "flexible-extract"), "metric": ("exact_match",)},
    "pocket": {"filter": ("strict-match",), "metric": ("exact_match",)},
}
"""Task -> field -> what lm-eval has for it."""

POCKET_ONLY: dict[str, object] = {"task.shared_blocks": 0, "task.long_answers": False}
"""Fields that shape the prompts of task=pocket, and the value that asks for nothing."""

NAMES = ("model.name", "sweep.name", "check.name", "gate.name", "run_id", "resume")
"""Fields that become names of folders."""

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")
LONGEST_NAME = 150

NOT_EMPTY = ("model.path", "model.support_source", "task.data_dir", "servers.vllm.python", "servers.lmcache.python",
             "servers.vllm.url", "servers.lmcache.url", "replay", "results_dir")  # fmt: skip
"""Texts of any form, of which an empty one would be taken for none."""

ARGUMENTS = (
    "model.vllm_args",
    "engine.vllm_args",
    "servers.vllm.extra_args",
    "servers.lmcache.extra_args",
)
"""Fields that hold server arguments."""

VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

SHARD = re.compile(r"^(?P<number>[1-9][0-9]{0,3})/(?P<of>[1-9][0-9]{0,3})$", re.ASCII)

CONTROL = re.compile(r"[\x00-\x1f\x7f]")

LONGEST_TEXT = 4096


def check_values(config: RunConfig) -> None:
    """Refuses a configuration with a wrong value, or with values that contradict each other.

    Raises:
        UsageError: one sentence with the field, its value and the accepted form.
    """
    _check_texts(config)
    _check_choices(config)
    _check_ranges(config)
    _check_names(config)
    _check_alignment(config)
    _check_geometry(config)
    _check_recipe(config)
    _check_support(config)
    _check_arguments(config)
    _check_variables(config)
    _check_scoring(config)
    _check_pocket_only(config)
    _check_gate(config)
    _check_looks(config)
    _check_fewshot(config)
    _check_lengths(config)
    _check_sweep(config)
    _check_check(config)
    _check_arms(config)


def value_at(config: RunConfig, dotted: str) -> Any:
    """Value of a field by its dotted name, as overrides write it."""
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def nearest(word: str, known: Collection[str]) -> str:
    """``did you mean X?`` for a misspelt word, or the list of what is known."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}."


def first_line(error: BaseException) -> str:
    """First line of an error's message, as a sentence goes on."""
    return str(error).strip().split("\n")[0].rstrip(". ")


def shard_numbers(shard: str) -> tuple[int, int]:
    """Which shard of how many ``i/n`` is, counted from 1.

    Raises:
        UsageError: it is none.
    """
    found = SHARD.match(shard)
    if found is None or int(found["number"]) > int(found["of"]):
        raise UsageError(f"sweep.shard={shard} is no shard: write i/n with i from 1 to n, such as 1/2 and 2/2.")
    return int(found["number"]), int(found["of"])


def _check_texts(config: RunConfig) -> None:
    """Texts of one line, of sane length, and without secrets outside of the environment."""
    for name, text in _texts(asdict(config)):
        if CONTROL.search(text):
            raise UsageError(f"{name}={text!r} holds a control character: write one line of printable text.")
        if len(text) > LONGEST_TEXT:
            raise UsageError(f"{name}={text[:40]}… has {len(text)} characters: write at most {LONGEST_TEXT}.")
    for name in fields_with_secrets(asdict(config)):
        # The environment is where secrets belong: what is recorded of it is without them.
        if not name.startswith("engine.env."):
            raise UsageError(
                f"{name} holds a password or a token (***), and would be seen in files, logs and process lists: set it "
                "as an environment variable, such as HF_TOKEN, before you start."
            )
    for name in NOT_EMPTY:
        if value_at(config, name) == "":
            raise UsageError(f"{name}= is not a folder, nor any other text: give a value, or leave it out.")


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            inner = f"{name}.{key}" if name else str(key)
            yield inner, str(key)
            yield from _texts(each, inner)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each, name)


def _check_choices(config: RunConfig) -> None:
    for name, known in CHOICES.items():
        value = value_at(config, name)
        if value not in known:
            raise UsageError(f"{name}={value} is not known; {nearest(str(value), known)}")


def _check_ranges(config: RunConfig) -> None:
    for name, (low, high) in RANGES.items():
        value = value_at(config, name)
        # Written so that not-a-number is outside.
        if value is not None and not low <= value <= high:
            raise UsageError(f"{name}={value} is out of range: it must be between {low:g} and {high:g}.")


def _check_names(config: RunConfig) -> None:
    for name in NAMES:
        value = value_at(config, name)
        if value is not None and not (NAME.match(value) and len(value) <= LONGEST_NAME):
            raise UsageError(
                f"{name}={value} must be a plain folder name of at most {LONGEST_NAME} letters, digits and . _ + -, "
                "which begins with a letter or a digit."
            )


def _check_alignment(config: RunConfig) -> None:
    tokens = config.engine.kernel_alignment
    if tokens & (tokens - 1):
        raise UsageError(f"engine.kernel_alignment={tokens} must be a power of two, such as 16 or 32.")


def _check_geometry(config: RunConfig) -> None:
    geometry = config.model.geometry
    if geometry is None:
        return
    for name, value in asdict(geometry).items():
        if isinstance(value, str):
            if value not in BYTES_PER_ELEMENT:
                raise UsageError(f"model.geometry.{name}={value} is not known; {nearest(value, BYTES_PER_ELEMENT)}")
        elif not 1 <= value <= 10**6:
            raise UsageError(f"model.geometry.{name}={value} is out of range: it must be between 1 and 1e+06.")
    if geometry.attention_layers > geometry.layers:
        raise UsageError(
            f"model.geometry.attention_layers={geometry.attention_layers} is more than model.geometry.layers="
            f"{geometry.layers}, of which they are a part."
        )


def _check_recipe(config: RunConfig) -> None:
    recipe = config.model.recipe
    if recipe is None:
        return
    if not recipe.source:
        raise UsageError("model.recipe.source= is empty: say where the arguments are published.")
    _check_words("model.recipe.lmcache", recipe.lmcache)
    _check_words("model.recipe.vllm", recipe.vllm)


def _check_support(config: RunConfig) -> None:
    for feature, status in config.model.support.items():
        if feature not in FEATURES:
            raise UsageError(f"model.support.{feature}={status}: no such feature; {nearest(feature, FEATURES)}")
        if status not in STATUSES:
            raise UsageError(f"model.support.{feature}={status} is no status; {nearest(status, STATUSES)}")


def _check_arguments(config: RunConfig) -> None:
    for name in ARGUMENTS:
        _check_words(name, value_at(config, name))


def _check_words(name: str, words: Sequence[Any]) -> None:
    """Arguments as a command line takes them: each a word of its own, options before their values."""
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise UsageError(
                f"{name}={list(words)} holds {word!r}, which is no argument: write texts, such as [--x,'1']."
            )
        if word.startswith("--") and re.search(r"\s", word.split("=", 1)[0]):
            raise UsageError(f"{name} holds {word!r}: write an option and its value as two texts, [--x,'1'].")
    if words and not words[0].startswith("-"):
        raise UsageError(f"{name}={list(words)} begins with {words[0]!r}: an option, such as --x, has to come first.")


def _check_variables(config: RunConfig) -> None:
    for name, value in config.engine.env.items():
        if not VARIABLE.match(name):
            raise UsageError(f"engine.env: {name!r} is no name of a variable: letters, digits and _ make one.")
        if not isinstance(value, str):
            raise UsageError(f"engine.env.{name}={value!r} must be a text: put it in quotes.")


def _check_scoring(config: RunConfig) -> None:
    for field, known in SCORING[config.task.name].items():
        value = getattr(config.task, field)
        if value not in known:
            raise UsageError(
                f"task.{field}={value} is not known for task.name={config.task.name}; {nearest(value, known)}"
            )


def _check_pocket_only(config: RunConfig) -> None:
    task = config.task
    if task.name == "pocket":
        if task.data_dir is not None:
            raise UsageError(
                f"task.data_dir={task.data_dir} replaces a hub's data, and task.name=pocket makes its own: leave it "
                "out."
            )
        return
    for name, nothing in POCKET_ONLY.items():
        if (value := value_at(config, name)) != nothing:
            raise UsageError(
                f"{name}={value} shapes prompts of task.name=pocket only, and this is task.name={task.name}: set "
                f"{name}={'null' if nothing is None else str(nothing).lower()}."
            )


def _check_gate(config: RunConfig) -> None:
    if config.gate.mode == "tost" and config.gate.margin >= config.task.floor:
        raise UsageError(
            f"gate.margin={config.gate.margin:g} must be smaller than task.floor={config.task.floor:g}: a score that "
            "falls from the floor to nothing would count as the same."
        )


def _check_looks(config: RunConfig) -> None:
    """Looks stop a run on the p-values of its one cell, so there must be one, of the usual rule."""
    gate, sweep = config.gate, config.sweep
    if gate.looks == 1:
        return
    if gate.mode != "tost":
        raise UsageError(
            f"gate.looks={gate.looks} needs gate.mode=tost: gate.mode={gate.mode} controls no error rate that looks "
            "could share. Use gate.looks=1."
        )
    asked: dict[str, tuple[Any, bool]] = {
        "sweep.budgets": (sweep.budgets, len(sweep.budgets) == 1),
        "sweep.hit_rates": (sweep.hit_rates, sweep.hit_rates == ["full"]),
        "sweep.diverge_after": (sweep.diverge_after, not sweep.diverge_after),
        "sweep.damage": (sweep.damage, not sweep.damage),
        "sweep.damage_once": (sweep.damage_once, not sweep.damage_once),
        "sweep.repeats": (sweep.repeats, sweep.repeats == 1),
    }
    for name, (value, usual) in asked.items():
        if not usual:
            raise UsageError(
                f"gate.looks={gate.looks} looks at one cell, of one budget and of all that can be retrieved, and "
                f"{name}={value} asks for others: use gate=equivalence, or leave it out."
            )


def _check_fewshot(config: RunConfig) -> None:
    task = config.task
    if task.num_fewshot is None and task.min_fewshot > task.max_fewshot:
        raise UsageError(
            f"task.min_fewshot={task.min_fewshot} is more than task.max_fewshot={task.max_fewshot}: no number of "
            "few-shot examples is left."
        )


def _check_lengths(config: RunConfig) -> None:
    """Prompts and answers have room in the model's context, as far as that can be told without N."""
    task, model = config.task, config.model
    room = model.max_model_len
    if room is not None and task.max_gen_toks is not None and task.max_gen_toks >= room:
        raise UsageError(
            f"task.max_gen_toks={task.max_gen_toks} leaves no room for prompts in model.max_model_len={room}: lower it."
        )
    if task.name != "pocket":
        return
    if task.min_blocks > task.blocks:
        raise UsageError(
            f"task.min_blocks={task.min_blocks} is more than task.blocks={task.blocks}, which prompts of task=pocket "
            "have: raise task.blocks, or lower it."
        )
    for tokens in task.tail_tokens or []:
        if not -LARGEST_TAIL <= tokens <= LARGEST_TAIL:
            raise UsageError(
                f"task.tail_tokens={task.tail_tokens}: {tokens} is out of range: write numbers of tokens that are "
                "smaller than N."
            )
    # N is at least vLLM's block size.
    least = task.blocks * (model.block_size or 1) + min(task.tail_tokens or [1])
    if room is not None and least >= room:
        raise UsageError(
            f"task.blocks={task.blocks} makes prompts of at least {least} tokens, and model.max_model_len="
            f"{room} has no room for them: lower task.blocks."
        )


def _check_sweep(config: RunConfig) -> None:
    if not config.sweep.budgets:
        raise UsageError("sweep.budgets is empty: name at least one budget, for example sweep.budgets=[2N-1].")
    if not config.sweep.hit_rates:
        raise UsageError("sweep.hit_rates is empty: name at least one, for example sweep.hit_rates=[full].")
    if config.sweep.shard is not None:
        shard_numbers(config.sweep.shard)


def _check_check(config: RunConfig) -> None:
    check = config.check
    if check.connector:
        return
    for name in ("file_l2", "damage_module"):
        if getattr(check, name):
            raise UsageError(
                f"check.{name}=true needs LMCache, and check.connector=false leaves it out: set one of both."
            )


def _check_arms(config: RunConfig) -> None:
    if not config.check.arms:
        return
    if config.replay is not None:
        raise UsageError(
            f"replay={config.replay} sends the prompts of one check, and check.arms={config.check.arms} names several: "
            "leave check out."
        )
    if damage := config.sweep.damage or config.sweep.damage_once:
        raise UsageError(
            f"sweep.damage={damage} needs check=selftest, and check.arms={config.check.arms} names others: use another "
            "sweep."
        )
