"""Rows in numba: one kernel call per tensor in the common case.

Small tensors are the rule in an exchange of embeddings, and a composition of operations would
spend more time between its kernels than in them. What is not common (outliers, escapes, wide
alphabets, odd widths, rANS) goes through the composition, which writes the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

from tersor.errors import CorruptDataError
from tersor.kernels.bitfields.cpu import read_fields, write_fields
from tersor.kernels.dedup.cpu import any_differs, hash_keys, hash_rows, number_hashes
from tersor.kernels.finite_range.cpu import range_kernel
from tersor.kernels.huffman.cpu import decode_from, encode_into
from tersor.kernels.huffman.layout import max_length
from tersor.kernels.quantize.cpu import WIDE as UNROUNDED
from tersor.kernels.quantize.cpu import quantize_tile
from tersor.kernels.quantize.grid import SHRINK, TILE, limits_of
from tersor.kernels.rows import composition
from tersor.kernels.rows.composition import Coder, Encoded
from tersor.kernels.rows.layout import (
    HEADER,
    index_alphabet,
    low_nbits,
    ref_nbits,
    worth_coding,
)
from tersor.kernels.scratch import scratch
from tersor.kernels.symbols import body as symbols_body
from tersor.kernels.symbols.alphabet import NARROW, WIDE
from tersor.raw_bytes import read_struct
from tersor.types import Bound

_HEAD_NBYTES = HEADER.size
_SYMBOLS_NBYTES = symbols_body.HEADER.size
_NARROW_LIMIT = max_length(NARROW)
_WIDE_LIMIT = max_length(WIDE)
_UNCOMMON, _MALFORMED = 0, -1
_INFINITY_BITS: dict[torch.dtype, Any] = {
    torch.float32: np.array([0x7F80_0000], dtype=np.int32),
    torch.float64: np.array([0x7FF0_0000_0000_0000], dtype=np.int64),
}
_NO_POSITIONS = torch.empty(0, dtype=torch.int64)


@njit(nogil=True, cache=True)
def _put(target: Any, place: int, value: int, nbytes: int) -> None:
    for k in range(nbytes):
        target[place + k] = np.uint8((value >> (8 * k)) & 255)


@njit(nogil=True, cache=True)
def _get(source: Any, place: int, nbytes: int) -> Any:
    value = np.int64(0)
    for k in range(nbytes):
        value |= np.int64(source[place + k]) << (8 * k)
    return value


@njit(nogil=True, cache=True)
def _has_more(symbols_head: Any) -> Any:
    """Say whether a symbols header names escapes or uses reserved bytes."""
    return _get(symbols_head, 6, 8) != 0 or _get(symbols_head, 14, 2) != 0


@njit(nogil=True, cache=True)
def _fields_nbytes(count: int, width: int) -> int:
    return ((count * width + 7) // 8 + 7) // 8 * 8


@njit(nogil=True, cache=True)
def _put_symbols(symbols: Any, low: int, alphabet: int, limit: int, target: Any) -> int:
    """Write an entropy-coded body without escapes; return its size."""
    target[:_SYMBOLS_NBYTES] = 0
    _put(target, 0, low, 4)
    _put(target, 4, alphabet, 2)
    return _SYMBOLS_NBYTES + encode_into(symbols, alphabet, limit, target[_SYMBOLS_NBYTES:])


@njit(nogil=True, cache=True)
def _distinct(words: Any, index: Any, first: Any) -> int:
    """Number distinct rows; return how many, or 0 after a hash collision."""
    hashes = np.empty(words.shape[0], dtype=np.uint64)
    hash_rows(words, hash_keys(words.shape[1]), hashes, 0, words.shape[0])
    count = number_hashes(hashes, index, first)
    return 0 if any_differs(words, index, first, 0, words.shape[0]) else count


@njit(nogil=True, cache=True)
def _put_index(
    index: Any, first: Any, low: int, nbits: int, alphabet: int, worth: bool, target: Any
) -> int:
    """Write the index, coded if worth trying and smaller, after the header; return the size."""
    num_rows, num_unique = index.size, first.size
    refs = np.empty(num_rows - num_unique, dtype=np.int32)
    flags = np.zeros(num_rows, dtype=np.int32)
    symbols = np.empty(num_rows, dtype=np.int16)
    for k in range(num_unique):
        flags[first[k]] = 1
    count = 0
    for row in range(num_rows):
        symbols[row] = 0
        if flags[row] == 0:
            refs[count] = index[row]
            symbols[row] = 1 + (index[row] >> low)
            count += 1
    packed_nbytes = _fields_nbytes(num_rows, 1) + _fields_nbytes(count, nbits)
    _put(target, 0, num_unique, 4)
    _put(target, 4, 0, 4)
    rest = target[_HEAD_NBYTES:]
    nbytes = packed_nbytes
    if worth and alphabet <= NARROW:
        nbytes = _put_symbols(symbols.astype(np.uint8), 0, alphabet, _NARROW_LIMIT, rest)
    elif worth:
        nbytes = _put_symbols(symbols, 0, alphabet, _WIDE_LIMIT, rest)
    low_nbytes = _fields_nbytes(count, low)
    if nbytes + low_nbytes < packed_nbytes:
        _put(target, 4, 1, 1)
        _put(target, 5, low, 1)
        for k in range(count):
            refs[k] &= (1 << low) - 1
        write_fields(refs, low, rest[nbytes : nbytes + low_nbytes])
        return _HEAD_NBYTES + nbytes + low_nbytes
    flags_nbytes = _fields_nbytes(num_rows, 1)
    write_fields(flags, 1, rest[:flags_nbytes])
    write_fields(refs, nbits, rest[flags_nbytes:packed_nbytes])
    return _HEAD_NBYTES + packed_nbytes


@njit(nogil=True, cache=True)
def _gather(values: Any, first: Any) -> Any:
    """Return the rows ``first`` back to back: whole arrays vectorise where single rows do not."""
    width = values.shape[1]
    rows = np.empty(first.size * width, dtype=values.dtype)
    for k in range(first.size):
        source, target = values[first[k]], rows[k * width : k * width + width]
        for j in range(width):
            target[j] = source[j]
    return rows


@njit(nogil=True, cache=True)
def _at_most(value: float, like: Any) -> Any:
    """Round a positive float64 down to the dtype of ``like``."""
    rounded = like.dtype.type(value)
    if np.float64(rounded) > value:
        rounded = np.nextafter(rounded, like.dtype.type(0))
    return rounded


@njit(nogil=True, cache=True)
def _symbolize(rows: Any, grid: Any, radius: Any, low: Any, high: Any) -> Any:
    """Return values as byte symbols, the code of symbol 0, and the alphabet (0 if uncommon)."""
    step, inverse, bound = grid
    symbols = np.empty(rows.size, dtype=np.uint8)
    if not max(abs(low), abs(high)) * inverse < radius:
        return symbols, np.int64(0), np.int64(0)
    # rounding keeps order, so the range's ends have the extreme codes
    smallest = np.int32(np.rint(low * inverse))
    alphabet = np.int64(np.int32(np.rint(high * inverse))) - np.int64(smallest) + 1
    if alphabet > NARROW:
        return symbols, np.int64(0), np.int64(0)
    codes = np.empty(TILE, dtype=np.int32)
    for start in range(0, rows.size, TILE):
        part = rows[start : min(start + TILE, rows.size)]
        if quantize_tile(part, inverse, step, bound, radius, UNROUNDED, codes) > 0:
            return symbols, np.int64(0), np.int64(0)
        target = symbols[start : start + part.size]
        for j in range(part.size):
            target[j] = np.uint8(codes[j] - smallest)
    return symbols, np.int64(smallest), alphabet


@njit(nogil=True, cache=True)
def _merge(symbols: Any, width: int, index: Any, first: Any) -> int:
    """Merge rows with equal symbols in place; return how many are left, or 0 if uncommon."""
    num_distinct = first.size
    words = symbols.view(np.uint64).reshape(num_distinct, width // 8)
    again = np.empty(num_distinct, dtype=np.int32)
    kept = np.empty(num_distinct, dtype=np.int64)
    count = _distinct(words, again, kept)
    if 0 < count < num_distinct:
        for k in range(count):
            first[k] = first[kept[k]]
            for j in range(words.shape[1]):
                words[k, j] = words[kept[k], j]
        for row in range(index.size):
            index[row] = again[index[row]]
    return count


@njit(nogil=True, cache=True)
def _dedup_kernel(
    words: Any,
    values: Any,
    infinity: Any,
    relative: bool,
    bound_value: float,
    largest_bound: float,
    smallest_step: float,
    radius: Any,
    index: Any,
    first: Any,
) -> Any:
    """Return symbols, low code, alphabet, number of distinct rows and step; 0 rows if uncommon."""
    real = values.dtype.type
    nothing = np.empty(0, dtype=np.uint8), np.int64(0), np.int64(0), 0, 0.0
    count = _distinct(words, index, first)
    if count == 0:
        return nothing
    rows = _gather(values, first[:count])
    bits, infinity_bits = rows.view(infinity.dtype), infinity[0]
    sign_shift = bits.dtype.type(8 * bits.itemsize - 1)
    ends = np.empty(2, dtype=bits.dtype)
    ends[0], ends[1] = range_kernel(bits, infinity_bits, sign_shift, 0, bits.size)
    if ends[0] > ends[1]:
        return nothing
    ends ^= (ends >> sign_shift) & bits.dtype.type(infinity_bits | (infinity_bits - 1))
    low, high = ends.view(values.dtype)
    error_bound = bound_value * (np.float64(high) - np.float64(low)) if relative else bound_value
    if not error_bound <= largest_bound:
        return nothing
    bound = _at_most(error_bound, values)
    step = _at_most(2.0 * np.float64(bound) * SHRINK, values)
    if step < smallest_step:
        return nothing
    grid = step, real(real(1) / step), bound
    symbols, low_code, alphabet = _symbolize(rows, grid, radius, low, high)
    if alphabet == 0:
        return nothing
    count = _merge(symbols, values.shape[1], index, first[:count])
    return symbols[: count * values.shape[1]], low_code, alphabet, count, np.float64(step)


def encode_rows(
    x: torch.Tensor, bound: Bound, coder: Coder = "huffman", lead: int = 0
) -> Encoded | None:
    """See ``composition.encode_rows``."""
    num_rows, width = x.shape
    if coder != "huffman" or width % 8 or x.dtype not in _INFINITY_BITS:
        return composition.encode_rows(x, bound, coder, lead)
    values = x.numpy()
    words = values.reshape(-1).view(np.uint64).reshape(num_rows, -1)
    index = np.empty(num_rows, dtype=np.int32)
    first = np.empty(num_rows, dtype=np.int64)
    compute, largest_bound, smallest_step, radius = limits_of(x.dtype)
    symbols, low, alphabet, count, step = _dedup_kernel(
        words,
        values,
        _INFINITY_BITS[x.dtype],
        bound.kind == "relative",
        bound.value,
        largest_bound,
        smallest_step,
        compute(radius),
        index,
        first,
    )
    if count == 0:
        return composition.encode_rows(x, bound, coder, lead)
    target = scratch(_max_nbytes(num_rows, width))
    alphabets = low_nbits(count), ref_nbits(count), index_alphabet(count)
    worth = worth_coding(num_rows, count)
    nbytes = _put_index(index, first[:count], *alphabets, worth, target)
    nbytes += _put_symbols(symbols, low, alphabet, _NARROW_LIMIT, target[nbytes:])
    data = np.empty(lead + nbytes, dtype=np.uint8)
    data[lead:] = target[:nbytes]
    return step, torch.from_numpy(data), _NO_POSITIONS, x.new_empty(0)


def _max_nbytes(num_rows: int, width: int) -> int:
    """Return room for the worst case: 14 bits per row for the index, 11 per value, and tables."""
    chunks = num_rows * (width + 1) // 8192 + 2
    return 4096 + 2 * num_rows + num_rows // 4 + num_rows * width * 11 // 8 + 16 * chunks


@njit(nogil=True, cache=True)
def _take_symbols(data: Any, alphabet: int, symbols: Any) -> int:
    """Decode an entropy-coded body without escapes; return its size, or -1."""
    limit = _NARROW_LIMIT if alphabet <= NARROW else _WIDE_LIMIT
    nbytes = decode_from(data[_SYMBOLS_NBYTES:], alphabet, limit, symbols)
    return _MALFORMED if nbytes < 0 else _SYMBOLS_NBYTES + nbytes


@njit(nogil=True, cache=True)
def _take_index(data: Any, mode: int, low: int, nbits: int, num_unique: int, index: Any) -> int:
    """Read the index; return the bytes read, 0 if uncommon or -1 if malformed."""
    num_rows = index.size
    num_refs = num_rows - num_unique
    flags = np.empty(num_rows, dtype=np.int32)
    if mode == 1:
        if data.size < _SYMBOLS_NBYTES or _get(data, 0, 4) != 0 or _has_more(data):
            return _UNCOMMON
        alphabet = _get(data, 4, 2)
        if alphabet < 1 or alphabet > WIDE:
            return _UNCOMMON
        if alphabet <= NARROW:
            octets = np.empty(num_rows, dtype=np.uint8)
            start = _take_symbols(data, alphabet, octets)
            flags[:] = octets
        else:
            pairs = np.empty(num_rows, dtype=np.int16)
            start = _take_symbols(data, alphabet, pairs)
            flags[:] = pairs
        width = low
    else:
        start = _fields_nbytes(num_rows, 1)
        if data.size < start:
            return _MALFORMED
        read_fields(data, 1, flags)
        for row in range(num_rows):
            flags[row] = 1 - flags[row]
        width = nbits
    end = start + _fields_nbytes(num_refs, width)
    if start < 0 or data.size < end:
        return _MALFORMED
    refs = np.empty(num_refs, dtype=np.int32)
    read_fields(data[start:], width, refs)
    num_new, num_old = 0, 0
    for row in range(num_rows):
        if flags[row] == 0:
            index[row] = num_new
            num_new += 1
        elif num_old < num_refs:
            ref = (np.int64(flags[row] - 1) << width) | np.int64(refs[num_old])
            num_old += 1
            if ref >= num_unique:
                return _MALFORMED
            index[row] = ref
    return end if num_new == num_unique and num_old == num_refs else _MALFORMED


@njit(nogil=True, cache=True)
def _take_rows(data: Any, step: Any, num_unique: int, index: Any, out: Any) -> int:
    """Decode the distinct rows and gather them; return the bytes read, 0 or -1."""
    width = out.shape[1]
    if data.size < _SYMBOLS_NBYTES or _has_more(data):
        return _UNCOMMON
    low, alphabet = np.int32(_get(data, 0, 4)), _get(data, 4, 2)
    if alphabet < 1 or alphabet > NARROW or np.int64(low) + alphabet > np.int64(2147483648):
        return _UNCOMMON
    symbols = np.empty(num_unique * width, dtype=np.uint8)
    nbytes = _take_symbols(data, alphabet, symbols)
    if nbytes < 0:
        return _MALFORMED
    distinct = np.empty((num_unique, width), dtype=out.dtype)
    flat = distinct.reshape(-1)
    for i in range(flat.size):
        flat[i] = out.dtype.type(np.int32(np.int32(symbols[i]) + low)) * step
    for row in range(out.shape[0]):
        source, target = distinct[index[row]], out[row]
        for j in range(width):
            target[j] = source[j]
    return nbytes


def decode_rows(
    data: torch.Tensor,
    step: float,
    positions: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    coder: Coder = "huffman",
) -> int:
    """See ``composition.decode_rows``."""
    wide = out.dtype in (torch.float32, torch.float64)
    if coder != "huffman" or positions.numel() or not wide or data.numel() < _HEAD_NBYTES:
        return composition.decode_rows(data, step, positions, values, out, coder)
    source, target = data.numpy(), out.numpy()
    num_unique, mode, low = read_struct(HEADER, data, slice(6, 8))
    common = mode in (0, 1) and 1 <= num_unique <= len(target)
    if not common or low != (low_nbits(num_unique) if mode == 1 else 0):
        raise CorruptDataError("coded rows have an impossible index")
    index = np.empty(len(target), dtype=np.int32)
    rest = source[_HEAD_NBYTES:]
    index_nbytes = _take_index(rest, mode, low, ref_nbits(num_unique), num_unique, index)
    nbytes = _MALFORMED
    if index_nbytes > 0:
        step = target.dtype.type(step)
        nbytes = _take_rows(rest[index_nbytes:], step, num_unique, index, target)
    if _UNCOMMON in (index_nbytes, nbytes):
        return composition.decode_rows(data, step, positions, values, out, coder)
    if nbytes < 0:
        raise CorruptDataError("coded rows are truncated or altered")
    return _HEAD_NBYTES + index_nbytes + int(nbytes)
