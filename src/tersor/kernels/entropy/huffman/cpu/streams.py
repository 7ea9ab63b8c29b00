"""Huffman coding in numba: four streams decoded in parallel, several byte symbols per table look-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.huffman.cpu.prefix_code import (
    build_codes,
    build_lengths,
    is_complete,
    multi_table,
    single_table,
)
from tersor.kernels.entropy.huffman.layout import CHUNK, STREAMS, HuffmanLayout, max_length
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import (
    address_of,
    load_u16,
    load_u32,
    load_u64,
    njit,
    store_u16,
    store_u32,
    store_u64,
)
from tersor.kernels.runtime.scratch import scratch

_U = types.uint64
_CODE = np.uint64(0xFFFFFFFFFFFFFF00)
"""Mask of the bits of a codebook entry that can hold the code."""


@njit(nogil=True, cache=True)
def _count_pairs(symbols: Any, counts: Any) -> None:
    """Count byte symbols of an alphabet of at most 32 two at a time, which takes half as long."""
    alphabet = counts.shape[1]
    # indexed by two symbols as they are in memory, read as 16 bits
    tables = np.empty((2, alphabet << 8), dtype=np.uint32)
    for second in range(alphabet):
        tables[:, second << 8 : (second << 8) + alphabet] = 0
    t0, t1, source = tables[0], tables[1], address_of(symbols)
    rounded = symbols.size // 4 * 4
    for i in range(0, rounded, 4):
        t0[load_u16(source + _U(i))] += np.uint32(1)
        t1[load_u16(source + _U(i + 2))] += np.uint32(1)
    for i in range(rounded, symbols.size):
        counts[0, symbols[i]] += np.uint32(1)
    for second in range(alphabet):
        for first in range(alphabet):
            pair = (second << 8) | first
            count = np.uint32(t0[pair] + t1[pair])
            counts[0, first] += count
            counts[1, second] += count


@njit(nogil=True, cache=True)
def _histogram_kernel(symbols: Any, counts: Any, start: int, stop: int) -> None:
    """Add the symbols ``[start, stop)`` to four tables of counts."""
    part = symbols[start:stop]
    if counts.shape[1] <= 32:
        _count_pairs(part, counts)
        return
    c0, c1, c2, c3 = counts[0], counts[1], counts[2], counts[3]
    rounded = part.size // 4 * 4
    # four tables, because incrementing the same counter twice in a row waits for its store
    for i in range(0, rounded, 4):
        c0[part[i]] += np.uint32(1)
        c1[part[i + 1]] += np.uint32(1)
        c2[part[i + 2]] += np.uint32(1)
        c3[part[i + 3]] += np.uint32(1)
    for i in range(rounded, part.size):
        c0[part[i]] += np.uint32(1)


@njit(nogil=True, cache=True)
def _codebook(lengths: Any) -> Any:
    """Return for each symbol its code in the highest bits and its length in the lowest 8."""
    codes = np.zeros(lengths.size, dtype=np.uint32)
    build_codes(lengths, codes)
    codebook = np.zeros(lengths.size, dtype=np.uint64)
    for symbol in range(lengths.size):
        length = _U(lengths[symbol])
        codebook[symbol] = (_U(codes[symbol]) << ((_U(64) - length) & _U(63))) | length
    return codebook


@njit(nogil=True, cache=True)
def _pair_codebook(codebook: Any) -> Any:
    """Return the codebook entry of every pair of symbols, indexed by ``first | second << 5``."""
    pairs = np.zeros(1024, dtype=np.uint64)
    for first in range(codebook.size):
        for second in range(codebook.size):
            before, after = codebook[first], codebook[second]
            code = ((before & _CODE) >> (after & _U(63))) | (after & _CODE)
            pairs[first | (second << 5)] = code | ((before + after) & ~_CODE)
    return pairs


@njit(nogil=True, cache=True, inline="always")
def _append(word: int, entry: int) -> int:
    """Shift ``word`` down by the entry's length and put the entry's code on top."""
    return (word >> (entry & _U(63))) | entry


@njit(nogil=True, cache=True)
def _finish_encoding(symbols: Any, i: int, codebook: Any, state: Any) -> int:
    """Write the rest of a stream, fewer than four symbols; return the address after it."""
    address, word, filled = state
    while i < symbols.size:
        entry = codebook[symbols[i]]
        word = _append(word, entry) & _CODE
        filled += entry & ~_CODE
        i += 1
    store_u64(address, (word >> _U(1)) >> (_U(63) - filled))
    return address + ((filled + _U(7)) >> _U(3))


@njit(nogil=True, cache=True)
def _encode_stream(symbols: Any, codebook: Any, address: int) -> int:
    """Write one stream, clobbering up to 8 bytes after it; return the address after it.

    The highest ``filled`` bits of ``word`` are the last bits of the stream. The lengths in the entries
    leave garbage in the lowest 8 bits of ``word``. Four codes of at most 14 bits and up to 7 bits left
    over fit, provided that the garbage of the last entry is masked off.
    """
    word, filled = _U(0), _U(0)
    rounded = symbols.size // 4 * 4
    for i in range(0, rounded, 4):
        e0, e1 = codebook[symbols[i]], codebook[symbols[i + 1]]
        e2, e3 = codebook[symbols[i + 2]], codebook[symbols[i + 3]]
        # combined as a tree, so that the four codes do not depend on the word
        later = (e2 >> (e3 & _U(63))) | (e3 & _CODE)
        nbits = (e2 + e3) & _U(63)
        four = (_append(e0, e1) >> nbits) | later
        nbits = (e0 + e1 + nbits) & _U(63)
        word = (word >> nbits) | four
        filled += nbits
        store_u64(address, word >> (_U(64) - filled))
        address += filled >> _U(3)
        filled &= _U(7)
    return _finish_encoding(symbols, rounded, codebook, (address, word, filled))


@njit(nogil=True, cache=True)
def _encode_stream_by_pairs(symbols: Any, pairs: Any, codebook: Any, address: int) -> int:
    """Do the same as ``_encode_stream`` with half the look-ups, for an alphabet of at most 32."""
    word, filled = _U(0), _U(0)
    source = address_of(symbols)
    rounded = symbols.size // 4 * 4
    for i in range(0, rounded, 4):
        four = _U(load_u32(source + _U(i)))
        first = pairs[(four & _U(31)) | ((four >> _U(3)) & _U(0x3E0))]
        second = pairs[((four >> _U(16)) & _U(31)) | ((four >> _U(19)) & _U(0x3E0))]
        nbits = (first + second) & _U(63)
        # at most 44 bits and 7 left over: the garbage stays below them
        word = (word >> nbits) | _append(first, second)
        filled += nbits
        store_u64(address, word >> (_U(64) - filled))
        address += filled >> _U(3)
        filled &= _U(7)
    return _finish_encoding(symbols, rounded, codebook, (address, word, filled))


@njit(nogil=True, cache=True)
def _encode_kernel(
    symbols: Any, codebook: Any, target: Any, sizes: Any, start: int, stop: int
) -> int:
    """Encode chunks ``[start, stop)`` back to back; return the number of bytes written.

    ``target`` must hold the worst case and 8 bytes more.
    """
    begin = address = address_of(target)
    by_pairs = codebook.size <= 32
    pairs = _pair_codebook(codebook if by_pairs else codebook[:0])
    for chunk in range(start, stop):
        part = symbols[chunk * CHUNK : min(chunk * CHUNK + CHUNK, symbols.size)]
        quarter = (part.size + STREAMS - 1) // STREAMS
        for stream in range(STREAMS):
            low = min(stream * quarter, part.size)
            mine = part[low : min(low + quarter, part.size)]
            if by_pairs:
                end = _encode_stream_by_pairs(mine, pairs, codebook, address)
            else:
                end = _encode_stream(mine, codebook, address)
            sizes[chunk * STREAMS + stream] = end - address
            address = end
    return int(address - begin)


@njit(nogil=True, cache=True)
def _plan(counts: Any, limit: int, lengths: Any) -> int:
    """Write the code lengths for the sum of all tables of counts; return the number of used symbols."""
    total = np.zeros(lengths.size, dtype=np.int64)
    for table in range(counts.shape[0]):
        for symbol in range(lengths.size):
            total[symbol] += counts[table, symbol]
    return build_lengths(total, limit, lengths)


@njit(nogil=True, cache=True)
def _write_head(lengths: Any, sizes: Any, sizes_start: int, streams_start: int, body: Any) -> int:
    """Write lengths, sizes and zero padding around the streams; return the body's size."""
    body[:streams_start] = 0
    for symbol in range(lengths.size):
        body[symbol >> 1] |= np.uint8(lengths[symbol] << (4 * (symbol & 1)))
    end = streams_start
    for k in range(sizes.size):
        body[sizes_start + 2 * k] = np.uint8(sizes[k] & 255)
        body[sizes_start + 2 * k + 1] = np.uint8(sizes[k] >> 8)
        end += sizes[k]
    nbytes = streams_start + (end - streams_start + 7) // 8 * 8 + TAIL_NBYTES
    body[end:nbytes] = 0
    return nbytes


