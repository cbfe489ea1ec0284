"""The report in a real browser: it is silent, complete, sorts, and fits a phone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from browser import VARIABLE, Page, browser_page, find_browser
from report_support import cell_of, failing, passing

from harness.cli import main

BROWSER = find_browser()

REFERENCE = Path(__file__).parent.parent / "results" / "reference-batched-tokens-pocket"

pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason=f"no Chromium: install Debian's package chromium, or name one with {VARIABLE}=PATH",
)

FIGURES_DRAWN = """
[...document.querySelectorAll("figure svg")].map((svg) => [svg.getBoundingClientRect(), svg.getBBox()])
  .map(([box, drawn]) => box.width > 100 && box.height > 50 && drawn.width > 100)
"""

COLUMN = """
(() => {
  const table = [...document.querySelectorAll("table")].find((each) => each.caption.textContent === "%s");
  const place = [...table.tHead.rows[0].cells].findIndex((each) => each.querySelector("span").textContent === "%s");
  return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent);
})()
"""

CLICK = """
(() => {
  const table = [...document.querySelectorAll("table")].find((each) => each.caption.textContent === "%s");
  const heading = [...table.tHead.rows[0].cells].find((each) => each.querySelector("span").textContent === "%s");
  heading.querySelector("button").click();
  return heading.getAttribute("aria-sort");
})()
"""


def open_and(*paths: Path, out: Path, look: Callable[[Page], Coroutine[Any, Any, None]]) -> None:
    """Writes the report of some runs and hands the open page to ``look``."""
    assert main(["report", *map(str, paths), f"out={out}"]) == 0

    async def work() -> None:
        assert BROWSER is not None
        async with browser_page(BROWSER) as page:
            await page.look()
            await page.open(out / "report.html")
            await look(page)
            assert page.complaints == []
            fetched = [address for address in page.requested if not address.startswith("data:")]
            assert fetched == [(out / "report.html").resolve().as_uri()], "nothing but itself was asked for"

    asyncio.run(work())


def test_a_failed_run(tmp_path: Path) -> None:
    path = failing(tmp_path)
    cell = cell_of(path)

    async def look(page: Page) -> None:
        assert await page.evaluate("document.querySelector('.badge').textContent.trim()") == "✗ FAIL"
        assert await page.evaluate("document.querySelector('.reasons li').textContent") == cell["reasons"][0]
        drawn = await page.evaluate(FIGURES_DRAWN)
        assert len(drawn) == 3 and all(drawn)
        passes = cell["passes"]
        assert await page.evaluate(COLUMN % ("Score, cold against warm", "cold")) == [f"{passes['cold']['score']:.3f}"]
        assert await page.evaluate(COLUMN % ("Score, cold against warm", "warm")) == [f"{passes['warm']['score']:.3f}"]
        assert await page.evaluate(COLUMN % ("Score, cold against warm", "loss")) == [
            f"{cell['paired']['difference']:+.3f}"
        ]
        ttft = [f"{each['ttft_s']['p50'] * 1000:.0f}" for each in passes.values()]
        assert await page.evaluate(COLUMN % ("All passes", "TTFT p50")) == ttft

    open_and(path, out=tmp_path / "out", look=look)


def test_columns_sort_by_number_and_by_word(tmp_path: Path) -> None:
    async def look(page: Page) -> None:
        before = await page.evaluate(COLUMN % ("All passes", "TTFT p50"))
        assert await page.evaluate(CLICK % ("All passes", "TTFT p50")) == "ascending"
        assert await page.evaluate(COLUMN % ("All passes", "TTFT p50")) == sorted(before, key=float)
        assert await page.evaluate(CLICK % ("All passes", "TTFT p50")) == "descending"
        assert await page.evaluate(COLUMN % ("All passes", "TTFT p50")) == sorted(before, key=float, reverse=True)
        assert await page.evaluate(CLICK % ("All passes", "pass")) == "ascending"
        assert await page.evaluate(COLUMN % ("All passes", "pass")) == ["cold", "control", "local_warm", "warm"]
        assert await page.evaluate("document.querySelectorAll('[aria-sort]').length") == 1
        # What was not measured stays last, whichever way.
        for _ in range(2):
            await page.evaluate(CLICK % ("Cells", "loss"))
            losses = await page.evaluate(COLUMN % ("Cells", "loss"))
            assert losses[-6:] == ["-"] * 6 and "-" not in losses[:-6]

    open_and(passing(tmp_path), REFERENCE, out=tmp_path / "out", look=look)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes(theme: str, tmp_path: Path) -> None:
    ground = {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 19, 24)"}
    other = {"light": "dark", "dark": "light"}[theme]
    color = "getComputedStyle(document.documentElement).backgroundColor"
    ink = "getComputedStyle(document.querySelector('figure svg text')).fill"

    async def look(page: Page) -> None:
        await page.look(theme=theme)
        assert await page.evaluate(color) == ground[theme]
        drawn = await page.evaluate(ink)
        await page.evaluate("document.getElementById('theme').click()")
        assert await page.evaluate(color) == ground[other], "the button overrules the system"
        assert await page.evaluate(ink) != drawn, "figures follow"
        assert await page.evaluate("document.getElementById('theme').textContent") == f"{theme} theme"
        await page.look(theme=theme, media="print")
        assert await page.evaluate(ink) == "rgb(27, 33, 40)", "paper is light"

    open_and(passing(tmp_path), out=tmp_path / "out", look=look)


def test_a_phone_need_not_scroll_sideways(tmp_path: Path) -> None:
    async def look(page: Page) -> None:
        await page.look(width=390, height=844)
        await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        assert await page.evaluate("innerWidth") == 390

    open_and(failing(tmp_path), REFERENCE, out=tmp_path / "out", look=look)
