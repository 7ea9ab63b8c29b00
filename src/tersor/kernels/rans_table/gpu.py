"""Tables of rANS in Triton, built on the device from counts or stored frequencies.

An encoding entry is an int64 per symbol. Its lower half is ``m = ceil(2**(31 + s) / f)``, where
``f`` is the frequency and ``2**s`` the least power of two not below it; its upper half is
``2**bits - f``, the first of the symbol's slots ``<< 14``, and ``s << 28``. The state before the
symbol is below ``f << (31 - bits)``, and for such states ``x // f == umulhi(2 * x, m) >> s``
exactly: the product's error is below ``x * f / 2**(31 + s) <= 1``. An entry of 0 changes no state.

A decoding entry says for each slot its symbol, the symbol's frequency and the slot's place among
the symbol's slots: in 8, 12 and 12 bits from the lowest for narrow alphabets, in 16 each for wide.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.kernels.histogram.gpu import symbol_counts
from tersor.kernels.rans.layout import prob_bits
from tersor.kernels.symbols.alphabet import NARROW
from tersor.raw_bytes import padded

_SLOTS: Final = 512
"""Slots per program: few enough to build the table side by side."""
STATUS, USED, SYMBOL, WORDS, NUM_FACTS = (tl.constexpr(k) for k in range(5))
"""What the kernels find out, int64: 1 if the body is malformed; used symbols; the largest of them;
number of words."""


@triton.jit
def _normalized(counts, BITS: tl.constexpr):
    """Return int64 frequencies as ``layout.normalized_frequencies`` does; not all counts are 0."""
    symbol = tl.arange(0, counts.shape[0])
    used = counts > 0
    scale: tl.constexpr = 1 << BITS
    spare = scale - tl.sum(used.to(tl.int64), axis=0)
    frequencies = tl.where(used, 1 + counts * spare // tl.sum(counts, axis=0), 0)
    # the first of the largest counts has the largest key
    key = (counts << 12) | (4095 - symbol)
    rest = scale - tl.sum(frequencies, axis=0)
    return frequencies + tl.where(key == tl.max(key, axis=0), rest, 0)


@triton.jit
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
        found = _normalized(total, BITS)
    start = tl.cumsum(found, axis=0) - found
    shift = tl.zeros([BINS], dtype=tl.int64)
    for power in tl.static_range(BITS):
        shift += (found > (1 << power)).to(tl.int64)
    divisor = tl.maximum(found, 1)
    one = tl.full([BINS], 1, tl.int64)
    magic = ((one << (31 + shift)) + divisor - 1) // divisor
    high = ((1 << BITS) - found) | (start << 14) | (shift << 28)
    tl.store(frequencies + symbol, found.to(tl.int16))
    tl.store(entries + symbol, tl.where(found > 0, magic | (high << 32), 0))
    tl.store(facts + USED, tl.sum((found > 0).to(tl.int64), axis=0))


def encoding_table(
    symbols: torch.Tensor, alphabet: int, frequencies: torch.Tensor | None, facts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frequencies (int16, padded with zeros to 8 bytes or more) and encoding entries.

    The number of used symbols goes to ``facts``.
    """
    bins = max(32, triton.next_power_of_2(alphabet))
    counts = symbol_counts(symbols, alphabet) if frequencies is None else frequencies
    table = torch.empty(bins, dtype=torch.int16, device=symbols.device)
    entries = torch.empty(bins, dtype=torch.int64, device=symbols.device)
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
def _slots_kernel(
    frequencies, alphabet, slots, facts, BITS: tl.constexpr, NBITS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """One program fills ``SLOTS`` slots; the first also checks the table and writes the facts.

    ``2**NBITS`` is at least the alphabet. A slot finds its symbol by bisection.
    """
    symbol = tl.arange(0, 1 << NBITS)
    stored = tl.load(frequencies + symbol, mask=symbol < alphabet, other=0)
    found = stored.to(tl.int32) & 0xFFFF
    ends = tl.cumsum(found, axis=0)
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    decoded = tl.zeros([SLOTS], dtype=tl.int32)
    for k in tl.static_range(NBITS):
        probed = decoded | (1 << (NBITS - 1 - k))
        decoded = tl.where(tl.gather(ends, probed - 1, 0) <= slot, probed, decoded)
    # where the frequencies do not add up the entries make no sense, but name a symbol
    decoded = tl.minimum(decoded, alphabet - 1)
    frequency = tl.gather(found, decoded, 0)
    place = slot - (tl.gather(ends, decoded, 0) - frequency)
    if BITS == 12:
        tl.store(slots + slot, decoded | (frequency << 8) | (place << 20))
    else:
        high = (frequency | (place << 16)).to(tl.int64)
        tl.store(slots + slot, decoded.to(tl.int64) | (high << 16))
    if tl.program_id(0) == 0:
        used = found > 0
        tl.store(facts + STATUS, (tl.sum(found, axis=0) != (1 << BITS)).to(tl.int64))
        tl.store(facts + USED, tl.sum(used.to(tl.int64), axis=0))
        tl.store(facts + SYMBOL, tl.max(tl.where(used, symbol, 0), axis=0).to(tl.int64))


def decoding_table(frequencies: torch.Tensor, alphabet: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return decoding entries (int32, int64 for wide alphabets) and new facts about the body.

    Args:
        frequencies: uint16 in int16, or int64; at least ``alphabet`` of them.
        alphabet: number of symbols.
    """
    bits = prob_bits(alphabet)
    dtype = torch.int32 if alphabet <= NARROW else torch.int64
    slots = torch.empty(1 << bits, dtype=dtype, device=frequencies.device)
    facts = torch.empty(NUM_FACTS.value, dtype=torch.int64, device=frequencies.device)
    _slots_kernel[((1 << bits) // _SLOTS,)](
        frequencies,
        alphabet,
        slots,
        facts,
        BITS=bits,
        NBITS=max(5, (alphabet - 1).bit_length()),
        SLOTS=_SLOTS,
    )
    return slots, facts


@triton.jit
def popcount(bits):
    """Return how many bits of a uint32 are 1, in the form that LLVM turns into one instruction."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24).to(tl.int32)
