"""What a run ends with on a terminal of 80 columns, and what summary.csv holds."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
from evidence import evidence_of, healthy, pass_of, with_flow
from rich.console import Console

from harness.config import GateConfig
from harness.equivalence.judge import judge_cell
from harness.report.forms import number, share, times
from harness.report.terminal import print_run, summary_frame

COMPLETE = {"verdict": "pass", "status": "complete", "error": None}

Cell = dict[str, Any]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


JUDGED = judge_cell(healthy(), GateConfig(name="test"))


@pytest.fixture
def cell() -> Cell:
    return copy.deepcopy(JUDGED)


def printed(*cells: Cell, run: dict[str, Any] | None = None, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    print_run(console, run or COMPLETE, cells, "results/run")
    return out.getvalue()


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def rows(text: str) -> list[list[str]]:
    """The table's rows: those that begin with the name of a pass and its score, unlike wrapped sentences."""
    names = ("control ", "cold ", "local_warm ", "warm ")
    found = [line.split() for line in text.splitlines() if line.startswith(names)]
    return [row for row in found if re.fullmatch(r"\d\.\d{3}", row[1])]


def joined(text: str) -> str:
    return " ".join(text.split())


def test_the_table_by_hand(cell: Cell) -> None:
    text = printed(cell)
    # Prompt tokens are 50,760; TTFT in ms, rates over 6 s and so on as tests/evidence.py has them.
    assert rows(text) == [
        ["control", "0.900", "460/513", "340", "8460", "3.0/4", "0.000", "0.000"],
        ["cold", "0.900", "460/513", "340", "8460", "3.0/4", "0.000", "0.000"],
        ["local_warm", "0.900", "160/213", "1360", "33840", "3.0/4", "0.000", "0.908"],
        ["warm", "0.900", "260/313", "1020", "25380", "3.0/4", "0.908", "0.000"],
    ]
    assert "budget127-full-r1: budget 127, N = 64, n = 120" in text
    assert "hit rate: target 0.908, reachable 0.908, measured 0.908" in text


def test_the_verdict_is_a_sentence(cell: Cell) -> None:
    assert "PASS: the score is unchanged over 120 questions (0 broke, 0 mended)" in joined(printed(cell))
    assert "; ".join(cell["reasons"]) + "." in joined(printed(cell))


def test_every_reason_is_printed(cell: Cell) -> None:
    cleared = with_flow(healthy(), "warm", external_hit=0, lookup_hit=0, retrieves_submitted=0, retrieves_finished=0)
    broken = judge_cell(cleared, GateConfig(name="test"))
    text = joined(printed(broken))
    assert "INVALID: LMCache did not serve what the warm pass was to retrieve: 0.000 of prompt tokens" in text
    assert "; LMCache's counters do not confirm the retrieves: LMCache found 0 tokens" in text


def test_what_stands_beside_the_verdict(cell: Cell) -> None:
    text = joined(printed(cell))
    assert "warm against cold: median TTFT 0.56 of cold, output throughput 3.0 times cold" in text
    assert "local_warm against cold: 100.0% of texts the same, first token's logprob exact in 100.0%" in text
    assert "questions needed for margin 0.03 at the observed flip rate of 0.000: 88; asked: 120" in text
    beyond = "control 0 of 120, local_warm 0 of 120, warm 0 of 120"
    assert f"answers further from cold than 0.1 nats in some token: {beyond}" in text
    assert "beside it, pass by LMCache's own rule: scores differ by 0.000 over 120 questions, within 0.05" in text
    assert text.endswith("results: results/run")


def test_a_run_of_several_cells_says_why(cell: Cell) -> None:
    run = COMPLETE | {"verdict": "inconclusive", "reasons": ["a: McNemar p = 0.020, not below 0.05"]}
    assert "run: inconclusive a: McNemar p = 0.020, not below 0.05 results:" in joined(printed(cell, cell, run=run))


def test_results_of_an_earlier_version_are_printed(cell: Cell) -> None:
    """Without LMCache's rule and without drift, as they were stored then."""
    for later in ("lmcache_ci", "drift"):
        del cell[later]
    assert "PASS" in printed(cell) and "LMCache's own rule" not in printed(cell)


def large(cell: Cell) -> Cell:
    """The largest numbers that a real machine could give."""
    cell["cell"], cell["budget"], cell["unified_block_size"] = "budget131072-full-r1000", 131072, 2096
    for each in cell["passes"].values():
        each["ttft_s"].update(p50=123.456, p95=600.123)
        each["output_tokens_per_s"], each["prompt_tokens_per_s"] = 123456.7, 1234567.8
        each["running"].update(mean=1023.4, max=1024.0)
    return cell


def small(cell: Cell) -> Cell:
    return cell


@pytest.mark.parametrize("numbers", [small, large])
def test_nothing_is_cut_at_80_columns(cell: Cell, numbers: Any) -> None:
    text = plain(printed(numbers(cell), terminal=True))
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert [len(row) for row in rows(text)] == [8, 8, 8, 8]


def test_large_numbers_are_printed_in_full(cell: Cell) -> None:
    warm = ["warm", "0.900", "123456/600123", "123457", "1234568", "1023.4/1024", "0.908", "0.000"]
    assert rows(printed(large(cell)))[-1] == warm


def test_a_narrow_terminal_folds_numbers_and_cuts_none(cell: Cell) -> None:
    text = plain(printed(large(cell), width=50, terminal=True))
    assert "…" not in text
    assert all(len(line) <= 50 for line in text.splitlines() if not line.startswith("results:"))


