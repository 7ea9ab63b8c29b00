"""De-duplicated rows as a composition of smaller operations, each of which chooses its own backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.huffman import huffman_decode, huffman_encode
from tersor.kernels.entropy.rans import rans_decode, rans_encode
from tersor.kernels.entropy.symbols import Symbols, body, dequantize_symbols, quantize_symbols
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.kernels.pack.fields.reference import fields_nbytes
from tersor.kernels.quantize import Grid, finite_range
from tersor.kernels.quantize.body import Body
from tersor.kernels.quantize.grid import Range
from tersor.kernels.rows.dedup import unique_rows
from tersor.kernels.rows.layout import (
    CODED,
    HEADER,
    PACKED,
    index_alphabet,
    low_nbits,
    ref_nbits,
    worth_coding,
)
from tersor.raw_bytes import as_bytes, from_struct, read_struct
from tersor.types import Bound

Coder = Literal["huffman", "ans"]


def encode_mapped(mapped: Symbols, coder: Coder) -> torch.Tensor:
    """Return the entropy-coded body of symbols."""
    encode = huffman_encode if coder == "huffman" else rans_encode
    return body.join(mapped, encode(mapped.symbols, mapped.alphabet))


def decode_mapped(data: torch.Tensor, num_codes: int, coder: Coder) -> tuple[Symbols, int]:
    """Return the symbols of an entropy-coded body and the number of bytes read."""
    mapped, coded, start = body.split(data, num_codes)
    decode = huffman_decode if coder == "huffman" else rans_decode
    symbols, nbytes = decode(coded, num_codes, mapped.alphabet)
    return replace(mapped, symbols=symbols), start + nbytes


def _distinct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    row_nbytes = rows.shape[1] * rows.element_size()
    index, first = unique_rows(as_bytes(rows).view(rows.shape[0], row_nbytes))
    return index, first


def encode_rows(
    x: torch.Tensor, bound: Bound, coder: Coder = "huffman", lead: int = 0
) -> tuple[Body | None, Range]:
    """Encode the distinct rows of a matrix, and an index of all rows. Layout: ``rows/layout.py``.

    Rows are equal if all their bits are. If no value is an outlier or escapes the alphabet, rows with
    equal codes count as equal too.

    Args:
        x: float [num_rows, width], both at least 1.
        bound: absolute, or relative to the range of ``x``.
        coder: entropy coder of rows and index.
        lead: number of bytes to reserve before the body; their content is arbitrary.

    Returns:
        The body, or None if no grid can keep the bound; positions of its outliers refer to the distinct
        rows. Then the range of ``x``, with low > high if no value is finite.
    """
    index, first = _distinct(x)
    distinct = x if first.numel() == x.shape[0] else x[first]
    low, high = finite_range(distinct).tolist()
    error_bound = bound.resolve(low, high) if low <= high else 0.0
    limits = (low, high) if bound.kind == "relative" else None
    grid = Grid.for_bound(error_bound, x.dtype, limits)
    if grid is None:
        return None, (low, high)
    mapped, positions = quantize_symbols(distinct, grid, low, high)
    if positions.numel() == 0 and mapped.escape_positions.numel() == 0:
        codes = mapped.symbols.view(-1, x.shape[1])
        again, unique = _distinct(codes)
        if unique.numel() < first.numel():
            mapped = replace(mapped, symbols=codes[unique].view(-1))
            index, first = again[index.long()], first[unique]
    head, packed_index = _encode_index(index, first, coder)
    room = head.new_zeros(lead)
    data = torch.cat([room, head, packed_index, encode_mapped(mapped, coder)])
    return Body(grid.step, data, positions, distinct.reshape(-1)[positions]), (low, high)


def _encode_index(
    index: torch.Tensor, first: torch.Tensor, coder: Coder
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the header and the smaller of the packed and the coded index."""
    num_distinct = first.numel()
    new = torch.zeros(index.numel(), dtype=torch.bool, device=index.device)
    new[first] = True
    refs = index[~new]
    nbits = ref_nbits(num_distinct)
    low = low_nbits(nbits)
    alphabet = index_alphabet(num_distinct, low)
    packed_nbytes = fields_nbytes(index.numel(), 1) + fields_nbytes(refs.numel(), nbits)
    if worth_coding(refs.numel(), nbits, alphabet):
        coded = encode_mapped(_index_symbols(index, new, low, alphabet), coder)
        if coded.numel() + fields_nbytes(refs.numel(), low) < packed_nbytes:
            header = HEADER.pack(num_distinct, CODED, low)
            data = torch.cat([coded, pack_fields(refs & ((1 << low) - 1), low)])
            return from_struct(header, index.device), data
    header = HEADER.pack(num_distinct, PACKED, 0)
    data = torch.cat([pack_fields(new.to(torch.int32), 1), pack_fields(refs, nbits)])
    return from_struct(header, index.device), data


