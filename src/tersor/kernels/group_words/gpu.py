"""Group quantization in Triton: rows of 32 values to words of four fields, and back.

Rows have the form of ``hadamard.gpu.split_rows``. A row of a group's lower half goes with the row of
the upper half that shares its bytes, so that their fields meet in one thread. A group of 32 is one
row, and what is said of upper rows does not apply to it. Rows of lower halves are counted through
all groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.any_group.gpu import HASH_STEP, fields_of, hashes_of, values_of


@triton.jit
def row_starts(rows, GROUP: tl.constexpr):
    """Return the position of the first value of each row of lower halves."""
    starts = rows * 32
    if GROUP != 32:
        starts += (rows // (GROUP // 64)) * (GROUP // 2)
    return starts


@triton.jit
def to_words(
    v0, v1, v2, v3, starts, inverse, low, high, NBITS: tl.constexpr, STOCHASTIC: tl.constexpr
):
    """Return the fields of rows as [8, ROWS] words of four bytes each."""
    inverse = inverse[None, :]
    quads = tl.arange(0, 8).to(tl.uint32) * (4 * HASH_STEP & 0xFFFFFFFF)
    h = hashes_of(starts, low)[None, :] + quads[:, None]
    f0 = fields_of(v0, inverse, h, high, NBITS, STOCHASTIC)
    f1 = fields_of(v1, inverse, h + HASH_STEP, high, NBITS, STOCHASTIC)
    f2 = fields_of(v2, inverse, h + (2 * HASH_STEP & 0xFFFFFFFF), high, NBITS, STOCHASTIC)
    f3 = fields_of(v3, inverse, h + (3 * HASH_STEP & 0xFFFFFFFF), high, NBITS, STOCHASTIC)
    return f0 | (f1 << 8) | (f2 << 16) | (f3 << 24)


@triton.jit
def _write_words(words, data_ptr, rows, num_rows, whole, PER_ROW: tl.constexpr):
    """Store [PER_ROW, ROWS] words, one row of them after the other."""
    at = rows[:, None] * PER_ROW + tl.arange(0, PER_ROW)[None, :]
    if whole:
        tl.store(data_ptr + at, tl.trans(words))
    else:
        tl.store(data_ptr + at, tl.trans(words), mask=(rows < num_rows)[:, None])


@triton.jit
def write_group_words(
    lower, upper, data_ptr, rows, num_rows, whole, NBITS: tl.constexpr, GROUP: tl.constexpr
):
    """Store the words of rows of lower halves and of their upper ones, all [8, ROWS]."""
    if GROUP == 32:
        if NBITS == 8:
            _write_words(lower, data_ptr, rows, num_rows, whole, 8)
        else:
            halves = tl.permute(tl.reshape(lower, [2, 4, lower.shape[1]]), [1, 2, 0])
            first, second = tl.split(halves)
            _write_words(first | (second << 4), data_ptr, rows, num_rows, whole, 4)
    elif NBITS == 8:
        per_half: tl.constexpr = GROUP // 64
        # counted through both halves
        both = rows + (rows // per_half) * per_half
        _write_words(lower, data_ptr, both, num_rows * 2, whole, 8)
        _write_words(upper, data_ptr, both + per_half, num_rows * 2, whole, 8)
    else:
        _write_words(lower | (upper << 4), data_ptr, rows, num_rows, whole, 8)


@triton.jit
def _read_words(data_ptr, at, known, COUNT: tl.constexpr, OWNED: tl.constexpr, ROWS: tl.constexpr):
    """Return ``COUNT`` (8 or 4) consecutive words from each ``at`` as [COUNT, ROWS].

    ``OWNED`` rows are read word by word, which gives each thread whole rows and costs less than to
    exchange the values later.
    """
    if OWNED:
        data_ptr += at
        w0 = tl.load(data_ptr, mask=known, other=0)
        w1 = tl.load(data_ptr + 1, mask=known, other=0)
        w2 = tl.load(data_ptr + 2, mask=known, other=0)
        w3 = tl.load(data_ptr + 3, mask=known, other=0)
        words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
        if COUNT == 8:
            w4 = tl.load(data_ptr + 4, mask=known, other=0)
            w5 = tl.load(data_ptr + 5, mask=known, other=0)
            w6 = tl.load(data_ptr + 6, mask=known, other=0)
            w7 = tl.load(data_ptr + 7, mask=known, other=0)
            others = tl.join(tl.join(w4, w6), tl.join(w5, w7))
            words = tl.permute(tl.join(words, others), [0, 3, 1, 2])
        result = tl.trans(tl.reshape(words, [ROWS, COUNT]))
    else:
        wide = at[None, :] + tl.arange(0, COUNT)[:, None]
        result = tl.load(data_ptr + wide, mask=known[None, :], other=0)
    return result


@triton.jit
def _read_group_words(
    data_ptr,
    rows,
    starts,
    known,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    OWNED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return words of four fields for rows of lower halves and for their upper ones, [8, ROWS]."""
    if GROUP == 32:
        if NBITS == 8:
            lower = _read_words(data_ptr, rows * 8, known, 8, OWNED, ROWS)
        else:
            both = _read_words(data_ptr, rows * 4, known, 4, OWNED, ROWS)
            halves = tl.join(both & 0x0F0F0F0F, (both >> 4) & 0x0F0F0F0F)
            lower = tl.reshape(tl.permute(halves, [2, 0, 1]), [8, ROWS])
        upper = lower
    elif NBITS == 8:
        lower = _read_words(data_ptr, starts // 4, known, 8, OWNED, ROWS)
        upper = _read_words(data_ptr, starts // 4 + GROUP // 8, known, 8, OWNED, ROWS)
    else:
        both = _read_words(data_ptr, rows * 8, known, 8, OWNED, ROWS)
        lower = both & 0x0F0F0F0F
        upper = (both >> 4) & 0x0F0F0F0F
    return lower, upper


@triton.jit
def _from_words(words, scales, NBITS: tl.constexpr):
    """Return the values of words of four fields."""
    scales = scales[None, :]
    v0 = values_of(words & 255, scales, NBITS)
    v1 = values_of((words >> 8) & 255, scales, NBITS)
    v2 = values_of((words >> 16) & 255, scales, NBITS)
    v3 = values_of((words >> 24) & 255, scales, NBITS)
    return v0, v1, v2, v3


@triton.jit
def read_sum(
    data_ptr,
    data_stride,
    scales_ptr,
    scales_stride,
    num_senders,
    rows,
    starts,
    known,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    OWNED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return the sum over the senders, in their order, for both rows, as eight tensors."""
    scales_ptr += starts // GROUP
    scales = tl.load(scales_ptr, mask=known, other=0.0)
    lower, upper = _read_group_words(data_ptr, rows, starts, known, NBITS, GROUP, OWNED, ROWS)
    a0, a1, a2, a3 = _from_words(lower, scales, NBITS)
    b0, b1, b2, b3 = _from_words(upper, scales, NBITS)
    for _ in range(1, num_senders):
        data_ptr += data_stride
        scales_ptr += scales_stride
        scales = tl.load(scales_ptr, mask=known, other=0.0)
        lower, upper = _read_group_words(data_ptr, rows, starts, known, NBITS, GROUP, OWNED, ROWS)
        c0, c1, c2, c3 = _from_words(lower, scales, NBITS)
        a0, a1, a2, a3 = a0 + c0, a1 + c1, a2 + c2, a3 + c3
        c0, c1, c2, c3 = _from_words(upper, scales, NBITS)
        b0, b1, b2, b3 = b0 + c0, b1 + c1, b2 + c2, b3 + c3
    return a0, a1, a2, a3, b0, b1, b2, b3
