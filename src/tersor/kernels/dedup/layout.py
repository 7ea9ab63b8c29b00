"""Where the parts of a packed row index lie.

```
flags   one bit per row, lowest bit first: 1 where the row is new; padded to a byte
refs    for the other rows, in order: the number of the distinct row, as contiguous fields of
        ``bit_length(num_unique - 1)`` bits, lowest bit first; padded to 8 bytes, then 8 zero bytes
```

New rows are numbered in the order in which they appear, so their numbers need not be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tersor.kernels.bitpack.layout import padded

TAIL_NBYTES: Final = 8


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """Sizes that follow from the number of rows and of distinct rows."""

    num_rows: int
    num_unique: int

    @property
    def width(self) -> int:
        """Bits per reference."""
        return max(0, self.num_unique - 1).bit_length()

    @property
    def refs_start(self) -> int:
        """First byte of the references."""
        return (self.num_rows + 7) // 8

    @property
    def nbytes(self) -> int:
        """Size of the whole packed index."""
        refs_nbits = (self.num_rows - self.num_unique) * self.width
        return padded(self.refs_start + (refs_nbits + 7) // 8) + TAIL_NBYTES
