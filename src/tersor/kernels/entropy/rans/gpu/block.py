"""One block of rANS in Triton: one warp, one lane of the warp per lane of the block.

A step ranks the lanes that renormalise by the bits below their own in one 32-bit sum over the
warp, which takes one instruction; a scan over the lanes would take a dozen that wait for each other.

``PTX`` says that instructions of NVIDIA's may be used which Triton does not offer: the vote of a
warp, and loads from shared memory, where a look-up of 32 places waits for the fullest of 32 banks,
and not for each of some 20 cache lines.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.entropy.rans import layout
from tersor.kernels.entropy.rans.gpu.table import NARROW_SLOT_WORDS, WIDE_SLOT_WORDS, popcount
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.quantize.gpu.values import store_nonzero_values, store_values

LANES = tl.constexpr(layout.LANES)
_LOW = tl.constexpr(layout.STATE_LOW)
PAIRS_PER_COPY: Final = 512
"""Pairs of words that one step of a copy moves."""

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
    """Return the names of four registers."""
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
"""Copies the entries of 256 symbols at address ``$1``, advanced by 16 bytes per lane, to shared
memory, all lower halves before all upper ones, and returns where they are."""


def _copying(nbytes: int, run: int) -> str:
    """Return PTX that copies a table at address ``$1``, advanced by 16 bytes per lane, to shared memory.

    ``$0`` is where it is then. ``nbytes`` is a multiple of ``512 * run``; ``run`` loads are under way
    at a time.
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
"""Of the decoding tables of both kinds. With 48 KiB, four programs fit where 32 with a narrow table do: a
multiprocessor divides its memory for both alike, so that it can run both at a time."""
_LOAD_SYMBOL = tl.constexpr("ld.shared.u8 $0, [$1];")
_LOAD_SYMBOL_WORD = tl.constexpr(f"ld.shared.u32 $0, [$1+{1 << layout.NARROW_BITS}];")
_LOAD_WIDE_SYMBOL = tl.constexpr("ld.shared.u16 $0, [$1];")
_LOAD_WIDE_SYMBOL_WORD = tl.constexpr(f"ld.shared.u32 $0, [$1+{2 << layout.WIDE_BITS}];")


@triton.jit
def _shared(table, PTX: tl.constexpr):
    """Return where a table lies in shared memory, after it was copied there, in every lane."""
    start = table.to(tl.int64) + 16 * tl.arange(0, LANES)
    return tl.inline_asm_elementwise(PTX, "=&r,l", [start], dtype=tl.uint32, is_pure=False, pack=1)


@triton.jit
def _load_shared(address, PTX: tl.constexpr):
    return tl.inline_asm_elementwise(PTX, "=r,r", [address], dtype=tl.uint32, is_pure=True, pack=1)


