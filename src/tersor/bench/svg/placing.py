"""Where the names of points go, so that none covers another name or a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tersor.bench.svg.style import text_width

_HEIGHT: Final = 13.0
_REACHES: Final = (7.0, 16.0, 27.0, 40.0)
_SIDES: Final = (
    (1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that is taken."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles share a place."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def within(self, other: Box) -> bool:
        """Whether this rectangle lies inside the other."""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A name and where it begins; ``is_far`` asks for a line to its point."""

    box: Box
    is_far: bool


def place_names(
    names: Sequence[str], places: Sequence[tuple[float, float]], area: Box
) -> list[Placed | None]:
    """Return a place for each name, the first ones first; None where there is no room left.

    Example:
        >>> placed = place_names(["a", "b"], [(50, 50), (50, 50)], Box(0, 0, 100, 100))
        >>> placed[0].box.meets(placed[1].box)
        False
    """
    taken = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    found: list[Placed | None] = []
    for name, (x, y) in zip(names, places, strict=True):
        placed = _first_free(text_width(name, 12), x, y, area, taken)
        found.append(placed)
        if placed is not None:
            taken.append(placed.box)
    return found


def _first_free(width: float, x: float, y: float, area: Box, taken: list[Box]) -> Placed | None:
    for reach in _REACHES:
        for across, down in _SIDES:
            # a diagonal leaves less room between the name and its point than a side does
            near = reach if across == 0 or down == 0 else reach * 0.7
            left = x + across * near + {1: 0.0, 0: -width / 2, -1: -width}[across]
            top = y + down * near + {1: 0.0, 0: -_HEIGHT / 2, -1: -_HEIGHT}[down]
            box = Box(left, top, left + width, top + _HEIGHT)
            if box.within(area) and not any(box.meets(other) for other in taken):
                return Placed(box, reach > _REACHES[1])
    return None
