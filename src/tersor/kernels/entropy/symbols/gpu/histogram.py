"""Histograms of symbols on a GPU; the counts stay on the device.

Triton has no atomic additions in shared memory; what it offers instead spends 65 instructions on 32
symbols. On CUDA the counting loop is therefore written in PTX, with three instructions. Elsewhere, and
in the interpreter, portable kernels count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import TileTable

_TILE: Final = 8192
_PROGRAMS: Final = 264
"""Programs that share the symbols: two for each of an H200's 132 multiprocessors."""
_LIST_PROGRAMS: Final = 2 * _PROGRAMS
"""Programs that share the symbols of a list: more, because streams may fill their capacities unevenly."""
_COPIES: Final = 16
"""Copies of the table of a wide alphabet, which reduce contention between atomic additions."""
_WARPS: Final = 32
_COUNTERS: Final = 8192
"""Counters in the shared memory of a program: 32 KiB, so that two programs fit on one multiprocessor."""
_CHUNK_NBYTES = tl.constexpr(16)
_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)

_PTX: Final = """
{
    .reg .pred p;
    .reg .b32 base, own, thread, k, c, a, sum, w0, w1, w2, w3, left;
    .reg .b64 from, to, wide;
    .shared .align 16 .b32 counters[COUNTERS];
    mov.u32 base, counters;
    mov.u32 thread, %tid.x;
    mov.u32 k, thread;
CLEAR:
    shl.b32 a, k, 2;
    add.u32 a, a, base;
    st.shared.u32 [a], 0;
    add.u32 k, k, THREADS;
    setp.lt.u32 p, k, COUNTERS;
    @p bra CLEAR;
    bar.sync 0;
    and.b32 own, thread, COPIES - 1;
    shl.b32 own, own, 2;
    add.u32 own, own, base;
    mov.u64 from, $1;
    mov.u32 left, $2;
    setp.eq.u32 p, left, 0;
    @p bra COUNTED;
COUNT:
    ld.global.nc.v4.u32 {w0, w1, w2, w3}, [from];
    add.u64 from, from, $3;
    BODY
    sub.u32 left, left, 1;
    setp.ne.u32 p, left, 0;
    @p bra COUNT;
COUNTED:
    bar.sync 0;
    mov.u32 k, thread;
    setp.ge.u32 p, k, BINS;
    @p bra END;
ADD:
    mov.u32 sum, 0;
    mov.u32 c, 0;
ADD_COPY:
    add.u32 a, c, thread;
    and.b32 a, a, COPIES - 1;
    mad.lo.u32 a, k, COPIES, a;
    shl.b32 a, a, 2;
    add.u32 a, a, base;
    ld.shared.u32 a, [a];
    add.u32 sum, sum, a;
    add.u32 c, c, 1;
    setp.lt.u32 p, c, COPIES;
    @p bra ADD_COPY;
    mul.wide.u32 to, k, 8;
    add.u64 to, to, $4;
    cvt.u64.u32 wide, sum;
    setp.ne.u32 p, sum, 0;
    @p red.global.add.u64 [to], wide;
    add.u32 k, k, THREADS;
    setp.lt.u32 p, k, BINS;
    @p bra ADD;
END:
    mov.u32 $0, 0;
}
"""
"""Each thread counts ``$2`` pieces of 16 bytes, ``$3`` bytes apart, from address ``$1`` on; the program
then adds its counts to the uint64 counts at address ``$4``. A symbol has ``COPIES`` counters, which
lanes share out among themselves: 32 copies lie in 32 banks, so that no lane ever waits."""


