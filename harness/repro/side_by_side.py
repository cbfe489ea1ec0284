"""README.md of a repro bundle: the answers of cold, local_warm and warm side by side, and where they part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.equivalence.divergence import Answer, answers, departure
from harness.equivalence.evidence import Evidence
from harness.workload.prompts import Prompt

SHOWN = ("cold", "local_warm", "warm")

MARK = "▶"
"""Stands before the first character that is not cold's; in cold, before the first that is not warm's."""


def side_by_side(
    cell: Mapping[str, Any], evidence: Evidence, prompts: Sequence[Prompt], compared: pd.DataFrame, *, command: str
) -> str:
    """The README as Markdown.

    Args:
        cell: contents of cell.json.
        evidence: the same cell's.
        prompts: those to show, in this order.
        compared: see :func:`harness.equivalence.documents.compare_documents`.
        command: replays the bundle.
    """
    passes = {name: answers(evidence.passes[name].requests) for name in SHOWN if name in evidence.passes}
    sections = [
        "\n".join(_section(number, prompt, evidence, passes, compared))
        for number, prompt in enumerate(prompts, start=1)
    ]
    return "\n".join([*_head(cell, prompts, compared, command), *sections])


def telling_token(cold: Answer, warm: Answer) -> tuple[int, bool]:
    """Index of the answers' token to look at, and whether it is the first divergence.

    Without a divergence it is the one with the largest |Δlogprob|.
    """
    found = departure(cold, warm)
    if found.diverged:
        return found.shared, True
    return int(np.abs(cold.logprobs - warm.logprobs).argmax()), False


def place(token: int, block_size: int) -> str:
    """Where a token stands in the whole sequence (prompt, then answer), in words; both count from 0."""
    return f"position {token}, block {token // block_size}"


def marked(text: str, other: str) -> str:
    """A text with :data:`MARK` before its first character that is not the other one's; unchanged if they are equal."""
    if text == other:
        return text
    pairs = enumerate(zip(text, other, strict=False))
    shared = next((index for index, (one, two) in pairs if one != two), min(len(text), len(other)))
    return text[:shared] + MARK + text[shared:]


def _head(cell: Mapping[str, Any], prompts: Sequence[Prompt], compared: pd.DataFrame, command: str) -> list[str]:
    shown = compared.loc[[prompt.doc_id for prompt in prompts]]
    corrupted = [event["argument"]["kind"] for event in cell["events"] if event["step"] == "corrupt"]
    return [
        f"# {cell['cell']}: {cell['verdict']}",
        "",
        *(f"- {reason}." for reason in cell["reasons"]),
        *(f"- Damaged on purpose between cold and warm: {kind}." for kind in corrupted),
        "",
        f"N = {cell['unified_block_size']} tokens per block, chunks of {cell['chunk_size']}, budget {cell['budget']}. "
        f"Of {len(compared)} prompts {int(compared['broke'].sum())} were right cold and wrong warm, and "
        f"{int(compared['differs'].sum())} differ (in score, or by more than {cell['gate']['drift_margin_nats']:g} "
        f"nats in some token). Below are {len(prompts)}, {int(shown['differs'].sum())} of which differ: first those "
        "that broke, then by the largest |Δlogprob|.",
        "",
        "Replay exactly these prompts against a fresh launch (further overrides are applied to the stored "
        "configuration, for example `servers.vllm.python=PATH`):",
        "",
        "```",
        command,
        "```",
        "",
        f"Tokens, positions and blocks count from 0; a position is one of the whole sequence, prompt and then answer. "
        f"{MARK} stands before the first character that is not cold's (in cold: that is not warm's). Behind the first "
        "divergence answers continue different texts, so their logprobs say nothing about each other.",
        "",
    ]


def _section(
    number: int,
    prompt: Prompt,
    evidence: Evidence,
    passes: Mapping[str, Mapping[int, Answer]],
    compared: pd.DataFrame,
) -> Iterator[str]:
    doc_id, size = prompt.doc_id, evidence.facts.block_size
    row = compared.loc[doc_id]
    yield f"## {number}. Document {doc_id}: {_fate(evidence, doc_id)}"
    yield ""
    yield f"- {_prompt_line(prompt, evidence)}"
    for fact, start in prompt.needed:
        yield f"- Needed for the answer: the fact about {fact}, which starts at {place(start, size)}."
    both = {name: found[doc_id] for name, found in passes.items() if doc_id in found}
    index = None
    if "cold" in both and "warm" in both:
        index, diverged = telling_token(both["cold"], both["warm"])
        at = f"token {index} of the answer: {place(len(prompt.token_ids) + index, size)}"
        most = f"largest |Δlogprob| {row.max_nats:.3g} nats"
        if diverged:
            yield f"- First divergence of warm from cold at {at}; {most} up to there."
        else:
            yield f"- Warm has the same tokens as cold; {most}, at {at}."
    yield ""
    yield from _table(prompt, evidence, passes, index)
    yield ""
    yield from _texts(doc_id, evidence, list(passes))
    yield ""


