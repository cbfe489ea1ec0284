"""A figure's SVG as part of a page: no ids or styles that others share, no addresses, and colours of the theme."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from harness.report.page.theme import variable

ELEMENTS = {"svg", "g", "path", "defs", "use", "clipPath", "rect", "text", "tspan", "image"}
"""What a drawing consists of; anything else (metadata, styles, scripts) is left out."""

COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
REFERENCE = re.compile(r"url\(#")
FONT_FAMILY = re.compile(r"font-family: [^;]*;?\s*")
FONT = re.compile(r"font: ([^;']*?)\s*'[^;]*;?")


def inline_svg(svg: bytes, name: str, label: str) -> str:
    """An SVG document of matplotlib's as an element of an HTML page.

    Args:
        svg: the document, with its text as text.
        name: unique on the page; its ids begin with it.
        label: what it shows, for those who don't see it.

    Raises:
        ValueError: it is no SVG.
    """
    try:
        root = ET.fromstring(svg)
    except ET.ParseError as error:
        raise ValueError(f"a figure is no SVG: {error}") from error
    if _local(root.tag) != "svg":
        raise ValueError(f"a figure is no SVG but {_local(root.tag)}")
    drawing = _copy(root, name)
    for size in ("width", "height", "version"):
        drawing.attrib.pop(size, None)
    drawing.set("role", "img")
    drawing.set("aria-label", label)
    return ET.tostring(drawing, encoding="unicode")


def _copy(element: ET.Element, name: str) -> ET.Element:
    found = ET.Element(_local(element.tag))
    for key, value in element.attrib.items():
        attribute = _local(key)
        if attribute.startswith("on"):
            continue
        if attribute == "id":
            value = f"{name}-{value}"
        elif attribute == "href":
            if not value.startswith(("#", "data:image/png;")):
                continue
            value = f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif attribute == "style":
            value = FONT.sub(r"font-size: \1;", FONT_FAMILY.sub("", value))
        found.set(attribute, COLOR.sub(lambda match: variable(match[0]), REFERENCE.sub(f"url(#{name}-", value)))
    found.text, found.tail = element.text, None
    found.extend(_copy(child, name) for child in element if _local(child.tag) in ELEMENTS)
    return found


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
