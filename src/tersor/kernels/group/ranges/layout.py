"""Layout of the payload of range-quantized groups.

```
minima  bfloat16 per group, not above its smallest value
ranges  bfloat16 per group; minimum plus range reaches its largest value. NaN if a value is not finite
fields  2 bits per value, lowest bits first, of whole groups: how many thirds of the range above the minimum
```
"""

from __future__ import annotations

from typing import Final

from tersor.division import ceil_div

TOP: Final = 3
LARGEST: Final = 2.0**126
"""Larger magnitudes are clamped to this, so that a range is finite."""
SMALLEST_RANGE: Final = 2.0**-100
"""Groups with a smaller range decode to their minimum: the reciprocal of a level would overflow."""
NAN_RANGE: Final = 0x7FC0
"""The range of a group with a value that is not finite."""


def payload_nbytes(numel: int, group: int) -> int:
    """Return the bytes that minima, ranges and fields of ``numel`` values take."""
    return ceil_div(numel, group) * (4 + group // 4)
