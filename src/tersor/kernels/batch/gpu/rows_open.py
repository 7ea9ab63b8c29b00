"""Reading and checking the heads of payloads of a list of matrices in Triton, on the device.

A payload that is malformed, or has a form that only the composition knows, sets the status of its
matrix, and is skipped by all later steps.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.gpu.rows_plan import CODED_INDEX, PACKED_INDEX, ROWS_HEAD, SYMBOLS_HEAD
from tersor.kernels.entropy.rans.gpu.decode_streams import WIDE_NBITS, Bodies, wide_body_nbytes
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.payload.gpu.open import open_payload
from tersor.kernels.payload.gpu.plan import CODED, HEADER_NBYTES
from tersor.kernels.rows.gpu.index import fields_nbytes, low_nbits, ref_nbits
from tersor.kernels.rows.gpu.matrices import MatrixList
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded

_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
MALFORMED, UNKNOWN = tl.constexpr(1), tl.constexpr(2)
"""States of a payload: no writer produces such bytes, or it has a form that is not decoded here."""
SKIPPED = tl.constexpr(-1)
(
    MODE, NUMBER, BODY, UNIQUE, FORM, NBITS, REFS, LOW, NUM_COLUMNS,
) = (tl.constexpr(k) for k in range(9))  # fmt: skip
"""Facts about a payload, int64: mode or ``SKIPPED``; bits of its float64 number; address of its body;
number of distinct rows; form of the index; bits of a reference; address of the references; the code of
symbol 0."""
PLAN_COLUMNS: Final = NUM_COLUMNS.value
_MAX_LEFT = tl.constexpr(1 << 20)
"""Limit of the zero bytes after the last part; no writer appends more."""
_SMALL_CODE = tl.constexpr(1 << 21)
"""Codes of at least this magnitude would leave the range in which ``quantize.gpu.as_float`` is exact."""


@triton.jit
def _symbols_head(address, room, count, wanted):
    """Return low, alphabet and number of escapes of a symbol body, and whether they are possible."""
    words = address.to(tl.pointer_type(tl.int64))
    wanted = wanted & (room >= SYMBOLS_HEAD)
    first = tl.load(words, mask=wanted, other=0)
    second = tl.load(words + 1, mask=wanted, other=0)
    low = first.to(tl.int32).to(tl.int64)
    alphabet, escapes = (first >> 32) & 0xFFFF, second & 0xFFFFFFFF
    good = wanted & (alphabet >= 1) & (alphabet <= _WIDE) & (escapes <= count)
    good = good & (((first >> 48) & 0xFFFF) == 0) & ((second >> 32) == 0)
    return low, alphabet, escapes, good & (low + alphabet <= (1 << 31))


@triton.jit
def _is_clean(payload, start, stop, LANES: tl.constexpr):
    """True if all bytes of a payload from ``start`` up to ``stop`` are zero."""
    largest = tl.zeros([LANES], dtype=tl.int32)
    for first in range(start, stop, LANES):
        i = first + tl.arange(0, LANES)
        found = tl.load(payload + i, mask=i < stop, other=0)
        largest = tl.maximum(largest, found.to(tl.int32))
    return tl.max(largest, axis=0) == 0


@triton.jit
def _store_stream(streams, k, body, room, count, alphabet):
    """Store the facts about stream ``k``; a count of 0 says that it has no symbols."""
    bodies, rooms, counts, alphabets = streams
    tl.store(bodies + k, body)
    tl.store(rooms + k, tl.where(count > 0, room, 0))
    tl.store(counts + k, count)
    tl.store(alphabets + k, tl.where(count > 0, alphabet, 1).to(tl.int32))


@triton.jit
def _open_index(body, body_nbytes, rows, wanted, SYMBOL_NBITS: tl.constexpr):
    """Read the heads of a body and of its index.

    Returns:
        The number of distinct rows, the form of the index, bits of a reference, alphabet of the coded symbols,
        offsets of the references and of the distinct rows in the body, and whether all this is possible.
    """
    wanted = wanted & (body_nbytes >= ROWS_HEAD)
    head = tl.load(body.to(tl.pointer_type(tl.int64)), mask=wanted, other=0)
    unique, form, low = head & 0xFFFFFFFF, (head >> 32) & 0xFF, (head >> 40) & 0xFF
    nbits = ref_nbits(unique)
    is_coded = form == CODED_INDEX
    nbits = tl.where(is_coded, low_nbits(nbits), nbits)
    possible = wanted & (unique >= 1) & (unique <= rows) & (((head >> 48) & 0xFFFF) == 0)
    possible = possible & (is_coded | (form == PACKED_INDEX))
    possible = possible & (low == tl.where(is_coded, nbits, 0))
    index, room = body + ROWS_HEAD, body_nbytes - ROWS_HEAD
    lowest, alphabet, escapes, known = _symbols_head(index, room, rows, possible & is_coded)
    known = known & (lowest == 0) & (escapes == 0)
    coded_nbytes = wide_body_nbytes(
        index + SYMBOLS_HEAD, room - SYMBOLS_HEAD, tl.where(known, rows, 0), alphabet.to(tl.int32),
        SYMBOL_NBITS,
    )  # fmt: skip
    possible = possible & (~is_coded | (coded_nbytes > 0))
    marks_nbytes = tl.where(is_coded, coded_nbytes + SYMBOLS_HEAD, fields_nbytes(rows, 1))
    refs = ROWS_HEAD + marks_nbytes
    start = refs + fields_nbytes(rows - unique, nbits)
    return unique, form, nbits, alphabet, refs, start, possible


@jit_kernel(do_not_specialize=["buffer"])
def _open_kernel(
    buffer, offsets, sizes, numels, num_rows, widths, plan, streams, indices, status, TYPE: tl.constexpr, INDEX_SYMBOLS: tl.constexpr, SYMBOL_NBITS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """One program reads the heads of one payload, and stores which symbols to decode."""
    k = tl.program_id(0)
    size, rows = tl.load(sizes + k), tl.load(num_rows + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, body_nbytes, outliers, good = open_payload(
        payload, size, tl.load(numels + k), TYPE
    )
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    end = body_nbytes + padded(4 * outliers) + padded(value_nbytes * outliers) + HEADER_NBYTES
    is_known = (outliers == 0) & (size - end <= _MAX_LEFT)
    good = good & _is_clean(payload, end, tl.where(good & is_known, size, end), LANES)
    body = (payload + HEADER_NBYTES).to(tl.int64)
    wanted = good & is_known & (mode == CODED)
    unique, form, nbits, index_alphabet, refs, start, possible = _open_index(
        body, body_nbytes, rows, wanted, SYMBOL_NBITS
    )
    room, num_values = body_nbytes - start, unique * tl.load(widths + k)
    low, alphabet, escapes, possible = _symbols_head(body + start, room, num_values, possible)
    is_small = ((low > -_SMALL_CODE) & (low < _SMALL_CODE)) | (TYPE == F64)
    is_narrow = (alphabet <= _NARROW) & (escapes == 0) & is_small
    good = good & ((mode != CODED) | ~is_known | possible)
    is_narrow = is_narrow & ((form != CODED_INDEX) | (index_alphabet <= INDEX_SYMBOLS))
    is_known = is_known & ((mode != CODED) | is_narrow)
    state = tl.where(good, tl.where(is_known, 0, UNKNOWN), MALFORMED)
    tl.store(status + k, state.to(tl.int32))
    row = plan + k * NUM_COLUMNS
    tl.store(row + MODE, tl.where(state == 0, mode, SKIPPED))
    tl.store(row + NUMBER, number.to(tl.int64, bitcast=True))
    tl.store(row + BODY, body)
    tl.store(row + UNIQUE, unique)
    tl.store(row + FORM, form)
    tl.store(row + NBITS, nbits)
    tl.store(row + REFS, body + refs)
    tl.store(row + LOW, low)
    is_coded = possible & (state == 0)
    _store_stream(
        streams, k, body + start + SYMBOLS_HEAD, room - SYMBOLS_HEAD,
        tl.where(is_coded, num_values, 0), alphabet,
    )  # fmt: skip
    if INDEX_SYMBOLS > 0:
        _store_stream(
            indices, k, body + (ROWS_HEAD + SYMBOLS_HEAD), body_nbytes - (ROWS_HEAD + SYMBOLS_HEAD),
            tl.where(is_coded & (form == CODED_INDEX), rows, 0), index_alphabet,
        )  # fmt: skip


def open_payloads(
    matrices: MatrixList,
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    dtype: torch.dtype,
    plan: torch.Tensor,
    streams: Bodies,
    indices: Bodies | None,
    status: torch.Tensor,
) -> None:
    """Read all heads, without waiting.

    Args:
        matrices: shapes of the list.
        buffer: uint8, with all payloads.
        offsets: int64, the start of each payload.
        sizes: int64, bytes of each payload.
        dtype: dtype of the values.
        plan: int64 [num_matrices * PLAN_COLUMNS]; written.
        streams: the symbols of the distinct rows of each payload; written.
        indices: the symbols of each coded index; written. None if this package codes no index for such
            matrices. Payloads that nevertheless have one, or have a larger alphabet, are not decoded here.
        status: int32, receives 0, ``MALFORMED`` or ``UNKNOWN``.
    """
    bodies = _tensors(streams)
    _open_kernel[(len(matrices),)](
        buffer, offsets, sizes, matrices.numels, matrices.rows.tiles.counts, matrices.widths, plan,
        bodies, bodies if indices is None else _tensors(indices), status, TYPE=TYPES[dtype],
        INDEX_SYMBOLS=0 if indices is None else indices.most_wide, SYMBOL_NBITS=WIDE_NBITS, LANES=1024,
    )  # fmt: skip


def _tensors(bodies: Bodies) -> tuple[torch.Tensor, ...]:
    return bodies.addresses, bodies.rooms, bodies.counts, bodies.alphabets
