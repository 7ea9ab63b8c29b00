"""rANS decoding of several streams in Triton: two or three launches whatever their number, without waiting.

The tables of all streams are made first. Streams of bytes and of int16 are then decoded by separate
launches, which may run concurrently. See ``encode_streams`` for encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.entropy.rans import layout
from tersor.kernels.entropy.rans.gpu.block import decode_part
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    STATES_NBYTES,
    Blocks,
    block_table,
    body_parts,
    num_programs_of,
    num_stored_frequencies,
    own_block,
)
from tersor.kernels.entropy.rans.gpu.table import (
    SLOTS,
    StaticTable,
    bits_of_alphabet,
    num_slot_words,
    slots_start,
    store_slots,
)
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx
from tersor.kernels.quantize.gpu.values import as_compute
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.element_types import I32, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded
from tersor.kernels.runtime.workspace import Layout

WIDE_NBITS: Final = WIDE.bit_length() - 1
LEVELS = tl.constexpr(NARROW)
"""Number of levels per stream that ``decode_scaled`` takes."""
_WORTH_SHARING = tl.constexpr(1024)
"""Smallest block, in symbols, for which copying a wide table to shared memory pays off."""
_NARROW_PARTS = tl.constexpr((1 << layout.NARROW_BITS) // SLOTS)
_WIDE_PARTS = tl.constexpr((1 << layout.WIDE_BITS) // SLOTS)
"""Number of programs that fill a decoding table."""
_GOOD, _USED, _SYMBOL, _NUM_FACTS = (tl.constexpr(k) for k in range(4))
"""Indices into the int32 facts about a body, known before its blocks are decoded: 1 if it has symbols and a
well-formed head; the number of used symbols; the largest of them."""


@triton.jit
def read_head(body, room, count, capacity, alphabet, IS_WIDE: tl.constexpr, NBITS: tl.constexpr):
    """Read the part before the states of a body, of which ``room`` bytes may be read.

    Returns:
        The frequencies, ``2**NBITS`` of them; how many are not 0; whether count, alphabet and room are
        plausible, without which the other results are meaningless; the size of the body; whether the
        head is well formed.
    """
    num_blocks, offsets_start, states_start = body_parts(count, alphabet)
    possible = (count > 0) & (count <= capacity)
    possible = possible & (alphabet > 0) & (alphabet <= (1 << NBITS)) & (room >= states_start)
    symbol = tl.arange(0, 1 << NBITS)
    stored = body.to(tl.pointer_type(tl.int16)) + symbol
    found = tl.load(stored, mask=possible & (symbol < alphabet), other=0).to(tl.int32) & 0xFFFF
    offsets = (body + offsets_start).to(tl.pointer_type(tl.uint32))
    num_words = tl.load(offsets + num_blocks, mask=possible, other=0).to(tl.int64)
    used = tl.sum((found > 0).to(tl.int32), axis=0)
    size = states_start + tl.where(used > 1, STATES_NBYTES * num_blocks, 0) + padded(2 * num_words)
    scale = tl.full((), 1, tl.int32) << bits_of_alphabet(alphabet, IS_WIDE)
    good = possible & (tl.sum(found, axis=0) == scale) & (size <= room)
    return found, used, possible, size, good


@triton.jit
def wide_body_nbytes(body, room, count, alphabet, NBITS: tl.constexpr):
    """Return the size of the body of an int16 stream; 0 if it is absent or its head is malformed.

    ``NBITS`` is ``WIDE_NBITS``.
    """
    _, _, _, size, good = read_head(body, room, count, count, alphabet, True, NBITS)
    return tl.where(good, size, 0)


@triton.jit
def _fill_slots(
    k, p, bodies, rooms, counts, capacities, alphabets, slots, facts, nbytes, status, num_narrow,
    num_states, IS_WIDE: tl.constexpr, NBITS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Fill the p-th group of ``SLOTS`` slots of stream k; the first program also checks its head."""
    count, alphabet = tl.load(counts + k), tl.load(alphabets + k)
    found, used, possible, size, good = read_head(
        tl.load(bodies + k), tl.load(rooms + k), count, tl.load(capacities + k), alphabet, IS_WIDE,
        NBITS,
    )  # fmt: skip
    scale = tl.full((), 1, tl.int32) << bits_of_alphabet(alphabet, IS_WIDE)
    if possible & (p * SLOTS < scale):
        table = slots + slots_start(k, num_narrow)
        store_slots(table, found, p * SLOTS, alphabet, IS_WIDE, NBITS, SLOTS)
    if p == 0:
        tl.store(facts + k * _NUM_FACTS + _GOOD, good.to(tl.int32))
        tl.store(facts + k * _NUM_FACTS + _USED, used)
        only = tl.max(tl.where(found > 0, tl.arange(0, 1 << NBITS), 0), axis=0)
        tl.store(facts + k * _NUM_FACTS + _SYMBOL, only)
        tl.store(nbytes + k, tl.where(good, size, 0))
        if (count != 0) & (good == 0):
            tl.atomic_or(status + k % num_states, 1)