@njit(nogil=True, cache=True)
def encode_into(symbols: Any, alphabet: int, limit: int, body: Any) -> int:
    """Encode on this thread into ``body``, which must hold the worst case; return the size."""
    num_chunks = (symbols.size + CHUNK - 1) // CHUNK
    counts = np.zeros((4, alphabet), dtype=np.uint32)
    _histogram_kernel(symbols, counts, 0, symbols.size)
    lengths = np.zeros(alphabet, dtype=np.uint8)
    num_used = _plan(counts, limit, lengths)
    sizes = np.zeros(num_chunks * STREAMS, dtype=np.int64)
    sizes_start = ((alphabet + 1) // 2 + 7) // 8 * 8
    streams_start = sizes_start + (2 * STREAMS * num_chunks + 7) // 8 * 8
    if num_used > 1:
        _encode_kernel(symbols, _codebook(lengths), body[streams_start:], sizes, 0, num_chunks)
    return _write_head(lengths, sizes, sizes_start, streams_start, body)


def _encode_in_parts(
    values: Any, layout: HuffmanLayout, limit: int, parts: list[tuple[int, int]]
) -> Any:
    """Encode each part of the chunks on its own thread, then concatenate their streams."""
    counts = np.zeros((len(parts), 4, layout.alphabet), dtype=np.uint32)
    cuts = [(s * CHUNK, min(e * CHUNK, values.size)) for s, e in parts]
    threads.run(_histogram_kernel, [(values, counts[k], *cut) for k, cut in enumerate(cuts)])
    lengths = np.zeros(layout.alphabet, dtype=np.uint8)
    num_used = _plan(counts.reshape(-1, layout.alphabet), limit, lengths)
    sizes = np.zeros(layout.num_chunks * STREAMS, dtype=np.int64)
    room = CHUNK * limit // 8 + TAIL_NBYTES
    words = scratch(layout.num_chunks * room)
    written = [0] * len(parts)
    if num_used > 1:
        codebook = _codebook(lengths)
        arguments = [(values, codebook, words[s * room :], sizes, s, e) for s, e in parts]
        written = threads.run(_encode_kernel, arguments)
    stretches = [words[s * room :][:n] for (s, _), n in zip(parts, written, strict=True)]
    body = np.empty(layout.body_nbytes(int(sizes.sum())), dtype=np.uint8)
    _write_head(lengths, sizes, layout.sizes_start, layout.streams_start, body)
    ends = layout.streams_start + np.cumsum(written)
    targets = [body[end - part.size : end] for end, part in zip(ends, stretches, strict=True)]
    threads.run(np.copyto, list(zip(targets, stretches, strict=True)))
    return body


def huffman_encode(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """See ``reference.huffman_encode``."""
    layout = HuffmanLayout(symbols.numel(), alphabet)
    values, limit = symbols.numpy(), max_length(alphabet)
    parts = threads.split(layout.num_chunks, 4 * CHUNK)
    if len(parts) > 1:
        return torch.from_numpy(_encode_in_parts(values, layout, limit, parts))
    body = scratch(layout.max_nbytes)
    return torch.from_numpy(body[: encode_into(values, alphabet, limit, body)].copy())


@njit(nogil=True, cache=True)
def _finish_stream(out: Any, done: int, single: Any, bit: int, end_bit: int) -> bool:
    """Decode the rest of one stream symbol by symbol; return whether it ends where it should.

    ``bit`` and ``end_bit`` are absolute bit addresses: address times eight.
    """
    mask = _U(single.size - 1)
    for i in range(done, out.size):
        if bit > end_bit:
            return False
        word = load_u64(bit >> _U(3)) >> (bit & _U(7))
        entry = single[word & mask]
        out[i] = out.dtype.type(entry & np.uint16(0xFFF))
        bit += _U(entry >> np.uint16(12))
    return (bit + _U(7)) >> _U(3) == end_bit >> _U(3)


@njit(nogil=True, cache=True)
def _finish_chunk(out: Any, single: Any, done: Any, bits: Any, ends: Any) -> bool:
    """Finish four streams from the symbols ``done`` and the next bits; return whether all end well."""
    quarter = (out.size + STREAMS - 1) // STREAMS
    good = True
    for k in range(STREAMS):
        low, high = min(k * quarter, out.size), min((k + 1) * quarter, out.size)
        good &= _finish_stream(out[low:high], done[k], single, bits[k], ends[k] * _U(8))
    return good


@njit(nogil=True, cache=True)
def _decode_chunk_multi(out: Any, single: Any, multi: Any, base: int, offsets: Any) -> bool:
    """Decode four streams of byte symbols in parallel, up to four symbols per look-up."""
    quarter = (out.size + STREAMS - 1) // STREAMS
    start, mask, eight = address_of(out), _U(multi.size - 1), _U(8)
    s1, s2 = start + _U(min(quarter, out.size)), start + _U(min(2 * quarter, out.size))
    s3, stop = start + _U(min(3 * quarter, out.size)), start + _U(out.size)
    o0, o1, o2, o3 = start, s1, s2, s3
    p0, p1 = base + _U(offsets[0]), base + _U(offsets[1])
    p2, p3 = base + _U(offsets[2]), base + _U(offsets[3])
    ends = (p1, p2, p3, base + _U(offsets[4]))
    n0, n1, n2, n3 = _U(0), _U(0), _U(0), _U(0)
    # per stream, a round writes at most 20 bytes and reads at most 8
    while (
        (o0 + _U(24) <= s1)
        & (o1 + _U(24) <= s2)
        & (o2 + _U(24) <= s3)
        & (o3 + _U(24) <= stop)
        & (p0 + eight <= ends[0])
        & (p1 + eight <= ends[1])
        & (p2 + eight <= ends[2])
        & (p3 + eight <= ends[3])
    ):
        b0, b1 = load_u64(p0) >> n0, load_u64(p1) >> n1
        b2, b3 = load_u64(p2) >> n2, load_u64(p3) >> n3
        # 5 look-ups of at most 11 bits use 55 of the 57 bits that are guaranteed to be loaded
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
    done = (o0 - start, o1 - s1, o2 - s2, o3 - s3)
    bits = (p0 * eight + n0, p1 * eight + n1, p2 * eight + n2, p3 * eight + n3)
    return _finish_chunk(out, single, done, bits, ends)


@njit(nogil=True, cache=True)
def _decode_chunk_wide(out: Any, single: Any, base: int, offsets: Any) -> bool:
    """Decode four streams of two-byte symbols in parallel, one symbol per look-up.

    Codes of wide alphabets are long. Tables with two or three symbols per entry, of two or four times
    32 KiB, were slower on codes of 8.7 bits (20 and 23 ms, against 16 ms for 16 M symbols).
    """
    quarter = (out.size + STREAMS - 1) // STREAMS
    shortest = out.size - 3 * quarter
    mask, eight = _U(single.size - 1), _U(8)
    o0 = address_of(out)
    o1, o2, o3 = o0 + _U(2 * quarter), o0 + _U(4 * quarter), o0 + _U(6 * quarter)
    p0, p1 = base + _U(offsets[0]), base + _U(offsets[1])
    p2, p3 = base + _U(offsets[2]), base + _U(offsets[3])
    ends = (p1, p2, p3, base + _U(offsets[4]))
    n0, n1, n2, n3 = _U(0), _U(0), _U(0), _U(0)
    i = 0
    while (
        (i + 4 <= shortest)
        & (p0 + eight <= ends[0])
        & (p1 + eight <= ends[1])
        & (p2 + eight <= ends[2])
        & (p3 + eight <= ends[3])
    ):
        b0, b1 = load_u64(p0) >> n0, load_u64(p1) >> n1
        b2, b3 = load_u64(p2) >> n2, load_u64(p3) >> n3
        # 4 look-ups of at most 14 bits use 56 of the 57 bits that are guaranteed to be loaded
        for k in range(4):
            w0, w1 = _U(single[b0 & mask]), _U(single[b1 & mask])
            w2, w3 = _U(single[b2 & mask]), _U(single[b3 & mask])
            at = _U(2 * (i + k))
            store_u16(o0 + at, np.uint16(w0 & _U(0xFFF)))
            store_u16(o1 + at, np.uint16(w1 & _U(0xFFF)))
            store_u16(o2 + at, np.uint16(w2 & _U(0xFFF)))
            store_u16(o3 + at, np.uint16(w3 & _U(0xFFF)))
            k0, k1, k2, k3 = w0 >> _U(12), w1 >> _U(12), w2 >> _U(12), w3 >> _U(12)
            b0, b1, b2, b3 = b0 >> k0, b1 >> k1, b2 >> k2, b3 >> k3
            n0, n1, n2, n3 = n0 + k0, n1 + k1, n2 + k2, n3 + k3
        i += 4
        p0, n0 = p0 + (n0 >> _U(3)), n0 & _U(7)
        p1, n1 = p1 + (n1 >> _U(3)), n1 & _U(7)
        p2, n2 = p2 + (n2 >> _U(3)), n2 & _U(7)
        p3, n3 = p3 + (n3 >> _U(3)), n3 & _U(7)
    bits = (p0 * eight + n0, p1 * eight + n1, p2 * eight + n2, p3 * eight + n3)
    return _finish_chunk(out, single, (i, i, i, i), bits, ends)


@njit(nogil=True, cache=True)
def _decode_kernel(
    streams: Any, offsets: Any, single: Any, multi: Any, out: Any, start: int, stop: int
) -> bool:
    """Decode chunks ``[start, stop)``; return whether every stream was well formed."""
    base = address_of(streams)
    good = True
    for chunk in range(start, stop):
        part = out[chunk * CHUNK : min(chunk * CHUNK + CHUNK, out.size)]
        marks = offsets[chunk * STREAMS : chunk * STREAMS + STREAMS + 1]
        if multi.size > 0:
            good &= _decode_chunk_multi(part, single, multi, base, marks)
        else:
            good &= _decode_chunk_wide(part, single, base, marks)
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
    # every symbol takes at least one bit, so the streams cannot all be empty
    good = is_complete(lengths, limit) and (offsets[-1] > 0 or num_streams == 0)
    return nbytes if good else -1


@njit(nogil=True, cache=True)
def _decoder(lengths: Any, limit: int) -> Any:
    """Return the single-symbol and the multi-symbol table; the latter is empty for wide alphabets."""
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
