"""From a report to its page: templates filled, figures drawn, style and script put inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.errors import HarnessError
from harness.report.document import Report
from harness.report.page.inline import inline_svg
from harness.report.page.theme import declarations
from harness.report.runs import Run
from harness.report.table import LONG

TEMPLATES = files("harness.report.page") / "templates"

CAPTIONS: Mapping[str, str] = {
    "score": "A cell is equivalent where its whole bar lies inside the grey margin; a bar right of it is a loss.",
    "drift": "Healthy: warm runs along local_warm. Damage: warm stays high to the right of the dotted levels.",
    "latency": "The further left a line, the sooner answers begin; warm beside cold is what the cache saves.",
    "throughput": "What each budget puts out in the warm pass, a line per hit rate.",
    "slowdown": "How much slower a budget of exactly N is; at 1 it makes no difference.",
    "batch_size": "Why N is slow: how many requests run at once at N and at 2N-1.",
    "ttft": "How long until the first token in the warm pass, by budget.",
    "hit_rate": "Points on the line were served exactly as much as was asked for.",
    "selftest": "How often each detector saw damage, by the share of prompts that was damaged.",
    "reuse": "Points on the line found all that they share with what is stored; below it, reuse was lost.",
}
"""Figure -> how to read it; also the order on the page."""

SYMBOLS: Mapping[str, str] = {
    "pass": "✓",
    "fail": "✗",
    "invalid": "⊘",
    "inconclusive": "?",
    "failed": "!",
    "interrupted": "‖",
    "running": "…",
    "ok": "✓",
    "missed": "✗",
}
"""Verdict or result -> what stands beside the word, so that nobody has to see the colour."""

TONES: Mapping[str, str] = {
    "ok": "pass",
    "missed": "fail",
    "failed": "fail",
    "interrupted": "inconclusive",
    "running": "inconclusive",
}
"""What has no colour of its own -> whose it takes."""

WORDS: Mapping[str, str] = {
    "cold": "pass in which nothing is cached: it computes every prompt and stores it",
    "warm": "the same prompts after vLLM's own cache was emptied: LMCache serves what it has stored",
    "local_warm": "the same prompts served by vLLM's own cache, without LMCache: the noise that warm is judged against",
    "control": "a second cold pass: what recomputing alone changes",
    "N": "tokens per block that vLLM settles on for a hybrid model",
    "budget": "vLLM's --max-num-batched-tokens: prompt and output tokens of one step",
    "hit rate": "share of the prompt tokens of a pass that LMCache served",
    "cell": "one point that was measured: a budget, a hit rate and a repeat",
    "score": "share of the questions answered right",
    "n": "how many questions, answers or requests a number is of",
    "TOST p": "two one-sided tests: below gate.alpha, the true loss is smaller than the margin, whichever way",
    "McNemar p": "exact test: below gate.alpha, more answers broke than chance explains",
    "drift": "whether warm's tokens are further from cold's than local_warm's are",
    "nats": "unit of log-probabilities; 0.1 nats change a probability by a factor of 1.105",
    "TTFT": "time from sending a request to its first token",
    "p50, p95, p99": "what 50, 95 and 99 % of the requests stay below",
}
"""Glossary, at the end of the page."""


@dataclass(frozen=True, slots=True)
class DrawnFigures:
    """A run's figures, ready for a page."""

    svgs: Mapping[str, bytes]
    """Name -> SVG document, in the order of the page."""
    skipped: Mapping[str, str]
    """Name -> why it was not drawn."""


def figures_of(run: Run) -> DrawnFigures:
    """Every figure that a run has data for, and why the others are missing; never raises for what a run lacks."""
    import matplotlib

    from harness.report.figures import FIGURES, NothingToDraw, rendered, run_data

    try:
        data = run_data(run.path, run.record, run.cells)
    except HarnessError as error:
        return DrawnFigures({}, {"all": str(error)})
    svgs, skipped = {}, {}
    for name in sorted(FIGURES, key=list(CAPTIONS).index):
        try:
            # Text as text: small, selectable, and in the page's colours.
            with matplotlib.rc_context({"svg.fonttype": "none"}):
                svgs[name] = rendered(FIGURES[name](data), "svg")
        except NothingToDraw as reason:
            skipped[name] = str(reason)
        except (KeyError, TypeError, ValueError) as error:  # cells of another version; names that are no mathtext
            skipped[name] = f"the run's files do not hold what it needs ({type(error).__name__}: {error})"
    return DrawnFigures(svgs, skipped)


def page(report: Report, figures: Mapping[str, DrawnFigures]) -> str:
    """The report as HTML.

    Args:
        report: what it says.
        figures: those of each run, by the run's anchor.
    """
    script = _read("script.js")
    environment = Environment(
        loader=PackageLoader("harness.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["path"] = lambda href: href if href.startswith("#") else quote(href)
    environment.globals |= {"symbols": SYMBOLS, "tones": TONES, "captions": CAPTIONS, "long": LONG}
    return environment.get_template("report.html.j2").render(
        report=report,
        drawn={
            anchor: {name: _inline(svg, f"{anchor}-{name}", CAPTIONS[name]) for name, svg in each.svgs.items()}
            for anchor, each in figures.items()
        },
        skipped={anchor: each.skipped for anchor, each in figures.items()},
        words=WORDS,
        # Ours, not data: what comes from a run is escaped by the template, or by matplotlib inside a drawing.
        style=Markup(_style()),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _inline(svg: bytes, name: str, label: str) -> Markup:
    return Markup(inline_svg(svg, name, label))


def _style() -> str:
    light, dark = (f"{declarations(theme)} color-scheme: {name};" for theme, name in enumerate(("light", "dark")))
    return (
        f":root {{ {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}\n"
        f":root[data-theme=dark] {{ {dark} }}\n"
        f"@media print {{ :root, :root:not([data-theme=light]), :root[data-theme=dark] {{ {light} }} }}\n"
        f"{_read('style.css')}"
    )


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
