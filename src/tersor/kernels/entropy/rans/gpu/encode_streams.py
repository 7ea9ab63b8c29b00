"""rANS encoding of several streams in Triton: a few launches whatever their number, without waiting.

A stream gets as many programs as its capacity can require; those without a block exit at once. Bodies
have the layout of ``rans/layout.py``. Streams of bytes come before those of int16, and both share
launches: the ``rows`` codec has both, and neither kind alone keeps a whole GPU busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.entropy.rans import layout
from tersor.kernels.entropy.rans.gpu.block import LANES, encode_block
from tersor.kernels.entropy.rans.gpu.place import PAIRS_PER_COPY, place_block
from tersor.kernels.entropy.rans.gpu.table import (
    StaticTable,
    bits_of_alphabet,
    encoding_tables,
)
from tersor.kernels.entropy.symbols.alphabet import WIDE
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx, stream_counts, table_start
from tersor.kernels.runtime.device_cache import cached_on_stream, copy_async, to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded
from tersor.kernels.runtime.workspace import Layout

STATES_NBYTES = tl.constexpr(4 * layout.LANES)
(_LARGE, _LARGE_BLOCK), (_MEDIUM, _MEDIUM_BLOCK), (_, _SMALL_BLOCK) = (
    (tl.constexpr(least), tl.constexpr(block)) for least, block in layout.BLOCKS
)
_BLOCKS_PER_STEP: Final = 1024
"""Blocks per step of a prefix sum over words: more steps take longer than larger ones."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Symbols of several streams in one buffer, with sizes and alphabets on the device.

    Attributes:
        symbols: uint8, the buffer. The first ``num_narrow`` streams have a byte per symbol, the others an
            int16; alphabets of the latter may have up to 4096 symbols.
        starts: int64 [streams], the byte at which each stream begins.
        counts: int64 [streams], number of symbols; 0 if the stream is absent, whose body then has 0 bytes.
        capacities: the largest number of symbols for which each stream has space.
        alphabets: int32 [streams].
        rotations: int32 [streams]; a stored value stands for the symbol ``value - rotation`` modulo 256 in
            a byte, modulo 4096 in an int16. Codes can thus be stored before the smallest one is known. An
            int16 whose symbol is outside the alphabet stands for the last symbol.
        num_narrow: number of streams of bytes.
        narrow_nbytes: end of the last stream of bytes in the buffer.
        table: codes all streams, whose symbols must be below its alphabet and not rotated; None if each
            stream has its own table, made from its counts.
        most_wide: upper limit of the alphabets of int16 streams; unless it is ``WIDE``, their rotations
            must be 0.
    """

    symbols: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    capacities: tuple[int, ...]
    alphabets: torch.Tensor
    rotations: torch.Tensor
    num_narrow: int
    narrow_nbytes: int
    table: StaticTable | None = None
    most_wide: int = WIDE

    @property
    def num_wide(self) -> int:
        """Number of streams of int16."""
        return len(self.capacities) - self.num_narrow


@dataclass(frozen=True, slots=True)
class EncodedStreams:
    """Coded blocks that have not been copied into bodies yet.

    Attributes:
        nbytes: int64 [streams], size of each body, a multiple of 8.
        frequencies: int16, the tables of all streams; empty if they share one.
        used: int32 [streams], number of symbols that occur in each; not written if they share a table.
        words: int16, the words of streams of bytes. The words of a block end at the index of the byte
            after its last symbol. Words of int16 streams overwrite their symbols instead.
        states: int32 [blocks, 32].
        ends: int64 [blocks], number of words of the stream up to the end of each block.
        blocks: assignment of programs to streams.
    """

    nbytes: torch.Tensor
    frequencies: torch.Tensor
    used: torch.Tensor
    words: torch.Tensor
    states: torch.Tensor
    ends: torch.Tensor
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class Blocks:
    """The assignment of programs to streams.

    Attributes:
        capacities: int64 [streams].
        firsts: int64 [streams], the first program of each stream.
        owners: int32 [num_programs], the stream of each program.
        num_programs: total number of programs.
    """

    capacities: torch.Tensor
    firsts: torch.Tensor
    owners: torch.Tensor
    num_programs: int


def _most_blocks(capacity: int) -> int:
    """Return the largest number of blocks that a stream of at most ``capacity`` symbols can have."""
    # a count just below a threshold has smaller blocks, and more of them, than one just above
    counts = [capacity, *(least - 1 for least, _ in layout.BLOCKS if 0 < least <= capacity)]
    return max(ceil_div(count, layout.block_symbols(count)) for count in counts)


def num_programs_of(capacity: int) -> int:
    """Return the number of programs for a stream of at most ``capacity`` symbols."""
    return max(1, _most_blocks(capacity))


@cached_on_stream
def block_table(capacities: tuple[int, ...], device: torch.device) -> Blocks:
    """Return the assignment of programs to streams of these capacities."""
    programs = [num_programs_of(capacity) for capacity in capacities]
    firsts = list(accumulate(programs, initial=0))
    streams = torch.arange(len(programs), dtype=torch.int32, device="cpu")
    owners = streams.repeat_interleave(torch.tensor(programs, device="cpu"))
    return Blocks(
        to_device_async(capacities, torch.int64, device),
        to_device_async(firsts[:-1], torch.int64, device),
        copy_async(owners, device),
        firsts[-1],
    )


@triton.jit
def block_of(count):
    """Return the symbols per block of a stream of ``count`` symbols."""
    small = tl.where(count >= _MEDIUM, _MEDIUM_BLOCK, _SMALL_BLOCK)
    return tl.where(count >= _LARGE, _LARGE_BLOCK, small)


@triton.jit
def body_parts(count, num_frequencies):
    """Return the number of blocks of a body, and the first bytes of its offsets and of its states."""
    block = block_of(count)
    num_blocks = (count + block - 1) // block
    offsets_start = padded(2 * num_frequencies.to(tl.int64))
    return num_blocks, offsets_start, offsets_start + padded(4 * (num_blocks + 1))


@triton.jit
def num_stored_frequencies(alphabets, k, STATIC: tl.constexpr):
    """Return how many frequencies the body of stream ``k`` stores: none if the table is static."""
    if STATIC:
        return tl.full((), 0, tl.int32)
    else:
        return tl.load(alphabets + k)


@triton.jit
def num_used(used, k, STATIC: tl.constexpr):
    """Return how many symbols occur in stream ``k``; 2 for a static table, which has at least two."""
    if STATIC:
        return tl.full((), 2, tl.int32)
    else:
        return tl.load(used + k)


@triton.jit
def own_block(program, counts, firsts, owners):
    """Return a program's stream, its count, the program's block, the block size, the symbols in the block.

    If the number of symbols in the block is not positive, there is no such block.
    """
    k = tl.load(owners + program).to(tl.int64)
    count = tl.load(counts + k)
    block = block_of(count)
    b = program - tl.load(firsts + k)
    return k, count, b, block, tl.minimum(count - b * block, block).to(tl.int32)


@jit_kernel(do_not_specialize=["num_narrow"])
def _encode_kernel(
    symbols, starts, counts, firsts, owners, alphabets, entries, used, words, states, ends,
    num_narrow, HAS_NARROW: tl.constexpr, HAS_WIDE: tl.constexpr, STATIC: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, encodes one block; see ``EncodedStreams`` for where its words go."""
    # in reverse, because the symbols that were counted last are still in the cache
    program = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k, _, b, block, size = own_block(program, counts, firsts, owners)
    num_words = tl.full((), 0, tl.int32)
    if (size > 0) & (num_used(used, k, STATIC) > 1):
        alphabet, start = tl.load(alphabets + k), tl.load(starts + k)
        table = entries if STATIC else entries + table_start(k, num_narrow)
        end = words + start + b * block + size
        x = tl.zeros([LANES], dtype=tl.uint32)
        if HAS_NARROW and k < num_narrow:
            bits = bits_of_alphabet(alphabet, False)
            source = symbols + start + b * block
            x, num_words = encode_block(source, size, table, end, bits, False, PTX)
        if HAS_WIDE and k >= num_narrow:
            bits = bits_of_alphabet(alphabet, True)
            source = (symbols + start).to(tl.pointer_type(tl.int16)) + b * block
            # a step writes at most as many words as it read symbols, and only after all lanes have
            # read theirs, so words never overwrite a symbol that has not been read
            x, num_words = encode_block(source, size, table, source + size, bits, True, PTX)
        lane = tl.arange(0, LANES)
        tl.store(states + program * LANES + lane, x.to(tl.int32, bitcast=True))
    tl.store(ends + program, num_words.to(tl.int64))


