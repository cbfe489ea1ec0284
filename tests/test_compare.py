"""Two runs beside one another: what differs, what is paired, and what counts as worse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from evidence import healthy, pass_of, with_pass
from report_support import cell_of, change_cell, failing, invalid, make_run, passing
from repro_support import CELL

from harness.cli import main
from harness.compare.changes import config_changes, incomparable, provenance_changes
from harness.compare.compare import _not_judged, compare_runs
from harness.compare.margins import Margins, read_margins
from harness.compare.match import CellData, Pairing, Point, key_of, pair
from harness.compare.score import score_change
from harness.compare.speed import THROUGHPUT, TTFT, beyond, speed_changes
from harness.equivalence.evidence import Evidence
from harness.equivalence.paired import PairedTable, loss_p, score_interval
from harness.errors import UsageError
from harness.report.runs import Run, read_run
from harness.store import read_json, write_json

Captured = pytest.CaptureFixture[str]

MACHINE = {"processor": "AMD EPYC", "cores": 2, "architecture": "x86_64"}
TORCH = {"vllm": {"torch": "2.13.0"}, "lmcache": {"torch": "2.13.0"}}


def change_record(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    record = read_json(path / "run.json")
    change(record)
    write_json(path / "run.json", record)
    return path


def on_machine(path: Path, processor: str = "AMD EPYC") -> Path:
    def change(record: dict[str, Any]) -> None:
        record["provenance"] = {"machine": MACHINE | {"processor": processor}, "versions": TORCH, "gpus": []}

    return change_record(path, change)


def slower(times: float) -> Evidence:
    """Warm takes so many times as long to its first token, and to its end."""
    warm = healthy().passes["warm"]
    requests = warm.requests.assign(
        ttft_s=warm.requests["ttft_s"] * times,
        finished_s=warm.requests["sent_s"] + (warm.requests["finished_s"] - warm.requests["sent_s"]) * times,
    )
    return with_pass(healthy(), "warm", requests=requests, wall_s=warm.wall_s * times)


# --- what differs ------------------------------------------------------------------------------------------


def record_of(**changes: Any) -> dict[str, Any]:
    return {
        "unified_block_size": 64,
        "config": {"load": {"concurrency": 8}, "run_id": "a"},
        "provenance": {"machine": MACHINE, "versions": TORCH, "gpus": [], "environment": {"OMP_NUM_THREADS": "2"}},
    } | changes


def test_nothing_differs() -> None:
    other = record_of(config={"load": {"concurrency": 8}, "run_id": "b", "results_dir": "elsewhere"})
    assert config_changes(record_of(), other) == ()
    assert provenance_changes(record_of(), other) == ()
    assert incomparable(record_of(), other) == ""


def test_a_field_that_an_older_run_lacks_had_its_default() -> None:
    config = {"load": {"concurrency": 8, "sample_hz": 20.0, "retries": 3}}
    assert [str(each) for each in config_changes(record_of(), record_of(config=config))] == ["load.retries: 0 → 3"]


def test_n_is_told() -> None:
    assert [str(each) for each in config_changes(record_of(), record_of(unified_block_size=128))] == [
        "N (unified block size): 64 → 128"
    ]


def test_a_package_of_both_servers_is_told_once() -> None:
    both = record_of(provenance=record_of()["provenance"] | {"versions": {name: {"torch": "2.14"} for name in TORCH}})
    assert [str(each) for each in provenance_changes(record_of(), both)] == ["versions.torch: 2.13.0 → 2.14"]
    one = record_of(provenance=record_of()["provenance"] | {"versions": TORCH | {"vllm": {"torch": "2.14"}}})
    told = [str(each) for each in provenance_changes(record_of(), one)]
    assert "versions.vllm.torch: - → 2.14" in told and "versions.lmcache.torch: - → 2.13.0" in told


@pytest.mark.parametrize(
    ("provenance", "config", "told"),
    [
        ({"machine": MACHINE | {"processor": "Intel"}}, {}, "machine.processor: AMD EPYC → Intel"),
        ({"gpus": [{"name": "H200"}]}, {}, 'gpus: [] → [{"name": "H200"}]'),
        ({}, {"load": {"concurrency": 16}}, "load.concurrency: 8 → 16"),
        ({"machine": {}}, {}, "not recorded on which machine"),
        ({"versions": {"vllm": {"torch": "3"}}}, {}, ""),
    ],
)
def test_what_makes_timings_incomparable(provenance: dict[str, Any], config: dict[str, Any], told: str) -> None:
    before = record_of()
    other = record_of(provenance=before["provenance"] | provenance, config=before["config"] | config)
    why = incomparable(before, other)
    assert told in why and bool(told) == bool(why)


# --- matching ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "point", "repeat"),
    [
        ({"cell": "budget127-full-r2", "budget": 127, "unified_block_size": 64, "repeat": 2}, ("2N-1", "full"), 2),
        ({"cell": "budget255-hit0.50-r1", "budget": 255, "unified_block_size": 128}, ("2N-1", "hit0.50"), 1),
        ({"cell": "budget64-after4-r1", "budget": 64, "unified_block_size": 64}, ("N", "after4"), 1),
        ({"cell": "odd", "budget": 64, "unified_block_size": 64}, ("N", "odd"), 1),
    ],
)
def test_cells_are_matched_by_budgets_in_n(cell: dict[str, Any], point: tuple[str, str], repeat: int) -> None:
    assert key_of("pocket", cell) == (Point("pocket", *point), repeat)


def data(
    cell: dict[str, Any] | None = None, prompts: dict[int, str] | None = None, right: dict[int, int] | None = None
) -> CellData:
    prompts = prompts or {}
    requests = pd.DataFrame({"pass": "warm", "doc_id": list(prompts), "prompt_sha256": list(prompts.values())})
    samples = pd.DataFrame({"doc_id": list(right or {}), "score": list((right or {}).values())}).assign(
        **{"pass": "warm"}
    )
    return CellData(cell or {}, requests, samples)


def test_documents_are_paired_by_their_prompts() -> None:
    same = pair(
        data({"prompt_set_sha256": "x"}, right={1: 1, 2: 1}), data({"prompt_set_sha256": "x"}, right={2: 0, 3: 1})
    )
    assert same == Pairing(frozenset({2}), True, True)
    early = {"prompt_set_sha256": "x", "looks": {"asked": 1, "questions": 3}}
    whole = {"prompt_set_sha256": "x", "looks": {"asked": 3, "questions": 3}}
    assert pair(data(early, right={1: 1}), data(whole, right={1: 1, 2: 1, 3: 0})) == Pairing(
        frozenset({1}), False, True
    )
    assert pair(data(early, right={1: 1}), data(early, right={1: 0})).whole
    one, other = data(prompts={1: "a", 2: "b", 3: "c"}), data(prompts={1: "a", 2: "other", 3: "c", 4: "d"})
    assert pair(one, other) == Pairing(frozenset({1, 3}), False, True)
    assert pair(one, one).whole
    assert pair(data({"prompt_set_sha256": "x"}), data({"prompt_set_sha256": "y"})) == Pairing(frozenset(), False, True)
    assert not pair(data(), data()).known


# --- score -------------------------------------------------------------------------------------------------


def test_a_paired_score_is_the_paired_test() -> None:
    before, after = data(right=dict.fromkeys(range(40), 1)), data(right={each: int(each >= 6) for each in range(40)})
    change = score_change("warm", before, after, Pairing(frozenset(range(40)), True, True), Margins())
    assert change is not None
    assert (change.paired, change.n_a, change.broke, change.mended) == (True, 40, 6, 0)
    assert change.loss == pytest.approx(0.15) and (change.score_a, change.score_b) == pytest.approx((1.0, 0.85))
    assert (change.low, change.high) == score_interval(PairedTable(40, 6, 0), 0.90)
    assert change.p == loss_p(PairedTable(40, 6, 0), 0.03) and change.mcnemar_p == 1 / 64


def test_an_unpaired_score_says_so_and_sees_less() -> None:
    before = data(right={each: int(each < 120) for each in range(200)})
    after = data(right={each: int(10 <= each < 120) for each in range(200)})
    paired = score_change("warm", before, after, Pairing(frozenset(range(200)), True, True), Margins(score_margin=0.01))
    apart = score_change("warm", before, after, Pairing(frozenset(), False, True), Margins(score_margin=0.01))
    assert paired is not None and apart is not None
    assert (apart.paired, apart.broke, apart.mcnemar_p) == (False, None, None)
    assert apart.loss == pytest.approx(0.05) == paired.loss
    assert paired.p < 0.05 and apart.p > 0.1
    assert apart.low < paired.low < 0.05 < paired.high < apart.high


@pytest.mark.parametrize(("a", "b", "p"), [(1.0, 1.0, 0.8655), (0.0, 0.0, 0.8655), (1.0, 0.0, 0.0), (0.0, 1.0, 1.0)])
def test_unpaired_scores_at_the_edges(a: float, b: float, p: float) -> None:
    one, other = (data({"passes": {"warm": {"score": score, "n": 40}}}) for score in (a, b))
    change = score_change("warm", one, other, Pairing(frozenset(), False, True), Margins())
    assert change is not None and change.low <= a - b <= change.high
    assert change.p == pytest.approx(p, abs=1e-3)


def test_scores_without_a_table_come_from_the_cell() -> None:
    before = data({"passes": {"warm": {"score": 0.9, "n": 300}}})
    after = data({"passes": {"warm": {"score": 0.4, "n": 200}}})
    change = score_change("warm", before, after, Pairing(frozenset(), False, True), Margins())
    assert change is not None and (change.n_a, change.n_b, change.paired) == (300, 200, False) and change.p < 1e-6
    assert score_change("warm", data(), after, Pairing(frozenset(), False, True), Margins()) is None


# --- speed -------------------------------------------------------------------------------------------------


def timed(ttft: np.ndarray[Any, Any], wall_s: float) -> CellData:
    n = len(ttft)
    sent = np.arange(n) * 0.01
    requests = pd.DataFrame(
        {"pass": "warm", "doc_id": range(n), "prompt_sha256": "x", "sent_s": sent, "ttft_s": ttft}
    ).assign(finished_s=sent + ttft + 0.3, output_tokens=17, error=None)
    warm = {"ttft_s": {"p50": float(np.median(ttft))}, "output_tokens_per_s": 17 * n / wall_s}
    return CellData({"passes": {"warm": warm}}, requests, pd.DataFrame({"pass": [], "doc_id": [], "score": []}))


def test_ratios_have_intervals_around_them() -> None:
    rng = np.random.default_rng(5)
    ttft = rng.gamma(8, 0.02, size=200)
    every = Pairing(frozenset(range(200)), True, True)
    first, flow = speed_changes(timed(ttft, 10.0), timed(ttft * 1.4, 12.5), every, Margins(), ["warm"])
    assert (first.measure, flow.measure, first.n) == (TTFT, THROUGHPUT, 200)
    assert first.ratio == pytest.approx(1.4) and first.low is not None and first.high is not None
    assert first.low == pytest.approx(1.4) == first.high, "paired: every resample has the same ratio"
    assert flow.ratio == pytest.approx(0.8) and flow.low is not None and flow.high is not None
    assert flow.low <= 0.8 <= flow.high
    assert first.worse and flow.worse
    again = speed_changes(timed(ttft, 10.0), timed(ttft * 1.4, 12.5), every, Margins(), ["warm"])
    assert again == [first, flow], "the same files give the same interval"


def test_noise_is_not_slower() -> None:
    rng = np.random.default_rng(6)
    every = Pairing(frozenset(range(200)), True, True)
    changes = speed_changes(
        timed(rng.gamma(8, 0.02, 200), 10.0), timed(rng.gamma(8, 0.02, 200), 10.2), every, Margins(), ["warm"]
    )
    assert not any(change.worse for change in changes)
    assert all(change.low is not None and change.low < change.ratio < (change.high or 0) for change in changes)


def test_without_requests_there_is_no_interval_and_nothing_is_worse() -> None:
    cells = [
        replace(timed(np.full(200, 0.1 * times), 10 * times), requests=pd.DataFrame(timed(np.ones(1), 1).requests)[:0])
        for times in (1, 9)
    ]
    changes = speed_changes(cells[0], cells[1], Pairing(frozenset(range(200)), True, True), Margins(), ["warm"])
    assert [(change.low, change.n, change.worse) for change in changes] == [(None, 0, False)] * 2


@pytest.mark.parametrize(
    ("measure", "low", "high", "worse"),
    [
        (TTFT, 1.11, 1.3, True),
        (TTFT, 1.09, 1.3, False),
        (TTFT, 0.5, 0.6, False),
        (THROUGHPUT, 0.5, 0.89, True),
        (THROUGHPUT, 0.5, 0.91, False),
        (THROUGHPUT, 1.5, 2.0, False),
        (TTFT, None, None, False),
    ],
)
def test_the_margin(measure: str, low: float | None, high: float | None, worse: bool) -> None:
    assert beyond(measure, low, high, 0.10) is worse


# --- the whole ---------------------------------------------------------------------------------------------


def test_a_run_is_no_worse_than_itself(tmp_path: Path) -> None:
    path = on_machine(passing(tmp_path))
    found = compare_runs(read_run(path), read_run(path), Margins())
    assert (found.regressions, found.exit_code, found.config, found.provenance) == ((), 0, (), ())
    (cell,) = found.cells
    assert [change.name for change in cell.scores] == ["cold", "warm"] and all(change.paired for change in cell.scores)
    assert cell.speed_not_judged == "" and {change.ratio for change in cell.speeds} == {1.0}


def test_a_lost_score_and_a_worse_verdict_are_regressions(tmp_path: Path) -> None:
    a, b = read_run(on_machine(passing(tmp_path / "a"))), read_run(on_machine(failing(tmp_path / "b")))
    found = compare_runs(a, b, Margins())
    verdict, loss = found.regressions
    assert "the verdict was pass in A and is fail in B" in verdict
    assert "warm: score 0.900 → 0.808, a loss of 0.092" in loss and "corrected over 2 tests" in loss
    alone = found.cells[0].scores[1].p
    assert f"(p = {2 * alone:.2g}, corrected" in loss, "Holm's, of two tests"
    between = compare_runs(a, b, Margins(alpha=1.5 * alone))
    assert not any("loss" in each for each in between.regressions), "significant alone, and not among two"
    wide = compare_runs(a, b, Margins(score_margin=0.2))
    assert [each for each in wide.regressions if "loss" in each] == []
    back = compare_runs(b, a, Margins())
    assert back.regressions == (), "better is no regression"


def test_an_invalid_cell_is_a_regression_and_its_speed_is_not_judged(tmp_path: Path) -> None:
    a, b = on_machine(passing(tmp_path / "a")), on_machine(invalid(tmp_path / "b"))
    found = compare_runs(read_run(a), read_run(b), Margins())
    assert ["invalid in B" in each for each in found.regressions] == [True]
    assert "claims nothing about speed" in found.cells[0].speed_not_judged


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose warm pass takes 1.5 times as long."""
    return on_machine(make_run(tmp_path_factory.mktemp("slow"), slower(1.5)))


