"""Reads Markdown as far as tests need it: fenced blocks, code, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"``(.+?)``|`([^`\n]+(?:\n[^`\n]+)?)`")
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A fenced block."""

    language: str
    text: str


def fences(text: str) -> list[Fence]:
    """Fenced blocks."""
    return [Fence(match["language"], match["text"]) for match in FENCE.finditer(text)]


def without_fences(text: str) -> str:
    """The text without its fenced blocks."""
    return FENCE.sub("", text)


def inline(text: str) -> list[str]:
    """Pieces of code inside of sentences, on one line each."""
    return [" ".join((match[1] or match[2]).split()) for match in INLINE.finditer(without_fences(text))]


def links(text: str) -> list[str]:
    """Targets of links and pictures."""
    return [match["target"] for match in LINK.finditer(INLINE.sub("", without_fences(text)))]


def anchors(text: str) -> set[str]:
    """Anchors that GitHub gives the headings."""
    found: set[str] = set()
    for heading in HEADING.findall(without_fences(text)):
        plain = re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = sum(each == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", each) is not None for each in found)
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def command_lines(text: str) -> Iterator[str]:
    """Commands of a block: lines that go on are joined; comments, prompts and empty lines are left out."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        stripped = line.strip().removeprefix("$ ")
        if stripped and not stripped.startswith("#"):
            yield stripped


def pages(root: Path) -> list[Path]:
    """Every page of the repository, but those of results."""
    kept = ("docs/**/*.md", "*.md", "harness/**/*.md", "results/README.md")
    return sorted({page for pattern in kept for page in root.glob(pattern) if ".venv" not in page.parts})
