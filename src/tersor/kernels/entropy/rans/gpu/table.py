"""rANS tables in Triton, built on the device from counts or stored frequencies.

An encoding entry is an int64 per symbol. Its lower half is ``m = ceil(2**(31 + s) / f)``, where
``f`` is the frequency and ``2**s`` the least power of two not below it; its upper half is
``2**bits - f``, the first of the symbol's slots ``<< 14``, and ``s << 28``. The state before the
symbol is below ``f << (31 - bits)``, and for such states ``x // f == umulhi(2 * x, m) >> s``
exactly: the product's error is below ``x * f / 2**(31 + s) <= 1``. An entry of 0 changes no state.

A decoding table has a byte per slot (two for wide alphabets), which is its symbol, and then a 32-bit
word per symbol: its frequency, and the first of its slots ``<< 16``. That is a quarter of the size of a
table with an entry per slot, so the tables of many streams fit in a cache together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.entropy.rans.layout import NARROW_BITS, WIDE_BITS, prob_bits
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE
from tersor.kernels.entropy.symbols.gpu.histogram import symbol_counts, table_start
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.raw_bytes import padded

SLOTS: Final = 512
"""Slots per program: few enough for programs to build a table in parallel."""
_NARROW, _WIDE = tl.constexpr(NARROW), tl.constexpr(WIDE)
_NARROW_BITS, _WIDE_BITS = tl.constexpr(NARROW_BITS), tl.constexpr(WIDE_BITS)
NARROW_SLOT_WORDS = tl.constexpr((1 << NARROW_BITS) // 4)
WIDE_SLOT_WORDS = tl.constexpr((1 << WIDE_BITS) // 2)
"""32-bit words of a decoding table before the words of the symbols."""
NARROW_TABLE = tl.constexpr((1 << NARROW_BITS) // 4 + NARROW)
WIDE_TABLE = tl.constexpr((1 << WIDE_BITS) // 2 + WIDE)
"""32-bit words of a whole decoding table."""
STATUS, USED, SYMBOL, WORDS, NUM_FACTS = (tl.constexpr(k) for k in range(5))
"""Indices into the int64 facts that kernels find out: 1 if the body is malformed; the number of used symbols;
the largest of them; the number of words."""


@triton.jit
def bits_of_alphabet(alphabet, IS_WIDE: tl.constexpr):
    """Return the precision of the frequencies; ``IS_WIDE`` means that symbols are stored as int16."""
    if IS_WIDE:
        return tl.where(alphabet <= _NARROW, _NARROW_BITS, _WIDE_BITS).to(tl.uint32)
    else:
        return tl.full((), _NARROW_BITS, tl.uint32)


@triton.jit
def normalized(counts, bits):
    """Return int64 frequencies as ``layout.normalized_frequencies`` does; undefined if all counts are 0."""
    symbol = tl.arange(0, counts.shape[0])
    used = counts > 0
    scale = tl.full((), 1, tl.int64) << bits
    spare = scale - tl.sum(used.to(tl.int64), axis=0)
    total = tl.maximum(tl.sum(counts, axis=0), 1)
    frequencies = tl.where(used, 1 + counts * spare // total, 0)
    # the first of the largest counts has the largest key
    key = (counts << 12) | (4095 - symbol)
    rest = scale - tl.sum(frequencies, axis=0)
    return frequencies + tl.where(key == tl.max(key, axis=0), rest, 0)


@triton.jit
def entries_of(found, bits):
    """Return the encoding entries of frequencies."""
    start = tl.cumsum(found, axis=0) - found
    shift = tl.zeros_like(found)
    for power in tl.static_range(_WIDE_BITS):
        shift += (found > (1 << power)).to(tl.int64)
    divisor = tl.maximum(found, 1)
    one = tl.full(found.shape, 1, tl.int64)
    magic = ((one << (31 + shift)) + divisor - 1) // divisor
    high = ((tl.full((), 1, tl.int64) << bits) - found) | (start << 14) | (shift << 28)
    return tl.where(found > 0, magic | (high << 32), 0)


@jit_kernel(do_not_specialize=["num_copies", "alphabet"])
def _entries_kernel(
    counts, num_copies, alphabet, frequencies, entries, facts,
    STATIC: tl.constexpr, BITS: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """One program turns counts (or given frequencies) into frequencies and encoding entries."""
    symbol = tl.arange(0, BINS)
    if STATIC:
        found = tl.load(counts + symbol, mask=symbol < alphabet, other=0)
    else:
        total = tl.zeros([BINS], dtype=tl.int64)
        for copy in range(num_copies):
            total += tl.load(counts + copy * BINS + symbol)
        found = normalized(total, BITS)
    tl.store(frequencies + symbol, found.to(tl.int16))
    tl.store(entries + symbol, entries_of(found, BITS))
    tl.store(facts + USED, tl.sum((found > 0).to(tl.int64), axis=0))


def encoding_table(
    symbols: torch.Tensor, alphabet: int, frequencies: torch.Tensor | None, facts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frequencies (int16, padded with zeros to a multiple of 8 bytes) and at least 256 entries.

    The number of used symbols is written to ``facts``.
    """
    bins = max(32, triton.next_power_of_2(alphabet))
    counts = symbol_counts(symbols, alphabet) if frequencies is None else frequencies
    table = torch.empty(bins, dtype=torch.int16, device=symbols.device)
    # the encoder of byte symbols copies all 256 entries to shared memory
    entries = torch.empty(max(bins, NARROW), dtype=torch.int64, device=symbols.device)
    _entries_kernel[(1,)](
        counts,
        counts.shape[0],
        alphabet,
        table,
        entries,
        facts,
        STATIC=frequencies is not None,
        BITS=prob_bits(alphabet),
        BINS=bins,
        num_warps=4 if bins <= NARROW else 16,
    )
    return table[: padded(2 * alphabet) // 2], entries


@triton.jit
def _make_entries(
    counts, alphabet, rotation, frequencies, entries, IS_WIDE: tl.constexpr, BINS: tl.constexpr
):
    """Make the table of one stream from its counts; return the number of used symbols.

    In a wide stream, symbols outside the alphabet count as the last one, the escape.
    """
    bits = bits_of_alphabet(alphabet, IS_WIDE)
    symbol = tl.arange(0, BINS)
    place = (symbol + rotation) & (BINS - 1)
    if IS_WIDE:
        held = tl.load(counts + place)
        beyond = tl.sum(tl.where(symbol < alphabet, 0, held), axis=0)
        held = tl.where(symbol < alphabet, held, 0) + tl.where(symbol == alphabet - 1, beyond, 0)
        found = normalized(held, bits)
    else:
        found = normalized(tl.load(counts + place, mask=symbol < alphabet, other=0), bits)
    tl.store(frequencies + symbol, found.to(tl.int16))
    if IS_WIDE:
        coded = tl.maximum(tl.minimum(symbol, alphabet - 1), 0)
        tl.store(entries + place, tl.gather(entries_of(found, bits), coded, 0))
    else:
        tl.store(entries + place, entries_of(found, bits))
    return tl.sum((found > 0).to(tl.int32), axis=0)


@jit_kernel(do_not_specialize=["num_narrow"])
def _entry_list_kernel(
    counts, alphabets, rotations, frequencies, entries, used, num_symbols, num_narrow,
    HAS_NARROW: tl.constexpr, HAS_WIDE: tl.constexpr, WIDE_BINS: tl.constexpr,
):  # fmt: skip
    """One program makes the table of one stream, if it has symbols."""
    k = tl.program_id(0).to(tl.int64)
    alphabet, rotation = tl.load(alphabets + k), tl.load(rotations + k)
    start = table_start(k, num_narrow)
    counts, frequencies, entries = counts + start, frequencies + start, entries + start
    num_used = tl.full((), 0, tl.int32)
    if HAS_NARROW and k < num_narrow:
        num_used = _make_entries(counts, alphabet, rotation, frequencies, entries, False, _NARROW)
    if HAS_WIDE and (k >= num_narrow) & (tl.load(num_symbols + k) > 0):
        num_used = _make_entries(counts, alphabet, rotation, frequencies, entries, True, WIDE_BINS)
    tl.store(used + k, num_used)


def encoding_tables(
    counts: torch.Tensor,
    alphabets: torch.Tensor,
    rotations: torch.Tensor,
    num_narrow: int,
    frequencies: torch.Tensor,
    entries: torch.Tensor,
    used: torch.Tensor,
    num_symbols: torch.Tensor,
    most_wide: int = WIDE,
) -> None:
    """Make the frequencies and encoding entries of several streams in one launch.

    Args:
        counts: int64, from ``entropy.symbols.gpu.histogram.stream_counts``.
        alphabets: int32 [streams].
        rotations: int32 [streams]; symbol ``s`` is stored as ``s + rotation``, modulo 256 in bytes and
            modulo 4096 in int16.
        num_narrow: number of streams of bytes, which come first.
        frequencies: int16, laid out like ``counts``, indexed by symbol; written.
        entries: int64, laid out like ``counts``, indexed by stored value; written.
        used: int32 [streams], number of symbols that occur; written.
        num_symbols: int64 [streams], length of each stream; an empty int16 stream gets no table.
        most_wide: upper limit of the alphabets of int16 streams; unless it is ``WIDE``, their rotations
            must be 0.
    """
    num_streams = used.numel()
    has_wide = num_narrow < num_streams
    wide_bins = max(NARROW, triton.next_power_of_2(most_wide))
    _entry_list_kernel[(num_streams,)](
        counts, alphabets, rotations, frequencies, entries, used, num_symbols, num_narrow,
        HAS_NARROW=num_narrow > 0, HAS_WIDE=has_wide, WIDE_BINS=wide_bins,
        num_warps=16 if has_wide and wide_bins > 1024 else 8,
    )  # fmt: skip


@triton.jit
def store_slots(
    slots, found, first, alphabet, IS_WIDE: tl.constexpr, NBITS: tl.constexpr, SLOTS: tl.constexpr
):
    """Fill ``SLOTS`` slots of a decoding table from ``first`` on; ``2**NBITS >= alphabet``.

    Each slot finds its symbol by bisection. If the frequencies do not add up, the entries are
    meaningless but still name valid symbols.
    """
    slot = first + tl.arange(0, SLOTS)
    ends = tl.cumsum(found, axis=0)
    decoded = tl.zeros_like(slot)
    for k in tl.static_range(NBITS):
        probed = decoded | (1 << (NBITS - 1 - k))
        decoded = tl.where(tl.gather(ends, probed - 1, 0) <= slot, probed, decoded)
    decoded = tl.minimum(decoded, alphabet - 1)
    if IS_WIDE:
        tl.store(slots.to(tl.pointer_type(tl.uint16)) + slot, decoded.to(tl.uint16))
    else:
        tl.store(slots.to(tl.pointer_type(tl.uint8)) + slot, decoded.to(tl.uint8))
    if first == 0:
        symbol = tl.arange(0, 1 << NBITS)
        before: tl.constexpr = WIDE_SLOT_WORDS if IS_WIDE else NARROW_SLOT_WORDS
        tl.store(slots + before + symbol, found | ((ends - found) << 16))


@jit_kernel(do_not_specialize=["alphabet"])
def _slots_kernel(
    frequencies, alphabet, slots, facts, BITS: tl.constexpr, NBITS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """One program fills ``SLOTS`` slots; the first also checks the table and writes the facts."""
    symbol = tl.arange(0, 1 << NBITS)
    stored = tl.load(frequencies + symbol, mask=symbol < alphabet, other=0)
    found = stored.to(tl.int32) & 0xFFFF
    is_wide: tl.constexpr = BITS > _NARROW_BITS
    store_slots(slots, found, tl.program_id(0) * SLOTS, alphabet, is_wide, NBITS, SLOTS)
    if tl.program_id(0) == 0:
        used = found > 0
        tl.store(facts + STATUS, (tl.sum(found, axis=0) != (1 << BITS)).to(tl.int64))
        tl.store(facts + USED, tl.sum(used.to(tl.int64), axis=0))
        tl.store(facts + SYMBOL, tl.max(tl.where(used, symbol, 0), axis=0).to(tl.int64))


@triton.jit
def slots_start(k, num_narrow):
    """Return the first word of the decoding table of stream ``k`` of a list.

    The first ``num_narrow`` streams have narrow tables.
    """
    return k * NARROW_TABLE + tl.maximum(k - num_narrow, 0) * (WIDE_TABLE - NARROW_TABLE)


def num_slot_words(num_narrow: int, num_wide: int) -> int:
    """Return the number of 32-bit words of narrow and wide decoding tables."""
    words: int = num_narrow * NARROW_TABLE.value + num_wide * WIDE_TABLE.value
    return words


def decoding_table(frequencies: torch.Tensor, alphabet: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a decoding table and newly allocated facts about the body.

    Args:
        frequencies: uint16 stored as int16, or int64; at least ``alphabet`` of them.
        alphabet: number of symbols.
    """
    bits = prob_bits(alphabet)
    num_words = num_slot_words(0, 1) if alphabet > NARROW else num_slot_words(1, 0)
    slots = torch.empty(num_words, dtype=torch.int32, device=frequencies.device)
    facts = torch.empty(NUM_FACTS.value, dtype=torch.int64, device=frequencies.device)
    _slots_kernel[((1 << bits) // SLOTS,)](
        frequencies,
        alphabet,
        slots,
        facts,
        BITS=bits,
        NBITS=max(5, (alphabet - 1).bit_length()),
        SLOTS=SLOTS,
    )
    return slots, facts


@dataclass(frozen=True, slots=True)
class StaticTable:
    """Frequencies that both sides know, on the device; bodies coded with them store none.

    Attributes:
        alphabet: number of symbols; above 256 they are stored as int16.
        frequencies: int64 [alphabet].
        entries: int64, the encoding entry of each symbol.
        slots: int32, the decoding table.
    """

    alphabet: int
    frequencies: torch.Tensor
    entries: torch.Tensor
    slots: torch.Tensor

    @property
    def is_wide(self) -> bool:
        """Whether symbols are stored as int16."""
        return self.alphabet > NARROW


@cached_on_stream
def static_table(frequencies: tuple[int, ...], device: torch.device) -> StaticTable:
    """Return the tables of frequencies that sum to ``2**prob_bits``, at least two of them not 0."""
    numbers = to_device_async(frequencies, torch.int64, device)
    slots, facts = decoding_table(numbers, len(frequencies))
    _, entries = encoding_table(numbers, len(frequencies), numbers, facts)
    return StaticTable(len(frequencies), numbers, entries, slots)


@triton.jit
def popcount(bits):
    """Count the 1 bits of a uint32, in the form that LLVM recognises as one instruction."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24).to(tl.int32)
