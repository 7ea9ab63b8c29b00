"""rANS of several streams in Triton: a few launches whatever their number, and no wait.

A stream gets as many programs as its capacity can need; those without a block leave at once. Bodies
are those of ``kernels/rans``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.histogram.gpu import has_ptx, stream_counts
from tersor.kernels.kept import kept, uploaded
from tersor.kernels.payload.gpu import as_compute, padded
from tersor.kernels.quantize.gpu import KINDS
from tersor.kernels.rans import layout
from tersor.kernels.rans_block.gpu import (
    BYTES,
    COPIED,
    LANES,
    SHORTS,
    decode_part,
    encode_block,
    place_block,
)
from tersor.kernels.rans_table.gpu import (
    SLOTS,
    bits_of_alphabet,
    empty_slots,
    encoding_tables,
    store_slots,
)
from tersor.kernels.symbols.alphabet import NARROW, WIDE

_STATES_NBYTES = tl.constexpr(4 * layout.LANES)
(_LARGE, _LARGE_BLOCK), (_MEDIUM, _MEDIUM_BLOCK), (_, _SMALL_BLOCK) = (
    (tl.constexpr(least), tl.constexpr(block)) for least, block in layout.BLOCKS
)
_SUMMED: Final = 256
"""Blocks whose words one step of a running sum adds up."""
_GOOD, _USED, _SYMBOL, _NUM_FACTS = (tl.constexpr(k) for k in range(4))
"""What is known of a body before its blocks are decoded, int32: 1 if it has symbols and its head is
well formed; used symbols; the largest of them."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Symbols of several streams in one buffer; sizes and alphabets lie on the device.

    Attributes:
        symbols: uint8, or int16 for alphabets up to 4096.
        starts: int64 [streams], where each stream begins in ``symbols``.
        counts: int64 [streams], symbols of each; 0 if it is absent, then its body has 0 bytes.
        capacities: the most symbols of each, for which ``symbols`` has room.
        alphabets: int32 [streams].
        rotations: int32 [streams]; the symbol of a byte is ``byte - rotation`` modulo 256, so that
            codes can be stored before the smallest of them is known. 0 for int16.
    """

    symbols: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    capacities: tuple[int, ...]
    alphabets: torch.Tensor
    rotations: torch.Tensor


@dataclass(frozen=True, slots=True)
class EncodedStreams:
    """Coded blocks, not yet in their places.

    Attributes:
        nbytes: int64 [streams], size of each body, a multiple of 8.
        frequencies: int16 [streams, 256 or 4096].
        used: int32 [streams], symbols that occur in each.
        words: int16; those of a block end where its symbols end in ``symbols``.
        states: int32 [blocks, 32].
        ends: int64 [blocks], words of a stream up to the end of each block.
    """

    nbytes: torch.Tensor
    frequencies: torch.Tensor
    used: torch.Tensor
    words: torch.Tensor
    states: torch.Tensor
    ends: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Blocks:
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
    return max(triton.cdiv(count, layout.block_symbols(count)) for count in counts)


@kept
def _block_table(capacities: tuple[int, ...], device: torch.device) -> _Blocks:
    programs = [max(1, _most_blocks(capacity)) for capacity in capacities]
    firsts = list(accumulate(programs, initial=0))
    owners = torch.arange(len(programs), dtype=torch.int32).repeat_interleave(
        torch.tensor(programs)
    )
    return _Blocks(
        uploaded(capacities, torch.int64, device),
        uploaded(firsts[:-1], torch.int64, device),
        owners.to(device),
        firsts[-1],
    )


@triton.jit
def _block_of(count):
    """Return the symbols per block of a stream of ``count`` symbols."""
    small = tl.where(count >= _MEDIUM, _MEDIUM_BLOCK, _SMALL_BLOCK)
    return tl.where(count >= _LARGE, _LARGE_BLOCK, small)


@triton.jit
def _parts(count, alphabet):
    """Return number of blocks, and where offsets and states of a body start."""
    block = _block_of(count)
    num_blocks = (count + block - 1) // block
    offsets_start = padded(2 * alphabet.to(tl.int64))
    return num_blocks, offsets_start, offsets_start + padded(4 * (num_blocks + 1))


@triton.jit
def _own_block(program, counts, firsts, owners):
    """Return the stream of a program, its count, the program's block, block size, symbols in it.

    Not more than 0 symbols say that there is no such block.
    """
    k = tl.load(owners + program).to(tl.int64)
    count = tl.load(counts + k)
    block = _block_of(count)
    b = program - tl.load(firsts + k)
    return k, count, b, block, tl.minimum(count - b * block, block).to(tl.int32)


@triton.jit
def _encode_kernel(
    symbols, starts, counts, firsts, owners, alphabets, entries, used, words, states, ends,
    IS_WIDE: tl.constexpr, BINS: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, encodes one block; its words end where its symbols end."""
    # backwards: the symbols that were counted last are still in the cache
    program = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    k, _, b, block, size = _own_block(program, counts, firsts, owners)
    num_words = tl.full((), 0, tl.int32)
    if (size > 0) & (tl.load(used + k) > 1):
        bits = bits_of_alphabet(tl.load(alphabets + k), IS_WIDE)
        begin = tl.load(starts + k) + b * block
        x, num_words = encode_block(
            symbols + begin, size, entries + k * BINS, words + begin + size, bits, IS_WIDE, PTX
        )
        lane = tl.arange(0, LANES)
        tl.store(states + program * LANES + lane, x.to(tl.int32, bitcast=True))
    tl.store(ends + program, num_words.to(tl.int64))


