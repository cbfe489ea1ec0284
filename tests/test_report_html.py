"""The page: what it says, that it needs and leaks nothing, and that no run of any kind stops it."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_support import EVIL, cell_of, change_cell, failing, invalid, make_run, passing
from synthetic_run import sweep, write_run

from harness.cli import main
from harness.report.document import make_report
from harness.report.page import figures_of, page
from harness.report.page.inline import COLOR, inline_svg
from harness.report.page.render import CAPTIONS
from harness.report.page.theme import FIGURES, PAGE
from harness.report.runs import Run, read_run
from harness.store import read_json, write_json

LOGS = Path(__file__).parent / "data" / "logs"

Captured = pytest.CaptureFixture[str]

REFERENCE = Path(__file__).parent.parent / "results" / "reference-batched-tokens-pocket"


class Reader(HTMLParser):
    """What is on a page: its text, its tags with their attributes, and its tables as rows of texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._inside: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass
        if tag == "table":
            self.tables.setdefault(self._caption, self._rows)

    def handle_data(self, data: str) -> None:
        if "style" in self._inside or "script" in self._inside:
            return
        self.words.append(data)
        if "caption" in self._inside:
            self._caption = data
        elif "td" in self._inside or ("th" in self._inside and "small" not in self._inside):
            self._rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def column(self, table: str, heading: str) -> list[str]:
        head, *rows = self.tables[table]
        place = head.index(heading)
        return [" ".join(row[place].split()) for row in rows]


def rendered(*runs: Run, attribution: dict[str, Any] | None = None, out: Path = Path()) -> str:
    report = make_report(runs, out, attribution)
    return page(report, {each.anchor: figures_of(each.run) for each in report.runs})


def read(path: Path) -> Reader:
    return Reader(rendered(read_run(path), out=path))


