"""rANS in Triton: one warp per block, one lane of the warp per lane of the block.

A step ranks the lanes that renormalise by the bits below their own in one 32-bit sum over the
warp, which takes one instruction; a scan over the lanes would take a dozen that wait for each other.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.errors import CorruptDataError
from tersor.kernels.quantize.gpu import KINDS, bits_of, from_bits, store_values
from tersor.kernels.rans import layout, reference
from tersor.kernels.rans.layout import RansLayout, prob_bits
from tersor.kernels.rans_table.gpu import (
    NUM_FACTS,
    STATUS,
    SYMBOL,
    USED,
    WORDS,
    decoding_table,
    encoding_table,
    popcount,
)
from tersor.kernels.symbols.alphabet import NARROW, WIDE, Symbols
from tersor.kernels.symbols.gpu import put_escapes

_LANES = tl.constexpr(layout.LANES)
_LOW = tl.constexpr(layout.STATE_LOW)
_BYTES, _SHORTS = tl.constexpr(-1), tl.constexpr(-2)
"""What decoding writes besides the float dtypes of ``quantize.gpu``: symbols in uint8 or int16."""
_COPIED: Final = 1024


@triton.jit
def _put_symbol(x, entry, words, num_words, lane_bit, BITS: tl.constexpr):
    """Return states and number of words after one symbol per lane, coded backwards from ``words``."""
    high = (entry >> 32).to(tl.uint32)
    complement = high & 0x3FFF
    # a sum of 2**31 or more says that the state would leave its range
    emits = (x + (complement << (31 - BITS))).to(tl.int32, bitcast=True) < 0
    bits = tl.sum(tl.where(emits, lane_bit, 0), axis=0)
    num_words += popcount(bits)
    place = popcount(bits & (lane_bit - 1)) - num_words
    tl.store(words + place, x.to(tl.int16), mask=emits)
    x = tl.where(emits, x >> 16, x)
    quotient = tl.umulhi(x << 1, entry.to(tl.uint32)) >> (high >> 28)
    return x + ((high >> 14) & 0x3FFF) + quotient * complement, num_words


@triton.jit
def encode_block(symbols, count, entries, words, BITS: tl.constexpr):
    """Encode ``count`` symbols; return the final states and the number of words before ``words``.

    Symbols are read four steps ahead of their use, since a step takes far less time than a load.
    """
    lane = tl.arange(0, _LANES)
    lane_bit = tl.full([_LANES], 1, tl.uint32) << lane.to(tl.uint32)
    x = tl.full([_LANES], _LOW, tl.uint32)
    num_words = 0
    num_groups = (count + (4 * _LANES - 1)) // (4 * _LANES)
    position = (num_groups - 1) * (4 * _LANES) + lane
    s0 = tl.load(symbols + position, mask=position < count, other=0)
    s1 = tl.load(symbols + position + _LANES, mask=position + _LANES < count, other=0)
    s2 = tl.load(symbols + position + 2 * _LANES, mask=position + 2 * _LANES < count, other=0)
    s3 = tl.load(symbols + position + 3 * _LANES, mask=position + 3 * _LANES < count, other=0)
    for _ in range(num_groups):
        # lanes beyond the end get the entry that changes nothing
        e0 = tl.load(entries + s0.to(tl.int32), mask=position < count, other=0)
        e1 = tl.load(entries + s1.to(tl.int32), mask=position + _LANES < count, other=0)
        e2 = tl.load(entries + s2.to(tl.int32), mask=position + 2 * _LANES < count, other=0)
        e3 = tl.load(entries + s3.to(tl.int32), mask=position + 3 * _LANES < count, other=0)
        position -= 4 * _LANES
        s0 = tl.load(symbols + position, mask=position >= 0, other=0)
        s1 = tl.load(symbols + position + _LANES, mask=position >= 0, other=0)
        s2 = tl.load(symbols + position + 2 * _LANES, mask=position >= 0, other=0)
        s3 = tl.load(symbols + position + 3 * _LANES, mask=position >= 0, other=0)
        x, num_words = _put_symbol(x, e3, words, num_words, lane_bit, BITS)
        x, num_words = _put_symbol(x, e2, words, num_words, lane_bit, BITS)
        x, num_words = _put_symbol(x, e1, words, num_words, lane_bit, BITS)
        x, num_words = _put_symbol(x, e0, words, num_words, lane_bit, BITS)
    return x, num_words


@triton.jit
def _encode_kernel(
    symbols, num_symbols, block, entries, facts, words, states, ends, BITS: tl.constexpr
):
    """One program, of one warp, encodes one block towards the end of its slot in ``words``."""
    b = tl.program_id(0).to(tl.int64)
    num_words = tl.full((), 0, tl.int32)
    if tl.load(facts + USED) > 1:
        count = tl.minimum(num_symbols - b * block, block).to(tl.int32)
        x, num_words = encode_block(
            symbols + b * block, count, entries, words + (b + 1) * block, BITS
        )
        tl.store(states + b * _LANES + tl.arange(0, _LANES), x.to(tl.int32, bitcast=True))
    tl.store(ends + b + 1, num_words.to(tl.int64))


@triton.jit
def _place_kernel(
    body, frequencies, num_frequencies, ends, words, states, block,
    offsets_start, states_start, words_start, COPIED: tl.constexpr,
):  # fmt: skip
    """One program moves one block to its place; the first and last also write what is left."""
    b = tl.program_id(0).to(tl.int64)
    num_blocks = tl.num_programs(0)
    k = tl.arange(0, COPIED)
    offsets = (body + offsets_start).to(tl.pointer_type(tl.int32))
    target = (body + words_start).to(tl.pointer_type(tl.int16))
    start, end = tl.load(ends + b), tl.load(ends + b + 1)
    tl.store(offsets + b, start.to(tl.int32))
    if words_start > states_start:
        lane = b * _LANES + tl.arange(0, _LANES)
        x = tl.load(states + lane)
        tl.store((body + states_start).to(tl.pointer_type(tl.int32)) + lane, x)
        source = words + (b + 1) * block - (end - start)
        for first in range(0, (end - start).to(tl.int32), COPIED):
            inside = first + k < end - start
            word = tl.load(source + first + k, mask=inside, other=0)
            tl.store(target + start + first + k, word, mask=inside)
    if b == 0:
        for first in range(0, num_frequencies, COPIED):
            inside = first + k < num_frequencies
            frequency = tl.load(frequencies + first + k, mask=inside, other=0)
            tl.store(body.to(tl.pointer_type(tl.int16)) + first + k, frequency, mask=inside)
    if b == num_blocks - 1:
        tl.store(offsets + num_blocks, end.to(tl.int32))
        zeros = tl.zeros([COPIED], dtype=tl.int16)
        tl.store(target + end + k, zeros, mask=k < (4 - end % 4) % 4)
        past = (num_blocks + 1) % 2
        tl.store(offsets + num_blocks + 1 + k, zeros.to(tl.int32), mask=k < past)


def rans_encode(
    symbols: torch.Tensor, alphabet: int, frequencies: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``reference.rans_encode``; waits once, for the number of words."""
    static = frequencies is not None
    place = RansLayout(symbols.numel(), alphabet, static)
    num_blocks, device = place.num_blocks, symbols.device
    if num_blocks == 0:
        return torch.zeros(place.body_nbytes(0, single=True), dtype=torch.uint8, device=device)
    ends = torch.zeros(num_blocks + 1 + NUM_FACTS.value, dtype=torch.int64, device=device)
    facts = ends[num_blocks + 1 :]
    table, entries = encoding_table(symbols, alphabet, frequencies, facts)
    words = torch.empty(num_blocks * place.block, dtype=torch.int16, device=device)
    states = torch.empty(num_blocks * layout.LANES, dtype=torch.int32, device=device)
    _encode_kernel[(num_blocks,)](
        symbols, symbols.numel(), place.block, entries, facts, words, states, ends,
        BITS=prob_bits(alphabet), num_warps=1,
    )  # fmt: skip
    ends[: num_blocks + 1].cumsum_(0)
    num_words, _, num_used = ends[num_blocks : num_blocks + 3].tolist()
    single = num_used <= 1
    body = torch.empty(place.body_nbytes(num_words, single), dtype=torch.uint8, device=device)
    _place_kernel[(num_blocks,)](
        body, table, 0 if static else table.numel(), ends, words, states, place.block,
        place.offsets_start, place.states_start, place.words_start(single), COPIED=_COPIED,
    )  # fmt: skip
    return body


