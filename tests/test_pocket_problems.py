import hashlib
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from harness.pocket import CHECKPOINT, problems, vocabulary
from harness.pocket.layout import Filler
from harness.pocket.problems import Problem, make_problems
from harness.pocket.ruler import POCKET_RULER, TokenizerRuler
from harness.pocket.shape import Shape
from harness.pocket.tokenizer import make_tokenizer, save_tokenizer

SHAPES = [
    Shape(3, 52),
    Shape(3, 128),
    Shape(4, 64),
    Shape(6, 64),
    Shape(8, 64),
    Shape(3, 544),
    Shape(6, 64, check=True),
    Shape(6, 128, examples=2),
    Shape(6, 192, examples=1, check=True),
    Shape(6, 64, tail_tokens=(-1, 0, 1)),
    Shape(6, 64, tail_tokens=(40,), shared_blocks=2),
    Shape(6, 64, shared_blocks=4),
]

FACT = re.compile(r" (?P<holder>Box \w+|\w+) has (?P<pens>\d) pens\.")
QUESTION = re.compile(r"\nQuestion: How many pens do (\w+) and box P have\?(?: Check\.)?\nAnswer: \1 has")
EXAMPLE = re.compile(
    r"\nQuestion: How many pens do (\w+) and box (\w+) have\?(?: Check\.)?\nAnswer:((?:.*\n)+?)#### (\d+)"
)


def split_into_tokens(text: str) -> list[str]:
    """Splits a text into words with the space before them, marks and line breaks."""
    return re.findall(r" ?\w+| [+=]|#+|[^\w\s]|\n", text)


def asked_person(problem: Problem) -> str:
    match = QUESTION.fullmatch(EXAMPLE.sub("", problem.question))
    assert match is not None
    return match[1]


def make_problem(seed: int, **sizes: Any) -> Problem:
    return make_problems(1, seed, Shape(**sizes))[0]


def last_statements(context: str) -> dict[str, int]:
    return {match["holder"]: int(match["pens"]) for match in FACT.finditer(context)}


@pytest.fixture(scope="module")
def many() -> list[Problem]:
    return make_problems(1000, seed=7)


def test_same_arguments_same_problems() -> None:
    assert make_problems(20, seed=3) == make_problems(20, seed=3)
    assert make_problems(5, seed=3) == make_problems(20, seed=3)[:5]
    assert make_problem(3) == make_problems(1, seed=3)[0]


def test_other_seeds_and_sizes_give_other_problems() -> None:
    contexts = {
        make_problem(seed, blocks=blocks, boxes=boxes).context
        for seed in (0, 1)
        for blocks in (6, 8)
        for boxes in (2, 3)
    }
    assert len(contexts) == 8


def test_problems_stay_the_same_between_releases() -> None:
    # Scores measured at different times are of the same questions only while this digest holds.
    text = "".join(problem.prompt + problem.answer for problem in make_problems(50, seed=0))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest.startswith("150b7d35c4ed43b1")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prompt_has_exactly_the_asked_length(shape: Shape) -> None:
    whole = shape.blocks * shape.block_size
    for problem in make_problems(60, seed=1, shape=shape):
        assert problem.prompt_tokens == len(split_into_tokens(problem.prompt))
        assert problem.cached_tokens == (problem.prompt_tokens - 1) // shape.block_size * shape.block_size
        question = len(split_into_tokens(problem.question))
        tails = shape.tail_tokens or {question + margin for margin in (9, 17, 25, 33)}
        assert problem.prompt_tokens - whole in tails
        assert problem.answer_tokens == len(split_into_tokens(problem.answer)) == (62 if shape.check else 14)


def test_default_tails() -> None:
    assert {problem.prompt_tokens for problem in make_problems(60, seed=1)} == {411, 419, 427, 435}
    assert {problem.cached_tokens for problem in make_problems(60, seed=1)} == {384}


def test_a_prompt_of_whole_blocks_never_gets_its_last_one_from_a_cache() -> None:
    lengths = {
        (problem.prompt_tokens, problem.cached_tokens)
        for problem in make_problems(60, seed=1, shape=Shape(tail_tokens=(-1, 0, 1)))
    }
    assert lengths == {(383, 320), (384, 320), (385, 384)}


@pytest.mark.parametrize("shared", [0, 2])
def test_first_blocks_that_are_not_shared_are_unique(shared: int) -> None:
    made = make_problems(400, seed=2, shape=Shape(shared_blocks=shared))
    assert [problem.id for problem in made] == list(range(400))
    assert len({problem.first_block for problem in made}) == 400
    tokens = [split_into_tokens(problem.prompt) for problem in made]
    assert len({tuple(each[: 64 * shared]) for each in tokens}) == 1
    assert len({tuple(each[64 * shared : 64 * (shared + 1)]) for each in tokens}) == 400
    for problem in made:
        assert problem.first_block in problem.prompt


