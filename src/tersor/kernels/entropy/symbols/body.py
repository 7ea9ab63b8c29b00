"""The head of an entropy-coded body: the alphabet and the escaped codes.

```
offset size field
     0    4 low           int32, the code of symbol 0
     4    2 alphabet      1 to 4096; with escapes, the last symbol means "escaped"
     6    2 zero
     8    4 num_escapes
    12    4 zero
    16      positions     u32[num_escapes], ascending
            codes         int32[num_escapes]
            the coder's own body
```
"""

from __future__ import annotations

import struct
from typing import Final

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.symbols.alphabet import ESCAPE_NBYTES, WIDE, Symbols, Window
from tersor.raw_bytes import are_ascending, as_bytes, from_struct, joined, read_struct

HEADER: Final = struct.Struct("<iHxxII")


def join(mapped: Symbols, coded: torch.Tensor, lead: int = 0) -> torch.Tensor:
    """Return ``lead`` reserved zero bytes, the head of ``mapped`` and its coded symbols, joined."""
    header = HEADER.pack(mapped.low, mapped.alphabet, mapped.escape_positions.numel(), 0)
    return joined(
        [
            from_struct(bytes(lead) + header, coded.device),
            as_bytes(mapped.escape_positions.to(torch.int32)),
            as_bytes(mapped.escape_codes),
            coded,
        ]
    )


def split(
    body: torch.Tensor, num_codes: int, window: Window | None = None
) -> tuple[Symbols, torch.Tensor, int]:
    """Return the alphabet and escapes, the coder's own body, and the offset at which it starts.

    The ``symbols`` of the result are empty. ``window`` is the alphabet both sides agreed on, if any.

    Raises:
        CorruptDataError: sizes or positions are impossible, or the alphabet is not that of ``window``.
    """
    low, alphabet, num_escapes, reserved = read_struct(HEADER, body, slice(6, 8))
    codes_start = HEADER.size + 4 * num_escapes
    start = HEADER.size + ESCAPE_NBYTES * num_escapes
    possible = num_escapes <= num_codes and 1 <= alphabet <= WIDE and reserved == 0
    if not possible or body.numel() < start:
        raise CorruptDataError("coded symbols have impossible sizes")
    if window is not None and (low, alphabet) != (window.low, window.alphabet):
        raise CorruptDataError("coded symbols do not use the codec's own table")
    if low > 2**31 - alphabet:
        raise CorruptDataError("coded symbols lie outside 32 bits")
    positions = body[HEADER.size : codes_start].view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if not are_ascending(positions, num_codes):
        raise CorruptDataError("escaped codes are out of order or outside the tensor")
    codes = body[codes_start:start].view(torch.int32)
    none = torch.empty(0, dtype=torch.uint8, device=body.device)
    return Symbols(none, low, alphabet, positions, codes), body[start:], start
