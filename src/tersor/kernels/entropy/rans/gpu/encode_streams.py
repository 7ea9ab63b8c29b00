"""rANS of several streams in Triton: a few launches whatever their number, and no wait.

A stream gets as many programs as its capacity can need; those without a block leave at once. Bodies
are those of ``kernels/rans``. Streams of bytes and of int16 share launches, the former come first:
``rows`` has both, and neither keeps all of a GPU busy.
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
_SUMMED: Final = 1024
"""Blocks whose words one step of a running sum adds up: more steps take longer than larger ones."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Symbols of several streams in one memory; sizes and alphabets lie on the device.

    Attributes:
        symbols: uint8, the memory: a byte per symbol in the first ``num_narrow`` streams, an int16
            in the others, whose alphabets may have up to 4096 symbols.
        starts: int64 [streams], the byte at which each stream begins.
        counts: int64 [streams], symbols of each; 0 if it is absent, then its body has 0 bytes.
        capacities: the most symbols of each, for which there is room.
        alphabets: int32 [streams].
        rotations: int32 [streams]; the symbol of a byte is ``byte - rotation`` modulo 256, and that of an
            int16 the same modulo 4096, so that codes can be stored before the smallest of them is
            known. An int16 whose symbol is beyond the alphabet stands for the last symbol.
        num_narrow: how many streams are of bytes.
        narrow_nbytes: where the last of them ends in the memory.
        table: what codes all streams, whose symbols are below its alphabet and not rotated; None if each
            has a table of its own, made of its counts.
        most_wide: symbols of the largest alphabet of the other streams, at most; their rotations are 0 if
            it is not that of all int16.
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
        """How many streams are of int16."""
        return len(self.capacities) - self.num_narrow


@dataclass(frozen=True, slots=True)
class EncodedStreams:
    """Coded blocks, not yet in their places.

    Attributes:
        nbytes: int64 [streams], size of each body, a multiple of 8.
        frequencies: int16, the tables of all streams; none if they share one.
        used: int32 [streams], symbols that occur in each; not written if they share a table.
        words: int16, of streams of bytes; those of a block of ``n`` symbols end ``n`` places behind
            where they would start if a symbol took one place, counted from the stream's start. Those
            of streams of int16 take the places of their symbols.
        states: int32 [blocks, 32].
        ends: int64 [blocks], words of a stream up to the end of each block.
        blocks: which stream a program works for.
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
    """Which stream a program works for.

    Attributes:
        capacities: int64 [streams].
        firsts: int64 [streams], the first program of each.
        owners: int32 [num_programs], the stream of each.
        num_programs: of all streams.
    """

    capacities: torch.Tensor
    firsts: torch.Tensor
    owners: torch.Tensor
    num_programs: int


def _most_blocks(capacity: int) -> int:
    """Return the most blocks that a stream of at most ``capacity`` symbols can have."""
    # the last count before blocks double makes more of them than that count plus one
    counts = [capacity, *(least - 1 for least, _ in layout.BLOCKS if 0 < least <= capacity)]
    return max(ceil_div(count, layout.block_symbols(count)) for count in counts)


def num_programs_of(capacity: int) -> int:
    """Return the programs of a stream of at most ``capacity`` symbols."""
    return max(1, _most_blocks(capacity))


@cached_on_stream
def block_table(capacities: tuple[int, ...], device: torch.device) -> Blocks:
    """Return the programs of streams with at most so many symbols."""
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
    """Return number of blocks, and where offsets and states of a body with so many frequencies start."""
    block = block_of(count)
    num_blocks = (count + block - 1) // block
    offsets_start = padded(2 * num_frequencies.to(tl.int64))
    return num_blocks, offsets_start, offsets_start + padded(4 * (num_blocks + 1))


@triton.jit
def num_stored(alphabets, k, STATIC: tl.constexpr):
    """Return how many frequencies the body of stream ``k`` has: none if both sides know them."""
    if STATIC:
        return tl.full((), 0, tl.int32)
    else:
        return tl.load(alphabets + k)


@triton.jit
def num_used(used, k, STATIC: tl.constexpr):
    """Return how many symbols stream ``k`` may have; a static table has at least two."""
    if STATIC:
        return tl.full((), 2, tl.int32)
    else:
        return tl.load(used + k)


@triton.jit
def own_block(program, counts, firsts, owners):
    """Return the stream of a program, its count, the program's block, block size, symbols in it.

    Not more than 0 symbols say that there is no such block.
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
    """One program, of one warp, encodes one block; its words end where its symbols end."""
    # backwards: the symbols that were counted last are still in the cache
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
            # a step writes at most as many words as symbols were read, and only after all its lanes
            # have read theirs, so that words never reach a symbol that is still to be read
            x, num_words = encode_block(source, size, table, source + size, bits, True, PTX)
        lane = tl.arange(0, LANES)
        tl.store(states + program * LANES + lane, x.to(tl.int32, bitcast=True))
    tl.store(ends + program, num_words.to(tl.int64))


@jit_kernel()
def _sum_kernel(
    counts, alphabets, used, firsts, ends, nbytes, STATIC: tl.constexpr, LANES: tl.constexpr
):
    """One program adds up the words of one stream and computes the size of its body."""
    k = tl.program_id(0).to(tl.int64)
    count, first = tl.load(counts + k), tl.load(firsts + k)
    num_blocks, _, states_start = body_parts(count, num_stored(alphabets, k, STATIC))
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
    """Code every block of every stream, with the frequencies of its own symbols or with a static table.

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
    """Turn the words of each block, ``ends``, into running sums, and store the sizes of the bodies.

    See ``Streams``, ``EncodedStreams`` for the tensors; ``is_static`` says that both sides know the table.
    """
    _sum_kernel[(nbytes.numel(),)](
        counts, alphabets, used, blocks.firsts, ends, nbytes, STATIC=is_static, LANES=_SUMMED
    )


@jit_kernel(do_not_specialize=["num_narrow"])
def _place_kernel(
    targets, symbols, starts, counts, firsts, owners, alphabets, frequencies, used, words, states,
    ends, num_narrow, HAS_WIDE: tl.constexpr, STATIC: tl.constexpr, PAIRS_PER_COPY: tl.constexpr,
):  # fmt: skip
    """One program moves one block to its place in the body of its stream."""
    program = tl.program_id(0).to(tl.int64)
    k, count, b, block, size = own_block(program, counts, firsts, owners)
    target = tl.load(targets + k)
    if (size > 0) & (target != 0):
        stored = num_stored(alphabets, k, STATIC)
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
    """Write the bodies to addresses, int64 [streams], multiples of 8; 0 leaves a body unwritten."""
    blocks = encoded.blocks
    _place_kernel[(blocks.num_programs,)](
        targets, streams.symbols, streams.starts, streams.counts, blocks.firsts, blocks.owners,
        streams.alphabets, encoded.frequencies, encoded.used, encoded.words, encoded.states,
        encoded.ends, streams.num_narrow, HAS_WIDE=streams.num_wide > 0,
        STATIC=streams.table is not None, PAIRS_PER_COPY=PAIRS_PER_COPY,
    )  # fmt: skip
