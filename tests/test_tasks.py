"""lm-eval tasks for real, answered by a function instead of a server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.tasks
import pytest

from harness.config import TaskConfig
from harness.errors import HarnessError, UsageError
from harness.pocket import CHECKPOINT
from harness.workload.prompts import Prompt
from harness.workload.scoring import StoredPromptsModel, score_pass
from harness.workload.stream import RequestRecord
from harness.workload.tasks import build_prompts, load_task, part_of_task, read_jsonl, stored_task

POCKET = TaskConfig(name="pocket", limit=6, blocks=3)
MODEL = str(CHECKPOINT)


def characters(text: str) -> list[int]:
    """A tokenizer with one token per character."""
    return [ord(character) for character in text]


def built(task: Any, config: TaskConfig, block_size: int = 64, max_model_len: int = 10**6) -> list[Prompt]:
    return build_prompts(task, config, characters, block_size=block_size, max_model_len=max_model_len)


def answering(texts: dict[int, str], failed: Sequence[int] = ()) -> list[RequestRecord]:
    return [
        RequestRecord(doc_id, "sha", 0.0, text=text, error="HTTP 500" if doc_id in failed else None)
        for doc_id, text in texts.items()
    ]


# --- pocket ------------------------------------------------------------------------------------------------


def test_pocket_answers_are_scored_by_lm_eval() -> None:
    """Right answers score 1, wrong ones 0, whatever the order in which they came back."""
    task = load_task(POCKET, 64, MODEL)
    prompts = built(task, POCKET)
    targets = [str(task.doc_to_target(task.dataset["test"][prompt.doc_id])) for prompt in prompts]
    texts = {
        0: targets[0],
        1: targets[1].replace("#### ", "#### 9"),
        2: "#### " + targets[2].split("#### ")[1],
        3: "",
        4: targets[4].split("#### ")[0],
        5: targets[5] + "\n\nand so on",
    }
    samples = score_pass(task, POCKET, prompts, lambda: answering(dict(reversed(texts.items()))))
    assert list(samples.columns) == ["doc_id", "target", "answer", "score"]
    assert samples["doc_id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert samples["score"].tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert samples["target"].tolist() == targets
    assert samples["answer"].tolist()[2] == targets[2].split("#### ")[1]


def test_a_failed_request_is_wrong_whatever_had_arrived() -> None:
    task = load_task(POCKET, 64, MODEL)
    prompts = built(task, POCKET)
    right = {p.doc_id: str(task.doc_to_target(task.dataset["test"][p.doc_id])) for p in prompts}
    samples = score_pass(task, POCKET, prompts, lambda: answering(right, failed=[2]))
    assert samples["score"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]


def test_pocket_prompts_cover_their_blocks() -> None:
    prompts = built(load_task(POCKET, 64, MODEL), POCKET)
    assert [prompt.doc_id for prompt in prompts] == [0, 1, 2, 3, 4, 5]
    assert {prompt.stop for prompt in prompts} == {("\nQuestion:",)}
    assert {prompt.max_tokens for prompt in prompts} == {28}
    assert len({prompt.text[:50] for prompt in prompts}) == 6, "first blocks differ, or cold requests would hit"
    assert all(re.search(r"\nAnswer: \w+ has$", prompt.text) for prompt in prompts)
    assert all(prompt.token_ids == tuple(characters(prompt.text)) for prompt in prompts)
    longer = replace(POCKET, blocks=6)
    assert len(built(load_task(longer, 64, MODEL), longer)[0].text) > 1.5 * len(prompts[0].text)


def test_prompts_are_the_same_whenever_they_are_built() -> None:
    task = load_task(POCKET, 64, MODEL)
    first = built(task, POCKET)
    score_pass(task, POCKET, first, lambda: answering({prompt.doc_id: "" for prompt in first}))
    assert built(task, POCKET) == first
    assert built(load_task(POCKET, 64, MODEL), POCKET) == first
    assert built(load_task(replace(POCKET, seed=1), 64, MODEL), POCKET) != first


def test_a_limit_on_answers_can_be_set() -> None:
    config = replace(POCKET, max_gen_toks=7)
    assert {prompt.max_tokens for prompt in built(load_task(config, 64, MODEL), config)} == {7}


def test_a_block_too_small_for_the_pocket_problems() -> None:
    with pytest.raises(UsageError, match=r"task=pocket can't be built for N = 16: block_size=16 is too small"):
        load_task(POCKET, 16, MODEL)


def test_prompts_that_do_not_fit_the_model() -> None:
    task = load_task(POCKET, 64, MODEL)
    longest = max(len(prompt.token_ids) for prompt in built(task, POCKET))
    assert built(task, POCKET, max_model_len=longest + 28)
    with pytest.raises(UsageError) as caught:
        built(task, POCKET, max_model_len=longest + 27)
    assert f"up to {longest} tokens long, and {longest - 1} fit (model.max_model_len {longest + 27} less" in str(
        caught.value
    )


# --- prompts that were stored are those that are sent ------------------------------------------------------


def refused(config: TaskConfig, prompts: Sequence[Prompt]) -> str:
    task = load_task(POCKET, 64, MODEL)
    task.set_config(key="num_fewshot", value=0)
    with pytest.raises(HarnessError) as caught:
        score_pass(task, config, prompts, lambda: pytest.fail("nothing may be sent"))
    return str(caught.value)


def test_lm_eval_may_ask_for_nothing_but_what_was_stored() -> None:
    prompts = built(load_task(POCKET, 64, MODEL), POCKET)
    changed = [*prompts[:3], replace(prompts[3], text=prompts[3].text + " "), *prompts[4:]]
    assert "asks for 6 prompts and 6 are stored; documents [3] differ" in refused(POCKET, changed)
    assert "asks for 6 prompts and 5 are stored; documents [5] differ" in refused(POCKET, prompts[:5])
    assert "asks for 4 prompts and 6 are stored; documents [4, 5] differ" in refused(replace(POCKET, limit=4), prompts)


def test_only_generation_is_measured() -> None:
    model = StoredPromptsModel({}, lambda: [])
    for ask in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(HarnessError, match="Only generation tasks"):
            ask([])


@pytest.mark.parametrize(
    "changes", [{"filter": "nope"}, {"metric": "nope"}, {"filter": "nope", "metric": "nope"}], ids=lambda c: "+".join(c)
)
def test_a_filter_or_metric_that_is_not_there(changes: dict[str, str]) -> None:
    config = replace(POCKET, **changes)  # type: ignore[arg-type]
    task = load_task(POCKET, 64, MODEL)
    prompts = built(task, POCKET)
    with pytest.raises(HarnessError) as caught:
        score_pass(task, config, prompts, lambda: answering({prompt.doc_id: "" for prompt in prompts}))
    assert "its filters are strict-match and its metrics exact_match (task.filter, task.metric)" in str(caught.value)


# --- gsm8k from a folder -----------------------------------------------------------------------------------

GSM8K = TaskConfig(name="gsm8k", limit=3, min_fewshot=0, max_fewshot=8)


def row(number: int) -> dict[str, str]:
    return {"question": f"What is {number} plus {number}?", "answer": f"It is.\n#### {2 * number}"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with 10 training and 5 test questions."""
    write(tmp_path / "train.jsonl", [row(number) for number in range(10, 20)])
    write(tmp_path / "test.jsonl", [row(number) for number in range(30, 35)])
    return tmp_path


