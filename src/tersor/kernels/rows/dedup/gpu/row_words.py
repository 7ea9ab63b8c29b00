"""Rows as words, in Triton: loading, hashing and comparing rows, and finding the range of their values.

A program handles a few words of many rows at a time. It accumulates results word by word and reduces
along the rows only at the end, so lanes exchange values once per row, not once per part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.runtime.gpu.element_types import F16, F32

MAX_WORDS: Final = 16
"""Words of each row that are handled at once: few, so that many programs run concurrently."""
MAX_PARTS: Final = 8
"""Up to this many parts, of ``MAX_WORDS`` words each, are loaded without waiting for each other."""
# not tl.void, which Triton 3.7 cannot pass from function to function
NO_VALUES = tl.constexpr(tl.int1)
"""Stands for the type of values if no range is wanted."""


@dataclass(frozen=True, slots=True)
class Words:
    """How rows are divided into words, which are compared at once.

    Attributes:
        row_words: words per row.
        dtype: dtype of a word: int32, int16 or uint8.
        aligned: whether every row starts at a multiple of 16 bytes.
    """

    row_words: int
    dtype: torch.dtype
    aligned: bool

    @classmethod
    def of(cls, row_nbytes: int, starts: Sequence[int]) -> Words:
        """Return the widest words that divide and align the rows of matrices that start at these addresses."""
        shared = row_nbytes
        for start in starts:
            shared |= start
        for dtype in (torch.int32, torch.int16):
            if shared % dtype.itemsize == 0:
                return cls(row_nbytes // dtype.itemsize, dtype, shared % 16 == 0)
        return cls(row_nbytes, torch.uint8, aligned=False)


@triton.jit
def _load_words(
    rows, row, column, num_words, TYPE: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr
):
    """Load words of rows; ``FULL`` promises that all the columns exist.

    Words of columns that do not exist are the same in all rows, and NaN, so that ranges ignore them.
    """
    places = rows + (row.to(tl.int64)[:, None] * num_words + column[None, :])
    if ALIGNED:
        places = tl.multiple_of(places, (1, 16))
    known = (column < num_words)[None, :] & (row >= 0)[:, None]
    if FULL:
        return tl.load(places)
    elif TYPE == NO_VALUES:
        return tl.load(places, mask=known, other=0)
    elif TYPE == F32:
        return tl.load(places, mask=known, other=0x7FC00000)
    elif rows.dtype.element_ty == tl.int32:
        return tl.load(places, mask=known, other=0x7FC07FC0)
    else:
        return tl.load(places, mask=known, other=0x7FC0)


@triton.jit
def _mixed(words, column):
    """Return words scrambled and multiplied by a factor of their column; hashes are sums of these.

    High bits are folded down first, because a product only carries bits up, and floats often differ
    in nothing but their sign or the upper bits of the mantissa.
    """
    factor = (column + 1).to(tl.uint32) * 0x1E3779B1
    factor = (factor ^ (factor >> 16)) * 0x7FEB352D
    factor = (factor ^ (factor >> 15)) | 1
    x = words.to(tl.int32).to(tl.uint32, bitcast=True)
    return (x ^ (x >> 15) ^ (x >> 27)) * factor[None, :]


@triton.jit
def _half_values(bits, TYPE: tl.constexpr):
    """Return the 16-bit floats in the lower halves of int32, as float32."""
    if TYPE == F16:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _widen(low, high, values):
    """Return the minimum of ``low`` and the finite values, and the maximum of ``high`` and these."""
    finite = tl.abs(values) < float("inf")
    low = tl.minimum(low, tl.where(finite, values, float("inf")))
    return low, tl.maximum(high, tl.where(finite, values, float("-inf")))


@triton.jit
def _widen_words(low, high, words, TYPE: tl.constexpr):
    """Apply ``_widen`` to the values that words consist of."""
    if TYPE == F32:
        low, high = _widen(low, high, words.to(tl.float32, bitcast=True))
    elif TYPE != NO_VALUES:
        bits = words.to(tl.int32)
        low, high = _widen(low, high, _half_values(bits, TYPE))
        if words.dtype == tl.int32:
            low, high = _widen(low, high, _half_values(bits >> 16, TYPE))
    return low, high


@triton.jit
def hash_rows(
    rows, row, num_words, TYPE: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr,
    WORDS: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Return the first words and the hash of each row, and the smallest and largest finite value of all."""
    column = tl.arange(0, WORDS)
    own = _load_words(rows, row, column, num_words, TYPE, ALIGNED, FULL)
    mixed = _mixed(own, column)
    low = tl.full(mixed.shape, float("inf"), tl.float32)
    high = tl.full(mixed.shape, float("-inf"), tl.float32)
    low, high = _widen_words(low, high, own, TYPE)
    for part in tl.static_range(1, PARTS):
        words = _load_words(rows, row, part * WORDS + column, num_words, TYPE, ALIGNED, FULL)
        mixed += _mixed(words, part * WORDS + column)
        low, high = _widen_words(low, high, words, TYPE)
    if not WHOLE:
        for start in range(PARTS * WORDS, num_words, WORDS):
            words = _load_words(rows, row, start + column, num_words, TYPE, ALIGNED, FULL)
            mixed += _mixed(words, start + column)
            low, high = _widen_words(low, high, words, TYPE)
    lowest, highest = tl.min(tl.min(low, axis=0), axis=0), tl.max(tl.max(high, axis=0), axis=0)
    hashed = tl.sum(mixed, axis=1)
    hashed = (hashed ^ (hashed >> 16)) * 0x7FEB352D
    return own, hashed ^ (hashed >> 15), lowest, highest


@triton.jit
def are_equal(
    rows, row, own, found, num_words, TYPE: tl.constexpr, ALIGNED: tl.constexpr,
    FULL: tl.constexpr, WORDS: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Return which of the rows ``row``, whose first words are ``own``, equal the rows ``found``."""
    column = tl.arange(0, WORDS)
    bits = own ^ _load_words(rows, found, column, num_words, TYPE, ALIGNED, FULL)
    for part in tl.static_range(1, PARTS):
        ours = _load_words(rows, row, part * WORDS + column, num_words, TYPE, ALIGNED, FULL)
        bits |= ours ^ _load_words(
            rows, found, part * WORDS + column, num_words, TYPE, ALIGNED, FULL
        )
    if not WHOLE:
        for start in range(PARTS * WORDS, num_words, WORDS):
            ours = _load_words(rows, row, start + column, num_words, TYPE, ALIGNED, FULL)
            bits |= ours ^ _load_words(rows, found, start + column, num_words, TYPE, ALIGNED, FULL)
    return tl.max(bits.to(tl.int32).to(tl.uint32, bitcast=True), axis=1) == 0