def _index_symbols(index: torch.Tensor, new: torch.Tensor, low: int, alphabet: int) -> Symbols:
    symbols = torch.where(new, 0, 1 + (index >> low))
    symbols = symbols.to(torch.uint8 if alphabet <= NARROW else torch.int16)
    none = torch.empty(0, dtype=torch.int64, device=index.device)
    return Symbols(symbols, 0, alphabet, none, none.to(torch.int32))


def read_head(data: torch.Tensor, num_rows: int) -> tuple[int, int]:
    """Return the number of distinct rows and the mode of the index.

    Raises:
        CorruptDataError: the header is impossible for a matrix of ``num_rows`` rows.
    """
    num_distinct, mode, low = read_struct(HEADER, data, slice(6, 8))
    expected_low = low_nbits(ref_nbits(num_distinct)) if mode == CODED else 0
    if mode not in (PACKED, CODED) or not 1 <= num_distinct <= num_rows or low != expected_low:
        raise CorruptDataError("coded rows have an impossible index")
    return num_distinct, mode


def decode_rows(
    data: torch.Tensor,
    step: float,
    positions: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    coder: Coder = "huffman",
) -> int:
    """Decode into the contiguous matrix ``out`` and return the number of body bytes read.

    Raises:
        CorruptDataError: the body is not one that ``encode_rows`` could have written.
    """
    num_rows, width = out.shape
    num_distinct, mode = read_head(data, num_rows)
    index, index_nbytes = _decode_index(data[HEADER.size :], mode, num_rows, num_distinct, coder)
    start = HEADER.size + index_nbytes
    mapped, nbytes = decode_mapped(data[start:], num_distinct * width, coder)
    if positions.numel() and int(positions.max()) >= num_distinct * width:
        raise CorruptDataError("an outlier lies outside the distinct rows")
    all_new = num_distinct == num_rows
    distinct = out if all_new else out.new_empty(num_distinct, width)
    dequantize_symbols(mapped.symbols, mapped, step, distinct)
    if positions.numel():
        distinct.view(-1)[positions] = values
    if not all_new:
        torch.index_select(distinct, 0, index, out=out)
    return start + nbytes


def _decode_index(
    data: torch.Tensor, mode: int, num_rows: int, num_distinct: int, coder: Coder
) -> tuple[torch.Tensor, int]:
    """Return the int64 number of each row's distinct row, and the number of bytes read."""
    num_refs = num_rows - num_distinct
    if mode == PACKED:
        high = 1 - unpack_fields(data, num_rows, 1)
        start, nbits = fields_nbytes(num_rows, 1), ref_nbits(num_distinct)
    else:
        mapped, start = decode_mapped(data, num_rows, coder)
        high, nbits = mapped.symbols, low_nbits(ref_nbits(num_distinct))
        if mapped.low != 0 or mapped.escape_positions.numel():
            raise CorruptDataError("a row index uses codes that no writer uses")
    # 0 means a new row, else 1 plus the high bits of a number whose low bits follow in order; nothing
    # is selected by a mask, because the size of the result would have to come from the device
    is_new = high == 0
    # checked before int64 numbers are made, with which a damaged index could exhaust the memory
    if int(torch.count_nonzero(is_new)) != num_distinct:
        raise CorruptDataError("a row index marks the wrong number of new rows")
    new_ends = is_new.cumsum(0)
    index = new_ends - 1
    if num_refs:
        place = (torch.arange(num_rows, device=data.device) - new_ends).clamp_(0, num_refs - 1)
        low = unpack_fields(data[start:], num_refs, nbits)[place]
        numbers = torch.add(low, high.to(torch.int64), alpha=1 << nbits).sub_(1 << nbits)
        index = torch.where(is_new, index, numbers)
    smallest, largest = torch.stack(torch.aminmax(index)).tolist()
    if not 0 <= smallest <= largest < num_distinct:
        raise CorruptDataError("a row index names a row that does not exist")
    return index, start + fields_nbytes(num_refs, nbits)
