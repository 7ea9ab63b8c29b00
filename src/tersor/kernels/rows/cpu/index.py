"""The index of de-duplicated rows in numba. Layout: ``rows/layout.py``.

Functions that read support the common case only. For any other bytes they return 0, and the caller
leaves them to the composition, which decodes or rejects them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tersor.kernels.entropy.huffman.cpu.decode import decode_from
from tersor.kernels.entropy.huffman.cpu.encode import encode_into
from tersor.kernels.entropy.huffman.layout import max_length
from tersor.kernels.entropy.symbols import body as symbols_body
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.pack.fields.cpu import read_fields, write_fields
from tersor.kernels.rows import layout
from tersor.kernels.runtime.cpu.intrinsics import njit

HEAD_NBYTES = layout.HEADER.size
SYMBOLS_NBYTES = symbols_body.HEADER.size
_NARROW_LIMIT = max_length(NARROW)
_WIDE_LIMIT = max_length(WIDE)
_PACKED, _CODED = layout.PACKED, layout.CODED

_compiled = njit(nogil=True, cache=True)
_ref_nbits = _compiled(layout.ref_nbits)
_low_nbits = _compiled(layout.low_nbits)
_index_alphabet = _compiled(layout.index_alphabet)
_worth_coding = _compiled(layout.worth_coding)


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
def _fields_nbytes(count: int, width: int) -> int:
    return ((count * width + 7) // 8 + 7) // 8 * 8


@njit(nogil=True, cache=True)
def put_symbols(symbols: Any, low: int, alphabet: int, target: Any) -> int:
    """Write an entropy-coded body without escapes; return its size."""
    target[:SYMBOLS_NBYTES] = 0
    _put(target, 0, low, 4)
    _put(target, 4, alphabet, 2)
    limit = _NARROW_LIMIT if alphabet <= NARROW else _WIDE_LIMIT
    return SYMBOLS_NBYTES + encode_into(symbols, alphabet, limit, target[SYMBOLS_NBYTES:])


@njit(nogil=True, cache=True)
def symbols_head(data: Any) -> Any:
    """Return the code of symbol 0 and the alphabet; an alphabet of 0 if the head is not a common one."""
    # the number of escapes, and reserved bytes
    if data.size < SYMBOLS_NBYTES or _get(data, 6, 8) != 0 or _get(data, 14, 2) != 0:
        return np.int32(0), np.int64(0)
    low, alphabet = np.int32(_get(data, 0, 4)), _get(data, 4, 2)
    if alphabet > WIDE or np.int64(low) + alphabet > np.int64(2147483648):
        return np.int32(0), np.int64(0)
    return low, alphabet


@njit(nogil=True, cache=True)
def take_symbols(data: Any, alphabet: int, symbols: Any) -> int:
    """Decode an entropy-coded body without escapes; return its size, or 0."""
    limit = _NARROW_LIMIT if alphabet <= NARROW else _WIDE_LIMIT
    nbytes = decode_from(data[SYMBOLS_NBYTES:], alphabet, limit, symbols)
    return 0 if nbytes < 0 else SYMBOLS_NBYTES + nbytes


@njit(nogil=True, cache=True)
def put_index(index: Any, first: Any, refs: Any, flags: Any, target: Any) -> int:
    """Write header and index, entropy-coded if that is worth trying and smaller; return the size.

    ``refs`` and ``flags``, int32, are scratch memory for one number per row.
    """
    num_rows, num_distinct = index.size, first.size
    nbits = _ref_nbits(num_distinct)
    count = 0
    for row in range(num_rows):
        repeated = first[index[row]] != row
        flags[row] = 0 if repeated else 1
        # written always, but kept only if the row repeats: a branch here is often mispredicted
        refs[count] = index[row]
        count += 1 if repeated else 0
    refs = refs[:count]
    flags_nbytes = _fields_nbytes(num_rows, 1)
    packed_nbytes = flags_nbytes + _fields_nbytes(count, nbits)
    _put(target, 0, num_distinct, 4)
    _put(target, 4, _PACKED, 4)
    rest = target[HEAD_NBYTES:]
    low = _low_nbits(nbits)
    alphabet = _index_alphabet(num_distinct, low)
    if _worth_coding(count, nbits, alphabet):
        nbytes = _put_coded(index, flags, low, alphabet, rest)
        low_nbytes = _fields_nbytes(count, low)
        if nbytes + low_nbytes < packed_nbytes:
            _put(target, 4, _CODED, 1)
            _put(target, 5, low, 1)
            for k in range(count):
                refs[k] &= (1 << low) - 1
            write_fields(refs, low, rest[nbytes : nbytes + low_nbytes])
            return HEAD_NBYTES + nbytes + low_nbytes
    write_fields(flags[:num_rows], 1, rest[:flags_nbytes])
    write_fields(refs, nbits, rest[flags_nbytes:packed_nbytes])
    return HEAD_NBYTES + packed_nbytes


@njit(nogil=True, cache=True)
def _put_coded(index: Any, flags: Any, low: int, alphabet: int, target: Any) -> int:
    """Write "new" or the high bits of the number of every row, entropy-coded; return the size."""
    if alphabet <= NARROW:
        octets = np.empty(index.size, dtype=np.uint8)
        for row in range(index.size):
            octets[row] = np.uint8(0 if flags[row] == 1 else 1 + (index[row] >> low))
        return put_symbols(octets, 0, alphabet, target)
    symbols = np.empty(index.size, dtype=np.int16)
    for row in range(index.size):
        symbols[row] = np.int16(0 if flags[row] == 1 else 1 + (index[row] >> low))
    return put_symbols(symbols, 0, alphabet, target)


@njit(nogil=True, cache=True)
def _take_coded(data: Any, num_distinct: int, highs: Any) -> int:
    """Read 0 for a new row, else 1 plus the high bits of its number; return the bytes read, or 0."""
    code, alphabet = symbols_head(data)
    if alphabet == 0 or code != 0:
        return 0
    if alphabet <= NARROW:
        octets = np.empty(highs.size, dtype=np.uint8)
        nbytes = take_symbols(data, alphabet, octets)
        return nbytes if nbytes > 0 and _widen(octets, num_distinct, highs) else 0
    symbols = np.empty(highs.size, dtype=np.int16)
    nbytes = take_symbols(data, alphabet, symbols)
    return nbytes if nbytes > 0 and _widen(symbols, num_distinct, highs) else 0


@njit(nogil=True, cache=True)
def _widen(symbols: Any, num_distinct: int, highs: Any) -> bool:
    """Copy the symbols and return True, provided that ``num_distinct`` of them mark a new row.

    This is checked first: writing makes the system commit memory for ``highs``, which a few bytes of a
    damaged file must not cause.
    """
    num_new = 0
    for row in range(symbols.size):
        num_new += 1 if symbols[row] == 0 else 0
    if num_new != num_distinct:
        return False
    highs[:] = symbols
    return True


@njit(nogil=True, cache=True)
def take_index(data: Any, highs: Any, refs: Any, index: Any) -> Any:
    """Read header and index; return the number of distinct rows and the bytes read, or two zeros.

    ``highs`` and ``refs``, int32, are scratch memory for one number per row.
    """
    num_rows = index.size
    nothing = np.int64(0), np.int64(0)
    if data.size < HEAD_NBYTES or _get(data, 6, 2) != 0:
        return nothing
    num_distinct, mode, low = _get(data, 0, 4), _get(data, 4, 1), _get(data, 5, 1)
    nbits = _ref_nbits(num_distinct)
    width = nbits if mode == _PACKED else _low_nbits(nbits)
    right_low = low == (0 if mode == _PACKED else width)
    if mode > _CODED or num_distinct < 1 or num_distinct > num_rows or not right_low:
        return nothing
    rest = data[HEAD_NBYTES:]
    start = _fields_nbytes(num_rows, 1)
    if mode == _CODED:
        start = _take_coded(rest, num_distinct, highs[:num_rows])
    elif rest.size >= start:
        read_fields(rest, 1, highs[:num_rows])
        for row in range(num_rows):
            highs[row] = 1 - highs[row]
    num_refs = num_rows - num_distinct
    end = start + _fields_nbytes(num_refs, width)
    if start == 0 or rest.size < end:
        return nothing
    read_fields(rest[start:], width, refs[:num_refs])
    num_new, num_old = 0, 0
    for row in range(num_rows):
        if highs[row] == 0:
            index[row] = num_new
            num_new += 1
        elif num_old < num_refs:
            ref = (np.int64(highs[row] - 1) << width) | np.int64(refs[num_old])
            num_old += 1
            if ref >= num_distinct:
                return nothing
            index[row] = ref
    if num_new != num_distinct or num_old != num_refs:
        return nothing
    return num_distinct, np.int64(HEAD_NBYTES + end)
