"""The layout of an error-bounded payload.

```
offset size field
     0    1 mode          0 exact, 1 coded, 2 constant
     1    3 zero
     4    4 num_outliers
     8    8 step          float64; the constant in mode 2, 0 in mode 0
    16    8 body_nbytes
    24      body          mode 0: the tensor's bytes; mode 1: the codec's body; mode 2: empty
            positions     u32[num_outliers], ascending; padded to 8 bytes
            values        num_outliers values in the tensor's dtype; padded to 8 bytes
```

All parts start at multiples of 8 bytes. Outliers replace the decoded values at their positions.
"""

from __future__ import annotations

import struct
from typing import Final

from tersor.raw_bytes import padded

EXACT, CODED, CONSTANT = 0, 1, 2
HEADER: Final = struct.Struct("<B3xIdQ")

MAX_VALUES_PER_BYTE_LOG2: Final = 16
"""A payload has at least one byte per 2**16 values, and is padded with zeros if necessary. A reader can
thus reject an absurd shape before it allocates the output."""


def exact_nbytes(nbytes: int) -> int:
    """Return the size of a payload that stores ``nbytes`` of values exactly, the largest possible one."""
    return HEADER.size + padded(nbytes)