@triton.jit
def _sum_kernel(counts, alphabets, used, firsts, ends, nbytes, LANES: tl.constexpr):
    """One program adds up the words of one stream and computes the size of its body."""
    k = tl.program_id(0).to(tl.int64)
    count, first = tl.load(counts + k), tl.load(firsts + k)
    num_blocks, _, states_start = _parts(count, tl.load(alphabets + k))
    total = tl.full((), 0, tl.int64)
    for start in range(0, num_blocks, LANES):
        b = start + tl.arange(0, LANES)
        found = tl.load(ends + first + b, mask=b < num_blocks, other=0)
        tl.store(ends + first + b, total + tl.cumsum(found, axis=0), mask=b < num_blocks)
        total += tl.sum(found, axis=0)
    states_nbytes = tl.where(tl.load(used + k) > 1, _STATES_NBYTES * num_blocks, 0)
    size = states_start + states_nbytes + padded(2 * total)
    tl.store(nbytes + k, tl.where(count > 0, size, 0))


def encode_streams(streams: Streams) -> EncodedStreams:
    """Code every block of every stream, each with the frequencies of its own symbols."""
    symbols, device = streams.symbols, streams.symbols.device
    blocks = _block_table(streams.capacities, device)
    counts = stream_counts(symbols, streams.starts, streams.counts, streams.capacities)
    frequencies, entries, used = encoding_tables(counts, streams.alphabets, streams.rotations)
    words = torch.empty(symbols.numel(), dtype=torch.int16, device=device)
    states = torch.empty((blocks.num_programs, layout.LANES), dtype=torch.int32, device=device)
    ends = torch.empty(blocks.num_programs, dtype=torch.int64, device=device)
    nbytes = torch.empty(len(streams.capacities), dtype=torch.int64, device=device)
    _encode_kernel[(blocks.num_programs,)](
        symbols, streams.starts, streams.counts, blocks.firsts, blocks.owners, streams.alphabets,
        entries, used, words, states, ends, IS_WIDE=symbols.dtype != torch.uint8,
        BINS=entries.shape[1], PTX=has_ptx(symbols), num_warps=1,
    )  # fmt: skip
    _sum_kernel[(len(streams.capacities),)](
        streams.counts, streams.alphabets, used, blocks.firsts, ends, nbytes, LANES=_SUMMED
    )
    return EncodedStreams(nbytes, frequencies, used, words, states, ends)


