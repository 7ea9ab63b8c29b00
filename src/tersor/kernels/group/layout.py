"""How long the payload of groups is, and which groups a program of a GPU holds whole."""

from __future__ import annotations

from typing import Final

from tersor.division import ceil_div

_SCALE_NBYTES: Final = 4
_MAX_WHOLE_GROUP: Final = 4096
"""The largest group that one program holds: with 64 rows of each half, two warps."""


def is_held_whole(group: int) -> bool:
    """True if one program of a GPU holds whole groups."""
    return 32 <= group <= _MAX_WHOLE_GROUP and group & (group - 1) == 0


def payload_nbytes(numel: int, nbits: int, group: int) -> int:
    """Return the bytes of the scales and fields of ``numel`` values."""
    return ceil_div(numel, group) * (_SCALE_NBYTES + group * nbits // 8)
