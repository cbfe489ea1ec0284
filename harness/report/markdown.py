"""report.md: the same report as Markdown, as GitHub shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.report.document import FIGURES, Report, RunReport, Section
from harness.report.table import LONG, Table
from harness.report.worst import WorstDocument

SYMBOLS = {
    "pass": "✅",
    "fail": "❌",
    "invalid": "🚫",
    "inconclusive": "❔",
    "failed": "💥",
    "interrupted": "⏸️",
    "running": "⏳",
    "ok": "✅",
    "missed": "❌",
}

SPECIAL = re.compile(r"([\\`*\[\]|])")


def markdown(report: Report) -> str:
    """The whole report; folded tables, which are long, are left to the HTML page."""
    return "\n".join(_lines(report)) + "\n"


def escaped(text: str) -> str:
    """Text that means itself in Markdown, on one line: no markup, HTML, link, image or table's edge."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", plain)


def table_lines(table: Table) -> Iterator[str]:
    """A table with its heading and note, folded where it is long; units stand in the headings."""
    long = len(table.rows) > LONG
    if long:
        yield f"<details><summary>{escaped(table.title)} ({len(table.rows)} rows)</summary>"
    else:
        yield f"**{escaped(table.title)}**"
    yield ""
    headings = [f"{each.heading} ({each.unit})" if each.unit else each.heading for each in table.columns]
    yield f"| {' | '.join(map(escaped, headings))} |"
    yield f"|{'|'.join('---' if each.words else '---:' for each in table.columns)}|"
    for row in table.rows:
        yield f"| {' | '.join(_marked(value.text, value.tone) for value in row)} |"
    yield ""
    if table.note:
        yield f"_{escaped(table.note)}_"
        yield ""
    if long:
        yield "</details>"
        yield ""


def _lines(report: Report) -> Iterator[str]:
    if report.overview:
        yield f"# {escaped(report.title)}"
        yield ""
        yield from table_lines(report.overview)
    if report.arms:
        yield from _section(report.arms)
    for each in report.runs:
        yield from _run(each)


def _run(report: RunReport) -> Iterator[str]:
    first = report.headline
    yield f"# {_marked(first.verdict, first.verdict)}: {escaped(report.run.id)}"
    yield ""
    yield f"**{escaped(first.sentence)}**"
    yield ""
    yield f"{escaped(report.what)}"
    yield ""
    yield from _bullets(first.reasons)
    if first.advice:
        yield "**What to do**"
        yield ""
        for number, each in enumerate(first.advice, start=1):
            yield f"{number}. {escaped(each.text)}" + (f" `{each.command.replace('`', ' ')}`" if each.command else "")
        yield ""
    if first.numbers:
        yield f"| {escaped(first.of_cell or 'number')} | value | |"
        yield "|---|---:|---|"
        yield from (
            f"| {escaped(each.label)} | {escaped(each.value)} | {escaped(each.note)} |" for each in first.numbers
        )
        yield ""
    for section in report.sections:
        if section.anchor != FIGURES:
            yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    tables = [table for table in section.tables if not table.folded and table.rows]
    if not (section.sentences or tables or section.links):
        return
    yield f"## {escaped(section.title)}"
    yield ""
    yield from _bullets(section.sentences)
    for document in section.documents:
        yield from _document(document)
    for table in tables:
        yield from table_lines(table)
    yield from _bullets([f"{link.text}: {link.href}" for link in section.links])


def _document(document: WorstDocument) -> Iterator[str]:
    yield f"**Document {document.doc_id}**, expected {escaped(document.expected)}; {escaped(document.where)}"
    yield ""
    yield "| pass | | answer | against cold |"
    yield "|---|---|---|---|"
    for each in document.passes:
        result = {True: "right", False: "wrong", None: "not scored"}[each.right]
        parted = f" **▶** {escaped(each.parted)}" if each.parted else ""
        yield f"| {each.name} | {result} | {escaped(each.same)}{parted} | {escaped(each.against)} |"
    yield ""


def _bullets(lines: tuple[str, ...] | list[str]) -> Iterator[str]:
    if lines:
        yield from (f"- {escaped(line)}" for line in lines)
        yield ""


def _marked(text: str, tone: str) -> str:
    symbol = SYMBOLS.get(tone, "")
    return f"{symbol} {escaped(text)}" if symbol else escaped(text)
