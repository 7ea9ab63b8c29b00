"""Group quantization in Triton: rows of 32 values to words of fields, and back.

Rows are those of ``load_store``: a row of a group's lower half is paired with the row of the upper
half that shares its bytes, so their fields meet in one thread.

Most rows are plain: their values are finite, and their scales neither tiny nor huge. Where all rows
of a tile are plain, a kernel skips the handling of the others. Decoding bfloat16 with Hadamard then
takes 13 instructions per value instead of 25; an H200 has time for 20 while a copy moves the bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tersor.kernels.group.gpu.generic import HASH_STEP, MAGIC_BITS, codes_of, fields_of, values_of

# for scales in this range, and for zero, products with the powers of two used here are exact, and
# sums over 2**16 senders are finite
_LEAST_SCALE, _MOST_SCALE = tl.constexpr(2.0**-100), tl.constexpr(2.0**96)


@triton.jit
def _row_starts(rows, GROUP: tl.constexpr):
    """Return the position of the first value of each lower row in the tile."""
    starts = rows * 32
    if GROUP != 32:
        starts += (rows // (GROUP // 64)) * (GROUP // 2)
    return starts


@triton.jit
def _to_bytes(
    values,
    inverse,
    hashes,
    high,
    NBITS: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    PLAIN: tl.constexpr,
):
    if PLAIN:
        result = codes_of(values, inverse, hashes, high, NBITS, STOCHASTIC)
    else:
        result = fields_of(values, inverse, hashes, high, NBITS, STOCHASTIC)
    return result


@triton.jit
def _to_words(
    quads, inverse, hashes, high, NBITS: tl.constexpr, STOCHASTIC: tl.constexpr, PLAIN: tl.constexpr
):
    """Return rows as [8, ROWS] words, each the sum of four fields a byte apart.

    If ``PLAIN``, ``MAGIC_BITS + code`` takes the place of each field, and the sums wrap around.
    """
    inverse = inverse[None, :]
    h = hashes[None, :] + tl.arange(0, 8).to(tl.uint32)[:, None] * (4 * HASH_STEP & 0xFFFFFFFF)
    f0 = _to_bytes(quads[0], inverse, h, high, NBITS, STOCHASTIC, PLAIN)
    h += HASH_STEP
    f1 = _to_bytes(quads[1], inverse, h, high, NBITS, STOCHASTIC, PLAIN)
    h += HASH_STEP
    f2 = _to_bytes(quads[2], inverse, h, high, NBITS, STOCHASTIC, PLAIN)
    h += HASH_STEP
    f3 = _to_bytes(quads[3], inverse, h, high, NBITS, STOCHASTIC, PLAIN)
    return f0 + (f1 << 8) + (f2 << 16) + (f3 << 24)


@triton.jit
def _write_words(words, data_ptr, starts, num_rows, PLAIN: tl.constexpr):
    """Store [COUNT, ROWS] words: those of row ``r`` from ``starts[r]`` on, for the first ``num_rows`` rows."""
    at = starts[:, None] + tl.arange(0, words.shape[0])[None, :]
    if PLAIN:
        tl.store(data_ptr + at, tl.trans(words))
    else:
        known = tl.arange(0, words.shape[1]) < num_rows
        tl.store(data_ptr + at, tl.trans(words), mask=known[:, None])


@triton.jit
def pack_rows(
    lower,
    upper,
    inverse,
    hashes,
    high,
    data_ptr,
    num_rows,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Store the fields of lower rows and of their upper rows.

    Args:
        lower: values in the layout of ``split_rows``.
        upper: values in the layout of ``split_rows``.
        inverse: [ROWS], the reciprocals of the scales.
        hashes: ``hashes_of`` the tile's first value.
        high: upper word of the seed.
        data_ptr: words to write to.
        num_rows: number of rows that exist; all of them if ``PLAIN``.
        NBITS: 8 or 4.
        GROUP: values per scale.
        STOCHASTIC: whether to round stochastically.
        PLAIN: whether all values are finite.
    """
    rows = tl.arange(0, inverse.shape[0])
    starts = _row_starts(rows, GROUP)
    hashes += starts.to(tl.uint32) * HASH_STEP
    # turns a sum of codes into the sum of their fields, as an int32
    ones: tl.constexpr = 0x11111111 if NBITS == 4 else 0x01010101
    bias: tl.constexpr = (2 ** (NBITS - 1) - MAGIC_BITS) * ones if PLAIN else 0
    wrapped: tl.constexpr = ((bias + 2**31) & 0xFFFFFFFF) - 2**31
    words = _to_words(lower, inverse, hashes, high, NBITS, STOCHASTIC, PLAIN)
    if GROUP == 32 and NBITS == 8:
        _write_words(words + wrapped, data_ptr, rows * 8, num_rows, PLAIN)
    elif GROUP == 32:
        halves = tl.permute(tl.reshape(words, [2, 4, words.shape[1]]), [1, 2, 0])
        first, second = tl.split(halves)
        _write_words(first + (second << 4) + wrapped, data_ptr, rows * 4, num_rows, PLAIN)
    else:
        hashes += GROUP // 2 * HASH_STEP & 0xFFFFFFFF
        others = _to_words(upper, inverse, hashes, high, NBITS, STOCHASTIC, PLAIN)
        if NBITS == 4:
            _write_words(words + (others << 4) + wrapped, data_ptr, rows * 8, num_rows, PLAIN)
        else:
            starts = starts // 4
            _write_words(words + wrapped, data_ptr, starts, num_rows, PLAIN)
            _write_words(others + wrapped, data_ptr, starts + GROUP // 8, num_rows, PLAIN)


@triton.jit
def _read_words(data_ptr, at, known, COUNT: tl.constexpr, OWNED: tl.constexpr):
    """Return ``COUNT`` (8 or 4) consecutive words from each ``at`` as [COUNT, ROWS].

    ``OWNED`` rows are read word by word, which gives each thread whole rows and costs less than
    exchanging values later.
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
        result = tl.trans(tl.reshape(words, [at.shape[0], COUNT]))
    else:
        wide = at[None, :] + tl.arange(0, COUNT)[:, None]
        result = tl.load(data_ptr + wide, mask=known[None, :], other=0)
    return result


@triton.jit
def _marks(words, NBITS: tl.constexpr):
    """Return one uint32 per row of words, nonzero if some field is 0."""
    ones: tl.constexpr = 0x11111111 if NBITS == 4 else 0x01010101
    borrows = ((words - ones) & ~words).to(tl.uint32) & (ones << (NBITS - 1))
    return tl.max(borrows, axis=0)


@triton.jit
def _field_values(words, scales, SHIFT: tl.constexpr, NBITS: tl.constexpr, PLAIN: tl.constexpr):
    """Return the values of the fields at bit ``SHIFT``, at most 12, of words."""
    mask: tl.constexpr = 2**NBITS - 1
    if PLAIN:
        # the bits of 2**23 + field * 2**SHIFT: leaving the field in place saves an instruction
        lifted = ((words & (mask << SHIFT)) | 0x4B000000).to(tl.float32, bitcast=True)
        zero: tl.constexpr = 2.0**23 + 2.0 ** (SHIFT + NBITS - 1)
        values = (lifted - zero) * (scales * 2.0**-SHIFT)[None, :]
    else:
        values = values_of((words >> SHIFT) & mask, scales[None, :], NBITS)
    return values


@triton.jit
def _from_words(words, scales, SHIFT: tl.constexpr, NBITS: tl.constexpr, PLAIN: tl.constexpr):
    """Return the values of the four fields that lie at bit ``SHIFT`` of each byte."""
    v0 = _field_values(words, scales, SHIFT, NBITS, PLAIN)
    v1 = _field_values(words, scales, SHIFT + 8, NBITS, PLAIN)
    words = words >> 16
    v2 = _field_values(words, scales, SHIFT, NBITS, PLAIN)
    v3 = _field_values(words, scales, SHIFT + 8, NBITS, PLAIN)
    return v0, v1, v2, v3


@triton.jit
def _stacked(first, second):
    """Return two [4, ROWS] tensors stacked as [8, ROWS]."""
    return tl.reshape(tl.permute(tl.join(first, second), [2, 0, 1]), [8, first.shape[1]])


@triton.jit
def _read_rows(
    data_ptr,
    scales_ptr,
    rows,
    known,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    FACTOR: tl.constexpr,
    OWNED: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Return the lower and upper rows of one sender, and a mark per row: nonzero unless it is plain."""
    starts = _row_starts(rows, GROUP)
    scales = tl.load(scales_ptr + starts // GROUP, mask=known, other=0.0)
    is_usual = (scales == 0.0) | ((scales >= _LEAST_SCALE) & (scales <= _MOST_SCALE))
    scales *= FACTOR
    if GROUP == 32 and NBITS == 4:
        words = _read_words(data_ptr, rows * 4, known, 4, OWNED)
        a0, a1, a2, a3 = _from_words(words, scales, 0, 4, PLAIN)
        b0, b1, b2, b3 = _from_words(words, scales, 4, 4, PLAIN)
        lower = _stacked(a0, b0), _stacked(a1, b1), _stacked(a2, b2), _stacked(a3, b3)
        upper = lower
        marks = _marks(words, 4)
    elif NBITS == 4:
        words = _read_words(data_ptr, rows * 8, known, 8, OWNED)
        lower = _from_words(words, scales, 0, 4, PLAIN)
        upper = _from_words(words, scales, 4, 4, PLAIN)
        marks = _marks(words, 4)
    else:
        words = _read_words(data_ptr, starts // 4, known, 8, OWNED)
        lower = _from_words(words, scales, 0, 8, PLAIN)
        upper = lower
        marks = _marks(words, 8)
        if GROUP != 32:
            words = _read_words(data_ptr, starts // 4 + GROUP // 8, known, 8, OWNED)
            upper = _from_words(words, scales, 0, 8, PLAIN)
            marks = tl.maximum(marks, _marks(words, 8))
    return lower, upper, tl.where(is_usual, marks, 1)


@triton.jit
def read_sum(
    sent,
    first,
    num_rows,
    NBITS: tl.constexpr,
    GROUP: tl.constexpr,
    FACTOR: tl.constexpr,
    OWNED: tl.constexpr,
    PLAIN: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return the sum over the senders, in their order, of ``FACTOR`` times the rows' values.

    Args:
        sent: the fields of ``group.gpu.generic.PackedGroups``, with data as words.
        first: the tile's first group.
        num_rows: number of lower rows from there on.
        NBITS: 8 or 4.
        GROUP: values per scale.
        FACTOR: a power of two from 1/32 to 1; 1 unless ``PLAIN``.
        OWNED: whether to give each thread whole rows.
        PLAIN: whether to assume that all rows are plain.
        ROWS: lower rows of the tile.

    Returns:
        Lower rows, upper rows, and whether all exist and are plain.
    """
    rows = tl.arange(0, ROWS)
    known = rows < num_rows
    data_ptr, data_stride, scales_ptr, scales_stride, num_senders = sent
    data_ptr += first * (GROUP * NBITS // 32)
    scales_ptr += first
    lower, upper, marks = _read_rows(
        data_ptr, scales_ptr, rows, known, NBITS, GROUP, FACTOR, OWNED, PLAIN
    )
    a0, a1, a2, a3 = lower
    b0, b1, b2, b3 = upper
    for _ in range(1, num_senders):
        data_ptr += data_stride
        scales_ptr += scales_stride
        c, d, others = _read_rows(
            data_ptr, scales_ptr, rows, known, NBITS, GROUP, FACTOR, OWNED, PLAIN
        )
        a0, a1, a2, a3 = a0 + c[0], a1 + c[1], a2 + c[2], a3 + c[3]
        b0, b1, b2, b3 = b0 + d[0], b1 + d[1], b2 + d[2], b3 + d[3]
        marks = tl.maximum(marks, others)
    # missing rows were read as zeros, and are therefore marked
    return (a0, a1, a2, a3), (b0, b1, b2, b3), tl.max(marks, axis=0) == 0