def test_sentences_are_not_wrapped_off_a_terminal(cell: Cell) -> None:
    long = cell | {"reasons": ["word " * 40 + "end"]}
    assert any(line.startswith("PASS: word") and line.endswith("end.") for line in printed(long).splitlines())


def test_what_kind_of_run_it_was_comes_first(cell: Cell) -> None:
    config = {kind: {"name": f"a_{kind}"} for kind in ("model", "task", "check", "gate", "engine")}
    first = printed(cell, run=COMPLETE | {"config": config}).splitlines()[0]
    assert first == "model a_model, task a_task, check a_check, gate a_gate, engine a_engine"


def test_damage_on_purpose_is_told(cell: Cell) -> None:
    argument = {"kind": "flipped_bytes", "group": 0, "share": 0.01, "seed": 0}
    cell["events"] = [{"step": "corrupt", "argument": argument, "damaged": {"files": 96, "bytes": 188736}}]
    told = "damaged on purpose: flipped_bytes in 96 files of object group 0 (188,736 bytes)"
    assert told in printed(cell)


def test_an_invalid_cell_claims_no_speed_and_no_power(cell: Cell) -> None:
    text = printed(cell | {"verdict": "invalid"})
    assert "output throughput" not in text and "questions needed" not in text
    assert "output throughput" in printed(cell) and "questions needed" in printed(cell)


def test_no_colour_off_a_terminal(cell: Cell) -> None:
    assert "\x1b" not in printed(cell)
    assert "\x1b[1;32mPASS" in printed(cell, terminal=True)


def test_what_was_not_measured_is_a_dash(cell: Cell) -> None:
    warm = cell["passes"]["warm"]
    warm["ttft_s"] = {"p50": None, "p95": None, "p99": None}
    warm["running"] = {"mean": None, "max": None, "waiting_mean": None}
    warm["external_hit_tokens"] = None
    cell["hit_rate"]["measured"] = None
    cell["speed"]["ttft_p50_cold_over_warm"] = None
    cell["agreement"]["warm"] = dict.fromkeys(cell["agreement"]["warm"], None)
    text = printed(cell)
    assert rows(text)[-1] == ["warm", "0.900", "-/-", "1020", "25380", "-/-", "-", "0.000"]
    assert "measured -" in text
    assert "warm against cold: median" not in text
    assert "None" not in text and "nan" not in text


def test_no_prompt_tokens_is_no_share() -> None:
    assert share(0.0, None) == "-"
    assert share(0.0, 0.0) == "-"
    assert share(None, 10.0) == "-"
    assert share(5.0, 10.0) == "0.500"
    assert number(0.0, ".3f") == "0.000", "zero is a number"


def test_ratios_in_words() -> None:
    assert times(0.5) == "0.50 of cold"
    assert times(1.0) == "1.0 times cold"
    assert times(4.87) == "4.9 times cold"


def test_unpaired_passes_print_no_statistics() -> None:
    cell = judge_cell(evidence_of([pass_of("cold"), pass_of("warm", 119)]), GateConfig(name="test"))
    text = printed(cell)
    assert "INVALID: cold and warm did not answer the same questions" in joined(text)
    assert "questions needed" not in text


def test_several_cells_have_a_verdict_of_the_run(cell: Cell) -> None:
    text = printed(cell, cell, run=COMPLETE | {"verdict": "fail"})
    assert text.count("PASS:") == 2
    assert "\nrun: fail\n" in text
    assert "run: pass" not in printed(cell), "one cell's verdict is the run's"


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (
            {"verdict": None, "status": "failed", "error": "vLLM exited with code 1"},
            "run: failed, no verdict: vLLM exited with code 1",
        ),
        ({"verdict": None, "status": "interrupted", "error": "interrupted"}, "run: interrupted, no verdict"),
        ({"verdict": None, "status": "running", "error": None}, "run: running, no verdict"),
    ],
)
def test_a_run_without_a_verdict_says_why(run: dict[str, Any], line: str, cell: Cell) -> None:
    assert line in printed(run=run).splitlines()
    assert line in printed(cell, run=run).splitlines(), "with the cells that were complete"


def test_long_paths_are_not_broken(cell: Cell) -> None:
    out = io.StringIO()
    path = "/a/very/long/[bold]path" * 10
    print_run(Console(file=out, width=80), COMPLETE, [cell], path)
    assert f"results: {path}\n" in out.getvalue()


def test_summary_has_a_row_per_pass(cell: Cell) -> None:
    frame = summary_frame([cell, cell | {"cell": "other", "verdict": "fail"}])
    assert frame["pass"].tolist() == ["control", "cold", "local_warm", "warm"] * 2
    assert frame["verdict"].tolist() == ["pass"] * 4 + ["fail"] * 4
    warm = frame.iloc[3]
    assert (warm["budget"], warm["repeat"], warm["n"], warm["score"], warm["wall_s"]) == (127, 1, 120, 0.9, 2.0)
    assert warm["hit_rate_measured"] == warm["hit_rate_target"] == pytest.approx(46080 / 50760)
    assert warm["hit_rate_reachable"] == pytest.approx(46080 / 50760)
    assert warm["ttft_p50_s"] == pytest.approx(0.2595)
    assert (warm["running_mean"], warm["running_max"]) == (3.0, 4.0)
    assert (warm["external_hit_tokens"], warm["local_hit_tokens"]) == (46080, 0)