def _fate(evidence: Evidence, doc_id: int) -> str:
    cold, warm = ("right" if evidence.passes[name].scores[doc_id] else "wrong" for name in ("cold", "warm"))
    return f"{cold} cold, {warm} warm"


def _prompt_line(prompt: Prompt, evidence: Evidence) -> str:
    size, tokens = evidence.facts.block_size, len(prompt.token_ids)
    cached = _request(evidence, "warm", prompt.doc_id)["cached_tokens"]
    from_cache = "an unknown number" if pd.isna(cached) else f"{int(cached)} ({int(cached) // size} blocks)"
    cold = evidence.passes["cold"].samples
    (target,) = cold.loc[cold["doc_id"] == prompt.doc_id, "target"][:1]
    expected = str(target).split("\n")[-1].replace("`", "'")
    return (
        f"Prompt of {tokens} tokens (blocks 0 to {(tokens - 1) // size}), {from_cache} of them from the cache in warm; "
        f"expected `{expected}`."
    )


def _table(
    prompt: Prompt, evidence: Evidence, passes: Mapping[str, Mapping[int, Answer]], index: int | None
) -> Iterator[str]:
    """One row per pass: its score, its token at ``index`` with logprob and runner-up, and where it parts from cold."""
    token = "token" if index is None else f"token {index}"
    yield f"| pass | score | answer | {token} | logprob | runner-up | its logprob | against cold |"
    yield "|---|---|---|---|---|---|---|---|"
    cold = passes["cold"].get(prompt.doc_id)
    for name, found in passes.items():
        samples = evidence.passes[name].samples
        (sample,) = samples[samples["doc_id"] == prompt.doc_id][:1].itertuples() or (None,)
        answer = found.get(prompt.doc_id)
        against = "" if name == "cold" else _against(cold, answer, prompt, evidence.facts.block_size)
        said = str(sample.answer).replace("|", "\\|").replace("\n", " ") if sample else "-"
        score = f"{sample.score:g}" if sample else "-"
        yield f"| {name} | {score} | {said} | {' | '.join(_token(answer, index))} | {against} |"


def _token(answer: Answer | None, index: int | None) -> tuple[str, str, str, str]:
    if answer is None or index is None:
        return "-", "-", "-", "-"
    if index >= len(answer.ids):
        return "(ended)", "-", "-", "-"
    return (
        str(answer.ids[index]),
        f"{answer.logprobs[index]:.4f}",
        str(answer.runner_up_ids[index]),
        f"{answer.runner_up_logprobs[index]:.4f}",
    )


def _against(cold: Answer | None, answer: Answer | None, prompt: Prompt, block_size: int) -> str:
    if cold is None or answer is None:
        return "not answered"
    found = departure(cold, answer)
    nats = f"largest \\|Δlogprob\\| {found.max_nats:.3g} nats"
    if not found.diverged:
        return f"same tokens, {nats}"
    return f"parts at token {found.shared} ({place(len(prompt.token_ids) + found.shared, block_size)}), {nats}"


def _texts(doc_id: int, evidence: Evidence, names: Sequence[str]) -> Iterator[str]:
    requests = {name: _request(evidence, name, doc_id) for name in names}
    texts = {name: str(request["text"]) for name, request in requests.items() if pd.isna(request["error"])}
    fence = "`" * (1 + max([2, *(len(run) for text in texts.values() for run in re.findall("`+", text))]))
    yield fence
    for name, request in requests.items():
        if name in texts:
            text = marked(texts[name], texts.get("warm" if name == "cold" else "cold", texts[name]))
        else:
            text = f"(no answer: {request['error']})"
        for number, line in enumerate(text.split("\n")):
            yield f"{name if number == 0 else '':10} | {line}"
    yield fence


def _request(evidence: Evidence, name: str, doc_id: int) -> pd.Series[Any]:
    requests = evidence.passes[name].requests
    return requests[requests["doc_id"] == doc_id].iloc[0]
