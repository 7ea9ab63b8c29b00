"""Sizes, places and headers of the payloads of a list of matrices in Triton.

The plan has one row per matrix, with the columns of ``payload.gpu.plan`` and some more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.entropy.rans.gpu.encode_streams import EncodedStreams, Streams, place_streams
from tersor.kernels.entropy.symbols import body
from tersor.kernels.payload.gpu.open import copy_values
from tersor.kernels.payload.gpu.plan import (
    BODY,
    CODED,
    CONSTANT,
    EXACT,
    HEADER_NBYTES,
    MODE,
    NUM_FIELDS,
    OFFSET,
    OUTLIERS,
    SIZE,
    STEP,
    close_payload,
    fits,
)
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.quantize.gpu.finite_range import load_range
from tersor.kernels.rows import layout
from tersor.kernels.rows.gpu.index import (
    ABOVE,
    BELOW,
    BIAS,
    MARK_WORDS,
    MOST_FIELDS,
    Decisions,
    SplitIndex,
    fields_nbytes,
    low_nbits,
    put_marks,
    put_refs,
    ref_nbits,
)
from tersor.kernels.rows.gpu.matrices import MatrixList, programs_each
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import addresses, padded

_LEAST_LOG2 = tl.constexpr(MAX_VALUES_PER_BYTE_LOG2)
ROWS_HEAD = tl.constexpr(layout.HEADER.size)
SYMBOLS_HEAD = tl.constexpr(body.HEADER.size)
PACKED_INDEX, CODED_INDEX = tl.constexpr(layout.PACKED), tl.constexpr(layout.CODED)
_INDEX, _REFS, _ROWS, _NUM_COLUMNS = (tl.constexpr(NUM_FIELDS.value + k) for k in range(4))
"""Further columns of a plan: the form of the index, and where its references and the distinct rows start in
the payload."""
PLAN_COLUMNS: Final = _NUM_COLUMNS.value
_LANES: Final = 512
"""Most matrices that are handled at once."""
_COPIED: Final = 1 << 14
"""Least number of values that a program copies of a matrix that is stored exactly."""


@triton.jit
def _index_sizes(num_rows, num_distinct, coded_nbytes):
    """Return whether the index is coded, and its size without and with the references.

    ``coded_nbytes`` is the size of the coded symbols, or 0 if they were not coded.
    """
    num_refs = num_rows - num_distinct
    nbits = ref_nbits(num_distinct)
    marks_nbytes = fields_nbytes(num_rows, 1)
    symbols_nbytes = coded_nbytes + SYMBOLS_HEAD
    packed_nbytes = marks_nbytes + fields_nbytes(num_refs, nbits)
    both_nbytes = symbols_nbytes + fields_nbytes(num_refs, low_nbits(nbits))
    is_coded = (coded_nbytes > 0) & (both_nbytes < packed_nbytes)
    first_nbytes = tl.where(is_coded, symbols_nbytes, marks_nbytes)
    return is_coded, first_nbytes, tl.where(is_coded, both_nbytes, packed_nbytes)


@jit_kernel(do_not_specialize=["num_matrices"])
def _plan_kernel(
    numels, num_rows, unique, nbytes, codes, keys, grids, num_matrices, plan, sizes, status,
    TYPE: tl.constexpr, HAS_INDICES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One program decides mode, size and place of every payload, in order."""
    value_nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    end = tl.zeros([1], dtype=tl.int64)
    for start in range(0, num_matrices, LANES):
        k = start + tl.arange(0, LANES)
        inside = k < num_matrices
        count = tl.load(numels + k, mask=inside, other=0)
        rows = tl.load(num_rows + k, mask=inside, other=0)
        num_distinct = tl.load(unique + k, mask=inside, other=0)
        coded_nbytes = tl.zeros([LANES], dtype=tl.int64)
        if HAS_INDICES:
            coded_nbytes = tl.load(nbytes + num_matrices + k, mask=inside, other=0)
        is_coded_index, first_nbytes, both_nbytes = _index_sizes(rows, num_distinct, coded_nbytes)
        rows_start = both_nbytes + (HEADER_NBYTES + ROWS_HEAD)
        coded = rows_start + SYMBOLS_HEAD + tl.load(nbytes + k, mask=inside, other=0)
        exact = padded(count * value_nbytes) + HEADER_NBYTES
        is_coded = (num_distinct > 0) & (coded < exact)
        low, high = load_range(keys, k, inside, TYPE)
        step = tl.load(grids + 3 * k, mask=inside, other=0.0)
        below = tl.load(codes + 2 * k + BELOW, mask=inside, other=0)
        above = tl.load(codes + 2 * k + ABOVE, mask=inside, other=0)
        # without a grid all codes are 0, and values that are not finite have no code
        is_known = (num_distinct > 0) | ((step == 0) & (above == BIAS) & (below == BIAS))
        is_constant = ~is_coded & (count > 0) & (low == high) & is_known
        size = tl.where(is_coded, coded, tl.where(is_constant, HEADER_NBYTES, exact))
        size = tl.maximum(size, count >> _LEAST_LOG2)
        # the composition would also store exactly, unless it knows a form that this kernel does not
        could_be_coded = (step > 0) & (num_distinct == 0)
        could_be_constant = (step == 0) & (low == high) & ~is_known
        is_larger = (count > 0) & (could_be_coded | could_be_constant)
        room = tl.where(inside, padded(size), 0)
        offset = tl.cumsum(room, axis=0) - room + end
        row = plan + k * _NUM_COLUMNS
        mode = tl.where(is_coded, CODED, tl.where(is_constant, CONSTANT, EXACT))
        tl.store(row + MODE, mode.to(tl.int64), mask=inside)
        tl.store(row + OFFSET, offset, mask=inside)
        used = tl.where(is_coded, coded, tl.where(is_constant, HEADER_NBYTES, exact))
        tl.store(row + BODY, used - HEADER_NBYTES, mask=inside)
        tl.store(row + OUTLIERS, used * 0, mask=inside)
        number = tl.where(is_coded, step.to(tl.float64), tl.where(is_constant, low, 0.0))
        tl.store(row + STEP, number.to(tl.int64, bitcast=True), mask=inside)
        tl.store(row + SIZE, size, mask=inside)
        tl.store(row + _INDEX, is_coded_index.to(tl.int64), mask=inside)
        tl.store(row + _REFS, first_nbytes + (HEADER_NBYTES + ROWS_HEAD), mask=inside)
        tl.store(row + _ROWS, rows_start, mask=inside)
        tl.store(sizes + k, size, mask=inside)
        tl.store(status + k, is_larger.to(tl.int32), mask=inside)
        end += tl.sum(room, axis=0)


