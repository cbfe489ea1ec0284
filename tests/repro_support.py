"""A run whose one cell is ill, written without servers, and its repro bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from evidence import QUESTIONS, healthy, pass_of, prompt_length, record, with_flow, with_pass, with_records, write_cell
from stack_support import composed

from harness.config import GateConfig
from harness.equivalence.evidence import Evidence, read_evidence
from harness.equivalence.judge import judge_cell
from harness.store import RunFolder, write_frame, write_json
from harness.workload.prompts import Prompt, as_frame
from harness.workload.stream import RequestRecord

CELL, LAUNCH = "budget127-full-r1", "budget127-r1"

PROMPTS = [
    Prompt(
        i,
        f"text {i}",
        tuple(range(1000 * i, 1000 * i + prompt_length(i))),
        ("\n",),
        28,
        needed=(("the asked person", 63), ("box P", 320)),
    )
    for i in range(QUESTIONS)
]


def other_token(doc_id: int, index: int, text: str) -> RequestRecord:
    """An answer of warm that chose token 99 at ``index``, with logprob -3."""
    changed = record("warm", doc_id)
    changed.token_ids[index], changed.logprobs[index], changed.text = 99, -3.0, text
    return changed


def off_by(doc_id: int, nats: float) -> RequestRecord:
    """An answer of warm with the same tokens, one of which is off by some nats."""
    changed = record("warm", doc_id)
    changed.logprobs[6] -= nats
    return changed


def broken(records: Mapping[int, RequestRecord] | None = None, *, from_doc: int = 12) -> Evidence:
    """The documents below ``from_doc`` are wrong in warm, of which 9 was wrong in cold, too."""
    scores = pass_of("warm", right=lambda doc_id: doc_id % 10 != 9 and doc_id >= from_doc).samples
    ill = with_pass(healthy(), "warm", samples=scores)
    # Drift's test sees these as well; some differ in nothing but the score.
    return with_records(ill, "warm", records or {3: other_token(3, 4, " Rex has 9 pens.\n#### 9"), 40: off_by(40, 0.7)})


def not_retrieved() -> Evidence:
    """Warm has computed everything."""
    return with_flow(healthy(), "warm", external_hit=0, lookup_hit=0, retrieves_submitted=0, retrieves_finished=0)


def ill_run(results: Path, evidence: Evidence, *overrides: str, prompts: list[Prompt] | None = None) -> RunFolder:
    """A complete run with one cell, judged from this evidence."""
    run = RunFolder.create(results, "run")
    run.unlock()
    config = asdict(replace(composed(*overrides), run_id="run", results_dir=str(results)))
    write_json(run.path / "run.json", {"run_id": "run", "config": config, "provenance": {}})
    launch = run.launch(LAUNCH)
    write_frame(launch / "prompts.parquet", as_frame(PROMPTS if prompts is None else prompts))
    cell = write_cell(run.cell(CELL), evidence, launch / "passes")
    write_json(cell / "cell.json", judge_cell(read_evidence(cell), GateConfig(name="test")))
    return run