def write(path: Path, rows: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows), encoding="utf-8")


def gsm8k(folder: Path, **changes: Any) -> TaskConfig:
    return replace(GSM8K, data_dir=str(folder), **changes)


def shots(prompts: Sequence[Prompt]) -> set[int]:
    return {prompt.text.count("Question: ") - 1 for prompt in prompts}


def test_gsm8k_from_a_folder(data: Path) -> None:
    config = gsm8k(data, num_fewshot=2)
    task = load_task(config, 64, MODEL)
    prompts = built(task, config)
    assert [prompt.doc_id for prompt in prompts] == [0, 1, 2]
    assert prompts[0].text.endswith("Question: What is 30 plus 30?\nAnswer:")
    assert shots(prompts) == {2}
    assert "Question:" in prompts[0].stop, "lm-eval's own stop strings"
    assert prompts[0].max_tokens == 256
    texts = {0: " 30+30\n#### 60", 1: " so 62.", 2: " 32+32\n#### 65"}
    samples = score_pass(task, config, prompts, lambda: answering(texts))
    assert samples["score"].tolist() == [1.0, 0.0, 0.0]
    flexible = replace(config, filter="flexible-extract")
    assert score_pass(task, flexible, prompts, lambda: answering(texts))["score"].tolist() == [1.0, 1.0, 0.0]