@jit_kernel()
def _sum_kernel(
    counts, alphabets, used, firsts, ends, nbytes, STATIC: tl.constexpr, LANES: tl.constexpr
):
    """One program turns the word counts of one stream into prefix sums and computes its body's size."""
    k = tl.program_id(0).to(tl.int64)
    count, first = tl.load(counts + k), tl.load(firsts + k)
    num_blocks, _, states_start = body_parts(count, num_stored_frequencies(alphabets, k, STATIC))
    total = tl.full((), 0, tl.int64)
    for start in range(0, num_blocks, LANES):
        b = start + tl.arange(0, LANES)
        found = tl.load(ends + first + b, mask=b < num_blocks, other=0)
        tl.store(ends + first + b, total + tl.cumsum(found, axis=0), mask=b < num_blocks)
        total += tl.sum(found, axis=0)
    is_coded = num_used(used, k, STATIC) > 1
    states_nbytes = tl.where(is_coded, STATES_NBYTES * num_blocks, 0)
    size = states_start + states_nbytes + padded(2 * total)
    tl.store(nbytes + k, tl.where(count > 0, size, 0))


@lru_cache(maxsize=64)
def _encoding_layout(num_streams: int, num_table: int, num_words: int, num_blocks: int) -> Layout:
    return Layout.of(
        {
            "nbytes": (torch.int64, num_streams),
            "frequencies": (torch.int16, num_table),
            "entries": (torch.int64, num_table),
            "used": (torch.int32, num_streams),
            "words": (torch.int16, num_words),
            "states": (torch.int32, num_blocks * layout.LANES),
            "ends": (torch.int64, num_blocks),
        }
    )


