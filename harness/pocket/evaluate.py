"""Scores of a pocket checkpoint, whole and with damaged state: `python -m harness.pocket.evaluate`.

Prints the tables of the README. A prompt's whole blocks are computed as transformers does it, the state they
leave is damaged as a faulty cache could damage it, and the rest of the prompt and the answer go on from there.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest
from torch import Tensor

from harness.pocket import CHECKPOINT
from harness.pocket.damage import DAMAGES, UNDAMAGED, Damage, Restored, block_zeroed
from harness.pocket.problems import Problem, make_problems
from harness.pocket.shape import Shape
from harness.pocket.transformers_cpu import import_transformers
from harness.pocket.vocabulary import ANSWER

DEFAULT_BLOCKS = 6
BLOCK_SIZE = 64
MEASURED_POSITIONS = {"first token": 0, "box P's number": 4}
"""Tokens of an answer whose log probability is compared. The first is the person's number."""
STRICT_MATCH = re.compile(ANSWER)
"""gsm8k's own pattern."""


@dataclass(frozen=True)
class Answer:
    """What the model wrote for one problem."""

    id: int
    """The problem's."""
    text: str
    right: bool
    tokens: list[int]
    logprobs: Tensor
    """Log probability of every token at the answer's first positions, up to box P's number."""


@dataclass(frozen=True)
class Score:
    """How a set of problems went under one damage, compared with none."""

    right: int
    problems: int
    same_texts: int
    changes: Mapping[int, float]
    """By position in the answer: mean absolute change, in nats, of the log probability of the token that stands
    there without damage."""

    @property
    def share(self) -> float:
        """Share of right answers."""
        return self.right / self.problems


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    interval = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


class Evaluator:
    """A checkpoint, and its answers to problems."""

    def __init__(self, checkpoint: Path) -> None:
        transformers = import_transformers()
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(checkpoint)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
        self._model: Any = model.eval()

    def scores(self, problems: Sequence[Problem], damages: Sequence[Damage]) -> dict[str, Score]:
        """Scores of the problems by title of damage; the first damage given must be none.

        Raises:
            ValueError: see `answers`.
        """
        answers = self.answers(problems, damages)
        return {title: compare(given, answers[damages[0].title]) for title, given in answers.items()}

    def answers(self, problems: Sequence[Problem], damages: Sequence[Damage]) -> dict[str, list[Answer]]:
        """Answers to the problems by title of damage, in the problems' order.

        Raises:
            ValueError: so few problems that a prompt is the only one of its length, hence has no other to get the
                state of.
        """
        answers: dict[str, list[Answer]] = {damage.title: [] for damage in damages}
        with torch.no_grad():
            for group, tokens in self._groups(problems):
                cached = group[0].cached_tokens
                restored = self._restore(tokens, cached)
                for damage in damages:
                    answers[damage.title] += self._answer(group, tokens[:, cached:], damage.apply(restored))
        return {title: sorted(given, key=lambda answer: answer.id) for title, given in answers.items()}

    def _groups(self, problems: Sequence[Problem]) -> Iterator[tuple[list[Problem], Tensor]]:
        """Problems whose prompts have the same length, with their tokens: a batch without padding."""
        groups: defaultdict[int, list[Problem]] = defaultdict(list)
        for problem in problems:
            groups[problem.prompt_tokens].append(problem)
        for length, group in sorted(groups.items()):
            if len(group) < 2:
                raise ValueError(f"only one of {len(problems)} prompts has {length} tokens: give more problems")
            yield group, torch.tensor([self._tokenizer.encode(problem.prompt) for problem in group])

    def _restore(self, tokens: Tensor, cached: int) -> Restored:
        def after(count: int) -> Any:
            return self._model(input_ids=tokens[:, :count], use_cache=True, logits_to_keep=1).past_key_values

        return Restored(after(cached), after(cached - BLOCK_SIZE), BLOCK_SIZE)

    def _answer(self, problems: Sequence[Problem], rest: Tensor, cache: Any) -> list[Answer]:
        chosen, logprobs = [], []
        output = self._model(input_ids=rest, past_key_values=cache, use_cache=True, logits_to_keep=1)
        # One more than a right answer has: the token that ends it.
        for position in range(max(problem.answer_tokens for problem in problems) + 1):
            if position <= max(MEASURED_POSITIONS.values()):
                logprobs.append(output.logits[:, -1].float().log_softmax(-1))
            token = output.logits[:, -1].argmax(-1)
            chosen.append(token)
            output = self._model(input_ids=token[:, None], past_key_values=cache, use_cache=True)
        answers = []
        rows = zip(problems, torch.stack(chosen, 1).tolist(), torch.stack(logprobs, 1), strict=True)
        for problem, tokens, first_logprobs in rows:
            end = self._tokenizer.eos_token_id
            text = self._tokenizer.decode(tokens[: tokens.index(end)] if end in tokens else tokens)
            match = STRICT_MATCH.search(text)
            right = match is not None and match[1] == problem.gold
            answers.append(Answer(problem.id, text, right, tokens, first_logprobs))
        return answers