# --- what it says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "verdict"), [(passing, "PASS"), (failing, "FAIL"), (invalid, "INVALID")])
def test_the_verdict_comes_first(make: Callable[[Path], Path], verdict: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    found = read(path)
    places = [
        found.text.index(each) for each in (verdict, "Why", cell_of(path)["reasons"][0], "Validity", "Provenance")
    ]
    assert places == sorted(places)
    assert all(reason in found.text for reason in cell_of(path)["reasons"])


def test_the_numbers_are_those_of_the_cell(tmp_path: Path) -> None:
    path = failing(tmp_path)
    found, cell = read(path), cell_of(path)
    passes, paired, drift = cell["passes"], cell["paired"], cell["drift"]
    score, speed = "Score, cold against warm", "All passes"
    assert found.column(score, "cold") == [f"{passes['cold']['score']:.3f}"]
    assert found.column(score, "warm") == [f"{passes['warm']['score']:.3f}"]
    assert found.column(score, "n") == [str(paired["n"])] == ["120"]
    assert found.column(score, "loss") == [f"{paired['difference']:+.3f}"]
    assert found.column(score, "broke") == [str(paired["b"])]
    assert found.column(score, "interval of the loss") == [
        f"{paired['interval']['low']:+.4f} to {paired['interval']['high']:+.4f}"
    ]
    assert found.column(speed, "pass") == list(passes)
    assert found.column(speed, "TTFT p50") == [f"{each['ttft_s']['p50'] * 1000:.0f}" for each in passes.values()]
    assert found.column(speed, "output") == [f"{each['output_tokens_per_s']:,.0f}" for each in passes.values()]
    levels = [*drift["levels"], *drift["local_warm"]["levels"]]
    assert found.column("Drift test", "beyond") == [str(level["beyond"]) for level in levels]
    assert found.column("Checks", "result") == ["✓ holds" if each["ok"] else "✗ missed" for each in cell["validity"]]
    assert f"{drift['passes']['warm']['beyond']} of {drift['passes']['warm']['n']}" in found.text


def test_units_stand_in_the_headings(tmp_path: Path) -> None:
    html = rendered(read_run(passing(tmp_path)))
    assert "<span>TTFT p50</span><small>ms</small>" in html
    assert "<span>output</span><small>tok/s</small>" in html


def test_what_broke_is_shown_side_by_side(tmp_path: Path) -> None:
    path = failing(tmp_path)
    found = read(path)
    assert "Document 3" in found.text and "▶" in found.text
    assert "▶9 pens." in found.text.replace("▶ ", "▶")
    assert "the asked person (position 63, block 0)" in found.text
    assert ("a", {"href": f"cells/{cell_of(path)['cell']}/repro/README.md"}) in found.tags


def test_a_bundle_that_lost_its_tables(tmp_path: Path) -> None:
    path = failing(tmp_path)
    (path / "cells" / "budget127-full-r1" / "requests.parquet").unlink()
    assert "The answers can't be shown" in read(path).text


def test_logs_and_warnings(tmp_path: Path) -> None:
    path = make_run(tmp_path, warnings=[f"odd {EVIL}"])
    (path / "launches" / "budget127-r1" / "vllm.log").write_text("a log")
    found = read(path)
    assert f"odd {EVIL}" in found.text
    assert ("a", {"href": "launches/budget127-r1/vllm.log"}) in found.tags


def test_what_the_logs_say(tmp_path: Path) -> None:
    path = make_run(tmp_path, status="failed", verdict=None, error="vLLM exited")
    launch = path / "launches" / "budget32-r1"
    launch.mkdir(parents=True)
    said = f"ValueError: <b>{EVIL}</b> nobody knows"
    (launch / "vllm.log").write_text((LOGS / "budget" / "vllm.log").read_text() + said + "\n")
    found = read(path)
    assert found.column("What the logs say", "launch")[0] == "budget32-r1"
    assert found.column("What the logs say", "kind")[0] == "error"
    assert "sweep.budgets=[2N-1]" in found.column("What the logs say", "override")[0]
    assert "vllm.log:" in found.column("What the logs say", "line that shows it")[0]
    assert any(said in line for line in found.column("What the logs say", "line that shows it"))
    (launch / "vllm.log").write_text((LOGS / "healthy" / "vllm.log").read_text())
    assert "Nothing wrong is seen in the servers' logs." in read(path).text


def test_arms(tmp_path: Path) -> None:
    told = {
        "arms": [
            {"arm": "l2", "status": "complete", "verdict": "fail", "reason": EVIL, "score_cold": 0.9, "broke": 7}
            | {"prompt_tokens": 200.0, "external_hit_tokens": 50.0},
            {"arm": "mixed", "status": "refused", "verdict": None},
        ],
        "row": "only_l2",
        "meaning": "the L2",
        "next_step": "look at the disk",
        "resembles": {"title": "issue 1", "link": "a link"},
        "not_exercised": [{"arm": "mixed", "status": "refused", "hint": "longer prompts"}],
    }
    found = Reader(rendered(read_run(passing(tmp_path)), attribution=told))
    assert found.column("Arms", "verdict") == ["✗ fail", "refused"]
    assert found.column("Arms", "score cold") == ["0.900", "-"]
    assert found.column("Arms", "LMCache hits") == ["0.250", "-"]
    assert found.column("Arms", "why") == [EVIL, "-"]
    assert "only_l2: the L2" in found.text and "It resembles: issue 1 (a link)" in found.text
    assert "What to do: look at the disk" in found.text
    assert "Not exercised: mixed, refused. longer prompts" in found.text
    assert "Arms" not in Reader(rendered(read_run(tmp_path / "run"))).tables
    Reader(rendered(read_run(tmp_path / "run"), attribution={"arms": "nonsense"}))


def test_several_runs_begin_with_an_overview(tmp_path: Path) -> None:
    good, bad = read_run(passing(tmp_path / "a")), read_run(failing(tmp_path / "b"))
    found = Reader(rendered(good, bad))
    assert found.column("Runs", "verdict") == ["✓ pass", "✗ fail"]
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "no two things share an id, in figures neither"
    assert {"run-1", "run-2"} <= set(ids)
    links = {
        str(attributes["href"])[1:]
        for tag, attributes in found.tags
        if tag == "a" and str(attributes["href"])[0] == "#"
    }
    assert links <= set(ids)


def test_a_sweep(tmp_path: Path) -> None:
    found = Reader(rendered(read_run(REFERENCE)))
    assert len(found.column("Cells", "cell")) == 18
    assert "take a budget of" in found.text
    figures = {str(attributes.get("id")) for tag, attributes in found.tags if tag == "figure"}
    assert {f"run-1-figure-{name}" for name in ("score", "throughput", "slowdown", "batch_size", "ttft")} <= figures


# --- that it needs and leaks nothing -----------------------------------------------------------------------


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    html = rendered(read_run(failing(tmp_path)), read_run(REFERENCE))
    assert not re.search(r"(https?:)?//[a-z0-9]", re.sub(r"<td.*?</td>", "", html)), "no address, not even a namespace"
    found = Reader(html)
    assert not {"img", "iframe", "object", "embed", "base", "form", "source"} & {tag for tag, _ in found.tags}
    assert [attributes for tag, attributes in found.tags if tag == "link"] == [{"rel": "icon", "href": "data:,"}]
    assert [attributes for tag, attributes in found.tags if tag == "script"] == [{}]
    assert "url(" not in re.sub(r"url\(#run-", "", html)


def test_the_policy_allows_this_script_and_no_other(tmp_path: Path) -> None:
    html = rendered(read_run(passing(tmp_path)))
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (
        str(attributes["content"])
        for tag, attributes in Reader(html).tags
        if "Content-Security-Policy" in attributes.values()
    )
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def evil(value: Any) -> Any:
    """Every string of it as an attack."""
    if isinstance(value, dict):
        return {name: evil(each) for name, each in value.items()}
    if isinstance(value, list):
        return [evil(each) for each in value]
    return f"{value}{EVIL}\"'><img src=x onerror=alert(1)>" if isinstance(value, str) else value


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    path = failing(tmp_path)
    record = evil(read_json(path / "run.json"))
    record |= {"run_id": EVIL, "warnings": [EVIL], "error": EVIL, "model": EVIL}
    record["launches"] = {EVIL: {"commands": {"vllm": ["vllm", EVIL]}, "environment": {EVIL: EVIL}}}
    write_json(path / "run.json", record)
    change_cell(path, lambda cell: cell.update(reasons=[EVIL], validity=evil(cell["validity"]), verdict=EVIL))
    html = rendered(read_run(path), attribution={"arms": [{"arm": EVIL, "verdict": EVIL}], "row": EVIL})
    assert EVIL not in html and "&lt;script&gt;" in html
    tags = Reader(html).tags
    assert [tag for tag, _ in tags].count("script") == 1
    assert "img" not in {tag for tag, _ in tags}
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)


