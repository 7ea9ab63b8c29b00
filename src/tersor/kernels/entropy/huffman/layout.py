"""The layout of a Huffman body, and the construction of its code.

```
lengths   4 bits per symbol, low nibble first, 0 for an unused symbol; padded to 8 bytes
sizes     u16[4 * num_chunks], bytes of each stream; padded to 8 bytes
streams   byte after byte; padded to 8 bytes, then 16 zero bytes
```

A chunk is 32,768 symbols. Its four streams code consecutive quarters of ``ceil(chunk / 4)``
symbols; the last ones may be shorter or empty. A body with a single used symbol has empty streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES
from tersor.raw_bytes import padded

CHUNK: Final = 1 << 15
STREAMS: Final = 4


def max_length(alphabet: int) -> int:
    """Return the longest code in bits; 11 keeps the multi-symbol decoding table in first-level cache."""
    return 11 if alphabet <= NARROW else 14


@dataclass(frozen=True, slots=True)
class HuffmanLayout:
    """Sizes that follow from the number of symbols and the alphabet."""

    num_symbols: int
    alphabet: int

    @property
    def num_chunks(self) -> int:
        """Number of chunks, of which the last may be partial."""
        return ceil_div(self.num_symbols, CHUNK)

    @property
    def sizes_start(self) -> int:
        """First byte of the stream sizes."""
        return padded((self.alphabet + 1) // 2)

    @property
    def streams_start(self) -> int:
        """First byte of the streams."""
        return self.sizes_start + padded(2 * STREAMS * self.num_chunks)

    def body_nbytes(self, streams_nbytes: int) -> int:
        """Size of the whole body."""
        return self.streams_start + padded(streams_nbytes) + TAIL_NBYTES

    @property
    def max_nbytes(self) -> int:
        """Size of a body in which every symbol has the longest code."""
        streams_nbytes = ceil_div(self.num_symbols * max_length(self.alphabet), 8)
        return self.body_nbytes(streams_nbytes + STREAMS * self.num_chunks)

    def read(self, body: Any, present_nbytes: int | None = None) -> tuple[Any, Any, int]:
        """Return the code lengths, the stream offsets (one more than streams) and the body's size.

        Args:
            body: uint8; at least the part before the streams.
            present_nbytes: size of the whole body if ``body`` is only its beginning.

        Raises:
            CorruptDataError: the body is truncated, or its lengths are not those of a complete code.
        """
        present_nbytes = body.size if present_nbytes is None else present_nbytes
        if not 1 <= self.alphabet <= WIDE or present_nbytes < self.streams_start + TAIL_NBYTES:
            raise CorruptDataError("a Huffman body is truncated")
        nibbles = body[: (self.alphabet + 1) // 2]
        lengths = np.stack([nibbles & 15, nibbles >> 4], 1).reshape(-1)[: self.alphabet]
        sizes_nbytes = 2 * STREAMS * self.num_chunks
        sizes = body[self.sizes_start : self.sizes_start + sizes_nbytes].view(np.uint16)
        offsets = np.zeros(sizes.size + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:], dtype=np.int64)
        nbytes = self.body_nbytes(int(offsets[-1]))
        if present_nbytes < nbytes:
            raise CorruptDataError("a Huffman body is truncated")
        self._check_lengths(lengths, int(offsets[-1]))
        return lengths, offsets, nbytes

    def _check_lengths(self, lengths: Any, streams_nbytes: int) -> None:
        limit = max_length(self.alphabet)
        used = lengths[lengths > 0].astype(np.int64)
        if used.size == 1 and used[0] == 1 and streams_nbytes == 0:
            return
        if used.size == 0 and self.num_symbols == 0:
            return
        if used.size < 2 or used.max() > limit or int((1 << (limit - used)).sum()) != 1 << limit:
            raise CorruptDataError("the code lengths of a Huffman body make no complete code")


def code_lengths(counts: Any, limit: int) -> Any:
    """Return uint8 code lengths of a complete prefix code no longer than ``limit`` bits.

    Symbols with count 0 get length 0; a single used symbol gets length 1. Ties are broken by
    symbol order, so every backend builds the same code.

    Args:
        counts: int64 occurrences per symbol.
        limit: longest code; ``2**limit`` must be at least the number of used symbols.
    """
    lengths = np.zeros(counts.size, dtype=np.uint8)
    used = np.flatnonzero(counts)
    if used.size <= 1:
        lengths[used] = 1
        return lengths
    order = used[np.argsort(counts[used], kind="stable")]
    depths = np.minimum(_merge_depths(counts[order].tolist()), limit)
    lengths[order] = _complete(depths.tolist(), limit)
    return lengths


def _merge_depths(weights: list[int]) -> Any:
    """Return the depth of each leaf of the Huffman tree over ascending ``weights``."""
    num_leaves = len(weights)
    nodes = weights + [0] * (num_leaves - 1)
    parent = [0] * len(nodes)
    leaf, inner = 0, num_leaves
    for new in range(num_leaves, len(nodes)):
        for _ in range(2):
            # for equal weights the leaf is taken first, which keeps the tree flat
            if leaf < num_leaves and (inner == new or weights[leaf] <= nodes[inner]):
                child, leaf = leaf, leaf + 1
            else:
                child, inner = inner, inner + 1
            parent[child] = new
            nodes[new] += nodes[child]
    depths = [0] * len(nodes)
    for node in range(len(nodes) - 2, -1, -1):
        depths[node] = depths[parent[node]] + 1
    return np.array(depths[:num_leaves])


def _complete(lengths: list[int], limit: int) -> list[int]:
    """Lengthen the rarest codes until the code is valid, then shorten the commonest to make it complete.

    ``lengths`` are ordered by ascending count and at most ``limit``.
    """
    excess = sum(1 << (limit - length) for length in lengths) - (1 << limit)
    index = 0
    while excess > 0:
        if lengths[index] < limit:
            lengths[index] += 1
            excess -= 1 << (limit - lengths[index])
        else:
            index += 1
    while excess < 0:
        for index in range(len(lengths) - 1, -1, -1):
            gain = 1 << (limit - lengths[index])
            if gain <= -excess:
                lengths[index] -= 1
                excess += gain
    return lengths


def canonical_codes(lengths: Any) -> Any:
    """Return each symbol's canonical code as uint32, with the first bit lowest.

    Example:
        >>> canonical_codes(np.array([1, 2, 2], dtype=np.uint8)).tolist()
        [0, 1, 3]
    """
    codes = np.zeros(lengths.size, dtype=np.uint32)
    next_code, previous = 0, 0
    for symbol in np.lexsort((np.arange(lengths.size), lengths)):
        length = int(lengths[symbol])
        if length == 0:
            continue
        next_code <<= length - previous
        codes[symbol] = int(f"{next_code:0{length}b}"[::-1], 2)
        next_code, previous = next_code + 1, length
    return codes
