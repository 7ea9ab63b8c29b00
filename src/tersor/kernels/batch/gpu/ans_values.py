"""rANS coding of large lists in Triton, without symbols or words in memory besides the payloads.

Symbols are computed from the values whenever they are needed: to count them, a piece at a time (``ans_quantize``); to
measure how many words each block takes; and, once all sizes are known, to code them to their final place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.batch.gpu.ans_plan import Quantized
from tersor.kernels.batch.gpu.ans_quantize import Task, shapes_of
from tersor.kernels.batch.gpu.ans_tile import escape_window
from tersor.kernels.entropy.rans.gpu.block import (
    LANES,
    count_words,
    load_entry,
    put_symbol,
    share_entries,
)
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    STATES_NBYTES,
    Blocks,
    block_table,
    body_parts,
    num_stored_frequencies,
    num_used,
    own_block,
    sum_words,
)
from tersor.kernels.entropy.rans.gpu.place import PAIRS_PER_COPY, frame_block
from tersor.kernels.entropy.rans.gpu.table import bits_of_alphabet, encoding_tables
from tersor.kernels.entropy.rans.layout import STATE_LOW
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx, table_start
from tersor.kernels.payload.gpu.uncoded import load_grid
from tersor.kernels.predict.gpu import load_shape, residual_codes
from tersor.kernels.quantize.gpu.values import load_values, quantize_values
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.workspace import Layout

_LOW = tl.constexpr(STATE_LOW)
_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
_SUMMED: Final = 1024
"""Blocks whose escapes one step of a prefix sum takes."""


@triton.jit
def _symbols_at(
    source, position, TYPE: tl.constexpr, IS_WIDE: tl.constexpr, STATIC: tl.constexpr,
    DIMS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Return the symbols of the values at ``position``, all of which exist if ``WHOLE``.

    ``source`` describes the tensor: address, number of values, sizes of its axes, grid and window.
    """
    address, count, shape, grid, window = source
    if DIMS == 0:
        values = load_values(address, position, count, 0.0, TYPE, False, WHOLE)
        codes, _ = quantize_values(values, grid[0], grid[1], grid[2], TYPE)
    else:
        codes, _, _ = residual_codes(
            address, position.to(tl.int32), count.to(tl.int32), shape, grid, TYPE,
            DIMS if DIMS > 1 else 2,
        )  # fmt: skip
    if STATIC:
        symbols, _ = escape_window(codes, window)
    else:
        symbols = codes & ((_WIDE if IS_WIDE else _NARROW) - 1)
    return symbols


