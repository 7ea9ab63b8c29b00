"""The layout of a body of de-duplicated rows.

```
offset size field
     0    4 num_distinct
     4    1 index_mode    0 packed, 1 coded
     5    1 low_nbits     mode 1: bits of a reference that are stored uncoded; mode 0: zero
     6    2 zero
     8      index         mode 0: fields of 1 bit per row, 1 where the row is new; then, for the
                          other rows in order, fields of bit_length(num_distinct - 1) bits: the
                          number of the distinct row.
                          mode 1: an entropy-coded body of one code per row, 0 where the row is
                          new, else 1 + (number >> low_nbits); then, for the other rows in order,
                          fields of low_nbits bits: the low bits of the number.
            rows          an entropy-coded body of num_distinct * width codes
```

Fields are contiguous, lowest bit first, padded to 8 bytes. New rows are numbered in the order in
which they appear, so their numbers need not be stored. Outlier positions refer to the distinct
rows, not to the tensor.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from typing import Final

HEADER: Final = struct.Struct("<IBBxx")
PACKED, CODED = 0, 1
SYMBOL_NBITS: Final = 11
"""Largest number of bits of a reference that are entropy-coded."""
TABLE_NBITS: Final = 32
"""Coding is tried only if all references together have more bits than this per symbol of the alphabet."""


def row_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, values per row): rows run along the last axis; a vector is one row."""
    width = shape[-1] if shape else 1
    return (math.prod(shape) // width if width else 0), width


def ref_nbits(num_distinct: int) -> int:
    """Return the number of bits that identify one of ``num_distinct`` rows."""
    # not bit_length(): the CPU kernels compile these functions, and numba does not support it
    nbits, last = 0, max(0, num_distinct - 1)
    while last >> nbits:
        nbits += 1
    return nbits


def low_nbits(nbits: int) -> int:
    """Return how many low bits of a reference are not entropy-coded, so that the alphabet stays small."""
    return max(0, nbits - SYMBOL_NBITS)


def index_alphabet(num_distinct: int, low: int) -> int:
    """Return the number of symbols of a coded index: "new", and one per value of the coded bits."""
    return 2 + (max(0, num_distinct - 1) >> low)


def worth_coding(num_refs: int, nbits: int, alphabet: int) -> bool:
    """True if entropy coding may beat packing, for which references must outweigh the code's table.

    A table takes half a byte per symbol. Below eight times that, coding never saved more than 1 % on
    looked-up embeddings, and it took a fifth of the encoding time.
    """
    return num_refs * nbits > TABLE_NBITS * alphabet


def most_coded_symbols(num_rows: int) -> int:
    """Return the largest alphabet with which coding an index of ``num_rows`` is tried; 0 if it never is.

    Example:
        >>> most_coded_symbols(64), most_coded_symbols(256)
        (0, 40)
    """
    most = 0
    for nbits in range(1, num_rows.bit_length() + 1):
        low = low_nbits(nbits)

        def is_left(num_distinct: int, nbits: int = nbits, low: int = low) -> bool:
            alphabet = index_alphabet(num_distinct, low)
            return not worth_coding(num_rows - num_distinct, nbits, alphabet)

        # for a given number of bits, more distinct rows mean fewer references and a larger table
        candidates = range((1 << (nbits - 1)) + 1, (1 << nbits) + 1)
        num_tried = bisect_left(candidates, True, key=is_left)
        if num_tried:
            most = max(most, index_alphabet(candidates[num_tried - 1], low))
    return most
