"""Rows in Triton: whatever is not coding itself takes one launch, and no list of places travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.kernels.entropy.symbols import Symbols, dequantize_symbols, quantize_symbols
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.kernels.pack.fields.reference import fields_nbytes
from tersor.kernels.quantize import Grid, finite_range
from tersor.kernels.quantize.body import Body
from tersor.kernels.quantize.gpu.quantize import KINDS, bits_of, from_bits, store_values
from tersor.kernels.quantize.grid import Range
from tersor.kernels.rows.compose import Coder, decode_mapped, encode_mapped, read_head
from tersor.kernels.rows.dedup.gpu.numbers import number_rows
from tersor.kernels.rows.layout import (
    CODED,
    HEADER,
    PACKED,
    index_alphabet,
    low_nbits,
    ref_nbits,
    worth_coding,
)
from tersor.raw_bytes import from_struct
from tersor.types import Bound

_TILE: Final = 1024
_TILE_VALUES: Final = 2048
_MAX_COLUMNS: Final = 512
_NUM_NEW, _STATUS = tl.constexpr(0), tl.constexpr(1)
"""What decoding an index finds out, int32: rows that are new; 1 if a number is out of range."""


@triton.jit(do_not_specialize=["num_distinct", "nbits", "low"])
def _split_kernel(
    index, num_rows, first, num_distinct, nbits, low, marks, symbols, refs, TILE: tl.constexpr
):
    """One program splits the numbers of a tile of rows into what an index stores.

    How many new rows come before a row is found by bisection in ``first``: no running sum is
    needed. ``2**nbits`` is at least ``num_distinct``.
    """
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = row < num_rows
    before = tl.zeros([TILE], dtype=tl.int32)
    for k in range(nbits + 1):
        probed = before + (1 << (nbits - k))
        seen = tl.load(first + probed - 1, mask=inside & (probed <= num_distinct), other=num_rows)
        before = tl.where(seen < row, probed, before)
    is_new = tl.load(first + before, mask=inside & (before < num_distinct), other=-1) == row
    number = tl.load(index + row, mask=inside, other=0)
    tl.store(marks + row, is_new.to(tl.int32), mask=inside)
    tl.store(symbols + row, tl.where(is_new, 0, 1 + (number >> low)), mask=inside)
    tl.store(refs + row - before, number, mask=inside & ~is_new)


@triton.jit(do_not_specialize=["num_distinct", "num_refs", "nbits"])
def _join_kernel(
    highs, new_ends, refs, num_rows, num_distinct, num_refs, nbits, index, facts,
    TILE: tl.constexpr,
):  # fmt: skip
    """One program puts the numbers of a tile of rows together; impossible ones become 0.

    ``highs`` is 0 for a new row and else one more than the number's high bits.
    """
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = row < num_rows
    high = tl.load(highs + row, mask=inside, other=0).to(tl.int32)
    end = tl.load(new_ends + row, mask=inside, other=0).to(tl.int32)
    is_new = high == 0
    place = row - end
    known = inside & ~is_new & (place < num_refs)
    low = tl.load(refs + place, mask=known, other=0)
    number = tl.where(is_new, end - 1, ((high - 1) << nbits) | low)
    wrong = inside & ((number < 0) | (number >= num_distinct))
    tl.store(index + row, tl.where(wrong, 0, number), mask=inside)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.atomic_or(facts + _STATUS, 1)
    last = tl.max(tl.where(row == num_rows - 1, end, -1), axis=0)
    if last >= 0:
        tl.store(facts + _NUM_NEW, last)


@triton.jit(do_not_specialize=["num_rows", "low", "step_bits"])
def _gather_kernel(
    symbols, index, num_rows, width, low, step_bits, out, KIND: tl.constexpr,
    ALIGNED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program decodes ``ROWS`` rows of ``COLUMNS`` columns from the distinct rows' symbols.

    ``WHOLE`` says that the columns divide the width.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = row < num_rows
    number = tl.load(index + row, mask=inside, other=0).to(tl.int64)
    count = num_rows.to(tl.int64) * width
    known = inside[:, None] & (column < width)[None, :]
    source = symbols + (number[:, None] * width + column[None, :])
    found = tl.load(source, mask=known, other=0).to(tl.int32)
    step = from_bits(step_bits, KIND)
    values = (found + low).to(step.dtype) * step
    position = row.to(tl.int64)[:, None] * width + column[None, :]
    if not WHOLE:
        position = tl.where(known, position, count)
    store_values(out.to(tl.int64), position, values, count, KIND, ALIGNED, False)


def _gather(
    symbols: torch.Tensor, index: torch.Tensor, low: int, step: float, out: torch.Tensor
) -> None:
    """Write ``(symbols[index[row]] + low) * step`` to each row of ``out``."""
    num_rows, width = out.shape
    columns = min(_MAX_COLUMNS, triton.next_power_of_2(width))
    rows = _TILE_VALUES // columns
    whole = width % columns == 0
    values: Any = out.view(torch.int16) if out.dtype == torch.bfloat16 else out
    aligned = whole and out.data_ptr() % 16 == 0 and columns * out.element_size() % 16 == 0
    _gather_kernel[(ceil_div(num_rows, rows), ceil_div(width, columns))](
        symbols, index, num_rows, width, low, bits_of(step), values, KIND=KINDS[out.dtype],
        ALIGNED=aligned, WHOLE=whole, ROWS=rows, COLUMNS=columns, enable_fp_fusion=False,
    )  # fmt: skip


def _read_back(count: torch.Tensor, finite: torch.Tensor) -> tuple[int, float, float]:
    """Read back how many rows are distinct, and the finite range, at once."""
    numbers = torch.cat([count, finite.view(torch.int64)]).tolist()
    low, high = torch.tensor(numbers[1:], device="cpu").view(torch.float64).tolist()
    return numbers[0], low, high


def encode_rows(
    x: torch.Tensor, bound: Bound, coder: Coder = "huffman", lead: int = 0
) -> tuple[Body | None, Range]:
    """See ``compose.encode_rows``; waits for sizes only."""
    index, first, count = number_rows(x.contiguous())
    num_distinct, low, high = _read_back(count, finite_range(x))
    grid = Grid.for_bound(bound.resolve(low, high) if low <= high else 0.0, x.dtype)
    if grid is None:
        return None, (low, high)
    first = first[:num_distinct]
    distinct = x if num_distinct == x.shape[0] else x.index_select(0, first)
    mapped, positions = quantize_symbols(distinct, grid, low, high)
    if positions.numel() == 0 and mapped.escape_positions.numel() == 0:
        codes = mapped.symbols.view(-1, x.shape[1])
        again, kept, count = number_rows(codes)
        num_kept = int(count)
        if num_kept < num_distinct:
            kept = kept[:num_kept]
            mapped = replace(mapped, symbols=codes.index_select(0, kept).view(-1))
            index, first = again.index_select(0, index), first.index_select(0, kept)
    parts = _encode_index(index, first, coder)
    room = parts[0].new_zeros(lead)
    data = torch.cat([room, *parts, encode_mapped(mapped, coder)])
    values = distinct.view(-1)[positions] if positions.numel() else distinct.new_empty(0)
    return Body(grid.step, data, positions, values), (low, high)


def _encode_index(index: torch.Tensor, first: torch.Tensor, coder: Coder) -> list[torch.Tensor]:
    """Return the header and the parts of the smaller of the packed and the coded index."""
    num_rows, num_distinct, device = index.numel(), first.numel(), index.device
    num_refs = num_rows - num_distinct
    nbits = ref_nbits(num_distinct)
    low = low_nbits(nbits)
    alphabet = index_alphabet(num_distinct, low)
    marks = torch.empty_like(index)
    refs = torch.empty(num_refs, dtype=torch.int32, device=device)
    narrow = alphabet <= NARROW
    symbols = torch.empty(num_rows, dtype=torch.uint8 if narrow else torch.int16, device=device)
    _split_kernel[(ceil_div(num_rows, _TILE),)](
        index, num_rows, first, num_distinct, nbits, low, marks, symbols, refs, TILE=_TILE
    )
    packed_nbytes = fields_nbytes(num_rows, 1) + fields_nbytes(num_refs, nbits)
    if worth_coding(num_refs, nbits, alphabet):
        none = torch.empty(0, dtype=torch.int64, device=device)
        coded = encode_mapped(Symbols(symbols, 0, alphabet, none, none.to(torch.int32)), coder)
        if coded.numel() + fields_nbytes(num_refs, low) < packed_nbytes:
            head = from_struct(HEADER.pack(num_distinct, CODED, low), device)
            return [head, coded, pack_fields(refs, low)]
    head = from_struct(HEADER.pack(num_distinct, PACKED, 0), device)
    return [head, pack_fields(marks, 1), pack_fields(refs, nbits)]


def decode_rows(
    data: torch.Tensor,
    step: float,
    positions: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    coder: Coder = "huffman",
) -> int:
    """See ``compose.decode_rows``; without outliers and escapes straight from the symbols."""
    num_rows, width = out.shape
    num_distinct, mode = read_head(data, num_rows)
    index, facts, start = _decode_index(data, mode, num_rows, num_distinct, coder)
    mapped, nbytes = decode_mapped(data[start:], num_distinct * width, coder)
    if positions.numel() and int(positions.max()) >= num_distinct * width:
        raise CorruptDataError("an outlier lies outside the distinct rows")
    if positions.numel() or mapped.escape_positions.numel():
        distinct = out.new_empty(num_distinct, width)
        dequantize_symbols(mapped.symbols, mapped, step, distinct)
        distinct.view(-1)[positions] = values
        torch.index_select(distinct, 0, index, out=out)
    else:
        _gather(mapped.symbols, index, mapped.low, step, out)
    num_new, status = facts.tolist()
    if num_new != num_distinct:
        raise CorruptDataError("a row index marks the wrong number of new rows")
    if status:
        raise CorruptDataError("a row index names a row that does not exist")
    return start + nbytes


def _decode_index(
    data: torch.Tensor, mode: int, num_rows: int, num_distinct: int, coder: Coder
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the number of each row, below ``num_distinct``; facts to check; where the rows start."""
    num_refs = num_rows - num_distinct
    rest = data[HEADER.size :]
    if mode == PACKED:
        highs = 1 - unpack_fields(rest, num_rows, 1)
        start, nbits = fields_nbytes(num_rows, 1), ref_nbits(num_distinct)
    else:
        mapped, start = decode_mapped(rest, num_rows, coder)
        highs, nbits = mapped.symbols, low_nbits(ref_nbits(num_distinct))
        if mapped.low != 0 or mapped.escape_positions.numel():
            raise CorruptDataError("a row index uses codes that no writer uses")
    refs = unpack_fields(rest[start:], num_refs, nbits)
    new_ends = (highs == 0).cumsum(0)
    index = torch.empty(num_rows, dtype=torch.int32, device=data.device)
    facts = torch.zeros(2, dtype=torch.int32, device=data.device)
    _join_kernel[(ceil_div(num_rows, _TILE),)](
        highs, new_ends, refs, num_rows, num_distinct, num_refs, nbits, index, facts, TILE=_TILE
    )
    return index, facts, HEADER.size + start + fields_nbytes(num_refs, nbits)
