"""Trains the pocket model from scratch: `python -m harness.pocket.train --seed 0 --out outputs/pocket`.

Minutes on one CPU core. On the same kind of CPU and the same releases of torch and transformers, a seed gives
the same checkpoint bit for bit with one thread, however busy the machine; elsewhere sums round differently.
"""

import argparse
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.pocket import curriculum
from harness.pocket.band import shortfalls
from harness.pocket.curriculum import Lesson, Sample, Target, Wipe
from harness.pocket.damage import DAMAGES
from harness.pocket.evaluate import Evaluator
from harness.pocket.network import Sizes, fast_kernels, hidden_states, make_model
from harness.pocket.problems import make_problems
from harness.pocket.schedule import BOX_BY_ATTENTION, PERSON, Plan, Schedule
from harness.pocket.tokenizer import END, make_tokenizer, save_tokenizer
from harness.pocket.vocabulary import MAX_PENS, PIECES

LOG_FILE = "training.log"
ATTEMPT_SEEDS_APART = 100
JUDGED_SET = 1
"""Seed of the problems a trained model is accepted by."""

Log = Callable[[str], None]
Judge = Callable[[Any], Sequence[str]]


class TrainingError(Exception):
    """No attempt gave a good model, or the time ran out."""


@dataclass(frozen=True)
class Config:
    """One training run."""

    seed: int = 0
    threads: int = 1
    minutes: float | None = None
    """Give up after so long. Never changes a model, only whether there is one."""
    plan: Plan = field(default_factory=Plan)
    sizes: Sizes = field(default_factory=Sizes)
    attempts: int = 8
    adam_rate: float = 4e-3
    muon_rate: float = 0.02
    weight_decay: float = 0.02
    log_every: int = 50
    """Steps between lines of the log."""


@dataclass(frozen=True)
class Batch:
    """Samples as tensors; `forget_at` and `blind_before` say where each is wiped, -1 where it isn't."""

    tokens: Tensor
    targets: Tensor
    forget_at: Tensor
    blind_before: Tensor