@triton.jit
def _look_up(slots, x, BITS: tl.constexpr):
    """Return the symbol of each state, and the state after it, before renormalising."""
    entry = tl.load(slots + (x & ((1 << BITS) - 1)).to(tl.int32))
    if BITS == 12:
        bits = entry.to(tl.uint32, bitcast=True)
        symbol = bits & 0xFF
        stepped = ((bits >> 8) & 0xFFF) * (x >> BITS) + (bits >> 20)
    else:
        high = (entry >> 16).to(tl.uint32)
        symbol = entry.to(tl.uint32) & 0xFFFF
        stepped = (high & 0xFFFF) * (x >> BITS) + (high >> 16)
    return symbol.to(tl.int32), stepped


@triton.jit
def _renormalize(x, needs, first, second, place, lane_bit):
    """Let lanes that need a word take the next ones; return states and number of words taken."""
    bits = tl.sum(tl.where(needs, lane_bit, 0), axis=0)
    index = place + popcount(bits & (lane_bit - 1))
    within = index & (_LANES - 1)
    word = tl.where(index < _LANES, tl.gather(first, within, 0), tl.gather(second, within, 0))
    return tl.where(needs, (x << 16) | word, x), popcount(bits)


@triton.jit
def _load_words(words, position, num_words):
    return tl.load(words + position, mask=position < num_words, other=0)


