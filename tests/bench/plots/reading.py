"""What a chart shows, read from its SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"
Place = tuple[float, float]


def texts(root: ET.Element) -> list[str | None]:
    return [text.text for text in root.iter(f"{SVG}text")]


def spots(root: ET.Element) -> dict[str | None, Place]:
    """Return where texts stand."""
    return {t.text: (float(t.get("x")), float(t.get("y"))) for t in root.iter(f"{SVG}text")}


def tooltips(root: ET.Element) -> dict[str, ET.Element]:
    """Return the groups that have a tooltip, by what it says."""
    found = ((group.find(f"{SVG}title"), group) for group in root.iter(f"{SVG}g"))
    return {title.text: group for title, group in found if title is not None}


def corners(path: ET.Element) -> list[Place]:
    """Return the places that a path of straight lines goes through."""
    numbers = [float(word) for word in re.findall(r"-?[\d.]+", path.get("d"))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def lines(root: ET.Element) -> dict[str, list[Place]]:
    """Return the places of each line, by its tooltip."""
    paths = {name: group.find(f"{SVG}path") for name, group in tooltips(root).items()}
    return {name: corners(path) for name, path in paths.items() if path is not None}


def markers(root: ET.Element) -> dict[str, list[Place]]:
    """Return where the markers of each group stand, by its tooltip."""
    return {
        name: [(float(use.get("x")), float(use.get("y"))) for use in group.findall(f"{SVG}use")]
        for name, group in tooltips(root).items()
    }