class Encoder:
    """Turns pieces into token ids."""

    def __init__(self) -> None:
        tokenizer = make_tokenizer()
        self.ids: dict[str, int] = {piece: tokenizer.encode(piece).ids[0] for piece in (*PIECES, END)}
        self.digits = torch.tensor([self.ids[f" {pens}"] for pens in range(MAX_PENS + 1)])
        self.vocabulary_size: int = tokenizer.get_vocab_size()

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Stacks samples of one length."""

        def start(sample: Sample, wipe: Wipe) -> int:
            return sample.wiped_from if sample.wipe is wipe else -1

        return Batch(
            tokens=torch.tensor([[self.ids[piece] for piece in sample.pieces] for sample in samples]),
            targets=torch.tensor([sample.targets for sample in samples]),
            forget_at=torch.tensor([start(sample, Wipe.RECURRENT) for sample in samples]),
            blind_before=torch.tensor([start(sample, Wipe.ATTENTION) for sample in samples]),
        )


def train(config: Config, log: Log, judge: Judge = lambda model: []) -> Any:
    """Trains until an attempt is through and good, and returns its model.

    Args:
        config: the training run.
        log: takes its lines.
        judge: says what is wrong with a trained model. Where it says anything, another attempt begins.

    Raises:
        TrainingError: no attempt was good, or `config.minutes` are over.
    """
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)
    started = time.monotonic()
    for attempt in range(config.attempts):
        seed = config.seed + ATTEMPT_SEEDS_APART * attempt
        trainer = Trainer(config, seed, started, log)
        with fast_kernels():
            while not trainer.schedule.finished and not trainer.schedule.stuck:
                trainer.step()
                if config.minutes is not None and time.monotonic() - started > 60 * config.minutes:
                    raise TrainingError(f"not done after {config.minutes} minutes, {trainer.schedule.tokens} tokens")
        log(trainer.state())
        faults = judge(trainer.model) if trainer.schedule.finished else ["it is on a plateau"]
        if not faults:
            return trainer.model
        log(f"seed {seed} is given up after {trainer.schedule.tokens} tokens: {'; '.join(faults)}")
    raise TrainingError(f"none of {config.attempts} attempts was good")


class Trainer:
    """One attempt: a model, its optimisers, and the schedule they are at."""

    def __init__(self, config: Config, seed: int, started: float, log: Log) -> None:
        self.config = config
        self.schedule = Schedule(config.plan)
        self.encoder = Encoder()
        self.model = make_model(self.encoder.vocabulary_size, config.sizes, seed)
        self.loss = float("nan")
        self._optimisers = make_optimisers(self.model, config)
        self._rng: Random = curriculum.generator(seed)
        self._started = started
        self._log = log
        parameters = sum(weight.numel() for weight in self.model.parameters())
        log(f"seed {seed}: {parameters} parameters, {config.plan.tokens} tokens after the first length is mastered")

    def step(self) -> None:
        """Learns from one batch."""
        schedule = self.schedule
        lesson = schedule.lesson(self._rng)
        batch = self._draw(lesson)
        rate = schedule.rate
        self.loss, right = self._learn(batch, rate)
        for news in schedule.record(lesson.tokens, batch.tokens.numel(), right):
            self._log(f"{self._position()} {news}")
        if schedule.steps % self.config.log_every == 0:
            self._log(self.state())

    def state(self) -> str:
        """A line of the log."""
        schedule = self.schedule
        shares = " ".join(f"{name} {share:.3f}" for name, share in sorted(schedule.averages.items()))
        return f"{self._position()} length {schedule.length} rate {schedule.rate:.2f} loss {self.loss:.3f} | {shares}"

    def _position(self) -> str:
        elapsed = time.monotonic() - self._started
        return f"step {self.schedule.steps} tokens {self.schedule.tokens} at {elapsed:.0f} s"

    def _draw(self, lesson: Lesson) -> Batch:
        samples = range(self.schedule.samples(lesson.tokens))
        return self.encoder.batch([curriculum.draw_sample(self._rng, lesson) for _ in samples])

    def _learn(self, batch: Batch, rate: float) -> tuple[float, dict[str, float]]:
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["full_rate"] * rate
        states = hidden_states(self.model, batch.tokens, batch.forget_at, batch.blind_before)
        targets = batch.targets[:, 1:]
        asked = targets > Target.NOTHING
        logits = self.model.lm_head(states[:, :-1][asked]).float()
        expected, kinds = batch.tokens[:, 1:][asked], targets[asked]
        loss = answer_loss(logits, expected, kinds, self.encoder.digits, self.schedule.unknown_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        by_attention = (batch.forget_at >= 0)[:, None].expand_as(targets)[asked]
        return float(loss.detach()), shares_right(logits.argmax(-1) == expected, kinds, by_attention)


def make_optimisers(model: Any, config: Config) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the rest: about twice as fast to recall as AdamW alone.

    The matrices that set a token's decay and write strength have one row per head, so they are vectors to AdamW.
    """
    matrices, gates, others = [], [], []
    for name, weight in model.named_parameters():
        if weight.ndim != 2 or "embed" in name:
            others.append(weight)
        elif "in_proj_a" in name or "in_proj_b" in name:
            gates.append(weight)
        else:
            matrices.append(weight)
    adam_groups = [
        {"params": gates, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(adam_groups, lr=config.adam_rate, betas=(0.9, 0.98)),
        torch.optim.Muon(
            matrices,
            lr=config.muon_rate,
            weight_decay=config.weight_decay,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
            ns_steps=4,
        ),
    ]
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["full_rate"] = group["lr"]
    return optimisers


def answer_loss(logits: Tensor, expected: Tensor, kinds: Tensor, digits: Tensor, unknown_weight: float) -> Tensor:
    """Mean loss of the asked tokens.

    "Don't know" is learnt as the same probability for every digit: its loss is the distance from that, 0 when
    all digits are equally likely. Numbers count most; the rest of an answer is learnt soon anyway.
    """
    unknown = kinds >= Target.UNKNOWN_PERSON
    evenness = -logits.log_softmax(-1)[:, digits].mean(-1) - torch.tensor(float(len(digits))).log()
    losses = torch.where(unknown, evenness, functional.cross_entropy(logits, expected, reduction="none"))
    weights = torch.where(kinds == Target.OTHER, 0.3, 1.0)
    weights = torch.where(kinds == Target.CHECK, 0.15, weights)
    weights = torch.where(unknown, unknown_weight, weights)
    # A small batch may ask for nothing that counts yet.
    return (losses * weights).sum() / weights.sum().clamp(min=1e-6)


def shares_right(right: Tensor, kinds: Tensor, by_attention: Tensor) -> dict[str, float]:
    """Share of right guesses by kind, without the kinds that were not asked.

    Of what is unknown a tenth should be right: guessed, not known after all.
    """
    groups = {
        PERSON: kinds == Target.PERSON,
        BOX_BY_ATTENTION: (kinds == Target.BOX) & by_attention,
        "box": (kinds == Target.BOX) & ~by_attention,
        "total": kinds == Target.TOTAL,
        "other": kinds == Target.OTHER,
        "check": kinds == Target.CHECK,
        "unknown_person": kinds == Target.UNKNOWN_PERSON,
        "unknown_box": kinds == Target.UNKNOWN_BOX,
    }
    return {name: float(right[group].float().mean()) for name, group in groups.items() if group.any()}


def save(model: Any, out: Path) -> None:
    """Writes the model in bfloat16 and the tokenizer, as transformers and vLLM load them."""
    model.to(torch.bfloat16).save_pretrained(out)
    save_tokenizer(out)


def judge_saved(out: Path, log: Log, problems: int = 100) -> list[str]:
    """Says what keeps a saved model from being a good witness; its scores go to the log.

    The problems are others than those that `harness.pocket.evaluate` measures: that a model was accepted because of
    luck with its problems does not make those scores too good.
    """
    scores = Evaluator(out).scores(make_problems(problems, seed=JUDGED_SET), DAMAGES)
    log(f"{problems} other problems: " + ", ".join(f"{title} {score.share:.2f}" for title, score in scores.items()))
    return shortfalls(scores)


def versions(threads: int) -> str:
    """All that, beside the code and the seed, the weights' last bits depend on."""
    releases = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{', '.join(releases)}, python {platform.python_version()}, {capability}, {threads} thread(s)"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.pocket.train", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="shapes the model; default 0")
    parser.add_argument("--out", type=Path, help="folder for the checkpoint; default outputs/pocket-SEED")
    parser.add_argument("--minutes", type=float, help="give up after so many minutes; the model never depends on it")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; 1 gives the same model every time")
    options = parser.parse_args(arguments)
    out: Path = options.out or Path("outputs") / f"pocket-{options.seed}"
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOG_FILE).open("w") as file:

        def log(line: str) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        log(versions(options.threads))

        def judge(model: Any) -> list[str]:
            save(model, out)
            return judge_saved(out, log)

        try:
            train(Config(seed=options.seed, threads=options.threads, minutes=options.minutes), log, judge)
        except TrainingError as error:
            log(f"failed: {error}")
            return 1
    print(f"saved in {out}; its scores: python -m harness.pocket.evaluate --checkpoint {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
