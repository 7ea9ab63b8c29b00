"""Huffman coding in numba: four interleaved streams, several symbols per table look-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, types

from tersor.errors import CorruptDataError
from tersor.kernels import threads
from tersor.kernels.bitpack.layout import TAIL_NBYTES
from tersor.kernels.huffman.layout import CHUNK, STREAMS, HuffmanLayout, max_length
from tersor.kernels.machine.cpu import (
    address_of,
    load_u32,
    load_u64,
    store_byte,
    store_u32,
    store_u64,
)
from tersor.kernels.prefix_code.cpu import (
    build_codes,
    build_lengths,
    is_complete,
    multi_table,
    single_table,
)
from tersor.kernels.scratch import scratch

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
def _finish_encoding(symbols: Any, i: int, codebook: Any, state: Any, end: int) -> None:
    """Write the rest of a stream, from symbol ``i``, to exactly ``[address, end)``."""
    address, word, filled = state
    while i < symbols.size:
        entry = codebook[symbols[i]]
        word |= _U(entry & np.uint32(0xFFFF)) << filled
        filled += _U(entry >> np.uint32(16))
        i += 1
        while filled >= _U(8):
            store_byte(address, np.uint8(word & _U(255)))
            address += _U(1)
            word >>= _U(8)
            filled -= _U(8)
    if address < end:
        store_byte(address, np.uint8(word & _U(255)))


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
    _finish_encoding(symbols, i, codebook, (address, word, filled), end)


@njit(nogil=True, cache=True)
def _pair_codebook(codebook: Any) -> Any:
    """Return code | length << 24 for every two symbols, indexed by ``first | second << 5``."""
    pairs = np.zeros(1024, dtype=np.uint32)
    for first in range(codebook.size):
        length = np.uint32(codebook[first] >> np.uint32(16))
        low = np.uint32(codebook[first] & np.uint32(0xFFFF))
        for second in range(codebook.size):
            entry = codebook[second]
            code = low | (np.uint32(entry & np.uint32(0xFFFF)) << length)
            both = np.uint32(length + np.uint32(entry >> np.uint32(16)))
            pairs[first | (second << 5)] = np.uint32(code | (both << np.uint32(24)))
    return pairs


@njit(nogil=True, cache=True)
def _encode_stream_by_pairs(
    symbols: Any, pairs: Any, codebook: Any, address: int, end: int
) -> None:
    """Like ``_encode_stream`` for at most 32 byte symbols, with half the look-ups."""
    word, filled = _U(0), _U(0)
    source = address_of(symbols)
    i = 0
    while i + 4 <= symbols.size and address + _U(8) <= end:
        four = _U(load_u32(source + _U(i)))
        first = _U(pairs[(four & _U(31)) | ((four >> _U(3)) & _U(0x3E0))])
        second = _U(pairs[((four >> _U(16)) & _U(31)) | ((four >> _U(19)) & _U(0x3E0))])
        word |= (first & _U(0xFFFFFF)) << filled
        filled += first >> _U(24)
        word |= (second & _U(0xFFFFFF)) << filled
        filled += second >> _U(24)
        i += 4
        store_u64(address, word)
        address += filled >> _U(3)
        word >>= filled & _U(56)
        filled &= _U(7)
    _finish_encoding(symbols, i, codebook, (address, word, filled), end)


@njit(nogil=True, cache=True)
def _encode_kernel(
    symbols: Any, codebook: Any, offsets: Any, streams: Any, start: int, stop: int
) -> None:
    base = address_of(streams)
    by_pairs = codebook.size <= 32
    pairs = _pair_codebook(codebook if by_pairs else codebook[:0])
    for chunk in range(start, stop):
        part = symbols[chunk * CHUNK : min(chunk * CHUNK + CHUNK, symbols.size)]
        quarter = (part.size + STREAMS - 1) // STREAMS
        for stream in range(STREAMS):
            index = chunk * STREAMS + stream
            low = min(stream * quarter, part.size)
            mine = part[low : min(low + quarter, part.size)]
            address, end = base + _U(offsets[index]), base + _U(offsets[index + 1])
            if by_pairs:
                _encode_stream_by_pairs(mine, pairs, codebook, address, end)
            else:
                _encode_stream(mine, codebook, address, end)


@njit(nogil=True, cache=True)
def _plan(counts: Any, limit: int, lengths: Any, codebook: Any) -> int:
    """Build the code for the counts of all streams; return the number of used symbols."""
    alphabet = lengths.size
    total = np.zeros(alphabet, dtype=np.int64)
    for chunk in range(counts.shape[0]):
        for stream in range(STREAMS):
            for symbol in range(alphabet):
                total[symbol] += counts[chunk, stream, symbol]
    num_used = build_lengths(total, limit, lengths)
    build_codes(lengths, codebook)
    for symbol in range(alphabet):
        codebook[symbol] |= np.uint32(lengths[symbol]) << np.uint32(16)
    return num_used


@njit(nogil=True, cache=True)
def _write_head(
    lengths: Any, offsets: Any, sizes_start: int, streams_start: int, body: Any
) -> None:
    """Write lengths and sizes, and zeros where nothing else will be written."""
    body[:streams_start] = 0
    for symbol in range(lengths.size):
        body[symbol >> 1] |= np.uint8(lengths[symbol] << (4 * (symbol & 1)))
    for k in range(offsets.size - 1):
        size = offsets[k + 1] - offsets[k]
        body[sizes_start + 2 * k] = np.uint8(size & 255)
        body[sizes_start + 2 * k + 1] = np.uint8(size >> 8)
    body[streams_start + offsets[-1] :] = 0


@njit(nogil=True, cache=True)
def _to_offsets(offsets: Any) -> None:
    """Turn sizes in ``offsets[1:]`` into offsets."""
    offsets[0] = 0
    for k in range(1, offsets.size):
        offsets[k] += offsets[k - 1]


@njit(nogil=True, cache=True)
def encode_into(symbols: Any, alphabet: int, limit: int, body: Any) -> int:
    """Encode on this thread into ``body``, which has room for the worst case; return the size."""
    num_chunks = (symbols.size + CHUNK - 1) // CHUNK
    counts = np.zeros((num_chunks, STREAMS, alphabet), dtype=np.uint16)
    _histogram_kernel(symbols, counts, 0, num_chunks)
    lengths = np.zeros(alphabet, dtype=np.uint8)
    codebook = np.zeros(alphabet, dtype=np.uint32)
    num_used = _plan(counts, limit, lengths, codebook)
    offsets = np.zeros(num_chunks * STREAMS + 1, dtype=np.int64)
    if num_used > 1:
        _size_kernel(counts, lengths, offsets[1:], 0, num_chunks)
    _to_offsets(offsets)
    sizes_start = ((alphabet + 1) // 2 + 7) // 8 * 8
    streams_start = sizes_start + (2 * STREAMS * num_chunks + 7) // 8 * 8
    nbytes = streams_start + (offsets[-1] + 7) // 8 * 8 + TAIL_NBYTES
    _write_head(lengths, offsets, sizes_start, streams_start, body[:nbytes])
    if num_used > 1:
        _encode_kernel(symbols, codebook, offsets, body[streams_start:nbytes], 0, num_chunks)
    return nbytes


def huffman_encode(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """See ``reference.huffman_encode``."""
    layout = HuffmanLayout(symbols.numel(), alphabet)
    values, limit = symbols.numpy(), max_length(alphabet)
    parts = threads.split(layout.num_chunks, 4 * CHUNK)
    if len(parts) == 1:
        body = scratch(layout.max_nbytes)
        return torch.from_numpy(body[: encode_into(values, alphabet, limit, body)].copy())
    counts = np.zeros((layout.num_chunks, STREAMS, alphabet), dtype=np.uint16)
    threads.run(_histogram_kernel, [(values, counts, s, e) for s, e in parts])
    lengths = np.zeros(alphabet, dtype=np.uint8)
    codebook = np.zeros(alphabet, dtype=np.uint32)
    num_used = _plan(counts, limit, lengths, codebook)
    offsets = np.zeros(layout.num_chunks * STREAMS + 1, dtype=np.int64)
    if num_used > 1:
        threads.run(_size_kernel, [(counts, lengths, offsets[1:], s, e) for s, e in parts])
    _to_offsets(offsets)
    body = np.empty(layout.body_nbytes(int(offsets[-1])), dtype=np.uint8)
    _write_head(lengths, offsets, layout.sizes_start, layout.streams_start, body)
    if num_used > 1:
        streams = body[layout.streams_start :]
        threads.run(_encode_kernel, [(values, codebook, offsets, streams, s, e) for s, e in parts])
    return torch.from_numpy(body)


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


@njit(nogil=True, cache=True)
def _read_head(body: Any, alphabet: int, limit: int, lengths: Any, offsets: Any) -> int:
    """Read lengths and stream offsets; return the body's size, or -1 if it is malformed."""
    sizes_start = ((alphabet + 1) // 2 + 7) // 8 * 8
    num_streams = offsets.size - 1
    streams_start = sizes_start + (2 * num_streams + 7) // 8 * 8
    if body.size < streams_start + TAIL_NBYTES:
        return -1
    num_used = 0
    for symbol in range(alphabet):
        lengths[symbol] = (body[symbol >> 1] >> np.uint8(4 * (symbol & 1))) & np.uint8(15)
        num_used += lengths[symbol] > 0
    offsets[0] = 0
    for k in range(num_streams):
        size = np.int64(body[sizes_start + 2 * k]) | np.int64(body[sizes_start + 2 * k + 1]) << 8
        offsets[k + 1] = offsets[k] + size
    nbytes = streams_start + (offsets[-1] + 7) // 8 * 8 + TAIL_NBYTES
    if body.size < nbytes:
        return -1
    if num_used <= 1:
        whole = num_used == 1 or num_streams == 0
        single = num_used == 0 or lengths.max() == 1
        return nbytes if whole and single and offsets[-1] == 0 else -1
    # every symbol takes a bit, so streams cannot all be empty
    good = is_complete(lengths, limit) and (offsets[-1] > 0 or num_streams == 0)
    return nbytes if good else -1


@njit(nogil=True, cache=True)
def _decoder(lengths: Any, limit: int) -> Any:
    """Return the one-symbol and the multi-symbol table; the latter is empty for wide symbols."""
    single = single_table(lengths, limit)
    if lengths.size <= 256:
        return single, multi_table(single, limit)
    return single, np.empty(0, dtype=np.uint64)


@njit(nogil=True, cache=True)
def decode_from(body: Any, alphabet: int, limit: int, out: Any) -> int:
    """Decode on this thread; return the body's size, or -1 if it is malformed."""
    num_chunks = (out.size + CHUNK - 1) // CHUNK
    lengths = np.zeros(alphabet, dtype=np.uint8)
    offsets = np.zeros(num_chunks * STREAMS + 1, dtype=np.int64)
    nbytes = _read_head(body, alphabet, limit, lengths, offsets)
    if nbytes < 0:
        return -1
    if offsets[-1] == 0:
        out[:] = out.dtype.type(lengths.argmax())
        return nbytes
    single, multi = _decoder(lengths, limit)
    streams = body[nbytes - TAIL_NBYTES - (offsets[-1] + 7) // 8 * 8 : nbytes]
    good = _decode_kernel(streams, offsets, single, multi, out, 0, num_chunks)
    return nbytes if good else -1


def huffman_decode(body: torch.Tensor, num_symbols: int, alphabet: int) -> tuple[torch.Tensor, int]:
    """See ``reference.huffman_decode``."""
    layout = HuffmanLayout(num_symbols, alphabet)
    data, limit = body.numpy(), max_length(alphabet)
    out = np.empty(num_symbols, dtype=np.uint8 if alphabet <= 256 else np.int16)
    parts = threads.split(layout.num_chunks, 4 * CHUNK)
    if len(parts) == 1:
        nbytes = decode_from(data, alphabet, limit, out)
    else:
        lengths = np.zeros(alphabet, dtype=np.uint8)
        offsets = np.zeros(layout.num_chunks * STREAMS + 1, dtype=np.int64)
        nbytes = _read_head(data, alphabet, limit, lengths, offsets)
        if nbytes >= 0 and offsets[-1] == 0:
            out[:] = lengths.argmax()
        elif nbytes >= 0:
            arguments = (data[layout.streams_start : nbytes], offsets, *_decoder(lengths, limit))
            good = threads.run(_decode_kernel, [(*arguments, out, s, e) for s, e in parts])
            nbytes = nbytes if all(good) else -1
    if nbytes < 0:
        raise CorruptDataError("a Huffman body is truncated or altered")
    return torch.from_numpy(out), nbytes