def test_an_answer_is_no_markup_either(tmp_path: Path) -> None:
    path = failing(tmp_path)
    prompts = path / "cells" / "budget127-full-r1" / "repro" / "prompts.jsonl"
    assert '"target": "' in prompts.read_text()
    prompts.write_text(prompts.read_text().replace('"target": "', f'"target": "{EVIL}'))
    found = rendered(read_run(path))
    assert "alert(1)" in found and EVIL not in found


def test_paths_are_quoted(tmp_path: Path) -> None:
    path = passing(tmp_path)
    launch = path / "launches" / 'a "b" #c'
    launch.mkdir()
    (launch / "vllm.log").write_text("a log")
    assert ("a", {"href": "launches/a%20%22b%22%20%23c/vllm.log"}) in read(path).tags


# --- figures in it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [passing, failing])
def test_every_figure_takes_the_colours_of_the_theme(make: Callable[[Path], Path], tmp_path: Path) -> None:
    drawn = {**figures_of(read_run(make(tmp_path))).svgs, **figures_of(read_run(REFERENCE)).svgs}
    assert {"score", "drift", "latency", "throughput", "slowdown", "batch_size", "ttft"} <= set(drawn)
    for name, svg in drawn.items():
        assert not COLOR.search(inline_svg(svg, name, "a figure")), f"{name} has a colour that is no theme's"


def test_a_drawing_is_nothing_but_a_drawing() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9">'
        "<script>alert(1)</script><style>*{fill:red}</style><metadata>m</metadata><foreignObject/>"
        '<g id="a" onclick="alert(1)"><use xlink:href="#b" style="fill: #0072B2; font-family: X, \'Y\'"/>'
        '<path clip-path="url(#c)"/><image xlink:href="https://example.org/x.png"/></g></svg>'
    )
    assert inline_svg(svg.encode(), "n", "what it shows") == (
        '<svg role="img" aria-label="what it shows"><g id="n-a"><use href="#n-b" style="fill: var(--f0072b2); " />'
        '<path clip-path="url(#n-c)" /><image /></g></svg>'
    )
    with pytest.raises(ValueError, match="no SVG"):
        inline_svg(b"<svg", "n", "x")
    with pytest.raises(ValueError, match="no SVG but html"):
        inline_svg(b"<html/>", "n", "x")