def test_the_fewest_examples_that_cover_the_blocks_are_taken(data: Path) -> None:
    """A question has 37 characters and an example 54: N + 1 = 193 needs 3 of them."""
    config = gsm8k(data)
    task = load_task(config, 192, MODEL)
    prompts = built(task, config, 192)
    (count,) = shots(prompts)
    assert count == 3
    assert min(len(prompt.token_ids) for prompt in prompts) > 192
    fewer = built(task, replace(config, num_fewshot=count - 1), 32)
    assert min(len(prompt.token_ids) for prompt in fewer) <= 192
    (more,) = shots(built(task, replace(config, min_blocks=2), 192))
    assert more > count
    assert shots(built(task, replace(config, min_fewshot=count + 1), 192)) == {count + 1}
    assert shots(built(task, config, 16)) == {0}


def test_the_shortest_prompt_decides(data: Path) -> None:
    """Every prompt must be able to hit, not only the first."""
    write(data / "test.jsonl", [{"question": "x" * 300, "answer": "#### 1"}, row(1)])
    config = gsm8k(data)
    prompts = built(load_task(config, 192, MODEL), config, 192)
    assert min(len(prompt.token_ids) for prompt in prompts) > 192


def test_gsm8k_prompts_are_the_same_whenever_they_are_built(data: Path) -> None:
    config = gsm8k(data)
    task = load_task(config, 192, MODEL)
    first = built(task, config, 192)
    samples = score_pass(task, config, first, lambda: answering({prompt.doc_id: "" for prompt in first}))
    assert len(samples) == 3
    assert built(task, config, 192) == first
    assert built(load_task(config, 192, MODEL), config, 192) == first


def test_examples_that_cannot_cover_the_blocks(data: Path) -> None:
    config = gsm8k(data, max_fewshot=2)
    with pytest.raises(UsageError) as caught:
        built(load_task(config, 192, MODEL), config, 192)
    shortest = min(len(p.token_ids) for p in built(load_task(config, 192, MODEL), replace(config, num_fewshot=2), 32))
    assert str(caught.value) == (
        f"Prompts of task gsm8k cover 0 blocks of N = 192 tokens (the shortest has {shortest} tokens with 2 few-shot "
        "examples), and task.min_blocks=1 needs 193: raise task.max_fewshot or task.num_fewshot, or lower "
        "task.min_blocks."
    )


def test_more_examples_than_there_are(data: Path) -> None:
    config = gsm8k(data, max_fewshot=64)
    task = load_task(config, 64, MODEL)
    with pytest.raises(UsageError, match="with 10 few-shot examples"):
        built(task, config, 5000)
    for asked in (replace(config, num_fewshot=11), replace(config, min_fewshot=11)):
        with pytest.raises(UsageError, match="has 10 rows to draw few-shot examples from, and 11 are asked for"):
            built(task, asked)
    assert shots(built(task, replace(config, num_fewshot=10))) == {10}


def test_examples_until_they_no_longer_fit(data: Path) -> None:
    config = gsm8k(data)
    with pytest.raises(UsageError, match=r"with 3 few-shot examples are up to \d+ tokens long, and 44 fit"):
        built(load_task(config, 192, MODEL), config, 192, max_model_len=300)


@pytest.mark.parametrize("missing", ["train", "test"])
def test_a_missing_file_is_named(data: Path, missing: str) -> None:
    (data / f"{missing}.jsonl").unlink()
    with pytest.raises(UsageError) as caught:
        load_task(gsm8k(data), 64, MODEL)
    assert str(caught.value) == (
        f"task.data_dir: {data / missing}.jsonl can't be read (No such file or directory); train.jsonl and test.jsonl "
        "are needed."
    )