def count_symbols(streams: Streams, counts: torch.Tensor) -> None:
    """Count the symbols of all streams in zeroed ``counts``, int64 [num_counts()] of ``histogram``."""
    stream_counts(
        streams.symbols, streams.starts, streams.counts, streams.capacities, streams.num_narrow,
        counts,
    )  # fmt: skip


def encode_streams(streams: Streams, counts: torch.Tensor | None = None) -> EncodedStreams:
    """Encode all blocks of all streams, with the frequencies of each stream or with a static table.

    ``counts`` are those of ``count_symbols``; a static table needs none. Symbols of int16 are overwritten.
    """
    symbols, num_narrow, num_streams = streams.symbols, streams.num_narrow, len(streams.capacities)
    device = symbols.device
    blocks = block_table(streams.capacities, device)
    num_words, num_blocks = streams.narrow_nbytes, blocks.num_programs
    num_table = 0 if counts is None else counts.numel()
    held = _encoding_layout(num_streams, num_table, num_words, num_blocks).carve(device)
    entries = held.pop("entries")
    encoded = EncodedStreams(**held, blocks=blocks)
    if streams.table is not None:
        entries = streams.table.entries
    elif counts is not None:
        encoding_tables(
            counts, streams.alphabets, streams.rotations, num_narrow, encoded.frequencies, entries,
            encoded.used, streams.counts, streams.most_wide,
        )  # fmt: skip
    _encode_kernel[(blocks.num_programs,)](
        symbols, streams.starts, streams.counts, blocks.firsts, blocks.owners, streams.alphabets,
        entries, encoded.used, encoded.words, encoded.states, encoded.ends, num_narrow, HAS_NARROW=num_narrow > 0,
        HAS_WIDE=streams.num_wide > 0, STATIC=streams.table is not None, PTX=has_ptx(symbols), num_warps=1,
    )  # fmt: skip
    sum_words(
        streams.counts, streams.alphabets, encoded.used, blocks, encoded.ends, encoded.nbytes,
        streams.table is not None,
    )  # fmt: skip
    return encoded


