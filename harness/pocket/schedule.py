"""When the training moves on: which lessons at which moment, how fast to learn, when to stop or give up.

Everything follows from the tokens seen and from what the model gets right, nothing from the clock, so that a
seed gives the same model on a slow or busy machine. Training has two phases. The first has no fixed length: it
ends when people in the shortest texts are recalled. A start that takes too long over it is given up for another.
The second has the same number of tokens for every seed: texts get longer, and later the rate decays.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from harness.pocket.curriculum import Lesson

PERSON, BOX_BY_ATTENTION = "person", "box_by_attention"
"""The two measurements that the schedule follows: people recalled, and box P recalled without recurrent state."""


@dataclass(frozen=True)
class Plan:
    """Every number of the schedule."""

    lengths: tuple[int, ...] = (64, 96, 128, 192, 256, 384, 512, 640)
    """Text lengths in tokens, in the order in which they are learnt."""
    plateau_tokens: int = 400_000
    """By then people are recalled at all, or the attempt is given up; by twice of it the first length is mastered.
    About half of the starts need 250,000 for the one and 300,000 for the other. Of the rest, one was trained on
    regardless: it needed three times as many and ended with half the score. A new start is better than patience."""
    tokens: int = 1_000_000
    """Length of the second phase. More of it, and the score gets too good to show a loss."""
    batch_tokens: int = 2048
    """Tokens per step, twice as many for texts longer than 256."""
    warmup_steps: int = 50
    decay_from: float = 0.4
    """Share of the second phase after which the rate falls, by a cosine, to its hundredth part."""
    mastered: float = 0.8
    """Share of people recalled, over the last 20 batches of the current length, that makes it longer."""
    recalling: float = 0.7
    """The same share at which the model is said to recall at all; from then on it also learns to say "don't know"."""
    forced_from: float = 0.17
    forced_until: float = 0.82
    """Shares of the second phase: length number i of n is left, mastered or not, i/n of the way between them."""
    box_known: float = 0.85
    """Share of box P's numbers recalled by attention alone at which other texts start to ask for it."""
    shorter: float = 0.2
    """Share of steps that repeat an earlier length or the current one."""
    checked: float = 0.25
    """Share of long answers, in texts long enough for one."""
    unknown_weight: float = 0.3
    """Weight of "don't know" in the loss, where 1 is a number to be recalled."""


@dataclass
class Schedule:
    """How far the training is. Ask it for a lesson, then tell it how that went."""

    plan: Plan
    tokens: int = 0
    steps: int = 0
    stage: int = 0
    mastered_at: int | None = None
    """Tokens seen when the first length was mastered."""
    recalls: bool = False
    attention_knows_box: bool = False
    averages: dict[str, float] = field(default_factory=dict)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=20))

    @property
    def length(self) -> int:
        """The current text length."""
        return self.plan.lengths[self.stage]

    @property
    def progress(self) -> float:
        """Share of the second phase that is done."""
        return 0.0 if self.mastered_at is None else (self.tokens - self.mastered_at) / self.plan.tokens

    @property
    def finished(self) -> bool:
        """Whether the second phase is over."""
        return self.progress >= 1

    @property
    def stuck(self) -> bool:
        """Whether the first phase has taken too long."""
        limit = self.plan.plateau_tokens * (2 if self.recalls else 1)
        return self.mastered_at is None and self.tokens >= limit

    @property
    def rate(self) -> float:
        """Factor of the learning rates for the next step."""
        warmup = min(1.0, (self.steps + 1) / self.plan.warmup_steps)
        if self.progress < self.plan.decay_from:
            return warmup
        decayed = (self.progress - self.plan.decay_from) / (1 - self.plan.decay_from)
        return warmup * (0.5 * (1 + math.cos(math.pi * min(1.0, decayed))) + 0.01)

    @property
    def unknown_weight(self) -> float:
        """Weight of "don't know" for the next step: nothing while there is no recall that it could spoil."""
        return self.plan.unknown_weight if self.recalls else 0.0

    def lesson(self, rng: Random) -> Lesson:
        """Draws what the next step is about."""
        length = self.length
        if rng.random() < self.plan.shorter:
            length = rng.choice(self.plan.lengths[: self.stage + 1])
        return Lesson(
            tokens=length,
            long_context=length >= 384 and rng.random() < 0.7,
            box_without_wipe=self.attention_knows_box,
            reviews=0.9 if self.mastered_at is None else 0.5,
            checked=self.plan.checked if length >= 256 else 0.0,
            recurrent_wipes=self._recurrent_wipes,
        )

    @property
    def _recurrent_wipes(self) -> float:
        """Share of samples in which only attention can know the box."""
        if not self.recalls:
            return 0.25
        return 0.3 if self.attention_knows_box else 0.6

    def samples(self, length: int) -> int:
        """How many samples of this length one step has."""
        return max(1, self.plan.batch_tokens * (1 if length <= 256 else 2) // length)

    def record(self, length: int, tokens: int, right: Mapping[str, float]) -> list[str]:
        """Takes in a step that is done, and says in sentences what changes by it.

        Args:
            length: the length of its texts.
            tokens: how many tokens it had.
            right: share of right answers by name; a name is missing where nothing of its kind was asked.
        """
        self.steps += 1
        self.tokens += tokens
        news = []
        if length == self.length:
            for name, share in right.items():
                self.averages[name] = 0.9 * self.averages.get(name, share) + 0.1 * share
            if PERSON in right:
                self._recent.append(right[PERSON])
            news = self._judge()
        if self._overdue():
            news.append(self._lengthen("moving on"))
        return news

    def _judge(self) -> list[str]:
        news = []
        known = self.averages.get(BOX_BY_ATTENTION, 0.0) > self.plan.box_known
        if known and not self.attention_knows_box and self.steps > self.plan.warmup_steps:
            self.attention_knows_box = True
            news.append("attention recalls box P")
        if len(self._recent) < (self._recent.maxlen or 0):
            return news
        recalled = sum(self._recent) / len(self._recent)
        if recalled > self.plan.recalling and not self.recalls:
            self.recalls = True
            news.append("the recurrent layers recall people")
        if recalled > self.plan.mastered and self.stage < len(self.plan.lengths) - 1:
            if self.mastered_at is None:
                self.mastered_at = self.tokens
            news.append(self._lengthen(f"{self.length} tokens are mastered"))
        return news

    def _overdue(self) -> bool:
        """Whether the next length's latest moment has come. The first length has none: it must be mastered."""
        if self.stage == 0 or self.stage == len(self.plan.lengths) - 1:
            return False
        span = self.plan.forced_until - self.plan.forced_from
        return self.progress > self.plan.forced_from + span * self.stage / len(self.plan.lengths)

    def _lengthen(self, reason: str) -> str:
        self.stage += 1
        self._recent.clear()
        return f"{reason}: texts of {self.length} tokens"
