"""Huffman encoding in numba: chunks of four streams, several byte symbols at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types

from tersor.kernels.entropy.huffman.cpu.prefix_code import build_codes, build_lengths
from tersor.kernels.entropy.huffman.layout import CHUNK, STREAMS, HuffmanLayout, max_length
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import address_of, load_u16, load_u32, njit, store_u64
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