@triton.jit
def _load_entry(entries, symbol, inside, MASKED: tl.constexpr, IS_SHARED: tl.constexpr):
    """Return the lower and the upper half of the encoding entry of each symbol.

    Lanes that are not ``inside`` get the entry that changes nothing.
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
    """Return a uint32 with the bits of the lanes with a negative value, to be used in every lane."""
    if PTX:
        return tl.inline_asm_elementwise(
            _VOTE_BELOW_0, "=r,r", [values], dtype=tl.uint32, is_pure=False, pack=1
        )
    else:
        return tl.sum(tl.where(values < 0, lane_bit, 0), axis=0)


@triton.jit
def _put_symbol(x, entry, words, num_words, lane_bit, bits, PTX: tl.constexpr):
    """Return states and number of words after one symbol per lane, coded backwards from ``words``."""
    magic, high = entry
    complement = high & 0x3FFF
    # a sum of 2**31 or more says that the state would leave its range
    room = (x + (complement << (31 - bits))).to(tl.int32, bitcast=True)
    emitting = _lanes_below_0(room, lane_bit, PTX)
    num_words += popcount(emitting)
    place = popcount(emitting & (lane_bit - 1)) - num_words
    tl.store(words + place, x.to(tl.int16), mask=room < 0)
    x = tl.where(room < 0, x >> 16, x)
    quotient = tl.umulhi(x << 1, magic) >> (high >> 28)
    return x + ((high >> 14) & 0x3FFF) + quotient * complement, num_words


@triton.jit
def _put_rest(
    x, num_words, symbols, count, entries, words, lane_bit, bits, PTX: tl.constexpr,
    IS_SHARED: tl.constexpr,
):  # fmt: skip
    """Encode the last ``count`` symbols, at most four per lane, which come first."""
    for step in tl.static_range(4):
        position = (3 - step) * LANES + tl.arange(0, LANES)
        inside = position < count
        symbol = tl.load(symbols + position, mask=inside, other=0).to(tl.int32)
        entry = _load_entry(entries, symbol, inside, True, IS_SHARED)
        x, num_words = _put_symbol(x, entry, words, num_words, lane_bit, bits, PTX)
    return x, num_words


@triton.jit
def _load_once(places):
    """Load what nothing reads after, so that it leaves the cache before what is still to be read."""
    return tl.load(places, eviction_policy="evict_first")


@triton.jit
def encode_block(symbols, count, entries, words, bits, IS_WIDE: tl.constexpr, PTX: tl.constexpr):
    """Encode ``count`` symbols; return the final states and the number of words before ``words``.

    ``bits`` is the precision of the frequencies; ``entries`` are at least 256, at a multiple of 16
    bytes. Symbols are read four steps ahead of their use, since a step takes far less time than a
    load, and without masks: these took a tenth of the instructions.
    """
    lane = tl.arange(0, LANES)
    lane_bit = tl.full([LANES], 1, tl.uint32) << lane.to(tl.uint32)
    is_shared: tl.constexpr = PTX and not IS_WIDE
    if is_shared:
        entries = _shared(entries, _SHARE_ENTRIES)
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
        e0 = _load_entry(entries, s0, exists, False, is_shared)
        e1 = _load_entry(entries, s1, exists, False, is_shared)
        e2 = _load_entry(entries, s2, exists, False, is_shared)
        e3 = _load_entry(entries, s3, exists, False, is_shared)
        # after the first group, once more the first group
        position = tl.maximum(position - 4 * LANES, lane)
        s0 = _load_once(symbols + position).to(tl.int32)
        s1 = _load_once(symbols + position + LANES).to(tl.int32)
        s2 = _load_once(symbols + position + 2 * LANES).to(tl.int32)
        s3 = _load_once(symbols + position + 3 * LANES).to(tl.int32)
        x, num_words = _put_symbol(x, e3, words, num_words, lane_bit, bits, PTX)
        x, num_words = _put_symbol(x, e2, words, num_words, lane_bit, bits, PTX)
        x, num_words = _put_symbol(x, e1, words, num_words, lane_bit, bits, PTX)
        x, num_words = _put_symbol(x, e0, words, num_words, lane_bit, bits, PTX)
    return x, tl.max(num_words, axis=0)


@triton.jit
def _copy_words(source, target, count, PAIRS_PER_COPY: tl.constexpr):
    """Copy ``count`` words; the two of an aligned pair of the target are stored as one.

    Aligned words and all copies leave the cache first, where the words of other blocks are: 28 us
    instead of 31 for 45 MB.
    """
    lead = (target.to(tl.int64) >> 1).to(tl.int32) & 1
    num_pairs = (count - lead) >> 1
    k = tl.arange(0, PAIRS_PER_COPY)
    pairs = (target + lead).to(tl.pointer_type(tl.int32))
    source_pairs = (source + lead).to(tl.pointer_type(tl.int32))
    if source_pairs.to(tl.int64) & 3 == 0:
        for first in range(0, num_pairs, PAIRS_PER_COPY):
            inside = first + k < num_pairs
            pair = tl.load(
                source_pairs + first + k, mask=inside, other=0, eviction_policy="evict_first"
            )
            tl.store(pairs + first + k, pair, mask=inside, eviction_policy="evict_first")
    else:
        for first in range(0, num_pairs, PAIRS_PER_COPY):
            inside = first + k < num_pairs
            words = source + lead + 2 * (first + k)
            low = tl.load(words, mask=inside, other=0).to(tl.int32) & 0xFFFF
            high = tl.load(words + 1, mask=inside, other=0).to(tl.int32) << 16
            tl.store(pairs + first + k, low | high, mask=inside, eviction_policy="evict_first")
    end = tl.arange(0, 2)
    at = tl.where(end == 0, 0, count - 1)
    is_single = tl.where(end == 0, lead, (count - lead) & 1) & (count > 0).to(tl.int32)
    word = tl.load(source + at, mask=is_single == 1, other=0)
    tl.store(target + at, word, mask=is_single == 1)


@triton.jit
def place_block(
    body, b, num_blocks, start, end, source, states, frequencies, num_frequencies,
    offsets_start, states_start, words_start, PAIRS_PER_COPY: tl.constexpr,
):  # fmt: skip
    """Move one block to its place; the first and last also write what is left.

    Args:
        body: uint8, at a multiple of 8.
        b: which block.
        num_blocks: of the stream.
        start: words of the blocks before this one.
        end: words up to the end of this one.
        source: this block's words.
        states: this block's states; not read if no room is between ``states_start`` and
            ``words_start``.
        frequencies: int16.
        num_frequencies: how many of them to write.
        offsets_start: where the offsets lie in the body.
        states_start: where the states do.
        words_start: where the words do.
        PAIRS_PER_COPY: pairs of words that are moved at a time.
    """
    k = tl.arange(0, PAIRS_PER_COPY)
    offsets = (body + offsets_start).to(tl.pointer_type(tl.int32))
    target = (body + words_start).to(tl.pointer_type(tl.int16))
    tl.store(offsets + b, start.to(tl.int32))
    if words_start > states_start:
        lane = tl.arange(0, LANES)
        x = tl.load(states + lane)
        tl.store((body + states_start).to(tl.pointer_type(tl.int32)) + b * LANES + lane, x)
        _copy_words(source, target + start, (end - start).to(tl.int32), PAIRS_PER_COPY)
    if b == 0:
        for first in range(0, num_frequencies, PAIRS_PER_COPY):
            inside = first + k < num_frequencies
            frequency = tl.load(frequencies + first + k, mask=inside, other=0)
            tl.store(body.to(tl.pointer_type(tl.int16)) + first + k, frequency, mask=inside)
    if b == num_blocks - 1:
        tl.store(offsets + num_blocks, end.to(tl.int32))
        zeros = tl.zeros([PAIRS_PER_COPY], dtype=tl.int16)
        tl.store(target + end + k, zeros, mask=k < (4 - end % 4) % 4)
        past = (num_blocks + 1) % 2
        tl.store(offsets + num_blocks + 1 + k, zeros.to(tl.int32), mask=k < past)


@triton.jit
def _look_up(slots, shared, is_shared, x, bits, IS_WIDE: tl.constexpr, PTX: tl.constexpr):
    """Return the symbol of each state, and the state after it, before renormalising."""
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
    """Let live lanes that need a word take the next ones; return states and number of words taken."""
    needs = live & (x < _LOW)
    bits = tl.sum(tl.where(needs, lane_bit, 0), axis=0)
    if PTX:
        # the states wait for the vote, which is there before the sum; only the next step needs that
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
    """Store symbols as they are, or as values; all of them if ``WHOLE``, else below ``count``.

    ``first`` is the number in the block of the first symbol.
    """
    if GROUP > 0:
        bits = tl.load(step + first // GROUP).to(tl.int32) & 0xFFFF
        values = tl.load(low + symbol) * (bits << 15).to(tl.float32, bitcast=True)
        store_nonzero_values(target, position, values, count, TYPE, False, WHOLE)
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
    """Decode ``count`` symbols to the address ``target``; return whether the block ended well.

    Words pass through three registers of 32: two to take from, one that is still being loaded.
    What lies beyond ``num_words`` is read as 0.
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
    # a block that ends here has no scale for symbols after it
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
        body: uint8, at a multiple of 4, of at least ``states_start`` bytes.
        b: which block.
        num_blocks: of the stream.
        count: symbols of the block.
        offsets_start: where the offsets lie in the body.
        states_start: where the states do.
        num_words_room: how many words the body has room for behind all states.
        has_room: whether it has room for the states of all blocks.
        num_used: symbols that occur.
        only: the symbol that occurs if there is just one.
        slots: decoding entries.
        is_shared: whether the table of a wide alphabet is copied to shared memory first; that of a
            narrow one is.
        target: address to write to.
        low: added to symbols before they become values; with ``GROUP``, the address of the float32
            that each symbol becomes.
        step: what they are multiplied by then; with ``GROUP``, the address of the scales of the block,
            int16 with the upper bits of a float32 without its sign.
        bits: precision of the frequencies.
        IS_WIDE: whether the entries are those of a wide alphabet.
        TYPE: what to write.
        PTX: whether NVIDIA's instructions may be used.
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