@triton.jit
def _step(
    x, num_words, escaped, symbol, inside, entries, words, most, escape, lane_bit, bits,
    MASKED: tl.constexpr, IS_WIDE: tl.constexpr, STORE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Code one symbol per lane, or count its words and escapes; return states, words and escapes."""
    entry = load_entry(entries, symbol, inside, MASKED, PTX and not IS_WIDE)
    if STORE:
        x, num_words = put_symbol(x, entry, words, num_words, most, lane_bit, bits, PTX, True)
    else:
        x, num_words = count_words(x, entry, num_words, bits)
        if IS_WIDE:
            is_escape = ((symbol - escape[0]) & (_WIDE - 1)) >= escape[1]
            escaped += (is_escape & inside).to(tl.int32)
    return x, num_words, escaped


@triton.jit
def _code_block(
    source, base, size, entries, words, most, escape, bits, TYPE: tl.constexpr,
    IS_WIDE: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr, STORE: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """Code the ``size`` values from ``base`` on, backwards from ``words``, or count words and escapes.

    Returns the states, the number of words (per lane if only counted), and the number of escapes per lane. Symbols
    are computed one group of four steps before their use, because a step takes far less time than a load.
    """
    lane = tl.arange(0, LANES)
    lane_bit = tl.full([LANES], 1, tl.uint32) << lane.to(tl.uint32)
    if PTX and not IS_WIDE:
        entries = share_entries(entries)
    x = tl.full([LANES], _LOW, tl.uint32)
    num_words, escaped = tl.zeros([LANES], dtype=tl.int32), tl.zeros([LANES], dtype=tl.int32)
    num_groups = size // (4 * LANES)
    rest = num_groups * (4 * LANES)
    if rest < size:
        for step in tl.static_range(4):
            place = rest + (3 - step) * LANES + lane
            s = _symbols_at(source, base + place, TYPE, IS_WIDE, STATIC, DIMS, False)
            x, num_words, escaped = _step(
                x, num_words, escaped, s, place < size, entries, words, most, escape, lane_bit, bits,
                True, IS_WIDE, STORE, PTX,
            )  # fmt: skip
    at = base + tl.maximum(rest - 4 * LANES, 0) + lane
    s0 = _symbols_at(source, at, TYPE, IS_WIDE, STATIC, DIMS, False)
    s1 = _symbols_at(source, at + LANES, TYPE, IS_WIDE, STATIC, DIMS, False)
    s2 = _symbols_at(source, at + 2 * LANES, TYPE, IS_WIDE, STATIC, DIMS, False)
    s3 = _symbols_at(source, at + 3 * LANES, TYPE, IS_WIDE, STATIC, DIMS, False)
    inside = lane >= 0
    for _ in range(num_groups):
        # before the first group there is none: load the first group again
        at = tl.maximum(at - 4 * LANES, base + lane)
        n0 = _symbols_at(source, at, TYPE, IS_WIDE, STATIC, DIMS, True)
        n1 = _symbols_at(source, at + LANES, TYPE, IS_WIDE, STATIC, DIMS, True)
        n2 = _symbols_at(source, at + 2 * LANES, TYPE, IS_WIDE, STATIC, DIMS, True)
        n3 = _symbols_at(source, at + 3 * LANES, TYPE, IS_WIDE, STATIC, DIMS, True)
        x, num_words, escaped = _step(
            x, num_words, escaped, s3, inside, entries, words, most, escape, lane_bit, bits, False,
            IS_WIDE, STORE, PTX,
        )  # fmt: skip
        x, num_words, escaped = _step(
            x, num_words, escaped, s2, inside, entries, words, most, escape, lane_bit, bits, False,
            IS_WIDE, STORE, PTX,
        )  # fmt: skip
        x, num_words, escaped = _step(
            x, num_words, escaped, s1, inside, entries, words, most, escape, lane_bit, bits, False,
            IS_WIDE, STORE, PTX,
        )  # fmt: skip
        x, num_words, escaped = _step(
            x, num_words, escaped, s0, inside, entries, words, most, escape, lane_bit, bits, False,
            IS_WIDE, STORE, PTX,
        )  # fmt: skip
        s0, s1, s2, s3 = n0, n1, n2, n3
    return x, num_words, escaped


@triton.jit
def _source_of(
    starts, grids, shapes, tensors, k, count, window_low, window_size, DIMS: tl.constexpr
):
    """Return the ``source`` argument of ``_symbols_at`` for the tensor of stream ``k``."""
    tensor = tl.load(tensors + k)
    shape = load_shape(shapes, tensor) if DIMS > 0 else (1, 1, 1)
    window = (window_low, window_size)
    return tl.load(starts + tensor), count, shape, load_grid(grids, tensor), window


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size"])
def _measure_kernel(
    starts, grids, shapes, tensors, counts, firsts, owners, alphabets, lows, num_escapes, entries,
    used, ends, escaping, num_narrow, window_low, window_size, TYPE: tl.constexpr,
    HAS_NARROW: tl.constexpr, HAS_WIDE: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, counts the words of one block, and its escapes in a wide stream."""
    program = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k, count, b, block, size = own_block(program, counts, firsts, owners)
    num_words = tl.zeros([LANES], dtype=tl.int32)
    escaped = tl.zeros([LANES], dtype=tl.int32)
    if (size > 0) & (num_used(used, k, STATIC) > 1):
        source = _source_of(starts, grids, shapes, tensors, k, count, window_low, window_size, DIMS)
        table = entries if STATIC else entries + table_start(k, num_narrow)
        words = ends.to(tl.pointer_type(tl.int16))
        alphabet = tl.load(alphabets + k)
        if HAS_NARROW and k < num_narrow:
            _, num_words, escaped = _code_block(
                source, b * block, size, table, words, 0, (0, 0), bits_of_alphabet(alphabet, False),
                TYPE, False, STATIC, DIMS, False, PTX,
            )  # fmt: skip
        if HAS_WIDE and k >= num_narrow:
            low, limit = tl.load(lows + k), tl.full((), _WIDE, tl.int32)
            if not STATIC:
                has_escapes = tl.load(num_escapes + k - num_narrow) > 0
                limit = tl.where(has_escapes, _NARROW - 1, limit)
            _, num_words, escaped = _code_block(
                source, b * block, size, table, words, 0, (low, limit),
                bits_of_alphabet(alphabet, True), TYPE, True, STATIC, DIMS, False, PTX,
            )  # fmt: skip
    tl.store(ends + program, tl.sum(num_words, axis=0).to(tl.int64))
    if HAS_WIDE and not STATIC:
        tl.store(escaping + program, tl.sum(escaped, axis=0).to(tl.int64))


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size"])
def _write_kernel(
    targets, starts, grids, shapes, tensors, counts, firsts, owners, alphabets, frequencies,
    entries, used, ends, num_narrow, window_low, window_size, TYPE: tl.constexpr,
    HAS_NARROW: tl.constexpr, HAS_WIDE: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
    PTX: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, codes one block into the body of its stream."""
    program = tl.program_id(0).to(tl.int64)
    k, count, b, block, size = own_block(program, counts, firsts, owners)
    target = tl.load(targets + k)
    if (size > 0) & (target != 0):
        body = target.to(tl.pointer_type(tl.uint8))
        stored = num_stored_frequencies(alphabets, k, STATIC)
        num_blocks, offsets_start, states_start = body_parts(count, stored)
        is_coded = num_used(used, k, STATIC) > 1
        words_start = states_start + tl.where(is_coded, STATES_NBYTES * num_blocks, 0)
        start, end = tl.load(ends + program - 1, mask=b > 0, other=0), tl.load(ends + program)
        frame_block(
            body, b, num_blocks, start, end, frequencies + table_start(k, num_narrow),
            (offsets_start // 2).to(tl.int32), offsets_start, words_start, COPIED,
        )  # fmt: skip
        if is_coded:
            source = _source_of(
                starts, grids, shapes, tensors, k, count, window_low, window_size, DIMS
            )
            table = entries if STATIC else entries + table_start(k, num_narrow)
            words = (body + words_start).to(tl.pointer_type(tl.int16)) + end
            # values that have changed since they were measured must not be written before their block
            most = (end - start).to(tl.int32)
            alphabet = tl.load(alphabets + k)
            x = tl.zeros([LANES], dtype=tl.uint32)
            if HAS_NARROW and k < num_narrow:
                x, _, _ = _code_block(
                    source, b * block, size, table, words, most, (0, 0),
                    bits_of_alphabet(alphabet, False), TYPE, False, STATIC, DIMS, True, PTX,
                )  # fmt: skip
            if HAS_WIDE and k >= num_narrow:
                x, _, _ = _code_block(
                    source, b * block, size, table, words, most, (0, 0),
                    bits_of_alphabet(alphabet, True), TYPE, True, STATIC, DIMS, True, PTX,
                )  # fmt: skip
            states = (body + states_start).to(tl.pointer_type(tl.int32))
            tl.store(states + b * LANES + tl.arange(0, LANES), x.to(tl.int32, bitcast=True))


@jit_kernel(do_not_specialize=["num_narrow"])
def _sum_escapes_kernel(escaping, counts, firsts, num_narrow, LANES: tl.constexpr):
    """One program replaces the escapes of the blocks of one wide stream by their prefix sums."""
    k = num_narrow + tl.program_id(0)
    first = tl.load(firsts + k)
    num_blocks, _, _ = body_parts(tl.load(counts + k), tl.full((), 0, tl.int32))
    total = tl.full((), 0, tl.int64)
    for start in range(0, num_blocks, LANES):
        b = start + tl.arange(0, LANES)
        found = tl.load(escaping + first + b, mask=b < num_blocks, other=0)
        tl.store(escaping + first + b, total + tl.cumsum(found, axis=0), mask=b < num_blocks)
        total += tl.sum(found, axis=0)


@lru_cache(maxsize=64)
def _layout(num_streams: int, num_table: int, num_blocks: int, num_escaping: int) -> Layout:
    return Layout.of(
        {
            "nbytes": (torch.int64, num_streams),
            "frequencies": (torch.int16, num_table),
            "entries": (torch.int64, num_table),
            "used": (torch.int32, num_streams),
            "ends": (torch.int64, num_blocks),
            "escaping": (torch.int64, num_escaping),
        }
    )


@dataclass(frozen=True, slots=True)
class MeasuredValues:
    """Streams whose tables are built and whose blocks are measured.

    Attributes:
        task: the list.
        quantized: facts about its tensors.
        blocks: the stream of each program.
        nbytes: int64 [streams], size of each body, a multiple of 8.
        frequencies: int16, the tables of all streams.
        entries: int64, the encoding table entry of each symbol.
        used: int32 [streams], number of symbols that occur in each.
        ends: int64 [blocks], words of a stream up to the end of each block.
        escaping: int64 [blocks], codes that escape the window of a wide stream, up to the end of each block; empty
            without such a stream.
    """

    task: Task
    quantized: Quantized
    blocks: Blocks
    nbytes: torch.Tensor
    frequencies: torch.Tensor
    entries: torch.Tensor
    used: torch.Tensor
    ends: torch.Tensor
    escaping: torch.Tensor

    def write(self, targets: torch.Tensor) -> None:
        """Write the bodies to addresses, int64 [streams], multiples of 8; address 0 skips a body."""
        task, blocks = self.task, self.blocks
        _write_kernel[(blocks.num_programs,)](
            targets, *_of_task(task), self.quantized.counts, blocks.firsts, blocks.owners,
            self.quantized.alphabets, self.frequencies, self.entries, self.used, self.ends,
            task.routes.num_narrow, *task.window_numbers, **_constants(task), COPIED=PAIRS_PER_COPY,
            num_warps=1,
        )  # fmt: skip


def _of_task(task: Task) -> tuple[torch.Tensor | None, ...]:
    """Return the arguments of both kernels that describe the tensors."""
    return task.starts, task.grids, shapes_of(task.xs, task.dims), task.routes.tensors


def _constants(task: Task) -> dict[str, object]:
    return {
        "TYPE": TYPES[task.xs[0].dtype], "HAS_NARROW": task.routes.num_narrow > 0,
        "HAS_WIDE": task.routes.num_narrow < len(task.xs), "STATIC": task.window is not None,
        "DIMS": task.dims, "PTX": has_ptx(task.status),
    }  # fmt: skip


def measure_values(
    task: Task, quantized: Quantized, counts: torch.Tensor, num_escapes: torch.Tensor | None
) -> MeasuredValues:
    """Build the tables of all streams and measure their blocks.

    Args:
        task: the list.
        quantized: facts about it; for wide streams, alphabets and lows are those of their windows.
        counts: symbol counts of all streams; empty with a static table.
        num_escapes: int64 [wide streams], escapes of those with their own table; None if there are no such streams.
    """
    routes, table = task.routes, task.table
    num_narrow, num_streams = routes.num_narrow, len(task.xs)
    blocks = block_table(routes.capacities, task.status.device)
    num_escaping = 0 if num_escapes is None else blocks.num_programs
    layout = _layout(num_streams, counts.numel(), blocks.num_programs, num_escaping)
    held = layout.carve(task.status.device)
    if table is not None:
        held["entries"] = table.entries
    measured = MeasuredValues(task, quantized, blocks, **held)
    if table is None:
        encoding_tables(
            counts, quantized.alphabets, quantized.lows, num_narrow, measured.frequencies,
            measured.entries, measured.used, quantized.counts,
        )  # fmt: skip
    _measure_kernel[(blocks.num_programs,)](
        *_of_task(task), quantized.counts, blocks.firsts, blocks.owners, quantized.alphabets,
        quantized.lows, num_escapes, measured.entries, measured.used, measured.ends,
        measured.escaping, num_narrow, *task.window_numbers, **_constants(task), num_warps=1,
    )  # fmt: skip
    sum_words(
        quantized.counts, quantized.alphabets, measured.used, blocks, measured.ends,
        measured.nbytes, table is not None,
    )  # fmt: skip
    if num_escapes is not None:
        _sum_escapes_kernel[(num_streams - num_narrow,)](
            measured.escaping, quantized.counts, blocks.firsts, num_narrow, LANES=_SUMMED
        )
    return measured