def compare(answers: Sequence[Answer], undamaged: Sequence[Answer]) -> Score:
    """Scores answers, and how far they are from those without damage."""
    pairs = list(zip(answers, undamaged, strict=True))

    def change(position: int) -> float:
        tokens = [(a.logprobs[position], b.logprobs[position], b.tokens[position]) for a, b in pairs]
        return sum(abs(float(damaged[token] - whole[token])) for damaged, whole, token in tokens) / len(tokens)

    return Score(
        right=sum(answer.right for answer in answers),
        problems=len(answers),
        same_texts=sum(a.text == b.text for a, b in pairs),
        changes={position: change(position) for position in MEASURED_POSITIONS.values()},
    )


def damage_table(scores: Mapping[int, Mapping[str, Score]]) -> str:
    """Scores by number of blocks and title of damage."""
    compared = DEFAULT_BLOCKS if DEFAULT_BLOCKS in scores else max(scores)
    head = [
        "damage at the last block boundary",
        *(f"{blocks} blocks" for blocks in scores),
        f"same texts ({compared} blocks)",
        *(f"{name} ({compared} blocks)" for name in MEASURED_POSITIONS),
    ]
    rows = []
    for title, score in scores[compared].items():
        shares = [_share(scores[blocks][title].right, scores[blocks][title].problems) for blocks in scores]
        changes = [f"{score.changes[position]:.2g}" for position in MEASURED_POSITIONS.values()]
        rows.append([title, *shares, _share(score.same_texts, score.problems), *changes])
    return _markdown(head, rows)


def share_table(head: str, scores: Mapping[str, Score]) -> str:
    """Scores by title, in one row."""
    return _markdown([head, *scores], [["score", *(_share(score.right, score.problems) for score in scores.values())]])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _share(successes: int, trials: int) -> str:
    low, high = wilson(successes, trials)
    return f"{successes / trials:.3f} ({low:.2f}-{high:.2f})"


def tables(evaluator: Evaluator, count: int, lengths: Sequence[int], damages: Sequence[Damage]) -> Iterator[str]:
    """The README's tables, each as soon as it is measured."""
    scores = {}
    for blocks in lengths:
        scores[blocks] = evaluator.scores(make_problems(count, seed=0, shape=Shape(blocks=blocks)), damages)
    yield damage_table(scores)
    problems = make_problems(count, seed=0, shape=Shape(blocks=DEFAULT_BLOCKS))
    by_block = [block_zeroed(number) for number in range(1, DEFAULT_BLOCKS + 1)]
    lost = evaluator.scores(problems, [UNDAMAGED, *by_block])
    yield share_table(f"lost of {DEFAULT_BLOCKS} blocks", {title: lost[title] for title in lost if title != "none"})
    answers = {}
    for check, title in ((False, "short answers"), (True, "long answers")):
        problems = make_problems(count, seed=0, shape=Shape(blocks=DEFAULT_BLOCKS, check=check))
        tokens = max(problem.answer_tokens for problem in problems)
        answers[f"{title} ({tokens} tokens)"] = evaluator.scores(problems, [UNDAMAGED])["none"]
    yield share_table(f"{DEFAULT_BLOCKS} blocks, no damage", answers)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.pocket.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="folder; default the committed one")
    parser.add_argument("--problems", type=int, default=300, help="problems per context length")
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 5, 6, 8], help="context lengths in blocks of 64")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{options.problems} problems per score (seed 0), greedy, bfloat16. Shares with 95 % intervals;")
    print(f"{', '.join(MEASURED_POSITIONS)}: mean absolute change of the log probability, in nats.")
    for table in tables(Evaluator(options.checkpoint), options.problems, options.blocks, DAMAGES):
        print(f"\n{table}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
