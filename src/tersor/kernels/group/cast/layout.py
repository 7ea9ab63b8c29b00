"""The payload size of scaled 8-bit floats, and the tile size of their GPU programs."""

from __future__ import annotations

from typing import Final

from tersor.division import ceil_div

TILE: Final = 2048
"""Values that a program holds at a time; it holds groups up to this size whole."""

_SCALE_NBYTES: Final = 4


def payload_nbytes(numel: int, group: int) -> int:
    """Return the bytes that the scales and the cast values of ``numel`` values take."""
    return numel + _SCALE_NBYTES * ceil_div(numel, group)
