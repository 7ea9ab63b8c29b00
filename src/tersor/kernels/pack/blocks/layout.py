"""Layout of a packed body.

```
[bases]   only with ``base``: a packed body (block 32, no base) of the differences of block bases
offsets   u32[num_tiles + 1], first word of each tile, then the total; padded to 8 bytes
widths    u8[num_blocks], bits per code in each block, 0 to 32; padded to 8 bytes
words     block after block, ``width`` words of 32 bits per 32 codes; padded to 8 bytes, then 16 zero bytes
```

A tile is 1024 codes. The codes of a block are contiguous ``width``-bit fields, lowest bit first; the
last block is padded with zero fields. Without ``base`` a field is the zigzag of the code; with
``base`` it is the code minus the block's smallest code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.kernels.quantize.grid import TILE
from tersor.raw_bytes import padded

TAIL_NBYTES: Final = 16
"""Zero bytes after the words, so that a decoder may load past a block's last field."""


@dataclass(frozen=True, slots=True)
class BitpackLayout:
    """Sizes that follow from the number of codes and the block size (32 or 64)."""

    num_codes: int
    block: int

    @property
    def num_blocks(self) -> int:
        """Number of blocks; the last one may be partial."""
        return ceil_div(self.num_codes, self.block)

    @property
    def num_tiles(self) -> int:
        """Number of tiles of 1024 codes; the last one may be partial."""
        return ceil_div(self.num_codes, TILE)

    @property
    def widths_start(self) -> int:
        """First byte of the widths."""
        return padded(4 * (self.num_tiles + 1))

    @property
    def words_start(self) -> int:
        """First byte of the words."""
        return self.widths_start + padded(self.num_blocks)

    def body_nbytes(self, num_words: int) -> int:
        """Return the size of a whole body."""
        return self.words_start + padded(4 * num_words) + TAIL_NBYTES

    @property
    def max_nbytes(self) -> int:
        """Size if every block needs 32 bits per code, without the block bases."""
        return self.body_nbytes(self.num_blocks * self.block)

    def split(self, body: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return offsets (u32 as int32), widths and the rest of the body, not yet checked.

        Raises:
            CorruptDataError: the body is too short for its offsets and widths.
        """
        if body.numel() < self.words_start + TAIL_NBYTES:
            raise CorruptDataError("packed codes are truncated")
        offsets = body[: 4 * (self.num_tiles + 1)].view(torch.int32)
        widths = body[self.widths_start : self.widths_start + self.num_blocks]
        return offsets, widths, body[self.words_start :]

    def checked_nbytes(self, consistent: bool, num_words: int, words_nbytes: int) -> int:
        """Return the body's size.

        ``consistent`` says whether the widths add up to the offsets.

        Raises:
            CorruptDataError: the body is inconsistent, or its words are truncated.
        """
        if not consistent:
            raise CorruptDataError("widths and offsets of packed codes contradict each other")
        if words_nbytes < padded(4 * num_words) + TAIL_NBYTES:
            raise CorruptDataError("packed codes are truncated")
        return self.body_nbytes(num_words)