def test_a_slower_run_is_a_regression_on_the_same_machine_only(slow: Path, tmp_path: Path) -> None:
    fast = on_machine(passing(tmp_path))
    found = compare_runs(read_run(fast), read_run(slow), Margins())
    assert len(found.regressions) == 2
    assert "warm: median TTFT" in found.regressions[0] and "1.50 times A's" in found.regressions[0]
    assert "warm: output throughput" in found.regressions[1] and "0.67 times A's" in found.regressions[1]
    assert compare_runs(read_run(fast), read_run(slow), Margins(speed_margin=0.6)).exit_code == 0
    other = on_machine(passing(tmp_path / "other"), processor="Intel")
    elsewhere = compare_runs(read_run(other), read_run(slow), Margins())
    assert elsewhere.regressions == () and "machine.processor" in elsewhere.speed_not_judged
    assert any(change.worse for change in elsewhere.cells[0].speeds), "shown all the same"


@pytest.mark.parametrize(
    ("of_a", "of_b", "told"),
    [
        ("fff", "sff", ""),
        ("fff", "ssf", "in 2 of 3 repeats"),
        ("f", "sff", ""),  # the one repeat that both have is slower, and B's others are not
        ("ff", "sfss", ""),  # B's median is slower, and only one of the two that both have
        ("f", "s", "beyond 0.1"),
    ],
)
def test_launches_differ_by_themselves(of_a: str, of_b: str, told: str, slow: Path, tmp_path: Path) -> None:
    """It takes more than half of the repeats that both have, and the medians of all repeats."""
    fast = on_machine(passing(tmp_path / "fast"))

    def repeated(name: str, kinds: str) -> Run:
        path = on_machine(passing(tmp_path / name))
        for number, kind in enumerate(kinds, start=1):
            other, cell = {"f": fast, "s": slow}[kind] / "cells" / CELL, CELL.replace("r1", f"r{number}")
            shutil.copytree(other, path / "cells" / cell, dirs_exist_ok=True)
            write_json(
                path / "cells" / cell / "cell.json", read_json(other / "cell.json") | {"cell": cell, "repeat": number}
            )
        return read_run(path)

    regressions = compare_runs(repeated("a", of_a), repeated("b", of_b), Margins()).regressions
    assert len(regressions) == (2 if told else 0)
    assert all(told in each for each in regressions)