@cache
def _counting_ptx(bins: int, symbol_nbytes: int, warps: int = _WARPS) -> str:
    copies = min(32, _COUNTERS // bins)
    # fields are only as wide as a bin number, so no symbol can index outside the table
    field, nbits = 8 * symbol_nbytes, bins.bit_length() - 1
    body = "".join(
        f"bfe.u32 a, w{word}, {at}, {nbits}; mad.lo.u32 a, a, {4 * copies}, own; "
        "red.shared.add.u32 [a], 1; "
        for word in range(4)
        for at in range(0, 32, field)
    )
    numbers = {"COUNTERS": bins * copies, "COPIES": copies, "BINS": bins, "THREADS": 32 * warps}
    text = _PTX.replace("BODY", body)
    for name, number in numbers.items():
        text = text.replace(name, str(number))
    return text


@triton.jit
def _count_by_ptx(
    symbols, num_symbols, counts, part, num_parts, PTX: tl.constexpr, THREADS: tl.constexpr,
    NBYTES: tl.constexpr,
):  # fmt: skip
    """Count every ``num_parts``-th group of 16-byte pieces; part 0 also counts the unaligned ends.

    Both ends together have fewer than ``EDGE`` symbols.
    """
    EDGE: tl.constexpr = 32
    chunk: tl.constexpr = _CHUNK_NBYTES // NBYTES
    address = symbols.to(tl.int64)
    start = tl.minimum((-address & (_CHUNK_NBYTES - 1)) // NBYTES, num_symbols)
    num_chunks = (num_symbols - start) // chunk
    piece = part * THREADS + tl.arange(0, THREADS)
    stride = num_parts * THREADS
    num_pieces = (tl.maximum(num_chunks - piece + stride - 1, 0) // stride).to(tl.int32)
    first = address + start * NBYTES + piece.to(tl.int64) * _CHUNK_NBYTES
    zeros = tl.zeros([THREADS], dtype=tl.int64)
    tl.inline_asm_elementwise(
        PTX,
        "=r,l,r,l,l",
        [first, num_pieces, zeros + stride * _CHUNK_NBYTES, zeros + counts.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    if part == 0:
        edge = tl.arange(0, EDGE)
        position = tl.where(edge < start, edge, num_chunks * chunk + edge)
        inside = position < num_symbols
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        tl.atomic_add(counts + symbol, tl.full([EDGE], 1, tl.int64), mask=inside, sem="relaxed")


@triton.jit
def _count_in_registers(
    symbols, num_symbols, counts, part, num_parts, BINS: tl.constexpr, TILE: tl.constexpr
):
    """Count every ``num_parts``-th tile in registers, then add the counts to the table."""
    found = tl.zeros([BINS], dtype=tl.int32)
    num_dead = 0
    for start in range(part * TILE, num_symbols, num_parts * TILE):
        position = start + tl.arange(0, TILE)
        inside = position < num_symbols
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        found += tl.histogram(symbol, BINS)
        num_dead += TILE - tl.sum(inside.to(tl.int32), axis=0)
    bins = tl.arange(0, BINS)
    # positions past the end were counted as symbol 0
    found -= tl.where(bins == 0, num_dead, 0)
    tl.atomic_add(counts + bins, found.to(tl.int64), mask=found > 0)


@triton.jit
def _count_in_memory(
    symbols, num_symbols, counts, part, num_parts, BINS: tl.constexpr, TILE: tl.constexpr
):
    """Add every symbol of every ``num_parts``-th tile directly to the table in global memory."""
    for start in range(part * TILE, num_symbols, num_parts * TILE):
        position = start + tl.arange(0, TILE)
        inside = position < num_symbols
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32) & (BINS - 1)
        tl.atomic_add(counts + symbol, tl.full([TILE], 1, tl.int64), mask=inside)


@jit_kernel(do_not_specialize=["num_symbols"])
def _ptx_kernel(
    symbols, num_symbols, counts, PTX: tl.constexpr, THREADS: tl.constexpr, NBYTES: tl.constexpr
):
    """One program counts its share of the symbols."""
    part = tl.program_id(0).to(tl.int64)
    _count_by_ptx(
        symbols, num_symbols.to(tl.int64), counts, part, tl.num_programs(0), PTX, THREADS, NBYTES
    )


@jit_kernel(do_not_specialize=["num_symbols"])
def _narrow_kernel(symbols, num_symbols, counts, BINS: tl.constexpr, TILE: tl.constexpr):
    """One program counts its share of the symbols."""
    part = tl.program_id(0).to(tl.int64)
    _count_in_registers(
        symbols, num_symbols.to(tl.int64), counts, part, tl.num_programs(0), BINS, TILE
    )


@jit_kernel(do_not_specialize=["num_symbols"])
def _wide_kernel(
    symbols, num_symbols, counts, BINS: tl.constexpr, COPIES: tl.constexpr, TILE: tl.constexpr
):
    """One program adds its share of the symbols to one copy of the table."""
    part = tl.program_id(0).to(tl.int64)
    copy = counts + (part % COPIES) * BINS
    _count_in_memory(symbols, num_symbols.to(tl.int64), copy, part, tl.num_programs(0), BINS, TILE)


@triton.jit
def table_start(k, num_narrow):
    """Return where the table of stream ``k`` starts.

    Tables of the first ``num_narrow`` streams, those of bytes, have 256 counts; the others have 4096.
    """
    return k * _NARROW + tl.maximum(k - num_narrow, 0) * (_WIDE - _NARROW)


@jit_kernel(do_not_specialize=["first_program", "num_narrow"])
def _list_kernel(
    symbols, starts, num_symbols, first_parts, owners, counts, first_program, num_narrow,
    PTX: tl.constexpr, THREADS: tl.constexpr, NBYTES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program counts its share of one stream of symbols of ``NBYTES``, portably if PTX is None."""
    program = tl.program_id(0).to(tl.int64) + first_program
    k = tl.load(owners + program).to(tl.int64)
    first = tl.load(first_parts + k)
    part, num_parts = program - first, tl.load(first_parts + k + 1) - first
    integer: tl.constexpr = tl.uint8 if NBYTES == 1 else tl.int16
    stream = (symbols + tl.load(starts + k)).to(tl.pointer_type(integer))
    count, table = tl.load(num_symbols + k), counts + table_start(k, num_narrow)
    if count > 0:
        if PTX is not None:
            _count_by_ptx(stream, count, table, part, num_parts, PTX, THREADS, NBYTES)
        elif NBYTES == 1:
            _count_in_registers(stream, count, table, part, num_parts, _NARROW, TILE)
        else:
            _count_in_memory(stream, count, table, part, num_parts, _WIDE, TILE)


@jit_kernel(do_not_specialize=["first_run", "num_narrow"])
def _run_kernel(
    symbols, num_values, first_runs, owners, streams, counts, first_run, num_narrow,
    PTX: tl.constexpr, THREADS: tl.constexpr, NBYTES: tl.constexpr, HAS_BOTH: tl.constexpr,
    RUN_VALUES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program counts one run of symbols of one tensor."""
    program = tl.program_id(0).to(tl.int64)
    run = first_run + program
    k = tl.load(owners + run)
    stream = tl.load(streams + k).to(tl.int64)
    begin = (run - tl.load(first_runs + k)) * RUN_VALUES
    count = tl.minimum(tl.load(num_values + k) - begin, RUN_VALUES)
    integer: tl.constexpr = tl.uint8 if NBYTES == 1 else tl.int16
    own = symbols.to(tl.pointer_type(integer)) + program * RUN_VALUES
    table = counts + table_start(stream, num_narrow)
    is_own = (count > 0) & ((stream >= num_narrow) == (NBYTES == 2)) if HAS_BOTH else count > 0
    if is_own:
        if PTX is not None:
            _count_by_ptx(own, count, table, program * 0, 1, PTX, THREADS, NBYTES)
        elif NBYTES == 1:
            _count_in_registers(own, count, table, program * 0, 1, _NARROW, TILE)
        else:
            _count_in_memory(own, count, table, program * 0, 1, _WIDE, TILE)


def has_ptx(x: torch.Tensor) -> bool:
    """True if kernels on ``x`` are compiled via NVIDIA's PTX and may therefore contain inline PTX."""
    return x.is_cuda and torch.version.hip is None


def _ptx_options(symbol_nbytes: int) -> dict[str, Any]:
    """Return the options shared by all launches of kernels with inline PTX."""
    threads = 32 * _WARPS
    bins = NARROW if symbol_nbytes == 1 else WIDE
    return {
        "PTX": _counting_ptx(bins, symbol_nbytes),
        "THREADS": threads,
        "NBYTES": symbol_nbytes,
        "num_warps": _WARPS,
        "maxnreg": 65536 // (2 * threads),
    }


def _cuda_counts(symbols: torch.Tensor) -> torch.Tensor:
    nbytes = symbols.element_size()
    options = _ptx_options(nbytes)
    num_chunks = ceil_div(symbols.nbytes, _CHUNK_NBYTES.value)
    grid = (max(1, min(_PROGRAMS, ceil_div(num_chunks, options["THREADS"]))),)
    bins = NARROW if nbytes == 1 else WIDE
    counts = torch.zeros((1, bins), dtype=torch.int64, device=symbols.device)
    _ptx_kernel[grid](symbols, symbols.numel(), counts, **options)
    return counts


def symbol_counts(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """Count uint8 or int16 symbols below ``alphabet`` into int64 [copies, bins].

    The sum over copies is the count of each symbol. ``bins`` is a power of two, at least 32 and at
    least ``alphabet``.
    """
    if has_ptx(symbols):
        return _cuda_counts(symbols)
    bins = max(32, triton.next_power_of_2(alphabet))
    num_tiles = ceil_div(symbols.numel(), _TILE)
    if alphabet <= NARROW:
        counts = torch.zeros((1, bins), dtype=torch.int64, device=symbols.device)
        grid = (min(num_tiles, _PROGRAMS),)
        _narrow_kernel[grid](symbols, symbols.numel(), counts, BINS=bins, TILE=_TILE, num_warps=8)
        return counts
    counts = torch.zeros((_COPIES, bins), dtype=torch.int64, device=symbols.device)
    _wide_kernel[(num_tiles,)](
        symbols, symbols.numel(), counts, BINS=bins, COPIES=_COPIES, TILE=_TILE
    )
    return counts


@dataclass(frozen=True, slots=True)
class _Shares:
    """The assignment of programs to streams, with its tables on the device.

    Attributes:
        firsts: int64 [streams + 1], the first program of each stream, then the number of programs.
        owners: int32, the stream of each program.
        num_narrow: number of programs for streams of bytes, which come first.
        num_wide: number of programs for streams of int16.
    """

    firsts: torch.Tensor
    owners: torch.Tensor
    num_narrow: int
    num_wide: int


@cached_on_stream
def _shares(capacities: tuple[int, ...], num_narrow: int, device: torch.device) -> _Shares:
    shares: list[int] = []
    for part in (capacities[:num_narrow], capacities[num_narrow:]):
        total = max(1, sum(part))
        shares += [
            max(1, min(ceil_div(capacity, 2 * _TILE), _LIST_PROGRAMS * capacity // total))
            for capacity in part
        ]
    firsts = list(accumulate(shares, initial=0))
    owners = [k for k, share in enumerate(shares) for _ in range(share)]
    return _Shares(
        to_device_async(firsts, torch.int64, device),
        to_device_async(owners, torch.int32, device),
        firsts[num_narrow],
        firsts[-1] - firsts[num_narrow],
    )


def num_counts(num_narrow: int, num_wide: int) -> int:
    """Return the total number of counts for streams of bytes (narrow) and of int16 (wide)."""
    return num_narrow * NARROW + num_wide * WIDE


def stream_counts(
    symbols: torch.Tensor,
    starts: torch.Tensor,
    num_symbols: torch.Tensor,
    capacities: tuple[int, ...],
    num_narrow: int,
    counts: torch.Tensor,
) -> None:
    """Count how often each symbol occurs in each stream: one launch for bytes, one for int16.

    Args:
        symbols: uint8, the memory of all symbols.
        starts: int64 [streams], the byte at which each stream begins.
        num_symbols: int64 [streams], on the device.
        capacities: the largest number of symbols each stream can have.
        num_narrow: number of streams with one byte per symbol, which come first; the others have two.
        counts: int64 [num_counts()], zeroed; the tables of all streams, see ``table_start``.
    """
    shares = _shares(capacities, num_narrow, symbols.device)
    launches = ((1, 0, shares.num_narrow), (2, shares.num_narrow, shares.num_wide))
    for nbytes, first_program, num_programs in launches:
        if num_programs == 0:
            continue
        portable = {"PTX": None, "THREADS": 0, "NBYTES": nbytes, "num_warps": 8}
        options = _ptx_options(nbytes) if has_ptx(symbols) else portable
        _list_kernel[(num_programs,)](
            symbols, starts, num_symbols, shares.firsts, shares.owners, counts, first_program,
            num_narrow, TILE=_TILE, **options,
        )  # fmt: skip


def run_counts(
    symbols: torch.Tensor,
    num_values: torch.Tensor,
    runs: TileTable,
    streams: torch.Tensor,
    num_narrow: int,
    piece: tuple[int, int],
    run_values: int,
    nbytes: int,
    counts: torch.Tensor,
) -> None:
    """Add the symbols of some runs of a list to the counts of their streams.

    Args:
        symbols: uint8, memory with ``run_values`` symbols of ``nbytes`` for each run of the piece.
        num_values: int64 [tensors], values per tensor.
        runs: table of the tensors, cut into runs of ``run_values`` values.
        streams: int32 [tensors], the stream of each tensor.
        num_narrow: number of streams of bytes, which come first.
        piece: the runs ``[first, last)`` to count.
        run_values: number of values in a run.
        nbytes: bytes per symbol, 1 or 2; runs with symbols of the other size are skipped.
        counts: as in ``stream_counts``.
    """
    portable = {"PTX": None, "THREADS": 0, "NBYTES": nbytes, "num_warps": 8}
    options = _ptx_options(nbytes) if has_ptx(symbols) else portable
    _run_kernel[(piece[1] - piece[0],)](
        symbols, num_values, runs.first_tiles, runs.owners, streams, counts, piece[0], num_narrow,
        HAS_BOTH=0 < num_narrow < num_values.numel(), RUN_VALUES=run_values,
        TILE=min(_TILE, run_values), **options,
    )  # fmt: skip