def test_every_figure_has_a_caption() -> None:
    from harness.report.figures import FIGURES as DRAWN

    assert set(DRAWN) == set(CAPTIONS)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_can_be_read_in_both_themes(theme: int) -> None:
    colors = {name: pair[theme] for name, pair in PAGE.items()}
    verdicts = ("pass", "fail", "invalid", "inconclusive")
    pairs = [(word, ground) for word in ("ink", "quiet", "link", *verdicts) for ground in ("card", "ground")]
    pairs += [(verdict, f"{verdict}-ground") for verdict in verdicts]
    pairs += [("ink", "head"), ("quiet", "head"), ("ink", "mark")]
    assert {
        pair: contrast(colors[pair[0]], colors[pair[1]])
        for pair in pairs
        if contrast(colors[pair[0]], colors[pair[1]]) < 4.5
    } == {}
    # Lines need less, 3 to 1 (WCAG 2.1, 1.4.11); on white three of Okabe and Ito's have less, hence the markers.
    paper = FIGURES["#ffffff"][theme]
    lines = [pair[theme] for name, pair in FIGURES.items() if name not in ("#dddddd", "#cccccc", "#ffffff")]
    assert sum(contrast(line, paper) < 3 for line in lines) <= (3 if theme == 0 else 0)


# --- runs of all kinds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {"status": "failed", "verdict": None, "error": "vLLM exited with code 1."},
        {"status": "interrupted", "verdict": None, "error": "interrupted", "config": None},
        {"status": "running", "verdict": None, "config": {"model": {"name": "pocket"}}},
        {},
    ],
)
def test_a_run_without_cells(record: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", record)
    found = read(tmp_path)
    assert "no verdict" in found.text
    assert found.text.index("Diagnosis") < found.text.index("Provenance")
    assert not {"Validity", "Figures"} & set(found.words), "there is nothing to show of them"
    if error := record.get("error"):
        assert error in found.text


NEVER = [
    "reuse",
    "replay",
    "lmcache_ci",
    "drift",
    "agreement",
    "validity",
    "paired",
    "speed",
    "gate",
    "events",
    "reasons",
]


@pytest.mark.parametrize("lacks", [*NEVER, "passes", "hit_rate", "budget", "unified_block_size", "launch", "verdict"])
def test_a_cell_of_another_version(lacks: str, tmp_path: Path) -> None:
    run = change_cell(failing(tmp_path), lambda cell: cell.pop(lacks))
    assert "Provenance" in Reader(rendered(run)).text


@pytest.mark.parametrize("lacks", ["running", "inter_token_s", "prompt_tokens", "score", "n", "ttft_s", "wall_s"])
def test_a_pass_of_another_version(lacks: str, tmp_path: Path) -> None:
    def without(cell: dict[str, Any]) -> None:
        for each in cell["passes"].values():
            del each[lacks]

    assert "Provenance" in Reader(rendered(change_cell(passing(tmp_path), without))).text


def test_cells_without_most_of_it(tmp_path: Path) -> None:
    found = read(write_run(tmp_path / "synthetic", sweep(budgets=[64, 127])))
    assert "take a budget of 127 (2N-1)" in found.text
    assert len(found.column("Cells", "cell")) == 6


def test_a_name_that_matplotlib_takes_for_mathematics(tmp_path: Path) -> None:
    path = passing(tmp_path)
    shutil.move(path, tmp_path / "a$b$^")
    run = read_run(tmp_path / "a$b$^")
    assert "can't" not in rendered(run).split("<h2>Figures")[0]


def test_a_cell_without_its_time_is_told(tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path)
    file = path / "cells" / "budget127-full-r1" / "cell.json"
    write_json(file, {name: value for name, value in read_json(file).items() if name != "measured_at"})
    assert main(["report", str(path)]) == 2
    assert "has a cell without 'measured_at'" in capsys.readouterr().err
