"""Symbol counts on a GPU, left on the device.

Triton has no additions in shared memory: what it offers instead spends 65 instructions on 32
symbols. On CUDA the counting loop is therefore written in PTX, with three; elsewhere, and in the
interpreter, the portable kernels count.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.symbols.alphabet import NARROW, WIDE

_TILE: Final = 8192
_PROGRAMS: Final = 264
"""Programs that share the symbols: two for each of an H200's 132 multiprocessors."""
_COPIES: Final = 16
"""Tables that share the counts of a wide alphabet, so that fewer additions meet in one place."""
_WARPS: Final = 32
_COUNTERS: Final = 8192
"""Counters in the shared memory of a program: 32 KiB, so that two programs fit beside each other."""
_CHUNK_NBYTES = tl.constexpr(16)

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
"""Counts ``$2`` pieces of 16 bytes, ``$3`` bytes apart from address ``$1`` on, for each thread, and
adds what the program found to the uint64 counts at address ``$4``. A symbol has ``COPIES``
counters, and lanes use different ones: 32 of them lie in 32 banks, so that no lane ever waits."""


@cache
def _counting_ptx(bins: int, symbol_nbytes: int, warps: int = _WARPS) -> str:
    copies = min(32, _COUNTERS // bins)
    # a field of as many bits as the bins have, so that no symbol can count outside them
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


@triton.jit(do_not_specialize=["start", "num_chunks", "num_symbols"])
def _ptx_kernel(
    symbols, start, num_chunks, num_symbols, counts, PTX: tl.constexpr, THREADS: tl.constexpr,
    CHUNK: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """One program counts every so many pieces of 16 bytes; the first also counts both ends.

    ``start`` symbols precede the pieces, which have ``CHUNK`` symbols.
    """
    piece = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    stride = tl.num_programs(0) * THREADS
    num_pieces = tl.maximum(num_chunks - piece + stride - 1, 0) // stride
    address = (symbols + start).to(tl.int64) + piece.to(tl.int64) * _CHUNK_NBYTES
    zeros = tl.zeros([THREADS], dtype=tl.int64)
    tl.inline_asm_elementwise(
        PTX,
        "=r,l,r,l,l",
        [address, num_pieces, zeros + stride * _CHUNK_NBYTES, zeros + counts.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    if tl.program_id(0) == 0:
        edge = tl.arange(0, EDGE)
        end = start + num_chunks.to(tl.int64) * CHUNK
        position = tl.where(edge < start, edge, end + edge - start)
        inside = position < num_symbols
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        tl.atomic_add(counts + symbol, tl.full([EDGE], 1, tl.int64), mask=inside, sem="relaxed")


@triton.jit
def _narrow_kernel(symbols, num_symbols, counts, BINS: tl.constexpr, TILE: tl.constexpr):
    """One program counts every so many tiles in registers, then adds its counts to the table."""
    found = tl.zeros([BINS], dtype=tl.int32)
    num_dead = 0
    first = tl.program_id(0).to(tl.int64) * TILE
    for start in range(first, num_symbols, tl.num_programs(0) * TILE):
        position = start + tl.arange(0, TILE)
        inside = position < num_symbols
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        found += tl.histogram(symbol, BINS)
        num_dead += TILE - tl.sum(inside.to(tl.int32), axis=0)
    bins = tl.arange(0, BINS)
    # what lies beyond the end was read as symbol 0
    found -= tl.where(bins == 0, num_dead, 0)
    tl.atomic_add(counts + bins, found.to(tl.int64), mask=found > 0)


@triton.jit
def _wide_kernel(
    symbols, num_symbols, counts, BINS: tl.constexpr, COPIES: tl.constexpr, TILE: tl.constexpr
):
    """One program adds every symbol of a tile to one copy of the table."""
    position = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = position < num_symbols
    symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
    copy = counts + (tl.program_id(0) % COPIES) * BINS
    tl.atomic_add(copy + symbol, tl.full([TILE], 1, tl.int64), mask=inside)


def _cuda_counts(symbols: torch.Tensor) -> torch.Tensor:
    nbytes = symbols.element_size()
    bins = NARROW if nbytes == 1 else WIDE
    chunk = _CHUNK_NBYTES.value // nbytes
    start = min(symbols.numel(), -symbols.data_ptr() % _CHUNK_NBYTES.value // nbytes)
    num_chunks = (symbols.numel() - start) // chunk
    threads = 32 * _WARPS
    grid = (max(1, min(_PROGRAMS, triton.cdiv(num_chunks, threads))),)
    counts = torch.zeros((1, bins), dtype=torch.int64, device=symbols.device)
    options: dict[str, Any] = {"num_warps": _WARPS, "maxnreg": 65536 // (2 * threads)}
    _ptx_kernel[grid](
        symbols, start, num_chunks, symbols.numel(), counts, PTX=_counting_ptx(bins, nbytes),
        THREADS=threads, CHUNK=chunk, EDGE=32, **options,
    )  # fmt: skip
    return counts


def symbol_counts(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """Return int64 [copies, bins]; the sum over copies counts each symbol, bins >= alphabet.

    A power of two, at least 32, of bins; uint8 or int16 symbols below ``alphabet``.
    """
    if symbols.is_cuda and torch.version.hip is None:
        return _cuda_counts(symbols)
    bins = max(32, triton.next_power_of_2(alphabet))
    num_tiles = triton.cdiv(symbols.numel(), _TILE)
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