def test_a_row_without_its_fields(data: Path) -> None:
    write(data / "test.jsonl", [{"q": "What?", "a": "#### 1"}])
    with pytest.raises(UsageError, match="lacks a field that its prompts need: 'question' is undefined"):
        load_task(gsm8k(data), 64, MODEL)
    write(data / "test.jsonl", [row(1)])
    write(data / "train.jsonl", [{"question": "What?"}])
    with pytest.raises(UsageError, match="lacks a field that its prompts need: 'answer' is undefined"):
        built(load_task(gsm8k(data), 64, MODEL), gsm8k(data, num_fewshot=1))


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        def __init__(self, include_defaults: bool, include_path: str | None) -> None:
            pass

        def load(self, specs: Sequence[object]) -> dict[str, Any]:
            raise ConnectionError("no route")

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", Manager)
    with pytest.raises(UsageError, match=r"from the hub \(ConnectionError\): give a folder .* task\.data_dir=PATH"):
        load_task(TaskConfig(name="gsm8k"), 64, MODEL)


# --- files -------------------------------------------------------------------------------------------------


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows: list[dict[str, Any]] = [{"question": "a\u2028b\u0085c\x0c", "n": 1}, {"question": "é ± €"}]
    write(path, rows)
    assert read_jsonl(path) == rows
    path.write_text('\n{"a": 1}\r\n\n{"a": 2}', encoding="utf-8")
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2 is not JSON: Expecting value."),
        (b'{"a": 1}\n\n[1]\n', "line 3 is not a JSON object."),
        (b"3\n", "line 1 is not a JSON object."),
        (b"", "holds no rows."),
        (b"\n\n", "holds no rows."),
        (b"\xff\xfe", "is not UTF-8 text (invalid start byte)."),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_jsonl(path)
    assert str(caught.value) == f"task.data_dir: {path} {told}"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        read_jsonl(tmp_path)


# --- prompts of a repro bundle -----------------------------------------------------------------------------


def test_stored_prompts_are_scored_as_the_task_scores_its_own(data: Path) -> None:
    """The last prompts of the task, with their own document numbers, in another order and without its data."""
    for config, model_texts in (
        (gsm8k(data, num_fewshot=2), {2: " 64.\n#### 64", 1: "so 62", 0: "#### 9"}),
        (replace(POCKET, limit=3), {2: "", 1: "#### 11", 0: "#### 12"}),
    ):
        task = load_task(config, 64, MODEL)
        prompts = built(task, config)
        own = score_pass(task, config, prompts, lambda texts=model_texts: answering(texts))  # type: ignore[misc]
        chosen = [prompts[2], prompts[1]]
        targets = [str(own["target"][prompt.doc_id]) for prompt in chosen]
        again = stored_task(config.name, [prompt.text for prompt in chosen], targets)
        texts = {prompt.doc_id: model_texts[prompt.doc_id] for prompt in chosen}
        stored = score_pass(again, replace(config, limit=2), chosen, lambda texts=texts: answering(texts))  # type: ignore[misc]
        assert stored.equals(own[own["doc_id"] > 0].reset_index(drop=True))


def test_a_part_of_a_task_asks_and_scores_as_the_whole_does(data: Path) -> None:
    """Documents that are not the first, whose examples lm-eval would draw anew."""
    for config in (gsm8k(data, num_fewshot=2), replace(POCKET, limit=3)):
        task = load_task(config, 64, MODEL)
        prompts = built(task, config)
        whole = score_pass(task, config, prompts, lambda: answering({2: "#### 64", 1: "#### 62", 0: "#### 9"}))
        chosen = [prompts[2], prompts[1]]
        part = part_of_task(task, config.name, chosen)
        samples = score_pass(part, replace(config, limit=2), chosen, lambda: answering({2: "#### 64", 1: "#### 62"}))
        assert samples.equals(whole[whole["doc_id"] > 0].reset_index(drop=True))


def test_nothing_in_a_stored_prompt_is_a_template() -> None:
    prompt = Prompt(7, " {{ text }} {% if %} ", (1, 2), (), 8)
    task = stored_task("pocket", [prompt.text], ["{{target}} #### 3"])
    samples = score_pass(task, replace(POCKET, limit=1), [prompt], lambda: answering({7: "#### 3"}))
    assert samples.to_dict("records") == [{"doc_id": 7, "target": "{{target}} #### 3", "answer": "3", "score": 1.0}]


def test_pocket_prompts_know_where_the_needed_facts_are() -> None:
    task = load_task(POCKET, 64, MODEL)
    documents = task.dataset["test"]
    for prompt in built(task, POCKET):
        document = documents[prompt.doc_id]
        starts = (document["person_start"], document["box_start"])
        assert prompt.needed == (("the asked person", starts[0]), ("box P", starts[1]))
