"""Layout of the payload of masked groups.

```
fractions  u16[2**nbits - 1], see ``reference``; padded to 8 bytes
scales     u16 per group: a bfloat16, whose sign bit is set if the group has negative values; padded to 8 bytes
fields     nbits per value, lowest bits first, of whole groups
```
"""

from __future__ import annotations

from typing import Final

from tersor.division import ceil_div
from tersor.kernels.group.rms.layout import GROUP, LARGEST_MAGNITUDE
from tersor.raw_bytes import padded

LARGEST: Final = LARGEST_MAGNITUDE * (1 - 2.0**-24)
"""Larger magnitudes are clamped to this."""
NAN_SCALE: Final = 0x7FC0
"""The scale of a group with a value that is not finite."""


def top_of(nbits: int, is_signed: bool) -> int:
    """Return the largest code of a group, with negative values or without."""
    return (1 << (nbits - is_signed)) - 1


def parts_nbytes(numel: int, nbits: int) -> tuple[int, int, int]:
    """Return the bytes that fractions, scales and fields of ``numel`` values take, with padding."""
    num_groups = ceil_div(numel, GROUP)
    fractions = padded(2 * top_of(nbits, is_signed=False))
    return fractions, padded(2 * num_groups), num_groups * GROUP * nbits // 8


def payload_nbytes(numel: int, nbits: int) -> int:
    """Return the size of the payload of ``numel`` values."""
    return sum(parts_nbytes(numel, nbits))
