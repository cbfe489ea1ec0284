import hashlib
import re
from collections import Counter
from random import Random

import pytest

from harness.pocket import CHECKPOINT, problems, vocabulary
from harness.pocket.problems import Problem, make_problem, make_problems

SIZES = [(3, 52), (3, 128), (4, 64), (6, 64), (8, 64), (3, 544)]

FACT = re.compile(r" (?P<holder>Box \w+|\w+) has (?P<pens>\d) pens\.")
QUESTION = re.compile(r"\nQuestion: How many pens do (\w+) and box P have\?\nAnswer:")


def split_into_tokens(text: str) -> list[str]:
    """Splits a text into words with the space before them, marks and line breaks."""
    return re.findall(r" ?\w+| [+=]|#+|[^\w\s]|\n", text)


def asked_person(problem: Problem) -> str:
    match = QUESTION.fullmatch(problem.question)
    assert match is not None
    return match[1]


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
    assert digest.startswith("e79f1266ed868796")


@pytest.mark.parametrize(("blocks", "block_size"), SIZES)
def test_prompt_has_exactly_the_asked_whole_blocks(blocks: int, block_size: int) -> None:
    for problem in make_problems(60, seed=1, blocks=blocks, block_size=block_size):
        assert problem.prompt_tokens == len(split_into_tokens(problem.prompt))
        assert problem.cached_tokens == blocks * block_size
        assert problem.prompt_tokens // block_size == blocks
        assert problem.prompt_tokens - problem.cached_tokens in {27, 35, 43, 51}


def test_first_blocks_are_unique() -> None:
    made = make_problems(400, seed=2)
    assert [problem.id for problem in made] == list(range(400))
    assert len({problem.first_block for problem in made}) == 400
    for problem in made:
        assert problem.prompt.startswith(problem.first_block)
        assert len(split_into_tokens(problem.first_block)) == 64


def test_equal_first_block_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_for_every_problem(seed: int, number: int, draw: int, load: object) -> Random:
        return Random(draw)

    monkeypatch.setattr(problems, "_generator", same_for_every_problem)
    made = make_problems(8, seed=0)
    assert len({problem.first_block for problem in made}) == 8
    assert [problem.id for problem in made] == list(range(8))


@pytest.mark.parametrize(("blocks", "block_size"), SIZES)
def test_gold_follows_from_the_text(blocks: int, block_size: int) -> None:
    for problem in make_problems(60, seed=4, blocks=blocks, block_size=block_size):
        name = asked_person(problem)
        pens = last_statements(problem.context)
        person, box = pens[name], pens["Box P"]
        assert problem.gold == str(person + box)
        assert problem.answer == (
            f" {name} has {person} pens. P {box}. {person} + {box} = {problem.gold}\n#### {problem.gold}"
        )


def test_context_is_only_facts_and_filler(many: list[Problem]) -> None:
    sentence = re.compile(rf"{FACT.pattern}| The( \w+){{2,5}}\.")
    for problem in many:
        assert problem.context.startswith("Facts:")
        assert sentence.sub("", problem.context.removeprefix("Facts:")) == ""


def test_needed_facts_stand_where_stated(many: list[Problem]) -> None:
    for problem in many:
        tokens = split_into_tokens(problem.prompt)
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
                "old": start + length <= boundary - 2 * 64,
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


def test_needed_facts_spread_over_their_range(many: list[Problem]) -> None:
    old = [problem.box_start for problem in many if problem.box_placement == "old"]
    thirds = Counter((start - 2) * 3 // (384 - 128 - 6 - 2 + 1) for start in old)
    assert {third: count / len(old) for third, count in thirds.items()} == pytest.approx(
        {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}, abs=0.08
    )


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
        assert len(people) == 384 // 8 + 4
        assert len(set(people)) == 39
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
    assert len([name for name in names if not name.startswith("Box")]) == 95


@pytest.mark.parametrize(
    ("blocks", "block_size", "people", "boxes"),
    [(3, 52, 23, 3), (3, 52, 17, 8), (3, 52, 27, 0), (4, 64, 43, 3), (6, 64, 73, 0), (6, 64, 1, 0)],
)
def test_fullest_and_emptiest_contexts_can_be_laid_out(blocks: int, block_size: int, people: int, boxes: int) -> None:
    made = make_problems(300, seed=5, blocks=blocks, block_size=block_size, people=people, boxes=boxes)
    for problem in made:
        assert len(FACT.findall(problem.context)) == people + boxes + 1


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [
        ({"block_size": 51}, ["block_size=51", "52"]),
        ({"block_size": 0}, ["block_size=0", "52"]),
        ({"blocks": 2}, ["blocks=2", "3"]),
        ({"people": 0}, ["people=0", "1 to 95"]),
        ({"people": 96, "blocks": 16}, ["people=96", "1 to 95"]),
        ({"boxes": -1}, ["boxes=-1", "0 to 8"]),
        ({"boxes": 9}, ["boxes=9", "0 to 8"]),
        ({"people": 74, "boxes": 0}, ["people=74", "boxes=0", "376 tokens", "6 blocks of 64", "371"]),
        ({"blocks": 3, "block_size": 52, "people": 24}, ["people=24", "boxes=3", "144 tokens", "143"]),
    ],
)
def test_impossible_sizes_are_refused_in_a_sentence(sizes: dict[str, int], numbers: list[str]) -> None:
    with pytest.raises(ValueError) as refusal:
        make_problem(0, **sizes)
    message = str(refusal.value)
    assert "\n" not in message
    assert all(number in message for number in numbers), message


def test_negative_count_is_refused() -> None:
    assert make_problems(0, seed=0) == []
    with pytest.raises(ValueError, match="count=-1"):
        make_problems(-1, seed=0)


def test_filler_takes_exactly_its_tokens() -> None:
    for tokens in (0, *range(4, 60)):
        sentences = vocabulary.filler(Random(tokens), tokens)
        assert sum(map(len, sentences)) == tokens
        assert len(split_into_tokens("".join("".join(sentence) for sentence in sentences))) == tokens
    with pytest.raises(ValueError, match="3 tokens"):
        vocabulary.filler(Random(0), 3)


def test_committed_tokenizer_makes_one_token_of_each_piece(many: list[Problem]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    ids = {piece: tokenizer.encode(piece).ids for piece in vocabulary.PIECES}
    assert [piece for piece, tokens in ids.items() if len(tokens) != 1] == []
    for problem in many[:100]:
        text = problem.prompt + problem.answer
        assert len(tokenizer.encode(problem.prompt).ids) == problem.prompt_tokens
        assert tokenizer.encode(text).ids == [ids[piece][0] for piece in split_into_tokens(text)]
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
