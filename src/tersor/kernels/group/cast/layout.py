"""How long the payload of scaled 8-bit floats is, and which groups a program of a GPU holds whole."""

from __future__ import annotations

from typing import Final

from tersor.division import ceil_div

TILE: Final = 2048
"""Values that a program has at a time: it holds groups up to this size whole."""

_SCALE_NBYTES: Final = 4


def payload_nbytes(numel: int, group: int) -> int:
    """Return the bytes of the scales and values of ``numel`` values."""
    return numel + _SCALE_NBYTES * ceil_div(numel, group)
