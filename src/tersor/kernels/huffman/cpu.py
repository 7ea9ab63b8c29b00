"""Huffman coding in numba: four interleaved streams, several symbols per table look-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, types

from tersor.errors import CorruptDataError
from tersor.kernels import threads
from tersor.kernels.huffman.layout import (
    CHUNK,
    STREAMS,
    HuffmanLayout,
    canonical_codes,
    code_lengths,
    max_length,
)
from tersor.kernels.machine.cpu import address_of, load_u64, store_byte, store_u32, store_u64

_U = types.uint64


@njit(nogil=True, cache=True)
def _histogram_kernel(symbols: Any, counts: Any, start: int, stop: int) -> None:
    """Count the symbols of each quarter of chunks ``[start, stop)``."""
    for chunk in range(start, stop):
        part = symbols[chunk * CHUNK : min(chunk * CHUNK + CHUNK, symbols.size)]
        quarter = (part.size + STREAMS - 1) // STREAMS
        c0, c1, c2, c3 = counts[chunk, 0], counts[chunk, 1], counts[chunk, 2], counts[chunk, 3]
        # four tables at once: a table that is bumped twice in a row waits for its own store
        shared = max(0, part.size - 3 * quarter)
        for i in range(shared):
            c0[part[i]] += np.uint16(1)
            c1[part[quarter + i]] += np.uint16(1)
            c2[part[2 * quarter + i]] += np.uint16(1)
            c3[part[3 * quarter + i]] += np.uint16(1)
        for stream in range(STREAMS - 1):
            for i in range(stream * quarter + shared, min((stream + 1) * quarter, part.size)):
                counts[chunk, stream, part[i]] += np.uint16(1)


@njit(nogil=True, cache=True)
def _size_kernel(counts: Any, lengths: Any, sizes: Any, start: int, stop: int) -> None:
    for chunk in range(start, stop):
        for stream in range(STREAMS):
            nbits = np.int64(0)
            table = counts[chunk, stream]
            for symbol in range(lengths.size):
                nbits += np.int64(table[symbol]) * np.int64(lengths[symbol])
            sizes[chunk * STREAMS + stream] = (nbits + 7) >> 3


@njit(nogil=True, cache=True)
def _encode_stream(symbols: Any, codebook: Any, address: int, end: int) -> None:
    """Write one stream to exactly ``[address, end)``."""
    word, filled = _U(0), _U(0)
    i = 0
    # 4 codes of at most 14 bits and 7 bits left over fit in 64
    while i + 4 <= symbols.size and address + _U(8) <= end:
        for _ in range(4):
            entry = codebook[symbols[i]]
            word |= _U(entry & np.uint32(0xFFFF)) << filled
            filled += _U(entry >> np.uint32(16))
            i += 1
        store_u64(address, word)
        address += filled >> _U(3)
        word >>= filled & _U(56)
        filled &= _U(7)
    tail = np.zeros(64, dtype=np.uint8)
    start = address_of(tail)
    place = start
    while i < symbols.size:
        entry = codebook[symbols[i]]
        word |= _U(entry & np.uint32(0xFFFF)) << filled
        filled += _U(entry >> np.uint32(16))
        i += 1
        store_u64(place, word)
        place += filled >> _U(3)
        word >>= filled & _U(56)
        filled &= _U(7)
        if place >= start + _U(32):
            # long tails are only possible in tiny streams; copy out what is complete
            for k in range(place - start):
                store_byte(address + _U(k), tail[k])
            address += place - start
            place = start
    store_u64(place, word)
    for k in range(end - address):
        store_byte(address + _U(k), tail[k])


@njit(nogil=True, cache=True)
def _encode_kernel(
    symbols: Any, codebook: Any, offsets: Any, streams: Any, start: int, stop: int
) -> None:
    base = address_of(streams)
    for chunk in range(start, stop):
        part = symbols[chunk * CHUNK : min(chunk * CHUNK + CHUNK, symbols.size)]
        quarter = (part.size + STREAMS - 1) // STREAMS
        for stream in range(STREAMS):
            index = chunk * STREAMS + stream
            low = min(stream * quarter, part.size)
            high = min(low + quarter, part.size)
            _encode_stream(
                part[low:high],
                codebook,
                base + _U(offsets[index]),
                base + _U(offsets[index + 1]),
            )


def huffman_encode(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """See ``reference.huffman_encode``."""
    layout = HuffmanLayout(symbols.numel(), alphabet)
    values = symbols.numpy()
    counts = np.zeros((layout.num_chunks, STREAMS, alphabet), dtype=np.uint16)
    parts = threads.split(layout.num_chunks, 4 * CHUNK)
    threads.run(_histogram_kernel, [(values, counts, s, e) for s, e in parts])
    lengths = code_lengths(counts.sum(axis=(0, 1), dtype=np.int64), max_length(alphabet))
    offsets = np.zeros(layout.num_chunks * STREAMS + 1, dtype=np.int64)
    several = int((lengths > 0).sum()) > 1
    if several:
        threads.run(_size_kernel, [(counts, lengths, offsets[1:], s, e) for s, e in parts])
    sizes = offsets[1:].astype(np.uint16)
    np.cumsum(offsets, out=offsets)
    body = np.empty(layout.body_nbytes(int(offsets[-1])), dtype=np.uint8)
    body[: layout.streams_start] = 0
    nibbles = np.append(lengths, np.zeros(alphabet % 2, dtype=np.uint8)).reshape(-1, 2)
    body[: len(nibbles)] = nibbles[:, 0] | nibbles[:, 1] << 4
    body[layout.sizes_start : layout.sizes_start + 2 * sizes.size] = sizes.view(np.uint8)
    body[layout.streams_start + int(offsets[-1]) :] = 0
    if several:
        codebook = canonical_codes(lengths) | lengths.astype(np.uint32) << 16
        streams = body[layout.streams_start :]
        threads.run(_encode_kernel, [(values, codebook, offsets, streams, s, e) for s, e in parts])
    return torch.from_numpy(body)


@njit(nogil=True, cache=True)
def _single_table(lengths: Any, codes: Any, limit: int) -> Any:
    """Return, for each value of the next ``limit`` bits, symbol | length << 16."""
    table = np.zeros(1 << limit, dtype=np.uint32)
    for symbol in range(lengths.size):
        length = np.int64(lengths[symbol])
        if length > 0:
            entry = np.uint32(symbol) | np.uint32(length << 16)
            for k in range(np.int64(codes[symbol]), 1 << limit, np.int64(1) << length):
                table[k] = entry
    return table


@njit(nogil=True, cache=True)
def _multi_table(single: Any, limit: int) -> Any:
    """Return up to 4 byte symbols | bits << 32 | count << 40 for the next ``limit`` bits."""
    table = np.empty(single.size, dtype=np.uint64)
    for k in range(single.size):
        packed, nbits, count = _U(0), _U(0), _U(0)
        while count < _U(4):
            entry = single[_U(k) >> nbits]
            length = _U(entry >> np.uint32(16))
            if nbits + length > _U(limit):
                break
            packed |= _U(entry & np.uint32(0xFFFF)) << (_U(8) * count)
            nbits += length
            count += _U(1)
        table[k] = packed | (nbits << _U(32)) | (count << _U(40))
    return table


@njit(nogil=True, cache=True)
def _finish_stream(out: Any, done: int, single: Any, mask: int, bit: int, end_bit: int) -> bool:
    """Decode the rest of one stream symbol by symbol; say whether it ended where it should.

    ``bit`` and ``end_bit`` are absolute: address times eight.
    """
    for i in range(done, out.size):
        if bit > end_bit:
            return False
        word = load_u64(bit >> _U(3)) >> (bit & _U(7))
        entry = single[word & mask]
        out[i] = out.dtype.type(entry & np.uint32(0xFFFF))
        bit += _U(entry >> np.uint32(16))
    return (bit + _U(7)) >> _U(3) == end_bit >> _U(3)


@njit(nogil=True, cache=True)
def _decode_chunk_multi(
    out: Any, single: Any, multi: Any, mask: int, base: int, offsets: Any
) -> bool:
    """Decode four byte-symbol streams side by side, up to four symbols per look-up."""
    quarter = (out.size + STREAMS - 1) // STREAMS
    q1, q2, q3 = min(quarter, out.size), min(2 * quarter, out.size), min(3 * quarter, out.size)
    start = address_of(out)
    o0, o1, o2, o3 = start, start + _U(q1), start + _U(q2), start + _U(q3)
    p0, p1 = base + _U(offsets[0]), base + _U(offsets[1])
    p2, p3 = base + _U(offsets[2]), base + _U(offsets[3])
    e0, e1 = p1, p2
    e2, e3 = p3, base + _U(offsets[4])
    n0, n1, n2, n3 = _U(0), _U(0), _U(0), _U(0)
    # a round writes at most 20 bytes and reads at most 8 per stream
    while (
        (o0 + _U(24) <= start + _U(q1))
        & (o1 + _U(24) <= start + _U(q2))
        & (o2 + _U(24) <= start + _U(q3))
        & (o3 + _U(24) <= start + _U(out.size))
        & (p0 + _U(8) <= e0)
        & (p1 + _U(8) <= e1)
        & (p2 + _U(8) <= e2)
        & (p3 + _U(8) <= e3)
    ):
        b0, b1 = load_u64(p0) >> n0, load_u64(p1) >> n1
        b2, b3 = load_u64(p2) >> n2, load_u64(p3) >> n3
        # 5 look-ups of at most 11 bits use 55 of the 57 bits that are sure to be there
        for _ in range(5):
            w0, w1 = multi[b0 & mask], multi[b1 & mask]
            w2, w3 = multi[b2 & mask], multi[b3 & mask]
            store_u32(o0, np.uint32(w0 & _U(0xFFFFFFFF)))
            store_u32(o1, np.uint32(w1 & _U(0xFFFFFFFF)))
            store_u32(o2, np.uint32(w2 & _U(0xFFFFFFFF)))
            store_u32(o3, np.uint32(w3 & _U(0xFFFFFFFF)))
            k0, k1 = (w0 >> _U(32)) & _U(255), (w1 >> _U(32)) & _U(255)
            k2, k3 = (w2 >> _U(32)) & _U(255), (w3 >> _U(32)) & _U(255)
            b0, b1, b2, b3 = b0 >> k0, b1 >> k1, b2 >> k2, b3 >> k3
            n0, n1, n2, n3 = n0 + k0, n1 + k1, n2 + k2, n3 + k3
            o0, o1 = o0 + (w0 >> _U(40)), o1 + (w1 >> _U(40))
            o2, o3 = o2 + (w2 >> _U(40)), o3 + (w3 >> _U(40))
        p0, n0 = p0 + (n0 >> _U(3)), n0 & _U(7)
        p1, n1 = p1 + (n1 >> _U(3)), n1 & _U(7)
        p2, n2 = p2 + (n2 >> _U(3)), n2 & _U(7)
        p3, n3 = p3 + (n3 >> _U(3)), n3 & _U(7)
    eight = _U(8)
    good = _finish_stream(out[:q1], o0 - start, single, mask, p0 * eight + n0, e0 * eight)
    good &= _finish_stream(
        out[q1:q2], o1 - start - _U(q1), single, mask, p1 * eight + n1, e1 * eight
    )
    good &= _finish_stream(
        out[q2:q3], o2 - start - _U(q2), single, mask, p2 * eight + n2, e2 * eight
    )
    good &= _finish_stream(out[q3:], o3 - start - _U(q3), single, mask, p3 * eight + n3, e3 * eight)
    return good


@njit(nogil=True, cache=True)
def _decode_kernel(
    streams: Any, offsets: Any, single: Any, multi: Any, out: Any, start: int, stop: int
) -> bool:
    """Decode chunks ``[start, stop)``; return whether every stream was well formed."""
    mask = _U(single.size - 1)
    base = address_of(streams)
    good = True
    for chunk in range(start, stop):
        part = out[chunk * CHUNK : min(chunk * CHUNK + CHUNK, out.size)]
        marks = offsets[chunk * STREAMS : chunk * STREAMS + STREAMS + 1]
        if multi.size > 0:
            good &= _decode_chunk_multi(part, single, multi, mask, base, marks)
            continue
        quarter = (part.size + STREAMS - 1) // STREAMS
        for stream in range(STREAMS):
            low = min(stream * quarter, part.size)
            bit = (base + _U(marks[stream])) * _U(8)
            end_bit = (base + _U(marks[stream + 1])) * _U(8)
            target = part[low : min(low + quarter, part.size)]
            good &= _finish_stream(target, 0, single, mask, bit, end_bit)
    return good


def huffman_decode(body: torch.Tensor, num_symbols: int, alphabet: int) -> tuple[torch.Tensor, int]:
    """See ``reference.huffman_decode``."""
    layout = HuffmanLayout(num_symbols, alphabet)
    data = body.numpy()
    lengths, offsets, nbytes = layout.read(data)
    out = np.empty(num_symbols, dtype=np.uint8 if alphabet <= 256 else np.int16)
    if int((lengths > 0).sum()) <= 1:
        out[:] = int(lengths.argmax())
        return torch.from_numpy(out), nbytes
    limit = max_length(alphabet)
    single = _single_table(lengths, canonical_codes(lengths), limit)
    multi = _multi_table(single, limit) if alphabet <= 256 else np.empty(0, dtype=np.uint64)
    streams = data[layout.streams_start : nbytes]
    parts = threads.split(layout.num_chunks, 4 * CHUNK)
    good = threads.run(
        _decode_kernel, [(streams, offsets, single, multi, out, s, e) for s, e in parts]
    )
    if not all(good):
        raise CorruptDataError("a Huffman stream does not end where it should")
    return torch.from_numpy(out), nbytes