@triton.jit
def _store_symbols(
    target, position, symbol, count, low, step, KIND: tl.constexpr, WHOLE: tl.constexpr
):
    """Store symbols as they are, or as values; all of them if ``WHOLE``, else below ``count``."""
    if KIND > 0:
        values = (symbol + low).to(step.dtype) * step
        store_values(target, position, values, count, KIND, False, WHOLE)
    else:
        inside = (position < count) | WHOLE
        if KIND == _BYTES:
            bytes_ = target.to(tl.pointer_type(tl.uint8))
            tl.store(bytes_ + position, symbol.to(tl.uint8), mask=inside)
        else:
            shorts = target.to(tl.pointer_type(tl.int16))
            tl.store(shorts + position, symbol.to(tl.int16), mask=inside)


@triton.jit
def decode_block(
    x, words, num_words, slots, count, target, low, step, BITS: tl.constexpr, KIND: tl.constexpr
):
    """Decode ``count`` symbols to the address ``target``; return whether the block ended well.

    Words pass through three registers of 32: two to take from, one that is still being loaded.
    What lies beyond ``num_words`` is read as 0.
    """
    lane = tl.arange(0, _LANES)
    lane_bit = tl.full([_LANES], 1, tl.uint32) << lane.to(tl.uint32)
    first = _load_words(words, lane, num_words).to(tl.uint32) & 0xFFFF
    second = _load_words(words, lane + _LANES, num_words).to(tl.uint32) & 0xFFFF
    third = _load_words(words, lane + 2 * _LANES, num_words)
    place, passed = 0, 0
    for start in range(0, count // _LANES * _LANES, _LANES):
        symbol, x = _look_up(slots, x, BITS)
        _store_symbols(target, start + lane, symbol, count, low, step, KIND, True)
        x, taken = _renormalize(x, x < _LOW, first, second, place, lane_bit)
        place += taken
        if place >= _LANES:
            place -= _LANES
            passed += _LANES
            first = second
            second = third.to(tl.uint32) & 0xFFFF
            third = _load_words(words, passed + 2 * _LANES + lane, num_words)
    position = count // _LANES * _LANES + lane
    live = position < count
    symbol, stepped = _look_up(slots, x, BITS)
    _store_symbols(target, position, symbol, count, low, step, KIND, False)
    x = tl.where(live, stepped, x)
    x, taken = _renormalize(x, live & (x < _LOW), first, second, place, lane_bit)
    num_wrong = tl.sum((x != _LOW).to(tl.int32), axis=0)
    return (num_wrong == 0) & (passed + place + taken == num_words)


@triton.jit(do_not_specialize=["low", "step_bits"])
def _decode_kernel(
    body, num_symbols, block, offsets_start, states_start, num_blocks_room, num_words_room,
    slots, facts, out, low, step_bits, BITS: tl.constexpr, KIND: tl.constexpr, NBYTES: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, decodes one block."""
    b = tl.program_id(0).to(tl.int64)
    num_blocks = tl.num_programs(0)
    lane = tl.arange(0, _LANES)
    offsets = (body + offsets_start).to(tl.pointer_type(tl.uint32))
    states = (body + states_start).to(tl.pointer_type(tl.int32))
    words = (states + num_blocks * _LANES).to(tl.pointer_type(tl.int16))
    start, end = tl.load(offsets + b).to(tl.int64), tl.load(offsets + b + 1).to(tl.int64)
    count = tl.minimum(num_symbols - b * block, block).to(tl.int32)
    step = from_bits(step_bits, KIND)
    target = out.to(tl.int64) + b * block * NBYTES
    good = (start <= end) & ((b > 0) | (start == 0))
    if tl.load(facts + USED) > 1:
        good = good & (end <= num_words_room) & (num_blocks <= num_blocks_room)
        x = tl.load(states + b * _LANES + lane, mask=(lane < _LANES) & good, other=0)
        num_words = tl.where(good, end - start, 0).to(tl.int32)
        source = words + tl.where(good, start, 0)
        ended_well = decode_block(
            x.to(tl.uint32, bitcast=True), source, num_words, slots, count, target, low, step,
            BITS, KIND,
        )  # fmt: skip
        good = good & ended_well
    else:
        good = good & (end == 0)
        symbol = tl.zeros([_LANES], dtype=tl.int32) + tl.load(facts + SYMBOL).to(tl.int32)
        for first in range(0, count, _LANES):
            _store_symbols(target, first + lane, symbol, count, low, step, KIND, False)
    if not good:
        tl.store(facts + STATUS, tl.full((), 1, tl.int64))
    if b == num_blocks - 1:
        tl.store(facts + WORDS, end)


def _decode(
    body: torch.Tensor,
    alphabet: int,
    frequencies: torch.Tensor | None,
    out: torch.Tensor,
    kind: Any,
    low: int,
    step: float,
) -> int:
    """Decode into the flat ``out``; return the number of body bytes read."""
    place = RansLayout(out.numel(), alphabet, frequencies is not None)
    if not 1 <= alphabet <= WIDE or body.numel() < place.states_start:
        raise CorruptDataError("a rANS body is truncated")
    # kernels read words of four bytes; a body that someone cut out of a buffer may lie anywhere
    body = body if body.data_ptr() % 4 == 0 else body.clone()
    stored = body[: 2 * alphabet].view(torch.int16) if frequencies is None else frequencies
    slots, facts = decoding_table(stored, alphabet)
    words_start = place.words_start(single=False)
    _decode_kernel[(place.num_blocks,)](
        body, out.numel(), place.block, place.offsets_start, place.states_start,
        (body.numel() - place.states_start) // (4 * layout.LANES),
        max(0, body.numel() - words_start) // 2,
        slots, facts, out, low, bits_of(step), BITS=prob_bits(alphabet), KIND=kind,
        NBYTES=out.element_size(), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    status, num_used, _, num_words = facts.tolist()
    nbytes = place.body_nbytes(num_words, single=num_used <= 1)
    if status or body.numel() < nbytes:
        raise CorruptDataError("a rANS body is truncated or altered")
    return nbytes


def rans_decode(
    body: torch.Tensor, num_symbols: int, alphabet: int, frequencies: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """See ``reference.rans_decode``; waits once, to see whether all went well."""
    if num_symbols == 0:
        return reference.rans_decode(body, 0, alphabet, frequencies)
    narrow = alphabet <= NARROW
    dtype = torch.uint8 if narrow else torch.int16
    out = torch.empty(num_symbols, dtype=dtype, device=body.device)
    kind = _BYTES if narrow else _SHORTS
    return out, _decode(body, alphabet, frequencies, out, kind, 0, 1.0)


def rans_decode_dequantize(
    body: torch.Tensor,
    mapped: Symbols,
    step: float,
    out: torch.Tensor,
    frequencies: torch.Tensor | None = None,
) -> int:
    """See ``fused.rans_decode_dequantize``; waits once, to see whether all went well."""
    if out.numel() == 0:
        return reference.rans_decode(body, 0, mapped.alphabet, frequencies)[1]
    values = out.view(-1)
    nbytes = _decode(body, mapped.alphabet, frequencies, values, KINDS[out.dtype], mapped.low, step)
    put_escapes(mapped, step, values)
    return nbytes