def sum_words(
    counts: torch.Tensor,
    alphabets: torch.Tensor,
    used: torch.Tensor,
    blocks: Blocks,
    ends: torch.Tensor,
    nbytes: torch.Tensor,
    is_static: bool,
) -> None:
    """Turn ``ends``, the number of words of each block, into prefix sums, and store the sizes of bodies.

    See ``Streams`` and ``EncodedStreams`` for the tensors; ``is_static`` means that bodies store no table.
    """
    _sum_kernel[(nbytes.numel(),)](
        counts,
        alphabets,
        used,
        blocks.firsts,
        ends,
        nbytes,
        STATIC=is_static,
        LANES=_BLOCKS_PER_STEP,
    )


@jit_kernel(do_not_specialize=["num_narrow"])
def _place_kernel(
    targets, symbols, starts, counts, firsts, owners, alphabets, frequencies, used, words, states,
    ends, num_narrow, HAS_WIDE: tl.constexpr, STATIC: tl.constexpr, PAIRS_PER_COPY: tl.constexpr,
):  # fmt: skip
    """One program copies one block into the body of its stream."""
    program = tl.program_id(0).to(tl.int64)
    k, count, b, block, size = own_block(program, counts, firsts, owners)
    target = tl.load(targets + k)
    if (size > 0) & (target != 0):
        stored = num_stored_frequencies(alphabets, k, STATIC)
        num_blocks, offsets_start, states_start = body_parts(count, stored)
        is_coded = num_used(used, k, STATIC) > 1
        states_nbytes = tl.where(is_coded, STATES_NBYTES * num_blocks, 0)
        start = tl.load(ends + program - 1, mask=b > 0, other=0)
        end = tl.load(ends + program)
        source = words + tl.load(starts + k) + b * block + size - (end - start)
        if HAS_WIDE and k >= num_narrow:
            held = (symbols + tl.load(starts + k)).to(tl.pointer_type(tl.int16))
            source = held + b * block + size - (end - start)
        place_block(
            target.to(tl.pointer_type(tl.uint8)), b, num_blocks, start, end, source,
            states + program * LANES, frequencies + table_start(k, num_narrow),
            (offsets_start // 2).to(tl.int32), offsets_start, states_start,
            states_start + states_nbytes, PAIRS_PER_COPY,
        )  # fmt: skip


def place_streams(streams: Streams, encoded: EncodedStreams, targets: torch.Tensor) -> None:
    """Write bodies to the addresses ``targets``, int64 [streams], multiples of 8; 0 skips a stream."""
    blocks = encoded.blocks
    _place_kernel[(blocks.num_programs,)](
        targets, streams.symbols, streams.starts, streams.counts, blocks.firsts, blocks.owners,
        streams.alphabets, encoded.frequencies, encoded.used, encoded.words, encoded.states,
        encoded.ends, streams.num_narrow, HAS_WIDE=streams.num_wide > 0,
        STATIC=streams.table is not None, PAIRS_PER_COPY=PAIRS_PER_COPY,
    )  # fmt: skip
