"""The layout of a rANS body, and its frequency table.

```
frequencies  u16[alphabet], summing to 2**prob_bits, 0 for an unused symbol; padded to 8 bytes;
             absent when the table is part of the codec's spec
offsets      u32[num_blocks + 1], first word of each block, then the total; padded to 8 bytes
states       u32[32 * num_blocks], final encoder state of each lane
words        u16, block after block in decoding order; padded to 8 bytes
```

Symbol ``i`` of a block belongs to lane ``i % 32``. A body with a single used symbol has no states
and no words. A frequency of 2**16 does not occur: prob_bits is at most 14.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.raw_bytes import padded

LANES: Final = 32
STATE_LOW: Final = 1 << 15
"""States lie in [2**15, 2**31): one 16-bit word always suffices to renormalise."""
NARROW_BITS, WIDE_BITS = 12, 14
"""Precision of the frequencies of alphabets up to ``NARROW`` and of larger ones."""
BLOCKS: Final = ((1 << 17, 1 << 14), (1 << 15, 1 << 13), (0, 1 << 12))
"""Block sizes: a stream of at least the first number of symbols has blocks of the second number."""


def prob_bits(alphabet: int) -> int:
    """Return the precision of the frequencies; with 12 bits, a decoding entry on a GPU fits in 32 bits."""
    return NARROW_BITS if alphabet <= NARROW else WIDE_BITS


def block_symbols(num_symbols: int) -> int:
    """Return the symbols per block of a stream.

    Blocks are small enough to fill a GPU with warps, and large enough to amortise the 132 bytes of states
    and offset that each costs. A block is the serial work of one warp, about 0.1 us per 32 symbols, and
    64 MiB of float32 make 1024 blocks. Halving the largest block would double their number and cost 1.6 %
    of the size at 3 bits per symbol; doubling it would save 0.8 %.
    """
    return next(block for least, block in BLOCKS if num_symbols >= least)


@dataclass(frozen=True, slots=True)
class RansLayout:
    """Sizes that follow from the number of symbols, the alphabet and whether the table is static.

    A static table is part of the codec's spec and not stored in the body.
    """

    num_symbols: int
    alphabet: int
    static: bool

    @property
    def block(self) -> int:
        """Symbols per block."""
        return block_symbols(self.num_symbols)

    @property
    def num_blocks(self) -> int:
        """Number of blocks, of which the last may be partial."""
        return ceil_div(self.num_symbols, self.block)

    @property
    def offsets_start(self) -> int:
        """First byte of the block offsets."""
        return 0 if self.static else padded(2 * self.alphabet)

    @property
    def states_start(self) -> int:
        """First byte of the lane states."""
        return self.offsets_start + padded(4 * (self.num_blocks + 1))

    def words_start(self, single: bool) -> int:
        """First byte of the words; ``single`` means that at most one symbol is used."""
        return self.states_start + (0 if single else 4 * LANES * self.num_blocks)

    def body_nbytes(self, num_words: int, single: bool) -> int:
        """Size of the whole body."""
        return self.words_start(single) + padded(2 * num_words)

    @property
    def max_nbytes(self) -> int:
        """Size of a body in which every symbol emits a word."""
        return self.body_nbytes(self.num_symbols, single=False)

    def read(self, body: Any, frequencies: Any | None) -> tuple[Any, Any, int]:
        """Return frequencies (int64), block offsets (int64) and the body's size.

        Raises:
            CorruptDataError: the body is truncated or inconsistent.
        """
        if not 1 <= self.alphabet <= WIDE or body.size < self.states_start:
            raise CorruptDataError("a rANS body is truncated")
        if frequencies is None:
            frequencies = body[: 2 * self.alphabet].view(np.uint16).astype(np.int64)
        empty = self.num_symbols == 0 and not frequencies.any()
        if int(frequencies.sum()) != 1 << prob_bits(self.alphabet) and not empty:
            raise CorruptDataError("the frequencies of a rANS body do not add up")
        offsets_end = self.offsets_start + 4 * (self.num_blocks + 1)
        offsets = body[self.offsets_start : offsets_end].view(np.uint32).astype(np.int64)
        single = int((frequencies > 0).sum()) <= 1
        nbytes = self.body_nbytes(int(offsets[-1]), single)
        if offsets[0] != 0 or (np.diff(offsets) < 0).any() or (single and offsets[-1] != 0):
            raise CorruptDataError("the block offsets of a rANS body are out of order")
        if body.size < nbytes:
            raise CorruptDataError("a rANS body is truncated")
        return frequencies, offsets, nbytes


def normalized_frequencies(counts: Any, alphabet: int) -> Any:
    """Scale counts to frequencies that sum to ``2**prob_bits``; used symbols get at least 1.

    The commonest symbol (the first, if several are) takes the rounding remainder. The arithmetic is all
    on integers, so every backend gets the same table.

    Example:
        >>> normalized_frequencies(np.array([3, 0, 1]), 3).tolist()
        [3072, 0, 1024]
    """
    total = int(counts.sum())
    scale = 1 << prob_bits(alphabet)
    used = counts > 0
    if total == 0:
        return np.zeros(counts.size, dtype=np.int64)
    spare = scale - int(used.sum())
    frequencies = np.where(used, 1 + counts.astype(np.int64) * spare // total, 0)
    frequencies[int(np.argmax(counts))] += scale - int(frequencies.sum())
    return frequencies