def test_cells_that_only_one_has_are_listed(tmp_path: Path, capsys: Captured) -> None:
    a, b = on_machine(passing(tmp_path / "a")), on_machine(passing(tmp_path / "b"))
    (b / "cells" / "budget64-full-r1").mkdir()
    extra = cell_of(b) | {"cell": "budget64-full-r1", "budget": 64}
    write_json(b / "cells" / "budget64-full-r1" / "cell.json", extra)
    assert main(["compare", str(a), str(b)]) == 0
    assert "1 cell of B alone: pocket, budget N, full, repeat 1." in " ".join(capsys.readouterr().out.split())


def test_nothing_in_common(tmp_path: Path) -> None:
    a = passing(tmp_path / "a")
    b = change_record(passing(tmp_path / "b"), lambda record: record.update(model="another"))
    with pytest.raises(UsageError, match=r"no cell in common: run has pocket, budget 2N-1, full; run has another"):
        compare_runs(read_run(a), read_run(b), Margins())


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_tells_differences_first(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    a, b = on_machine(passing(tmp_path / "a")), on_machine(failing(tmp_path / "b"))
    change_record(b, lambda record: record["config"]["load"].update(retries=2))
    assert main(["compare", str(a), str(b)]) == 1
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    places = [out.index(each) for each in ("load.retries", "Verdicts: what differs", "Score", "Speed", "2 regressions")]
    assert places == sorted(places)


def test_json_alone_on_stdout(tmp_path: Path, capsys: Captured) -> None:
    a, b = on_machine(passing(tmp_path / "a")), on_machine(failing(tmp_path / "b"))
    assert main(["compare", str(a), str(b), "format=json", "speed_margin=0.2"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 1 and len(told["regressions"]) == 2 and told["margins"]["speed_margin"] == 0.2
    (cell,) = told["cells"]
    assert cell["key"] == {"model": "pocket", "budget": "2N-1", "target": "full", "repeat": 1}
    assert cell["scores"][1]["broke"] == 11


def test_markdown_and_the_jobs_summary(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    a, b = on_machine(passing(tmp_path / "a")), on_machine(failing(tmp_path / "b"))
    assert main(["compare", str(a), str(b), "format=markdown"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("# ❌ compare: run against run") and "| cell | pass | n |" in out
    assert (tmp_path / "summary.md").read_text() == out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "compare needs two results folders"),
        (["a"], "compare needs two results folders"),
        (["a", "b", "c"], "compare needs two results folders"),
        (["a", "b", "score_magin=1"], "compare has no field score_magin; did you mean score_margin?"),
        (["a", "b", "--fast"], "compare has no option --fast"),
        (["a", "b", "format=xml"], "format=xml is not known; known: text, json, markdown."),
        (["/nope", "/nope2"], "/nope/run.json can't be read"),
    ],
)
def test_wrong_usage(words: list[str], told: str, capsys: Captured) -> None:
    assert main(["compare", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_folder_of_runs_is_not_a_run(tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path / "arms")
    assert main(["compare", str(tmp_path / "arms"), str(path)]) == 2
    assert f"{tmp_path / 'arms'} holds several runs (run): compare takes one" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "word"), [("alpha", "0.7"), ("score_margin", "x"), ("speed_margin", "-1")])
def test_wrong_margins(name: str, word: str) -> None:
    with pytest.raises(UsageError, match=f"{name}={word}"):
        read_margins({name: word})


def test_an_older_run_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    """Reference runs have no requests.parquet, and perhaps not every field."""
    a, b = on_machine(passing(tmp_path / "a")), on_machine(passing(tmp_path / "b"))
    (a / "cells" / CELL / "requests.parquet").unlink()
    change_cell(a, lambda cell: cell["passes"].pop("cold"))
    found = compare_runs(read_run(a), read_run(b), Margins())
    (cell,) = found.cells
    assert "requests.parquet is missing" in cell.speed_not_judged
    assert [change.name for change in cell.speeds] == ["warm", "warm"]
    assert found.regressions == ()


def test_a_cold_pass_of_a_launch_is_told_once(tmp_path: Path) -> None:
    a = on_machine(passing(tmp_path))
    (a / "cells" / "budget127-hit0.50-r1").mkdir()
    write_json(a / "cells" / "budget127-hit0.50-r1" / "cell.json", cell_of(a) | {"cell": "budget127-hit0.50-r1"})
    found = compare_runs(read_run(a), read_run(a), Margins())
    assert sorted(change.name for cell in found.cells for change in cell.scores) == ["cold", "warm", "warm"]


def test_passes_have_the_times_that_are_claimed() -> None:
    """The fixture that slows warm down changes what it should."""
    assert pass_of("warm").requests["ttft_s"].median() * 1.5 == pytest.approx(
        slower(1.5).passes["warm"].requests["ttft_s"].median()
    )


def test_other_numbers_of_prompts_are_told_as_such(tmp_path: Path) -> None:
    few, many = data({}, prompts={1: "a", 2: "b"}), data({}, prompts={1: "a", 2: "b", 3: "c"})
    other = data({}, prompts={1: "a", 2: "x", 3: "c"})
    told = [
        _not_judged(pair(a, b), (a.prompts, b.prompts), ["pass", "pass"], []) for a, b in ((many, few), (many, other))
    ]
    assert told == ["3 and 2 prompts", "the prompts are not the same"]
