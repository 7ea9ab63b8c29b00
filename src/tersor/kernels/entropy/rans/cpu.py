"""rANS in numba. The format is designed for GPUs; on a CPU it only has to be correct and reasonably fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.rans.layout import (
    LANES,
    STATE_LOW,
    RansLayout,
    normalized_frequencies,
    prob_bits,
)
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit
from tersor.kernels.runtime.scratch import scratch

_U = types.uint64


@njit(nogil=True, cache=True)
def _histogram_kernel(symbols: Any, counts: Any, start: int, stop: int) -> None:
    part = symbols[start:stop]
    # alternating tables, because incrementing the same counter twice in a row waits for its store
    for i in range(part.size):
        counts[i & 3, part[i]] += 1


@njit(nogil=True, cache=True)
def _encode_block(symbols: Any, entries: Any, bits: Any, words: Any, states: Any) -> int:
    """Encode one block backwards from the end of ``words``; return the number of words."""
    shift = _U(31) - bits
    for lane in range(LANES):
        states[lane] = np.uint32(STATE_LOW)
    place = words.size
    for i in range(symbols.size - 1, -1, -1):
        lane = i % LANES
        symbol = symbols[i]
        frequency, start, reciprocal = entries[symbol, 0], entries[symbol, 1], entries[symbol, 2]
        state = _U(states[lane])
        if state >= frequency << shift:
            place -= 1
            words[place] = np.uint16(state & _U(0xFFFF))
            state >>= _U(16)
        # exact: state < frequency * 2**(31 - bits), so state * frequency < 2**(32 + bits)
        quotient = (state * reciprocal) >> (_U(32) + bits)
        states[lane] = np.uint32(state + start + quotient * ((_U(1) << bits) - frequency))
    return words.size - place


@njit(nogil=True, cache=True)
def _encode_kernel(
    symbols: Any,
    entries: Any,
    bits: Any,
    block: int,
    words: Any,
    block_words: Any,
    states: Any,
    start: int,
    stop: int,
) -> None:
    for b in range(start, stop):
        part = symbols[b * block : min(b * block + block, symbols.size)]
        block_words[b] = _encode_block(part, entries, bits, words[b], states[b])


@njit(nogil=True, cache=True)
def _gather_kernel(words: Any, offsets: Any, target: Any, start: int, stop: int) -> None:
    """Copy the words of blocks ``[start, stop)``, which are at the end of their rows."""
    for b in range(start, stop):
        block_words = offsets[b + 1] - offsets[b]
        target[offsets[b] : offsets[b + 1]] = words[b, words.shape[1] - block_words :]


def _entries(table: Any, bits: int) -> Any:
    """Return, per symbol, its frequency, its first slot and ``ceil(2**(32 + bits) / frequency)``."""
    entries = np.zeros((table.size, 3), dtype=np.uint64)
    entries[:, 0] = table
    entries[:, 1] = np.cumsum(table) - table
    used = table > 0
    entries[used, 2] = -(-(1 << (32 + bits)) // table[used])
    return entries


def rans_encode(
    symbols: torch.Tensor, alphabet: int, frequencies: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``reference.rans_encode``."""
    layout = RansLayout(symbols.numel(), alphabet, frequencies is not None)
    values = symbols.numpy()
    table = _measured(values, alphabet) if frequencies is None else frequencies.numpy()
    bits, single = prob_bits(alphabet), int((table > 0).sum()) <= 1
    num_blocks = layout.num_blocks
    block_words = np.zeros(num_blocks, dtype=np.int64)
    states = np.empty((0 if single else num_blocks, LANES), dtype=np.uint32)
    words = scratch(2 * num_blocks * layout.block).view(np.uint16).reshape(-1, layout.block)
    if not single:
        arguments = (
            values,
            _entries(table, bits),
            np.uint64(bits),
            layout.block,
            words,
            block_words,
        )
        parts = threads.split(num_blocks, 4 * layout.block)
        threads.run(_encode_kernel, [(*arguments, states, s, e) for s, e in parts])
    offsets = np.append(0, np.cumsum(block_words))
    body = np.zeros(layout.body_nbytes(int(offsets[-1]), single), dtype=np.uint8)
    if frequencies is None:
        body[: 2 * alphabet] = table.astype(np.uint16).view(np.uint8)
    offsets_end = layout.offsets_start + 4 * offsets.size
    body[layout.offsets_start : offsets_end] = offsets.astype(np.uint32).view(np.uint8)
    words_start = layout.words_start(single)
    body[layout.states_start : words_start] = states.reshape(-1).view(np.uint8)
    target = body[words_start:].view(np.uint16)
    parts = threads.split(num_blocks, 4 * layout.block)
    threads.run(_gather_kernel, [(words, offsets, target, s, e) for s, e in parts])
    return torch.from_numpy(body)


