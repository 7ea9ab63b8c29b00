"""One block of rANS in Triton: one warp, with one lane of the warp per lane of the block.

A step ranks the lanes that renormalise by counting the bits below their own in one 32-bit sum over the
warp, which takes one instruction; a scan over the lanes would take a dozen dependent ones.

``PTX`` allows NVIDIA instructions that Triton does not offer: warp votes, and loads from shared
memory. There a look-up by 32 lanes takes as long as the fullest of 32 banks, instead of waiting for
some 20 cache lines one by one.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.entropy.rans import layout
from tersor.kernels.entropy.rans.gpu.table import NARROW_SLOT_WORDS, WIDE_SLOT_WORDS, popcount
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.quantize.gpu.values import store_nonzero_values, store_values
from tersor.kernels.runtime.gpu.element_types import I32

LANES = tl.constexpr(layout.LANES)
_LOW = tl.constexpr(layout.STATE_LOW)
_VOTE = """
{
    .reg .pred p;
    setp.lt.TYPE p, $1, LIMIT;
    vote.sync.ballot.b32 $0, p, 0xffffffff;
}
"""
_VOTE_BELOW_0 = tl.constexpr(_VOTE.replace("TYPE", "s32").replace("LIMIT", "0"))
_VOTE_LOW = tl.constexpr(_VOTE.replace("TYPE", "u32").replace("LIMIT", str(layout.STATE_LOW)))
_ENTRIES_NBYTES: Final = 4 * NARROW
_LOAD_SHARED = tl.constexpr("ld.shared.u32 $0, [$1];")
_LOAD_SHARED_HIGH = tl.constexpr(f"ld.shared.u32 $0, [$1+{_ENTRIES_NBYTES}];")


def _quad(k: int) -> str:
    """Return the vector operand of registers ``4 * k`` to ``4 * k + 3``."""
    return "{" + ", ".join(f"r{4 * k + j}" for j in range(4)) + "}"


_SHARE_ENTRIES = tl.constexpr(
    """
{
    .reg .b32 r<16>, to;
    .reg .b64 from;
    .shared .align 16 .b32 table[NUM_WORDS];
    mov.u32 $0, table;
    mov.u32 to, %tid.x;
    shl.b32 to, to, 3;
    add.u32 to, to, $0;
    mov.u64 from, $1;
    """.replace("NUM_WORDS", str(2 * NARROW))
    + "".join(f"ld.global.nc.v4.u32 {_quad(k)}, [from+{512 * k}]; " for k in range(4))
    + "".join(
        f"st.shared.v2.u32 [to+{256 * k + half * _ENTRIES_NBYTES}], "
        f"{{r{4 * k + half}, r{4 * k + half + 2}}}; "
        for k in range(4)
        for half in range(2)
    )
    + """
    bar.warp.sync 0xffffffff;
}
"""
)
"""Copies the entries of 256 symbols from address ``$1``, advanced by 16 bytes per lane, to shared
memory, all lower halves before all upper ones; ``$0`` receives their address there."""


def _copying(nbytes: int, run: int) -> str:
    """Return PTX that copies a table from address ``$1``, advanced by 16 bytes per lane, to shared memory.

    ``$0`` receives its address there. ``nbytes`` must be a multiple of ``512 * run``; ``run`` loads are
    in flight at a time.
    """
    if nbytes % (512 * run):
        raise ValueError(f"{nbytes} bytes are no whole number of runs of {run} times 512")
    copies = []
    for start in range(0, nbytes // 512, run):
        copies += [
            f"ld.global.nc.v4.u32 {_quad(k)}, [from+{512 * (start + k)}];" for k in range(run)
        ]
        copies += [f"st.shared.v4.u32 [to+{512 * (start + k)}], {_quad(k)};" for k in range(run)]
    return f"""
{{
    .reg .b32 r<{4 * run}>, to;
    .reg .b64 from;
    .shared .align 16 .b8 table[{nbytes}];
    mov.u32 $0, table;
    mov.u32 to, %tid.x;
    shl.b32 to, to, 4;
    add.u32 to, to, $0;
    mov.u64 from, $1;
    {" ".join(copies)}
    bar.warp.sync 0xffffffff;
}}
"""


_SHARE_NARROW = tl.constexpr(_copying((1 << layout.NARROW_BITS) + 4 * NARROW, run=5))
_SHARE_WIDE = tl.constexpr(_copying((2 << layout.WIDE_BITS) + 4 * WIDE, run=12))
"""PTX that copies the decoding table of a narrow and of a wide alphabet. Four programs with a wide table, of
48 KiB, fit on a multiprocessor, and 32 with a narrow one. Both need the same split of its memory into cache
and shared memory, so it can run both kinds at the same time."""
_LOAD_SYMBOL = tl.constexpr("ld.shared.u8 $0, [$1];")
_LOAD_SYMBOL_WORD = tl.constexpr(f"ld.shared.u32 $0, [$1+{1 << layout.NARROW_BITS}];")
_LOAD_WIDE_SYMBOL = tl.constexpr("ld.shared.u16 $0, [$1];")
_LOAD_WIDE_SYMBOL_WORD = tl.constexpr(f"ld.shared.u32 $0, [$1+{2 << layout.WIDE_BITS}];")


@triton.jit
def _shared(table, PTX: tl.constexpr):
    """Copy a table to shared memory; return its address there, in every lane."""
    start = table.to(tl.int64) + 16 * tl.arange(0, LANES)
    return tl.inline_asm_elementwise(PTX, "=&r,l", [start], dtype=tl.uint32, is_pure=False, pack=1)


@triton.jit
def _load_shared(address, PTX: tl.constexpr):
    return tl.inline_asm_elementwise(PTX, "=r,r", [address], dtype=tl.uint32, is_pure=True, pack=1)


@triton.jit
def share_entries(entries):
    """Copy 256 encoding entries to shared memory; return their address there."""
    return _shared(entries, _SHARE_ENTRIES)


@triton.jit
def load_entry(entries, symbol, inside, MASKED: tl.constexpr, IS_SHARED: tl.constexpr):
    """Return the lower and the upper half of the encoding entry of each symbol.

    If ``MASKED``, lanes that are not ``inside`` get the entry that changes no state.
    """
    if IS_SHARED:
        address = entries + 4 * symbol.to(tl.uint32)
        low = _load_shared(address, _LOAD_SHARED)
        high = _load_shared(address, _LOAD_SHARED_HIGH)
        if MASKED:
            low, high = tl.where(inside, low, 0), tl.where(inside, high, 0)
    else:
        if MASKED:
            entry = tl.load(entries + symbol, mask=inside, other=0)
        else:
            entry = tl.load(entries + symbol)
        low, high = entry.to(tl.uint32), (entry >> 32).to(tl.uint32)
    return low, high


@triton.jit
def _lanes_below_0(values, lane_bit, PTX: tl.constexpr):
    """Return a uint32, the same in every lane, with the bits of lanes whose value is negative."""
    if PTX:
        return tl.inline_asm_elementwise(
            _VOTE_BELOW_0, "=r,r", [values], dtype=tl.uint32, is_pure=False, pack=1
        )
    else:
        return tl.sum(tl.where(values < 0, lane_bit, 0), axis=0)


@triton.jit
def put_symbol(
    x, entry, words, num_words, most, lane_bit, bits, PTX: tl.constexpr, BOUNDED: tl.constexpr
):
    """Encode one symbol per lane; return the new states and number of words.

    Words are stored backwards from ``words``. If ``BOUNDED``, there is space for ``most`` words only;
    others are counted but not stored.
    """
    magic, high = entry
    complement = high & 0x3FFF
    # a sum of 2**31 or more means that the state would leave its range
    room = (x + (complement << (31 - bits))).to(tl.int32, bitcast=True)
    emitting = _lanes_below_0(room, lane_bit, PTX)
    num_words += popcount(emitting)
    place = popcount(emitting & (lane_bit - 1)) - num_words
    if BOUNDED:
        tl.store(words + place, x.to(tl.int16), mask=(room < 0) & (place >= -most))
    else:
        tl.store(words + place, x.to(tl.int16), mask=room < 0)
    x = tl.where(room < 0, x >> 16, x)
    quotient = tl.umulhi(x << 1, magic) >> (high >> 28)
    return x + ((high >> 14) & 0x3FFF) + quotient * complement, num_words


@triton.jit
def count_words(x, entry, num_words, bits):
    """Do the same as ``put_symbol``, but store nothing and count the words of each lane separately."""
    magic, high = entry
    complement = high & 0x3FFF
    room = (x + (complement << (31 - bits))).to(tl.int32, bitcast=True)
    x = tl.where(room < 0, x >> 16, x)
    quotient = tl.umulhi(x << 1, magic) >> (high >> 28)
    num_words += (room < 0).to(tl.int32)
    return x + ((high >> 14) & 0x3FFF) + quotient * complement, num_words


@triton.jit
def _put_rest(
    x, num_words, symbols, count, entries, words, lane_bit, bits, PTX: tl.constexpr,
    IS_SHARED: tl.constexpr,
):  # fmt: skip
    """Encode the last ``count`` symbols of a block, at most four per lane, which are encoded first."""
    for step in tl.static_range(4):
        position = (3 - step) * LANES + tl.arange(0, LANES)
        inside = position < count
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        entry = load_entry(entries, symbol, inside, True, IS_SHARED)
        x, num_words = put_symbol(x, entry, words, num_words, 0, lane_bit, bits, PTX, False)
    return x, num_words


@triton.jit
def _load_once(places):
    """Load data that is not read again, so that it is evicted before data that is still needed."""
    return tl.load(places, eviction_policy="evict_first")


@triton.jit
def encode_block(symbols, count, entries, words, bits, IS_WIDE: tl.constexpr, PTX: tl.constexpr):
    """Encode ``count`` symbols; return the final states and the number of words, which end at ``words``.

    ``bits`` is the precision of the frequencies. There are at least 256 ``entries``, at a multiple of 16
    bytes. Symbols are loaded four steps ahead of their use, since a step takes far less time than a
    load, and without masks, which took a tenth of the instructions.
    """
    lane = tl.arange(0, LANES)
    lane_bit = tl.full([LANES], 1, tl.uint32) << lane.to(tl.uint32)
    is_shared: tl.constexpr = PTX and not IS_WIDE
    if is_shared:
        entries = share_entries(entries)
    x = tl.full([LANES], _LOW, tl.uint32)
    num_words = tl.zeros([LANES], dtype=tl.int32)
    num_groups = count // (4 * LANES)
    rest = num_groups * (4 * LANES)
    if rest < count:
        x, num_words = _put_rest(
            x, num_words, symbols + rest, count - rest, entries, words, lane_bit, bits, PTX,
            is_shared,
        )  # fmt: skip
    position = rest - 4 * LANES + lane
    exists = position >= 0
    s0 = tl.load(symbols + position, mask=exists, other=0).to(tl.int32)
    s1 = tl.load(symbols + position + LANES, mask=exists, other=0).to(tl.int32)
    s2 = tl.load(symbols + position + 2 * LANES, mask=exists, other=0).to(tl.int32)
    s3 = tl.load(symbols + position + 3 * LANES, mask=exists, other=0).to(tl.int32)
    for _ in range(num_groups):
        e0 = load_entry(entries, s0, exists, False, is_shared)
        e1 = load_entry(entries, s1, exists, False, is_shared)
        e2 = load_entry(entries, s2, exists, False, is_shared)
        e3 = load_entry(entries, s3, exists, False, is_shared)
        # before the first group there is none: load it again instead of masking
        position = tl.maximum(position - 4 * LANES, lane)
        s0 = _load_once(symbols + position).to(tl.int32)
        s1 = _load_once(symbols + position + LANES).to(tl.int32)
        s2 = _load_once(symbols + position + 2 * LANES).to(tl.int32)
        s3 = _load_once(symbols + position + 3 * LANES).to(tl.int32)
        x, num_words = put_symbol(x, e3, words, num_words, 0, lane_bit, bits, PTX, False)
        x, num_words = put_symbol(x, e2, words, num_words, 0, lane_bit, bits, PTX, False)
        x, num_words = put_symbol(x, e1, words, num_words, 0, lane_bit, bits, PTX, False)
        x, num_words = put_symbol(x, e0, words, num_words, 0, lane_bit, bits, PTX, False)
    return x, tl.max(num_words, axis=0)


@triton.jit
def _look_up(slots, shared, is_shared, x, bits, IS_WIDE: tl.constexpr, PTX: tl.constexpr):
    """Return the symbol of each state, and the next state before it is renormalised."""
    slot = x & ((1 << bits) - 1)
    if IS_WIDE:
        if PTX and is_shared:
            symbol = _load_shared(shared + 2 * slot, _LOAD_WIDE_SYMBOL)
            word = _load_shared(shared + 4 * symbol, _LOAD_WIDE_SYMBOL_WORD)
        else:
            table = slots.to(tl.pointer_type(tl.uint16))
            symbol = tl.load(table + slot.to(tl.int32)).to(tl.uint32)
            found = tl.load(slots + WIDE_SLOT_WORDS + symbol.to(tl.int32))
            word = found.to(tl.uint32, bitcast=True)
    elif PTX:
        symbol = _load_shared(shared + slot, _LOAD_SYMBOL)
        word = _load_shared(shared + 4 * symbol, _LOAD_SYMBOL_WORD)
    else:
        table = slots.to(tl.pointer_type(tl.uint8))
        symbol = tl.load(table + slot.to(tl.int32)).to(tl.uint32)
        word = tl.load(slots + NARROW_SLOT_WORDS + symbol.to(tl.int32)).to(tl.uint32, bitcast=True)
    stepped = (word & 0xFFFF) * (x >> bits) + slot - (word >> 16)
    return symbol.to(tl.int32), stepped


@triton.jit
def _renormalize(x, live, first, second, place, lane_bit, PTX: tl.constexpr):
    """Give the next words to live lanes that need one; return the states and the number of words taken."""
    needs = live & (x < _LOW)
    bits = tl.sum(tl.where(needs, lane_bit, 0), axis=0)
    if PTX:
        # states depend on the vote, which is ready before the sum; only the next step needs the sum
        votes = tl.inline_asm_elementwise(
            _VOTE_LOW, "=r,r", [tl.where(live, x, _LOW)], dtype=tl.uint32, is_pure=False, pack=1
        )
    else:
        votes = bits
    index = place + popcount(votes & (lane_bit - 1))
    within = index & (LANES - 1)
    word = tl.where(index < LANES, tl.gather(first, within, 0), tl.gather(second, within, 0))
    return tl.where(needs, (x << 16) | word, x), popcount(bits)


@triton.jit
def _load_words(words, position, num_words):
    return tl.load(words + position, mask=position < num_words, other=0)


@triton.jit
def _store_symbols(
    target, position, symbol, count, low, step, first, TYPE: tl.constexpr, WHOLE: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Store symbols unchanged, as codes or as values: all if ``WHOLE``, else those before ``count``.

    ``first`` is the index of the first symbol in the block.
    """
    if GROUP > 0:
        bits = tl.load(step + first // GROUP).to(tl.int32) & 0xFFFF
        values = tl.load(low + symbol) * (bits << 15).to(tl.float32, bitcast=True)
        store_nonzero_values(target, position, values, count, TYPE, False, WHOLE)
    elif TYPE == I32:
        store_values(target, position, symbol + low, count, TYPE, False, WHOLE)
    elif TYPE.is_floating():
        values = (symbol + low).to(step.dtype) * step
        store_values(target, position, values, count, TYPE, False, WHOLE)
    else:
        inside = (position < count) | WHOLE
        tl.store(target.to(tl.pointer_type(TYPE)) + position, symbol.to(TYPE), mask=inside)


@triton.jit
def decode_block(
    x, words, num_words, slots, is_shared, count, target, low, step, bits, IS_WIDE: tl.constexpr,
    TYPE: tl.constexpr, PTX: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Decode ``count`` symbols to the address ``target``; return whether the block is well formed.

    Words pass through three registers of 32: two that are consumed and one that is still being loaded.
    Words past ``num_words`` are read as 0.
    """
    lane = tl.arange(0, LANES)
    lane_bit = tl.full([LANES], 1, tl.uint32) << lane.to(tl.uint32)
    first = _load_words(words, lane, num_words).to(tl.uint32) & 0xFFFF
    second = _load_words(words, lane + LANES, num_words).to(tl.uint32) & 0xFFFF
    third = _load_words(words, lane + 2 * LANES, num_words)
    place, passed = 0, 0
    shared = lane.to(tl.uint32)
    if IS_WIDE:
        if PTX and is_shared:
            shared = _shared(slots, _SHARE_WIDE)
    elif PTX:
        shared = _shared(slots, _SHARE_NARROW)
    nbytes: tl.constexpr = TYPE.primitive_bitwidth // 8
    place_of_step = target
    for i in range(count // LANES):
        symbol, x = _look_up(slots, shared, is_shared, x, bits, IS_WIDE, PTX)
        _store_symbols(place_of_step, lane, symbol, count, low, step, i * LANES, TYPE, True, GROUP)
        place_of_step += LANES * nbytes
        x, taken = _renormalize(x, lane >= 0, first, second, place, lane_bit, PTX)
        place += taken
        if place >= LANES:
            place -= LANES
            passed += LANES
            first = second
            second = third.to(tl.uint32) & 0xFFFF
            third = _load_words(words, passed + 2 * LANES + lane, num_words)
    position = count // LANES * LANES + lane
    live = position < count
    symbol, stepped = _look_up(slots, shared, is_shared, x, bits, IS_WIDE, PTX)
    # if the block ends here, there is no scale for positions after it
    last = tl.maximum(tl.minimum(count // LANES * LANES, count - 1), 0)
    _store_symbols(target, position, symbol, count, low, step, last, TYPE, False, GROUP)
    x = tl.where(live, stepped, x)
    x, taken = _renormalize(x, live, first, second, place, lane_bit, PTX)
    num_wrong = tl.sum((x != _LOW).to(tl.int32), axis=0)
    return (num_wrong == 0) & (passed + place + taken == num_words)


@triton.jit
def decode_part(
    body, b, num_blocks, count, offsets_start, states_start, num_words_room, has_room, num_used,
    only, slots, is_shared, target, low, step, bits, IS_WIDE: tl.constexpr, TYPE: tl.constexpr,
    PTX: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Decode one block of a body; return whether it is well formed.

    Args:
        body: uint8, at a multiple of 4, with at least ``states_start`` bytes.
        b: index of the block.
        num_blocks: number of blocks of the stream.
        count: number of symbols in the block.
        offsets_start: first byte of the offsets in the body.
        states_start: first byte of the states.
        num_words_room: how many words fit between all states and the end of the body.
        has_room: whether the states of all blocks fit.
        num_used: number of symbols that occur.
        only: the symbol that occurs if there is just one.
        slots: decoding table.
        is_shared: whether to copy the table of a wide alphabet to shared memory; that of a narrow one
            always is.
        target: address to write to.
        low: added to symbols to make codes; with ``GROUP``, the address of the float32 levels that
            symbols stand for.
        step: multiplied with codes to make values; with ``GROUP``, the address of the scales of the
            block, int16 with bits 30 to 15 of a float32.
        bits: precision of the frequencies.
        IS_WIDE: whether the table is that of a wide alphabet.
        TYPE: dtype to write.
        PTX: whether NVIDIA instructions may be used.
        GROUP: symbols per scale; 0 if there are no scales.
    """
    lane = tl.arange(0, LANES)
    offsets = (body + offsets_start).to(tl.pointer_type(tl.uint32))
    states = (body + states_start).to(tl.pointer_type(tl.int32))
    words = (states + num_blocks * LANES).to(tl.pointer_type(tl.int16))
    start, end = tl.load(offsets + b).to(tl.int64), tl.load(offsets + b + 1).to(tl.int64)
    good = (start <= end) & ((b > 0) | (start == 0))
    if num_used > 1:
        good = good & (end <= num_words_room) & has_room
        x = tl.load(states + b * LANES + lane, mask=(lane < LANES) & good, other=0)
        num_words = tl.where(good, end - start, 0).to(tl.int32)
        source = words + tl.where(good, start, 0)
        ended_well = decode_block(
            x.to(tl.uint32, bitcast=True), source, num_words, slots, is_shared, count, target, low,
            step, bits, IS_WIDE, TYPE, PTX, GROUP,
        )  # fmt: skip
        good = good & ended_well
    else:
        good = good & (end == 0)
        symbol = tl.zeros([LANES], dtype=tl.int32) + only
        for first in range(0, count, LANES):
            _store_symbols(
                target, first + lane, symbol, count, low, step, first, TYPE, False, GROUP
            )
    return good
