"""Place the names of points so that no name covers another name or a point.

A name is placed right next to its point. If there is no room for it, a number that takes less space is
placed instead, and a key explains the number. Points that cover each other share one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import dist
from typing import Final, NamedTuple

from tersor.bench.plots.style import text_width

LABEL_PX: Final = 12
_HEIGHT: Final = 13.0
_NEAR: Final = (7.0, 16.0)
_FAR: Final = (*_NEAR, 27.0, 40.0, 55.0, 70.0, 85.0)
_COVERED: Final = 8.0
"""Points closer than this cover each other."""
_SIDES: Final = (
    (1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1),
)  # fmt: skip


class Box(NamedTuple):
    """A rectangle in coordinates whose y axis points down."""

    left: float
    top: float
    right: float
    bottom: float

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Return the point in the rectangle that is nearest to a given point."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def meets(self, other: Box) -> bool:
        """Return whether two rectangles overlap."""
        is_apart = self.right <= other.left or other.right <= self.left
        return not (is_apart or self.bottom <= other.top or other.bottom <= self.top)

    def within(self, other: Box) -> bool:
        """Return whether this rectangle lies inside the other."""
        return other.nearest(*self[:2]) == self[:2] and other.nearest(*self[2:]) == self[2:]


class Placed(NamedTuple):
    """A name or its number with its position; ``is_far`` means that a line to its point is needed."""

    words: str
    box: Box
    is_far: bool


def place_names(
    names: Sequence[str], places: Sequence[tuple[float, float]], area: Box
) -> list[Placed | None]:
    """Place the names in order of priority; a name is None if the area has no room for it at all.

    Example:
        >>> spots = [(9, 50), (9, 50)]
        >>> [one.words for one in place_names(["a", "b" * 20], spots, Box(0, 0, 100, 100))]
        ['a', '1']
    """
    taken = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    found: list[Placed | None] = []
    for name, spot in zip(names, places, strict=True):
        found.append(_placed(name, spot, area, taken, _NEAR))
    numbered: list[tuple[tuple[float, float], Placed]] = []
    for spot in (spot for spot, one in zip(places, found, strict=True) if one is None):
        if all(dist(spot, other) >= _COVERED for other, _ in numbered):
            placed = _placed(str(1 + len(numbered)), spot, area, taken, _FAR)
            numbered += [] if placed is None else [(spot, placed)]
    if not numbered:
        return found
    # points that are covered, or whose own number found no room, share the nearest number
    return [
        one or min(numbered, key=lambda pair: dist(pair[0], spot))[1]
        for spot, one in zip(places, found, strict=True)
    ]


def _placed(
    words: str, spot: tuple[float, float], area: Box, taken: list[Box], reaches: Sequence[float]
) -> Placed | None:
    """Return the nearest free position for words and mark it as taken; None if there is none."""
    (x, y), width = spot, text_width(words, LABEL_PX)
    for reach in reaches:
        for across, down in _SIDES:
            # diagonal offsets are shorter, so that the distance to the point stays about the same
            near = reach if across == 0 or down == 0 else reach * 0.7
            left = x + across * near + {1: 0.0, 0: -width / 2, -1: -width}[across]
            top = y + down * near + {1: 0.0, 0: -_HEIGHT / 2, -1: -_HEIGHT}[down]
            box = Box(left, top, left + width, top + _HEIGHT)
            if box.within(area) and not any(box.meets(other) for other in taken):
                taken.append(box)
                return Placed(words, box, reach > _NEAR[0])
    return None