def _measured(values: Any, alphabet: int) -> Any:
    parts = threads.split(values.size, 4)
    counts = np.zeros((len(parts), 4, alphabet), dtype=np.int64)
    threads.run(_histogram_kernel, [(values, counts[k], *part) for k, part in enumerate(parts)])
    return normalized_frequencies(counts.sum(axis=(0, 1)), alphabet)


@njit(nogil=True, cache=True)
def _decode_table(table: Any, bits: int) -> Any:
    """Return, per slot, ``symbol | (frequency - 1) << 16 | k << 32`` for the k-th slot of the symbol."""
    slots = np.empty(1 << bits, dtype=np.uint64)
    slot = 0
    for symbol in range(table.size):
        for k in range(table[symbol]):
            slots[slot] = _U(symbol) | (_U(table[symbol] - 1) << _U(16)) | (_U(k) << _U(32))
            slot += 1
    return slots


@njit(nogil=True, cache=True)
def _decode_block(states: Any, words: Any, slots: Any, bits: Any, out: Any) -> bool:
    """Decode one block; return whether it consumed exactly its words and ended in the initial state."""
    mask = _U(slots.size - 1)
    state = np.empty(LANES, dtype=np.uint64)
    for lane in range(LANES):
        state[lane] = _U(states[lane])
    place = 0
    for low in range(0, out.size, LANES):
        # at most one word per lane and step, so one check per step keeps all reads in bounds
        checked = place + LANES > words.size
        for lane in range(min(LANES, out.size - low)):
            x = state[lane]
            entry = slots[x & mask]
            out[low + lane] = out.dtype.type(entry & _U(0xFFFF))
            frequency = ((entry >> _U(16)) & _U(0xFFFF)) + _U(1)
            x = (frequency * (x >> bits) + (entry >> _U(32))) & _U(0xFFFFFFFF)
            if x < _U(STATE_LOW):
                if checked and place >= words.size:
                    return False
                x = (x << _U(16)) | _U(words[place])
                place += 1
            state[lane] = x
    good = place == words.size
    for lane in range(LANES):
        good &= state[lane] == _U(STATE_LOW)
    return good


@njit(nogil=True, cache=True)
def _decode_kernel(
    states: Any,
    words: Any,
    offsets: Any,
    slots: Any,
    bits: Any,
    block: int,
    out: Any,
    start: int,
    stop: int,
) -> bool:
    good = True
    for b in range(start, stop):
        part = out[b * block : min(b * block + block, out.size)]
        good &= _decode_block(states[b], words[offsets[b] : offsets[b + 1]], slots, bits, part)
    return good


def rans_decode(
    body: torch.Tensor, num_symbols: int, alphabet: int, frequencies: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """See ``reference.rans_decode``."""
    layout = RansLayout(num_symbols, alphabet, frequencies is not None)
    data = body.numpy()
    given = None if frequencies is None else frequencies.numpy()
    table, offsets, nbytes = layout.read(data, given)
    out = np.empty(num_symbols, dtype=np.uint8 if alphabet <= 256 else np.int16)
    if int((table > 0).sum()) <= 1:
        out[:] = int(table.argmax())
        return torch.from_numpy(out), nbytes
    words_start = layout.words_start(single=False)
    states = data[layout.states_start : words_start].view(np.uint32).reshape(-1, LANES)
    bits = prob_bits(alphabet)
    slots = _decode_table(table, bits)
    words = data[words_start:nbytes].view(np.uint16)
    arguments = (states, words, offsets, slots, np.uint64(bits), layout.block, out)
    parts = threads.split(layout.num_blocks, 4 * layout.block)
    good = threads.run(_decode_kernel, [(*arguments, s, e) for s, e in parts])
    if not all(good):
        raise CorruptDataError("a rANS block does not end where it should")
    return torch.from_numpy(out), nbytes
