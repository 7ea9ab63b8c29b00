"""The heads of the payloads of a list of matrices in Triton, read and checked on the device.

What is wrong, or has a form that only the codec itself knows, sets the status of its matrix and is
left out of all that follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.index_list.gpu import fields_nbytes, low_nbits, ref_nbits
from tersor.kernels.matrix_list.gpu import MatrixList
from tersor.kernels.payload.gpu import CODED, HEADER_NBYTES, open_payload, padded
from tersor.kernels.quantize.gpu import F64, KINDS
from tersor.kernels.rows_plan.gpu import CODED_INDEX, PACKED_INDEX, ROWS_HEAD, SYMBOLS_HEAD
from tersor.kernels.symbols.alphabet import NARROW, WIDE

_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
MALFORMED, UNKNOWN = tl.constexpr(1), tl.constexpr(2)
"""States: no writer makes such bytes; or they have a form that is not decoded here."""
SKIPPED = tl.constexpr(-1)
(
    MODE, NUMBER, BODY, BODY_NBYTES, UNIQUE, FORM, NBITS, REFS, LOW, NUM_COLUMNS,
) = (tl.constexpr(k) for k in range(10))  # fmt: skip
"""What is known of a payload, int64: its mode or ``SKIPPED``; bits of its float64 number; address
and size of its body; distinct rows; form of the index; bits of a reference; address of the
references; the code of symbol 0."""
_LANES: Final = 128
"""Matrices that are handled at once."""
_MAX_LEFT = tl.constexpr(1 << 20)
"""More bytes after the last part, all of them zero, than any writer appends."""
_SMALL_CODE = tl.constexpr(1 << 21)
"""Codes from here on would leave the range in which ``quantize.gpu.as_float`` is exact."""


@triton.jit
def _symbols_head(address, room, count, wanted):
    """Return low, alphabet and number of escapes of a symbol body, and whether these can be."""
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
    """Say whether all bytes of a payload from ``start`` up to ``stop`` are zero."""
    largest = tl.zeros([LANES], dtype=tl.int32)
    for first in range(start, stop, LANES):
        i = first + tl.arange(0, LANES)
        found = tl.load(payload + i, mask=i < stop, other=0)
        largest = tl.maximum(largest, found.to(tl.int32))
    return tl.max(largest, axis=0) == 0


@triton.jit(do_not_specialize=["buffer"])
def _open_kernel(
    buffer, offsets, sizes, numels, num_rows, plan, bodies, rooms, counts, alphabets, status,
    KIND: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program reads the heads of one payload, up to the symbols of its coded index."""
    k = tl.program_id(0)
    size, rows = tl.load(sizes + k), tl.load(num_rows + k)
    payload = buffer + tl.load(offsets + k)
    mode, number, body_nbytes, outliers, good = open_payload(
        payload, size, tl.load(numels + k), KIND
    )
    value_nbytes: tl.constexpr = KIND & ~1
    end = body_nbytes + padded(4 * outliers) + padded(value_nbytes * outliers) + HEADER_NBYTES
    is_known = (outliers == 0) & (size - end <= _MAX_LEFT)
    good = good & _is_clean(payload, end, tl.where(good & is_known, size, end), LANES)
    body = (payload + HEADER_NBYTES).to(tl.int64)
    wanted = good & is_known & (mode == CODED) & (body_nbytes >= ROWS_HEAD)
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
    possible = possible & (~is_coded | (known & (lowest == 0) & (escapes == 0)))
    good = good & ((mode != CODED) | ~is_known | possible)
    state = tl.where(good, tl.where(is_known, 0, UNKNOWN), MALFORMED)
    tl.store(status + k, state.to(tl.int32))
    row = plan + k * NUM_COLUMNS
    tl.store(row + MODE, tl.where(state == 0, mode, SKIPPED))
    tl.store(row + NUMBER, number.to(tl.int64, bitcast=True))
    tl.store(row + BODY, body)
    tl.store(row + BODY_NBYTES, body_nbytes)
    tl.store(row + UNIQUE, unique)
    tl.store(row + FORM, form)
    tl.store(row + NBITS, nbits)
    is_stream = possible & (state == 0) & is_coded
    tl.store(bodies + k, index + SYMBOLS_HEAD)
    tl.store(rooms + k, tl.where(is_stream, room - SYMBOLS_HEAD, 0))
    tl.store(counts + k, tl.where(is_stream, rows, 0))
    tl.store(alphabets + k, tl.where(is_stream, alphabet, 1).to(tl.int32))