@triton.jit
def _place_kernel(
    targets, starts, counts, firsts, owners, alphabets, frequencies, used, words, states, ends,
    BINS: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """One program moves one block to its place in the body of its stream."""
    program = tl.program_id(0).to(tl.int64)
    k, count, b, block, size = _own_block(program, counts, firsts, owners)
    target = tl.load(targets + k)
    if (size > 0) & (target != 0):
        num_blocks, offsets_start, states_start = _parts(count, tl.load(alphabets + k))
        states_nbytes = tl.where(tl.load(used + k) > 1, _STATES_NBYTES * num_blocks, 0)
        start = tl.load(ends + program - 1, mask=b > 0, other=0)
        end = tl.load(ends + program)
        source = words + tl.load(starts + k) + b * block + size - (end - start)
        place_block(
            target.to(tl.pointer_type(tl.uint8)), b, num_blocks, start, end, source,
            states + program * LANES, frequencies + k * BINS, (offsets_start // 2).to(tl.int32),
            offsets_start, states_start, states_start + states_nbytes, COPIED,
        )  # fmt: skip


def place_streams(streams: Streams, encoded: EncodedStreams, targets: torch.Tensor) -> None:
    """Write the bodies to addresses, int64 [streams], multiples of 8; 0 leaves a body unwritten."""
    blocks = _block_table(streams.capacities, streams.symbols.device)
    _place_kernel[(blocks.num_programs,)](
        targets, streams.starts, streams.counts, blocks.firsts, blocks.owners, streams.alphabets,
        encoded.frequencies, encoded.used, encoded.words, encoded.states, encoded.ends,
        BINS=encoded.frequencies.shape[1], COPIED=COPIED,
    )  # fmt: skip


@triton.jit
def _slots_kernel(
    bodies, rooms, counts, capacities, alphabets, slots, facts, nbytes, status,
    IS_WIDE: tl.constexpr, NBITS: tl.constexpr, SLOTS: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Program (k, p) fills the p-th ``SLOTS`` slots of stream k; the first also checks its head."""
    k, p = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count, alphabet, room = tl.load(counts + k), tl.load(alphabets + k), tl.load(rooms + k)
    body = tl.load(bodies + k)
    num_blocks, offsets_start, states_start = _parts(count, alphabet)
    possible = (count > 0) & (count <= tl.load(capacities + k))
    possible = possible & (alphabet > 0) & (alphabet <= (1 << NBITS)) & (room >= states_start)
    bits = bits_of_alphabet(alphabet, IS_WIDE)
    symbol = tl.arange(0, 1 << NBITS)
    stored = body.to(tl.pointer_type(tl.int16)) + symbol
    found = tl.load(stored, mask=possible & (symbol < alphabet), other=0).to(tl.int32) & 0xFFFF
    scale = tl.full((), 1, tl.int32) << bits
    if possible & (p * SLOTS < scale):
        store_slots(slots + k * TABLE, found, p * SLOTS, alphabet, IS_WIDE, NBITS, SLOTS)
    if p == 0:
        offsets = (body + offsets_start).to(tl.pointer_type(tl.uint32))
        num_words = tl.load(offsets + num_blocks, mask=possible, other=0).to(tl.int64)
        used = tl.sum((found > 0).to(tl.int32), axis=0)
        size = states_start + tl.where(used > 1, _STATES_NBYTES * num_blocks, 0)
        size += padded(2 * num_words)
        good = possible & (tl.sum(found, axis=0) == scale) & (size <= room)
        tl.store(facts + k * _NUM_FACTS + _GOOD, good.to(tl.int32))
        tl.store(facts + k * _NUM_FACTS + _USED, used)
        only = tl.max(tl.where(found > 0, symbol, 0), axis=0)
        tl.store(facts + k * _NUM_FACTS + _SYMBOL, only)
        tl.store(nbytes + k, tl.where(good, size, 0))
        if (count != 0) & (good == 0):
            tl.atomic_or(status + k, 1)


@triton.jit
def _decode_kernel(
    bodies, rooms, counts, alphabets, firsts, owners, slots, facts, out, places, lows, steps,
    status, IS_WIDE: tl.constexpr, TABLE: tl.constexpr, KIND: tl.constexpr,
    NBYTES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, decodes one block, if the head of its body is well formed."""
    k, count, b, block, size = _own_block(tl.program_id(0).to(tl.int64), counts, firsts, owners)
    facts += k * _NUM_FACTS
    if (size > 0) & (tl.load(facts + _GOOD) > 0):
        alphabet = tl.load(alphabets + k)
        num_blocks, offsets_start, states_start = _parts(count, alphabet)
        words_start = states_start + _STATES_NBYTES * num_blocks
        place = tl.load(places + k)
        if KIND > 0:
            target = place + b * block * NBYTES
            low, step = tl.load(lows + k), as_compute(tl.load(steps + k), KIND)
        else:
            target = out.to(tl.int64) + (place + b * block) * NBYTES
            low, step = 0, 0.0
        good = decode_part(
            tl.load(bodies + k).to(tl.pointer_type(tl.uint8)), b, num_blocks, size, offsets_start,
            states_start, (tl.load(rooms + k) - words_start) // 2, True, tl.load(facts + _USED),
            tl.load(facts + _SYMBOL), slots + k * TABLE, target, low, step,
            bits_of_alphabet(alphabet, IS_WIDE), IS_WIDE, KIND, PTX,
        )  # fmt: skip
        if not good:
            tl.atomic_or(status + k, 1)


@dataclass(frozen=True, slots=True)
class Bodies:
    """Bodies of several streams, and what is known of them, on the device.

    Attributes:
        addresses: int64 [streams], multiples of 8.
        rooms: int64 [streams], bytes that may be read from each address on.
        counts: int64 [streams], symbols of each; 0 if it is absent. Not trusted.
        alphabets: int32 [streams]. Not trusted.
        capacities: the most symbols of each.
    """

    addresses: torch.Tensor
    rooms: torch.Tensor
    counts: torch.Tensor
    alphabets: torch.Tensor
    capacities: tuple[int, ...]


def _decode(
    bodies: Bodies, status: torch.Tensor, is_wide: bool, kind: Any, nbytes: int, **where: Any
) -> torch.Tensor:
    device, num_streams = status.device, len(bodies.capacities)
    blocks = _block_table(bodies.capacities, device)
    alphabet, bits = (WIDE, layout.WIDE_BITS) if is_wide else (NARROW, layout.NARROW_BITS)
    slots = empty_slots((num_streams,), is_wide, device)
    facts = torch.empty((num_streams, _NUM_FACTS.value), dtype=torch.int32, device=device)
    sizes = torch.empty(num_streams, dtype=torch.int64, device=device)
    _slots_kernel[(num_streams, (1 << bits) // SLOTS)](
        bodies.addresses, bodies.rooms, bodies.counts, blocks.capacities, bodies.alphabets, slots,
        facts, sizes, status, IS_WIDE=is_wide, NBITS=alphabet.bit_length() - 1, SLOTS=SLOTS,
        TABLE=slots.shape[1],
    )  # fmt: skip
    _decode_kernel[(blocks.num_programs,)](
        bodies.addresses, bodies.rooms, bodies.counts, bodies.alphabets, blocks.firsts,
        blocks.owners, slots, facts, status=status, IS_WIDE=is_wide, TABLE=slots.shape[1],
        KIND=kind, NBYTES=nbytes, PTX=has_ptx(status), num_warps=1, enable_fp_fusion=False, **where,
    )  # fmt: skip
    return sizes


def decode_streams(
    bodies: torch.Tensor,
    rooms: torch.Tensor,
    counts: torch.Tensor,
    alphabets: torch.Tensor,
    capacities: Sequence[int],
    out: torch.Tensor,
    starts: torch.Tensor,
    status: torch.Tensor,
) -> torch.Tensor:
    """Decode bodies to symbols; see ``Bodies`` for the first arguments.

    Args:
        bodies: addresses.
        rooms: bytes at each.
        counts: symbols of each.
        alphabets: of each.
        capacities: the most symbols of each, for which ``out`` has room.
        out: uint8, or int16.
        starts: int64 [streams], where the symbols of each begin in ``out``. Trusted.
        status: int32 [streams]; bit 0 is set where a body is malformed, whose symbols are then
            undefined.

    Returns:
        int64 [streams], size of each body; 0 where it is absent or its head malformed.
    """
    known = Bodies(bodies, rooms, counts, alphabets, tuple(capacities))
    is_wide = out.dtype != torch.uint8
    where = {"out": out, "places": starts, "lows": status, "steps": status}
    return _decode(
        known, status, is_wide, SHORTS if is_wide else BYTES, out.element_size(), **where
    )


def decode_values(
    bodies: Bodies,
    targets: torch.Tensor,
    lows: torch.Tensor,
    steps: torch.Tensor,
    dtype: torch.dtype,
    status: torch.Tensor,
) -> torch.Tensor:
    """Decode bodies of at most 256 symbols to values; returns and sets what ``decode_streams`` does.

    Args:
        bodies: what to decode.
        targets: int64 [streams], addresses of values of ``dtype``, of which there is room for as
            many as the capacity says.
        lows: int32 [streams], the code of symbol 0.
        steps: float64 [streams], what codes are multiplied by.
        dtype: of the values.
        status: as in ``decode_streams``.
    """
    where = {"out": status, "places": targets, "lows": lows, "steps": steps}
    return _decode(bodies, status, False, KINDS[dtype], dtype.itemsize, **where)