@triton.jit
def _put_symbols_head(target, low, alphabet):
    """Write the head of a symbol body without escapes at ``target`` (uint8, 8-byte aligned)."""
    words = target.to(tl.pointer_type(tl.int64))
    tl.store(words, (low.to(tl.int64) & 0xFFFFFFFF) | (alphabet.to(tl.int64) << 32))
    tl.store(words + 1, tl.full((), 0, tl.int64))


@triton.jit
def _put_coded(
    payload, row, k, p, num_parts, num_rows, first_rows, first_tiles, decisions, marks, refs,
    targets, TILE_WORDS: tl.constexpr, FIELDS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write the p-th share of a coded payload except for the symbols, and store where these go."""
    unique, alphabets, lows = decisions
    num_distinct, rows = tl.load(unique + k), tl.load(num_rows + k)
    nbits = ref_nbits(num_distinct.to(tl.int32))
    index = payload + (HEADER_NBYTES + ROWS_HEAD)
    is_coded_index = tl.load(row + _INDEX) == CODED_INDEX
    if is_coded_index:
        nbits = low_nbits(nbits)
    else:
        source = marks + tl.load(first_tiles + k) * TILE_WORDS
        target = index.to(tl.pointer_type(tl.int32))
        put_marks(target, source, rows, p, num_parts, LANES)
    target = (payload + tl.load(row + _REFS)).to(tl.pointer_type(tl.int32))
    source = refs + tl.load(first_rows + k)
    put_refs(target, source, rows - num_distinct, nbits, p, num_parts, FIELDS)
    if p == 0:
        form = tl.where(is_coded_index, 1 | (nbits << 8), 0).to(tl.int64)
        head = (payload + HEADER_NBYTES).to(tl.pointer_type(tl.int64))
        tl.store(head, num_distinct | (form << 32))
        num_matrices = tl.num_programs(0)
        if is_coded_index:
            alphabet = tl.load(alphabets + num_matrices + k)
            _put_symbols_head(index, alphabet * 0, alphabet)
        at = tl.where(is_coded_index, (index + SYMBOLS_HEAD).to(tl.int64), 0)
        tl.store(targets + num_matrices + k, at)
        rows_head = payload + tl.load(row + _ROWS)
        _put_symbols_head(rows_head, tl.load(lows + k), tl.load(alphabets + k))
        tl.store(targets + k, (rows_head + SYMBOLS_HEAD).to(tl.int64))


@jit_kernel(do_not_specialize=["room"])
def _place_kernel(
    starts, numels, num_rows, first_rows, first_tiles, plan, decisions, marks, refs, out, room,
    targets, TYPE: tl.constexpr, TILE_WORDS: tl.constexpr, FIELDS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Program (k, p) writes the p-th share of payload k, except for the coded symbols.

    The first program also stores the addresses for these, 0 if the payload does not fit into ``room`` bytes.
    """
    k, p, num_parts = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    row = plan + k * _NUM_COLUMNS
    mode, count, is_held = tl.load(row + MODE), tl.load(numels + k), fits(row, room)
    payload = out + tl.load(row + OFFSET)
    is_coded = is_held & (mode == CODED)
    if (p == 0) & (is_coded == 0):
        tl.store(targets + k, tl.full((), 0, tl.int64))
        tl.store(targets + tl.num_programs(0) + k, tl.full((), 0, tl.int64))
    if is_coded:
        _put_coded(
            payload, row, k, p, num_parts, num_rows, first_rows, first_tiles, decisions, marks,
            refs, targets, TILE_WORDS, FIELDS, LANES,
        )  # fmt: skip
    elif is_held & (mode == EXACT):
        source, target = tl.load(starts + k), (payload + HEADER_NBYTES).to(tl.int64)
        share = (count + num_parts - 1) // num_parts
        begin = tl.minimum(p * share, count)
        copy_values(source, target, begin, tl.minimum(begin + share, count), TYPE)
    if is_held & (p == num_parts - 1):
        close_payload(payload, count, row, TYPE)


def plan_payloads(
    matrices: MatrixList,
    unique: torch.Tensor,
    nbytes: torch.Tensor,
    codes: torch.Tensor,
    keys: torch.Tensor,
    grids: torch.Tensor,
    dtype: torch.dtype,
    plan: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decide sizes and places of all payloads, without waiting.

    Args:
        matrices: shapes of the list.
        unique: int64, number of distinct rows; 0 if the matrix cannot be coded here.
        nbytes: int64, sizes of the coded streams of ``rows.gpu.index.Decisions``.
        codes: extents of the codes; see ``rows.gpu.index``.
        keys: finite ranges, as keys of ``quantize.gpu.finite_range``.
        grids: quantization grids; see ``quantize.gpu.grids``.
        dtype: dtype of the values.
        plan: int64 [num_matrices * PLAN_COLUMNS], for ``PlannedRows``; written.

    Returns:
        sizes: int64, bytes of each payload.
        status: int32, 1 if the matrix is stored exactly because only the composition may know a smaller
            form.
    """
    num = len(matrices)
    results = torch.empty(num + (num + 1) // 2, dtype=torch.int64, device=plan.device)
    sizes, status = results[:num], results[num:].view(torch.int32)[:num]
    lanes = min(_LANES, triton.next_power_of_2(num))
    _plan_kernel[(1,)](
        matrices.numels, matrices.rows.tiles.counts, unique, nbytes, codes, keys, grids, num, plan,
        sizes, status, TYPE=TYPES[dtype], HAS_INDICES=matrices.num_indices > 0, LANES=lanes,
        num_warps=max(4, lanes // 64),
    )  # fmt: skip
    return sizes, status


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """A list whose symbols are coded and whose payloads are decided.

    Attributes:
        xs: matrices, kept alive until their payloads are written because kernels have only their addresses.
        matrices: their shapes.
        decisions: what is coded.
        index: the parts of the indices.
        streams: streams of symbols.
        encoded: the coded streams.
        plan: written by ``plan_payloads``.
    """

    xs: Sequence[torch.Tensor]
    matrices: MatrixList
    decisions: Decisions
    index: SplitIndex
    streams: Streams
    encoded: EncodedStreams
    plan: torch.Tensor

    def write(self, state: None, nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory."""
        del state
        matrices, decisions, device = self.matrices, self.decisions, self.plan.device
        tiles, num = matrices.rows.tiles, len(matrices)
        most_rows = max(matrices.rows.rows_per_matrix)
        # more lanes than fields would be idle
        fields = min(MOST_FIELDS, max(128, triton.next_power_of_2(most_rows)))
        num_runs = ceil_div(most_rows, fields)
        num_shares = max(num_runs, ceil_div(max(matrices.capacities), _COPIED))
        with torch.cuda.device_of(self.plan):
            out = torch.empty(nbytes, dtype=torch.uint8, device=device)
            targets = torch.empty(2 * num, dtype=torch.int64, device=device)
            _place_kernel[(num, programs_each(num, num_shares))](
                addresses(self.xs, device), matrices.numels, tiles.counts, matrices.rows.first_rows,
                tiles.first_tiles, self.plan,
                (decisions.num_distinct, decisions.alphabets, decisions.lows), self.index.marks,
                self.index.refs, out, nbytes, targets, TYPE=TYPES[self.xs[0].dtype],
                TILE_WORDS=MARK_WORDS, FIELDS=fields, LANES=min(256, fields), num_warps=4,
            )  # fmt: skip
            place_streams(self.streams, self.encoded, targets)
        return out