@triton.jit(do_not_specialize=["num_matrices"])
def _open_rows_kernel(
    num_rows, widths, index_nbytes, num_matrices, plan, bodies, rooms, counts, alphabets, status,
    KIND: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program finds the references and the distinct rows of ``LANES`` payloads."""
    k = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    row = plan + k * NUM_COLUMNS
    inside = k < num_matrices
    wanted = inside & (tl.load(row + MODE, mask=inside, other=SKIPPED) == CODED)
    state = tl.load(status + k, mask=inside, other=0)
    unique = tl.load(row + UNIQUE, mask=wanted, other=0)
    rows = tl.load(num_rows + k, mask=wanted, other=0)
    width = tl.load(widths + k, mask=wanted, other=0)
    body = tl.load(row + BODY, mask=wanted, other=0)
    coded_nbytes = tl.load(index_nbytes + k, mask=wanted, other=0)
    is_coded = tl.load(row + FORM, mask=wanted, other=0) == CODED_INDEX
    # a body of no bytes was found malformed
    good = wanted & (state == 0) & (~is_coded | (coded_nbytes > 0))
    marks_nbytes = tl.where(is_coded, coded_nbytes + SYMBOLS_HEAD, fields_nbytes(rows, 1))
    nbits = tl.load(row + NBITS, mask=wanted, other=0)
    refs = ROWS_HEAD + marks_nbytes
    start = refs + fields_nbytes(rows - unique, nbits)
    room = tl.load(row + BODY_NBYTES, mask=wanted, other=0) - start
    low, alphabet, escapes, known = _symbols_head(body + start, room, unique * width, good)
    is_small = ((low > -_SMALL_CODE) & (low < _SMALL_CODE)) | (KIND == F64)
    is_known = (alphabet <= _NARROW) & (escapes == 0) & is_small
    state |= tl.where(wanted & ~known, MALFORMED, tl.where(wanted & ~is_known, UNKNOWN, 0))
    good = known & is_known
    tl.store(status + k, state, mask=inside)
    tl.store(row + MODE, tl.full([LANES], SKIPPED, tl.int64), mask=wanted & ~good)
    tl.store(row + REFS, body + refs, mask=wanted)
    tl.store(row + LOW, low, mask=wanted)
    tl.store(bodies + k, body + start + SYMBOLS_HEAD, mask=inside)
    tl.store(rooms + k, tl.where(good, room - SYMBOLS_HEAD, 0), mask=inside)
    tl.store(counts + k, tl.where(good, unique * width, 0), mask=inside)
    tl.store(alphabets + k, tl.where(good, alphabet, 1).to(tl.int32), mask=inside)


@dataclass(frozen=True, slots=True)
class Stream:
    """Where the coded symbols of each payload lie, on the device.

    Attributes:
        bodies: int64, addresses.
        rooms: int64, bytes that may be read there.
        counts: int64, symbols; 0 if there are none to decode.
        alphabets: int32.
    """

    bodies: torch.Tensor
    rooms: torch.Tensor
    counts: torch.Tensor
    alphabets: torch.Tensor

    @classmethod
    def empty(cls, num: int, device: torch.device) -> Stream:
        """Return tables to be filled."""
        bodies, rooms, counts = torch.empty((3, num), dtype=torch.int64, device=device).unbind(0)
        return cls(bodies, rooms, counts, torch.empty(num, dtype=torch.int32, device=device))


@dataclass(frozen=True, slots=True)
class Heads:
    """What the heads of payloads say.

    Attributes:
        plan: int64 [num_matrices, NUM_COLUMNS].
        status: int32, 0, ``MALFORMED`` or ``UNKNOWN``.
        index: the coded indices.
    """

    plan: torch.Tensor
    status: torch.Tensor
    index: Stream


def open_payloads(
    matrices: MatrixList,
    buffer: torch.Tensor,
    offsets: torch.Tensor,
    sizes: torch.Tensor,
    dtype: torch.dtype,
) -> Heads:
    """Read all heads up to the symbols of the index, without waiting.

    Where the references and the distinct rows lie is not known before ``open_rows``.
    """
    num, device = len(matrices), buffer.device
    plan = torch.empty((num, NUM_COLUMNS.value), dtype=torch.int64, device=device)
    status = torch.empty(num, dtype=torch.int32, device=device)
    index = Stream.empty(num, device)
    _open_kernel[(num,)](
        buffer, offsets, sizes, matrices.numels, matrices.rows.tiles.counts, plan, index.bodies,
        index.rooms, index.counts, index.alphabets, status, KIND=KINDS[dtype], LANES=1024,
    )  # fmt: skip
    return Heads(plan, status, index)


def open_rows(
    matrices: MatrixList, heads: Heads, index_nbytes: torch.Tensor, dtype: torch.dtype
) -> Stream:
    """Find the references and the distinct rows, without waiting.

    ``index_nbytes``, int64, are the sizes of the indices that were decoded; 0 for other ones.
    """
    num, device = len(matrices), index_nbytes.device
    rows = Stream.empty(num, device)
    _open_rows_kernel[(triton.cdiv(num, _LANES),)](
        matrices.rows.tiles.counts, matrices.widths, index_nbytes, num, heads.plan, rows.bodies,
        rows.rooms, rows.counts, rows.alphabets, heads.status, KIND=KINDS[dtype], LANES=_LANES,
    )  # fmt: skip
    return rows
