"""Adapt matplotlib's SVG to a page: make it small, add tooltips and a label, drop clashing ids.

Colours become attributes, because a style sheet can override those but not a ``style="..."``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from xml.etree import ElementTree as ET

from tersor.bench.plots.style import FONT_PX

_SVG: Final = "http://www.w3.org/2000/svg"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_ROOT: Final = {
    "role": "img", "font-family": "Helvetica, Arial, sans-serif", "font-size": f"{FONT_PX}px",
    "fill": "none", "stroke-linejoin": "round",
}  # fmt: skip
# attributes that the root sets for all, unneeded ones, and clip paths, which nothing extends beyond
_DROPPED_TAGS: Final = ("clipPath", "metadata", "style")
_DROPPED_NAMES: Final = (
    "clip-path",
    "font-family",
    "id",
    "stroke-linecap",
    "stroke-linejoin",
    "style",
)
_USUAL: Final = re.compile(rf"none|start|{FONT_PX}px|rotate\(-?0 .*\)")
_DECIMALS: Final = re.compile(r"-?\d+\.\d+")


def printable(text: str) -> str:
    r"""Replace characters that HTML and XML cannot contain by the replacement character.

    Example:
        >>> printable("a\x00b")
        'a\ufffdb'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def tidied(data: bytes, label: str, notes: Mapping[str, Mapping[str, str]]) -> str:
    """Convert matplotlib's file to an SVG element that is also a complete file.

    Args:
        data: matplotlib's output.
        label: text for screen readers.
        notes: attributes for groups, by id; a ``title`` becomes a tooltip.
    """
    root = ET.fromstring(data)  # noqa: S314, matplotlib wrote it a moment ago
    box = root.attrib["viewBox"]
    _tidy(root, notes)
    _, _, width, height = box.split()
    size = {"width": width, "height": height, "viewBox": box}
    root.attrib = {"xmlns": _SVG, **size, "aria-label": label, **_ROOT}
    return ET.tostring(root, encoding="unicode")


def _tidy(element: ET.Element, notes: Mapping[str, Mapping[str, str]]) -> None:
    element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    element.text, element.tail = (element.text if element.tag == "text" else None), None
    children: list[ET.Element] = []
    for child in element:
        name = child.get("id", "")
        _tidy(child, notes)
        if element.tag == "defs":
            # style sheets apply to the ``use`` element, not to its definition
            child.attrib.pop("stroke", None)
            child.attrib["id"] = name
        if child.tag == "g" and name not in notes and not child.attrib:
            children += child
        elif child.tag not in _DROPPED_TAGS and (len(child) or child.tag not in ("g", "defs")):
            children.append(child)
    element.attrib = _attributes(element) | dict(notes.get(element.get("id", ""), {}))
    title = ET.Element("title")
    title.text = element.attrib.pop("title", None)
    element[:] = [title, *children] if title.text else children


def _attributes(element: ET.Element) -> dict[str, str]:
    """Return the attributes that an element needs, including those from its style."""
    pairs = (pair.partition(":") for pair in element.get("style", "").split(";") if pair.strip())
    values = {name.strip(): value.strip() for name, _, value in pairs}
    if element.tag == "use":
        values = {name: value for name, value in values.items() if name in ("fill", "stroke")}
    values |= {"href" if name == _LINK else name: value for name, value in element.items()}
    return {
        name: _shortened(value)
        for name, value in values.items()
        if name not in _DROPPED_NAMES and not _USUAL.fullmatch(value)
    }


def _shortened(value: str) -> str:
    """Round the numbers in a value to two decimals, a hundredth of a pixel."""
    return " ".join(_DECIMALS.sub(lambda found: f"{round(float(found[0]), 2):g}", value).split())