@jit_kernel(do_not_specialize=["num_narrow", "num_states"])
def _slots_kernel(
    bodies, rooms, counts, capacities, alphabets, slots, facts, nbytes, status, num_narrow,
    num_states, HAS_NARROW: tl.constexpr, HAS_WIDE: tl.constexpr, NARROW_NBITS: tl.constexpr,
    WIDE_NBITS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One program fills ``SLOTS`` slots of one stream."""
    program = tl.program_id(0).to(tl.int64)
    num_programs = num_narrow.to(tl.int64) * _NARROW_PARTS
    if HAS_NARROW and program < num_programs:
        _fill_slots(
            program // _NARROW_PARTS, program % _NARROW_PARTS, bodies, rooms, counts,
            capacities, alphabets, slots, facts, nbytes, status, num_narrow, num_states, False,
            NARROW_NBITS, SLOTS,
        )  # fmt: skip
    if HAS_WIDE and program >= num_programs:
        program -= num_programs
        _fill_slots(
            num_narrow + program // _WIDE_PARTS, program % _WIDE_PARTS, bodies, rooms, counts,
            capacities, alphabets, slots, facts, nbytes, status, num_narrow, num_states, True,
            WIDE_NBITS, SLOTS,
        )  # fmt: skip


@jit_kernel(do_not_specialize=["alphabet", "num_states"])
def _static_kernel(
    bodies, rooms, counts, capacities, alphabets, alphabet, facts, nbytes, status, num_streams,
    num_states, LANES: tl.constexpr,
):  # fmt: skip
    """One program checks the heads of ``LANES`` bodies that are coded with a static table."""
    k = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = k < num_streams
    count = tl.load(counts + k, mask=inside, other=0)
    room = tl.load(rooms + k, mask=inside, other=0)
    possible = (count > 0) & (count <= tl.load(capacities + k, mask=inside, other=0))
    possible = possible & (tl.load(alphabets + k, mask=inside, other=0) == alphabet)
    num_blocks, _, states_start = body_parts(count, count * 0)
    possible = possible & (room >= states_start)
    offsets = tl.load(bodies + k, mask=inside, other=0).to(tl.pointer_type(tl.uint32))
    num_words = tl.load(offsets + num_blocks, mask=possible, other=0).to(tl.int64)
    size = states_start + STATES_NBYTES * num_blocks + padded(2 * num_words)
    good = possible & (size <= room)
    tl.store(facts + k * _NUM_FACTS + _GOOD, good.to(tl.int32), mask=inside)
    tl.store(facts + k * _NUM_FACTS + _USED, 2, mask=inside)
    tl.store(facts + k * _NUM_FACTS + _SYMBOL, 0, mask=inside)
    tl.store(nbytes + k, tl.where(good, size, 0), mask=inside)
    tl.atomic_or(status + k % num_states, 1, mask=inside & (count != 0) & ~good)


@jit_kernel(do_not_specialize=["num_narrow", "num_states"])
def _decode_kernel(
    bodies, rooms, counts, alphabets, firsts, owners, order, slots, facts, out, places, lows, steps,
    status, num_narrow, num_states, IS_WIDE: tl.constexpr, STATIC: tl.constexpr, TYPE: tl.constexpr,
    PTX: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, decodes one block, if the head of its body is well formed.

    ``TYPE`` is the output dtype. With ``GROUP``, ``lows`` and ``steps`` are the levels and scales of
    ``decode_scaled``.
    """
    program = tl.load(order + tl.program_id(0)).to(tl.int64)
    k, count, b, block, size = own_block(program, counts, firsts, owners)
    facts += k * _NUM_FACTS
    if (size > 0) & (tl.load(facts + _GOOD) > 0):
        alphabet, place = tl.load(alphabets + k), tl.load(places + k)
        stored = num_stored_frequencies(alphabets, k, STATIC)
        num_blocks, offsets_start, states_start = body_parts(count, stored)
        num_words_room = (tl.load(rooms + k) - states_start - STATES_NBYTES * num_blocks) // 2
        body = tl.load(bodies + k).to(tl.pointer_type(tl.uint8))
        used, only = tl.load(facts + _USED), tl.load(facts + _SYMBOL)
        table = slots if STATIC else slots + slots_start(k, num_narrow)
        good = size > 0
        # always true, but without this branch ptxas delays what the next step depends on until after a
        # store, and 109 M symbols take 260 us instead of 210
        if IS_WIDE or k < num_narrow:
            if GROUP > 0:
                target = place + b * block * (TYPE.primitive_bitwidth // 8)
                low = lows + k * LEVELS
                scales = tl.load(steps + k).to(tl.pointer_type(tl.int16))
                step = scales + b * block // GROUP
            elif TYPE.is_floating() or TYPE == I32:
                target = place + b * block * (TYPE.primitive_bitwidth // 8)
                low, step = tl.load(lows + k), as_compute(tl.load(steps + k), TYPE)
            else:
                target = out.to(tl.int64) + place + b * block * (TYPE.primitive_bitwidth // 8)
                low, step = 0, 0.0
            # values come from few long streams, whose tables fit the cache of a multiprocessor; with
            # 48 KiB of shared memory each, only four programs would fit on one
            is_shared = False if TYPE.is_floating() or TYPE == I32 else size >= _WORTH_SHARING
            good = decode_part(
                body, b, num_blocks, size, offsets_start, states_start, num_words_room, True, used,
                only, table, is_shared, target, low, step, bits_of_alphabet(alphabet, IS_WIDE),
                IS_WIDE, TYPE, PTX, GROUP,
            )  # fmt: skip
        if not good:
            tl.atomic_or(status + k % num_states, 1)


@dataclass(frozen=True, slots=True)
class Bodies:
    """Bodies of several streams and their parameters, on the device.

    Attributes:
        addresses: int64 [streams], multiples of 8.
        rooms: int64 [streams], number of bytes that may be read from each address on.
        counts: int64 [streams], number of symbols; 0 if the stream is absent. Not trusted.
        alphabets: int32 [streams]. Not trusted.
        capacities: the largest number of symbols of each stream.
        num_narrow: number of streams with an alphabet of at most 256, which come first and decode to
            bytes or values; the others decode to int16 or values.
        table: the table that all streams are coded with; None if each body stores its own frequencies.
        most_wide: upper limit of the alphabets of int16 streams; a larger one is malformed.
    """

    addresses: torch.Tensor
    rooms: torch.Tensor
    counts: torch.Tensor
    alphabets: torch.Tensor
    capacities: tuple[int, ...]
    num_narrow: int
    table: StaticTable | None = None
    most_wide: int = WIDE


@lru_cache(maxsize=64)
def _decoding_layout(num_streams: int, num_slots: int) -> Layout:
    return Layout.of(
        {
            "slots": (torch.int32, num_slots),
            "facts": (torch.int32, num_streams * _NUM_FACTS.value),
            "nbytes": (torch.int64, num_streams),
        }
    )


@dataclass(frozen=True, slots=True)
class OpenBodies:
    """Bodies whose heads have been read and whose decoding tables have been made.

    Attributes:
        bodies: the bodies.
        nbytes: int64 [streams], size of each body; 0 if it is absent or its head is malformed.
        slots: int32, the decoding tables of all streams, or the one that they share.
        facts: int32 [streams, 3], see ``_GOOD``, ``_USED`` and ``_SYMBOL``.
        blocks: assignment of programs to streams.
        orders: int32, the programs of streams of bytes and those of int16, in launch order.
    """

    bodies: Bodies
    nbytes: torch.Tensor
    slots: torch.Tensor
    facts: torch.Tensor
    blocks: Blocks
    orders: tuple[torch.Tensor, torch.Tensor]


@cached_on_stream
def _orders(
    capacities: tuple[int, ...], num_narrow: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the programs of streams of bytes and those of int16, the first blocks of streams first.

    Streams are often shorter than their capacity; in this order, programs without a block come last.
    """
    narrow: list[tuple[int, int]] = []
    wide: list[tuple[int, int]] = []
    first = 0
    for k, capacity in enumerate(capacities):
        num_programs = num_programs_of(capacity)
        (narrow if k < num_narrow else wide).extend((b, first + b) for b in range(num_programs))
        first += num_programs
    return (
        to_device_async([program for _, program in sorted(narrow)], torch.int32, device),
        to_device_async([program for _, program in sorted(wide)], torch.int32, device),
    )


def open_bodies(bodies: Bodies, status: torch.Tensor) -> OpenBodies:
    """Read the heads of bodies and make their decoding tables.

    If the head of the body of stream ``k`` is malformed, bit 0 of ``status[k % len(status)]``, int32, is
    set. Decoding sets it likewise if the rest is malformed. The decoded symbols are then undefined.
    """
    device, num_streams, num_narrow = status.device, len(bodies.capacities), bodies.num_narrow
    blocks = block_table(bodies.capacities, device)
    num_wide, table = num_streams - num_narrow, bodies.table
    num_slots = num_slot_words(num_narrow, num_wide) if table is None else 0
    held = _decoding_layout(num_streams, num_slots).carve(device)
    orders = _orders(bodies.capacities, num_narrow, device)
    if table is not None:
        held["slots"] = table.slots
    opened = OpenBodies(bodies, **held, blocks=blocks, orders=orders)
    if table is not None:
        _static_kernel[(ceil_div(num_streams, 128),)](
            bodies.addresses, bodies.rooms, bodies.counts, blocks.capacities, bodies.alphabets,
            table.alphabet, opened.facts, opened.nbytes, status, num_streams, status.numel(), LANES=128,
        )  # fmt: skip
        return opened
    _slots_kernel[(num_narrow * _NARROW_PARTS.value + num_wide * _WIDE_PARTS.value,)](
        bodies.addresses, bodies.rooms, bodies.counts, blocks.capacities, bodies.alphabets,
        opened.slots, opened.facts, opened.nbytes, status, num_narrow, status.numel(), HAS_NARROW=num_narrow > 0,
        HAS_WIDE=num_wide > 0, NARROW_NBITS=NARROW.bit_length() - 1, WIDE_NBITS=(max(NARROW, bodies.most_wide) - 1).bit_length(),
        SLOTS=SLOTS,
    )  # fmt: skip
    return opened


def _decode(
    opened: OpenBodies,
    status: torch.Tensor,
    is_wide: bool,
    element: Any,
    *,
    out: torch.Tensor,
    places: torch.Tensor,
    lows: torch.Tensor,
    steps: torch.Tensor,
    group: int = 0,
) -> None:
    bodies, blocks, order = opened.bodies, opened.blocks, opened.orders[is_wide]
    if order.numel() == 0:
        return
    _decode_kernel[(order.numel(),)](
        bodies.addresses, bodies.rooms, bodies.counts, bodies.alphabets, blocks.firsts,
        blocks.owners, order, opened.slots, opened.facts, out, places, lows, steps, status,
        bodies.num_narrow, status.numel(), IS_WIDE=is_wide, STATIC=bodies.table is not None,
        TYPE=element, PTX=has_ptx(status), GROUP=group, num_warps=1,
    )  # fmt: skip


def decode_bytes(
    opened: OpenBodies, out: torch.Tensor, starts: torch.Tensor, status: torch.Tensor
) -> None:
    """Decode the streams of bytes.

    Args:
        opened: the bodies to decode.
        out: uint8, with space for the capacities of all streams.
        starts: int64 [streams], the byte at which the symbols of each stream begin. Trusted.
        status: as in ``open_bodies``.
    """
    _decode(
        opened, status, False, TYPES[torch.uint8], out=out, places=starts, lows=status, steps=status
    )


def decode_shorts(
    opened: OpenBodies, out: torch.Tensor, starts: torch.Tensor, status: torch.Tensor
) -> None:
    """Decode the streams of int16; the arguments are those of ``decode_bytes``."""
    _decode(
        opened, status, True, TYPES[torch.int16], out=out, places=starts, lows=status, steps=status
    )


def decode_values(
    opened: OpenBodies,
    targets: torch.Tensor,
    lows: torch.Tensor,
    steps: torch.Tensor,
    dtype: torch.dtype,
    status: torch.Tensor,
) -> None:
    """Decode all streams to values or to codes: one launch for streams of bytes, one for the others.

    Args:
        opened: the bodies to decode.
        targets: int64 [streams], addresses with space for as many values of ``dtype`` as the capacity.
        lows: int32 [streams], the code of symbol 0.
        steps: float64 [streams], the factor that turns codes into values.
        dtype: dtype of the values; int32 gives the codes.
        status: as in ``open_bodies``.
    """
    for is_wide in (False, True):
        _decode(
            opened, status, is_wide, TYPES[dtype],
            out=status, places=targets, lows=lows, steps=steps,
        )  # fmt: skip


def decode_scaled(
    opened: OpenBodies,
    targets: torch.Tensor,
    levels: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    dtype: torch.dtype,
    status: torch.Tensor,
) -> None:
    """Decode streams of bytes to values: the level of each symbol times the scale of its group.

    Args:
        opened: the bodies to decode.
        targets: as in ``decode_values``.
        levels: float32 [streams, LEVELS], the level of each symbol.
        scales: int64 [streams], addresses of the scales, int16 with bits 30 to 15 of a float32.
        group: symbols per scale; must divide the number of symbols per block.
        dtype: dtype of the values; see ``store_nonzero_values``.
        status: as in ``open_bodies``.
    """
    _decode(
        opened, status, False, TYPES[dtype],
        out=status, places=targets, lows=levels, steps=scales, group=group,
    )  # fmt: skip
