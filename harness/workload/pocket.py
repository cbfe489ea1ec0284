"""The pocket problems as an lm-eval task, laid out for the tokenizer of whatever model is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.config import TaskConfig
from harness.errors import UsageError
from harness.pocket.problems import Problem, make_problems
from harness.pocket.ruler import POCKET_RULER, Ruler, TokenizerRuler
from harness.pocket.shape import Shape
from harness.pocket.vocabulary import ANSWER, PIECES

POCKET = "pocket"
"""Its name."""

DEFAULT_PROBLEMS = 300

DEFAULT_EXAMPLES = 3
"""Worked examples for a model that the form of the answers is new to."""


def ruler_of(model_path: str) -> Ruler:
    """Measures text in the tokens of a model.

    Raises:
        UsageError: its tokenizer can't be loaded.
    """
    local = Path(model_path).expanduser()
    if (local / "tokenizer.json").is_file() and _has_every_piece(local / "tokenizer.json"):
        return POCKET_RULER
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(local) if local.is_dir() else model_path)
    except Exception as error:  # whatever the files of a stranger's tokenizer make it raise
        raise UsageError(
            f"The tokenizer of model.path={model_path} can't be loaded ({type(error).__name__}), and task=pocket lays "
            "its prompts out in its tokens: give a folder that holds the checkpoint and its tokenizer."
        ) from error
    return TokenizerRuler(tokenizer.encode)


def _has_every_piece(tokenizer_file: Path) -> bool:
    """Says whether every piece of the pocket language is one token, as for the pocket model's own tokenizer."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception:  # tokenizers raises plain Exception; transformers may still know what to do with the folder
        return False
    return all(len(tokenizer.encode(piece).ids) == 1 for piece in PIECES)


def pocket_problems(config: TaskConfig, block_size: int, ruler: Ruler) -> list[Problem]:
    """The problems that a config asks for, laid out for this N in tokens.

    Raises:
        UsageError: they don't fit.
    """
    examples = config.num_fewshot
    if examples is None:
        examples = 0 if ruler is POCKET_RULER else DEFAULT_EXAMPLES
    shape = Shape(
        blocks=config.blocks,
        block_size=block_size,
        tail_tokens=None if config.tail_tokens is None else tuple(config.tail_tokens),
        shared_blocks=config.shared_blocks,
        examples=examples,
        check=config.long_answers,
    )
    try:
        return list(_made(config.limit or DEFAULT_PROBLEMS, config.seed, shape, ruler))
    except ValueError as error:
        raise UsageError(f"task=pocket can't be built for N = {block_size}: {error}.") from error


@lru_cache(maxsize=1)
def _made(count: int, seed: int, shape: Shape, ruler: Ruler) -> tuple[Problem, ...]:
    """A run asks for the same set twice: rules look at its lengths, and then it is loaded."""
    return tuple(make_problems(count, seed, shape, ruler))


def needed_facts(document: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """The two facts that a problem's answer needs, and the token of the prompt at which each starts."""
    return ("the asked person", int(document["person_start"])), ("box P", int(document["box_start"]))


def pocket_scoring() -> dict[str, Any]:
    """How lm-eval reads and scores answers: gsm8k's strict match."""
    return {
        "output_type": "generate_until",
        "filter_list": [
            {
                "name": "strict-match",
                "filter": [
                    {"function": "regex", "regex_pattern": ANSWER},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [
            {
                "metric": "exact_match",
                "aggregation": "mean",
                "higher_is_better": True,
                "regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$"],
            }
        ],
    }


def pocket_task(problems: Sequence[Problem]) -> dict[str, Any]:
    """lm-eval configuration of problems, in gsm8k's form and with its strict match."""
    documents = [asdict(problem) for problem in problems]
    return {
        "task": POCKET,
        "custom_dataset": lambda **_: {"test": dataset(documents)},
        "test_split": "test",
        "doc_to_text": "{{context}}{{question}}",
        "doc_to_target": "{{answer}}",
        "num_fewshot": 0,
        "generation_kwargs": {
            "until": ["\nQuestion:"],
            "do_sample": False,
            "temperature": 0.0,
            # An answer in other words than the worked one is not cut off at once.
            "max_gen_toks": 2 * max(problem.answer_tokens for problem in problems),
        },
        **pocket_scoring(),
    }


def dataset(rows: list[dict[str, Any]]) -> Any:
    """Rows as lm-eval takes them."""
    from datasets import Dataset

    return Dataset.from_list(rows)