def test_shared_blocks_hold_people_that_are_asked_for() -> None:
    made = make_problems(200, seed=3, shape=Shape(shared_blocks=3))
    blocks = Counter(problem.person_start // 64 for problem in made if problem.person_placement == "old")
    assert min(blocks[block] for block in range(5)) > 8
    assert {problem.box_start // 64 for problem in made} == {3, 4, 5}


def test_equal_first_block_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class SameForEveryProblem(Random):
        def __init__(self, seed: str) -> None:
            super().__init__(seed.rpartition("/")[2])

    monkeypatch.setattr(problems, "Random", SameForEveryProblem)
    made = make_problems(8, seed=0, shape=Shape(blocks=3))
    assert len({problem.first_block for problem in made}) == 8
    assert [problem.id for problem in made] == list(range(8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gold_follows_from_the_text(shape: Shape) -> None:
    for problem in make_problems(60, seed=4, shape=shape):
        name = asked_person(problem)
        pens = last_statements(problem.context)
        person, box = pens[name], pens["Box P"]
        assert problem.gold == str(person + box)
        assert problem.answer.startswith(f" {person} pens. P {box}. {person} + {box} = {problem.gold}\n")
        assert problem.answer.endswith(f" = {problem.gold}\n#### {problem.gold}")


def test_the_long_answer_checks_its_sum() -> None:
    (problem,) = make_problems(1, seed=4, shape=Shape(check=True))
    assert "have? Check.\nAnswer:" in problem.question
    checks = "".join(f"\n {i + 1}. {'4 + 5' if i % 2 else '5 + 4'} = 9" for i in range(6))
    assert problem.answer == f" 4 pens. P 5. 4 + 5 = 9{checks}\n#### 9"


def test_examples_are_true_and_give_nothing_away() -> None:
    for problem in make_problems(100, seed=5, shape=Shape(block_size=128, examples=2)):
        pens = last_statements(problem.context)
        examples = list(EXAMPLE.finditer(problem.question))
        assert len(examples) == 2
        for name, box, working, total in (match.groups() for match in examples):
            assert name != asked_person(problem) and box != "P"
            person, other = pens[name], pens[f"Box {box}"]
            assert working == f" {name} has {person} pens. {box} {other}. {person} + {other} = {total}\n"
            assert int(total) == person + other


def test_context_is_only_facts_and_filler(many: list[Problem]) -> None:
    sentence = re.compile(rf"{FACT.pattern}| The( \w+){{2,5}}\.")
    for problem in many:
        assert problem.context.startswith("Facts:")
        assert sentence.sub("", problem.context.removeprefix("Facts:")) == ""


def test_needed_facts_stand_where_stated(many: list[Problem]) -> None:
    for problem in many:
        tokens = split_into_tokens(problem.context)
        name = asked_person(problem)
        pens = last_statements(problem.context)
        for start, fact in (
            (problem.person_start, f" {name} has {pens[name]} pens."),
            (problem.box_start, f" Box P has {pens['Box P']} pens."),
        ):
            assert "".join(tokens[start:]).startswith(fact)
            # Nothing later overrides it.
            holder = fact[: fact.index(" has")]
            assert f"{holder} has" not in "".join(tokens[start + 3 :])


def test_placements_are_true_of_the_positions(many: list[Problem]) -> None:
    for problem in many:
        boundary = problem.cached_tokens
        for placement, start, length in (
            (problem.person_placement, problem.person_start, 5),
            (problem.box_placement, problem.box_start, 6),
        ):
            inside = {
                "old": start + length <= boundary - 64,
                "recent": boundary - 64 <= start and start + length <= boundary,
                "straddle": start == boundary - 2,
            }
            assert [name for name, true in inside.items() if true] == [placement]


def test_placements_occur_in_their_shares(many: list[Problem]) -> None:
    people = Counter(problem.person_placement for problem in many)
    boxes = Counter(problem.box_placement for problem in many)
    assert {str(place): count / 1000 for place, count in people.items()} == pytest.approx(
        {"old": 0.42, "recent": 0.33, "straddle": 0.25}, abs=0.05
    )
    assert {str(place): count / 1000 for place, count in boxes.items()} == pytest.approx(
        {"old": 0.6, "recent": 0.4}, abs=0.05
    )


def test_needed_facts_of_either_kind_stand_in_every_block(many: list[Problem]) -> None:
    first = many[:300]
    for starts, placements, least in (
        ([problem.person_start for problem in first], [problem.person_placement for problem in first], 15),
        ([problem.box_start for problem in first], [problem.box_placement for problem in first], 25),
    ):
        blocks = Counter(start // 64 for start in starts)
        assert {*blocks} == set(range(6))
        assert min(blocks.values()) >= least
        assert "old" in placements


def test_filler_spreads_over_the_context(many: list[Problem]) -> None:
    halves = Counter[bool]()
    for problem in many:
        for sentence in re.finditer(r" The( \w+)+\.", problem.context):
            halves[sentence.start() < len(problem.context) / 2] += 1
    assert halves[True] / halves.total() == pytest.approx(0.5, abs=0.03)


def test_default_load(many: list[Problem]) -> None:
    asked_twice = 0
    for problem in many:
        holders = [match["holder"] for match in FACT.finditer(problem.context)]
        people = [holder for holder in holders if not holder.startswith("Box")]
        assert len(people) == 384 // 7 + 4
        assert len(set(people)) == 44
        assert max(Counter(people).values()) == 2
        assert len(holders) - len(people) == 4
        if people.count(asked_person(problem)) == 2:
            assert problem.person_placement != "old"
            asked_twice += 1
    assert asked_twice / 1000 == pytest.approx((0.33 + 0.25) / 2, abs=0.05)


def test_outdated_statements_disagree(many: list[Problem]) -> None:
    for problem in many:
        statements = {(match["holder"], match["pens"]) for match in FACT.finditer(problem.context)}
        assert len(statements) == len(FACT.findall(problem.context))


def test_default_load_stops_at_the_names() -> None:
    names = [match["holder"] for match in FACT.finditer(make_problem(0, blocks=4, block_size=544).context)]
    people = [name for name in names if not name.startswith("Box")]
    assert (len(people), len(set(people))) == (64, 48)


@pytest.mark.parametrize(
    ("blocks", "block_size", "people", "boxes"),
    [(3, 52, 22, 3), (3, 52, 16, 8), (3, 52, 26, 0), (4, 64, 43, 3), (6, 64, 72, 0), (6, 64, 1, 0)],
)
def test_fullest_and_emptiest_contexts_can_be_laid_out(blocks: int, block_size: int, people: int, boxes: int) -> None:
    shape = Shape(blocks, block_size, people=people, boxes=boxes)
    for problem in make_problems(300, seed=5, shape=shape):
        assert len(FACT.findall(problem.context)) == people + boxes + 1


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [
        ({"block_size": 50}, ["block_size=50", "51"]),
        ({"block_size": 0}, ["block_size=0", "51"]),
        ({"blocks": 1}, ["blocks=1", "two or more"]),
        ({"shared_blocks": 5}, ["blocks=6", "restore 6 blocks", "shared_blocks=5"]),
        ({"shared_blocks": 4, "tail_tokens": (-1,)}, ["blocks=6", "restore 5 blocks", "shared_blocks=4"]),
        ({"shared_blocks": -1}, ["shared_blocks=-1"]),
        ({"tail_tokens": ()}, ["tail_tokens=[]", "-63 to 64"]),
        ({"tail_tokens": (5, 65)}, ["tail_tokens=[5, 65]", "-63 to 64"]),
        ({"tail_tokens": (-64,)}, ["tail_tokens=[-64]", "-63 to 64"]),
        ({"tail_tokens": (1,), "block_size": 32, "people": 5}, ["block_size=32", "tail_tokens=1", "15 tokens", "19"]),
        ({"examples": 4}, ["4 worked examples", "0 to 3", "there are 3"]),
        ({"examples": -1}, ["-1 worked examples"]),
        ({"examples": 2}, ["block_size=64", "up to 115 tokens", "82 of them question and examples"]),
        ({"people": 0}, ["people=0", "1 to 95"]),
        ({"people": 96, "blocks": 16}, ["people=96", "1 to 95"]),
        ({"boxes": -1}, ["boxes=-1", "0 to 8"]),
        ({"boxes": 9}, ["boxes=9", "0 to 8"]),
        ({"people": 74, "boxes": 0}, ["people=74", "boxes=0", "376 tokens", "6 blocks of 64", "369"]),
        ({"blocks": 3, "block_size": 52, "people": 24}, ["people=24", "boxes=3", "144 tokens", "141"]),
    ],
)
def test_impossible_sizes_are_refused_in_a_sentence(sizes: dict[str, Any], numbers: list[str]) -> None:
    with pytest.raises(ValueError) as refusal:
        make_problems(1, 0, Shape(**sizes))
    message = str(refusal.value)
    assert "\n" not in message
    assert all(number in message for number in numbers), message


def test_negative_count_is_refused() -> None:
    assert make_problems(0, seed=0) == []
    with pytest.raises(ValueError, match="count=-1"):
        make_problems(-1, seed=0)


def test_filler_takes_exactly_its_tokens() -> None:
    filler = Filler(POCKET_RULER)
    assert filler.shortest == 4
    for tokens in (0, *range(4, 60)):
        sentences = filler.sentences(Random(tokens), tokens)
        assert sum(map(len, sentences)) == tokens
        assert len(split_into_tokens("".join("".join(sentence) for sentence in sentences))) == tokens
    with pytest.raises(ValueError, match="3 tokens"):
        filler.sentences(Random(0), 3)


def test_tokenizer_makes_one_token_of_each_piece(many: list[Problem]) -> None:
    tokenizer = make_tokenizer()
    ids = {piece: tokenizer.encode(piece).ids for piece in vocabulary.PIECES}
    assert [piece for piece, tokens in ids.items() if len(tokens) != 1] == []
    for problem in many[:100]:
        text = problem.prompt + problem.answer
        assert len(tokenizer.encode(problem.prompt).ids) == problem.prompt_tokens
        assert tokenizer.encode(text).ids == [ids[piece][0] for piece in split_into_tokens(text)]
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_committed_tokenizer_is_the_one_that_is_made(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (CHECKPOINT / file.name).read_bytes(), file.name


# --- other tokenizers --------------------------------------------------------------------------------------

QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers split text before they merge: digits one by one, a line break with the mark before it."""


def qwen_like_tokenizer(start_token: bool = False) -> Tokenizer:
    """A byte-level BPE that knows common words, and not all names."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        min_frequency=1,
        show_progress=False,
        special_tokens=["<s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    rare = {f" {name}" for name in vocabulary.PERSON_NAMES[::3]}
    tokenizer.train_from_iterator([*(piece for piece in vocabulary.PIECES if piece not in rare), ".\n", "?\n"], trainer)
    if start_token:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@pytest.mark.parametrize("start_token", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(6, 192, examples=3),
        Shape(5, 784, examples=3, check=True),
        Shape(6, 128, tail_tokens=(-1, 0, 1)),
        Shape(6, 128, shared_blocks=2),
    ],
    ids=str,
)
def test_any_tokenizer_gets_exact_lengths_and_positions(shape: Shape, start_token: bool) -> None:
    tokenizer = qwen_like_tokenizer(start_token)

    def tokens(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    assert len({len(tokens(f" {name}")) for name in vocabulary.PERSON_NAMES}) > 1, "names differ in length"
    made = make_problems(40, seed=6, shape=shape, ruler=TokenizerRuler(tokens))
    own_block_end = (shape.shared_blocks + 1) * shape.block_size
    assert len({tuple(tokens(problem.prompt)[:own_block_end]) for problem in made}) == 40
    straddling = 0
    for problem in made:
        ids = tokens(problem.prompt)
        pens = last_statements(problem.context)
        name = asked_person(problem)
        tail = problem.prompt_tokens - shape.blocks * shape.block_size
        assert len(ids) == problem.prompt_tokens
        assert tail in shape.tail_tokens if shape.tail_tokens else 0 < tail <= shape.block_size
        assert problem.gold == str(pens[name] + pens["Box P"])
        facts = (problem.person_start, f" {name} has {pens[name]} pens."), (problem.box_start, " Box P has")
        for start, fact in facts:
            assert tokenizer.decode(ids[start:]).startswith(fact)
        if problem.person_placement == "straddle":
            straddling += 1
            assert tokenizer.decode(ids[problem.cached_tokens :]).startswith(f" {pens[name]} pens.")
        assert len(tokens(problem.prompt + problem.answer)) == problem.prompt_tokens + problem.answer_tokens
    assert straddling


def test_a_tokenizer_without_the_filler_words_is_refused() -> None:
    with pytest.raises(ValueError, match="adjectives: 0 of 10"):
        make_problems(1, 0, ruler=TokenizerRuler(lambda text: [ord(character) for character in text]))


def test_a_tokenizer_that_merges_across_sentences_is_refused() -> None:
    def tokens(text: str) -> list[int]:
        return [0] * len(split_into_tokens(text.replace("pens. The", "-")))

    with pytest.raises(ValueError, match=r"problem 0 came out right in none of 200 draws.*merges text"):
        make_problems(1, 0, ruler=TokenizerRuler(tokens))
