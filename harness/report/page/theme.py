"""Colours of the page and of the figures in it, for light and dark, as CSS variables."""

from __future__ import annotations

from collections.abc import Mapping

PAGE: Mapping[str, tuple[str, str]] = {
    "ground": ("#f6f7f9", "#0f1318"),
    "card": ("#ffffff", "#181d24"),
    "ink": ("#1b2128", "#e6eaf0"),
    "quiet": ("#55606c", "#a3afbd"),
    "line": ("#d7dce2", "#323b46"),
    "head": ("#eef1f4", "#222934"),
    "link": ("#0a58a8", "#7ab8ff"),
    "shade": ("#00000030", "#000000b0"),
    "mark": ("#ffe08a", "#6b4e00"),
    "pass": ("#0b6b3a", "#59d08c"),
    "pass-ground": ("#e3f4ea", "#12301f"),
    "fail": ("#a8121c", "#ff8b8b"),
    "fail-ground": ("#fdeaea", "#3a1518"),
    "invalid": ("#7a2f96", "#d9a3f0"),
    "invalid-ground": ("#f5eafa", "#2f1a39"),
    "inconclusive": ("#7a5200", "#f2c14e"),
    "inconclusive-ground": ("#fdf3dc", "#332705"),
}
"""Name -> colour in the light and in the dark theme; each text colour has a contrast of 4.5 or more on its ground."""

FIGURES: Mapping[str, tuple[str, str]] = {
    "#0072b2": ("#0072b2", "#5bb4ec"),
    "#d55e00": ("#d55e00", "#ff9a52"),
    "#009e73": ("#009e73", "#35d6a4"),
    "#e69f00": ("#e69f00", "#ffcb52"),
    "#cc79a7": ("#cc79a7", "#ef9fca"),
    "#56b4e9": ("#56b4e9", "#a9dcff"),
    "#000000": ("#1b2128", "#e6eaf0"),
    "#555555": ("#55606c", "#a3afbd"),
    "#dddddd": ("#dddddd", "#323b46"),
    "#cccccc": ("#cccccc", "#3f4a57"),
    "#ffffff": ("#ffffff", "#181d24"),
}
"""Colour that matplotlib has drawn with -> what stands for it in the two themes."""


def variable(color: str) -> str:
    """The CSS variable that stands for a colour of a figure; the colour itself where there is none for it."""
    known = color.lower()
    return f"var(--f{known[1:]})" if known in FIGURES else color


def declarations(theme: int) -> str:
    """All variables of the light (0) or the dark (1) theme as CSS declarations."""
    page = [f"--{name}: {colors[theme]};" for name, colors in PAGE.items()]
    drawn = [f"--f{name[1:]}: {colors[theme]};" for name, colors in FIGURES.items()]
    return " ".join([*page, *drawn])
