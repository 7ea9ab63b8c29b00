"""Huffman coding in Triton: the host builds the code from one small table of counts.

Encoding runs one program per stream. Decoding runs one lane per stream, 32 of them in a warp.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.kernels.entropy.huffman.cpu.prefix_code import (
    build_codes,
    build_lengths,
    multi_table,
    single_table,
)
from tersor.kernels.entropy.huffman.layout import CHUNK, STREAMS, HuffmanLayout, max_length
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.entropy.symbols.gpu.histogram import symbol_counts
from tersor.kernels.runtime.gpu.launch import jit_kernel

_CHUNK, _STREAMS = tl.constexpr(CHUNK), tl.constexpr(STREAMS)
_LANES = tl.constexpr(32)
_TILE: Final = 2048
_COPIED: Final = 1024


@triton.jit
def _stream_part(stream, num_symbols):
    """Return the first symbol and the number of symbols of each stream; 0 beyond the last chunk."""
    start = stream // _STREAMS * _CHUNK
    chunk_size = tl.minimum(tl.maximum(num_symbols - start, 0), _CHUNK)
    quarter = (chunk_size + (_STREAMS - 1)) // _STREAMS
    low = tl.minimum(stream % _STREAMS * quarter, chunk_size)
    return start + low, tl.minimum(quarter, chunk_size - low).to(tl.int32)


@triton.jit
def _joined_pairs(codes, nbits):
    """Append every second code to its predecessor."""
    half: tl.constexpr = codes.shape[0] // 2
    first, second = tl.split(tl.reshape(codes, [half, 2]))
    first_nbits, second_nbits = tl.split(tl.reshape(nbits, [half, 2]))
    return first | (second << first_nbits), first_nbits + second_nbits


@jit_kernel(do_not_specialize=["num_symbols"])
def _encode_kernel(
    symbols, num_symbols, codebook, words, ends, SLOT: tl.constexpr, TILE: tl.constexpr
):
    """One program writes one stream into its slot of ``SLOT`` words, which must be zeroed.

    Four codes of at most 14 bits are joined in 64 bits before atomics combine them with their
    neighbours in memory.
    """
    stream = tl.program_id(0).to(tl.int64)
    first, count = _stream_part(stream, num_symbols)
    target = words + stream * SLOT
    bit = tl.full((), 0, tl.int64)
    for start in range(0, count, TILE):
        position = start + tl.arange(0, TILE)
        inside = position < count
        symbol = tl.load(symbols + first + position, mask=inside, other=0).to(tl.int32)
        entry = tl.load(codebook + symbol, mask=inside, other=0).to(tl.int64)
        codes, nbits = _joined_pairs(entry & 0xFFFF, entry >> 16)
        codes, nbits = _joined_pairs(codes, nbits)
        place = bit + tl.cumsum(nbits, axis=0) - nbits
        shift = place & 31
        low = codes << shift
        # a shift by 64 is undefined, so the part above bit 64 is shifted in two steps
        high = (codes >> 32) >> (32 - shift)
        word = target + (place >> 5)
        tl.atomic_or(word, low.to(tl.int32), mask=nbits > 0)
        tl.atomic_or(word + 1, (low >> 32).to(tl.int32), mask=(low >> 32) != 0)
        tl.atomic_or(word + 2, high.to(tl.int32), mask=high != 0)
        bit += tl.sum(nbits, axis=0)
    tl.store(ends + stream + 1, (bit + 7) >> 3)


@jit_kernel()
def _place_kernel(slots, ends, streams, SLOT_NBYTES: tl.constexpr, COPIED: tl.constexpr):
    """One program copies one stream from its slot to its final position."""
    stream = tl.program_id(0).to(tl.int64)
    start, end = tl.load(ends + stream), tl.load(ends + stream + 1)
    for first in range(0, (end - start).to(tl.int32), COPIED):
        k = first + tl.arange(0, COPIED)
        inside = k < end - start
        found = tl.load(slots + stream * SLOT_NBYTES + k, mask=inside, other=0)
        tl.store(streams + start + k, found, mask=inside)


def huffman_encode(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """See ``reference.huffman_encode``; waits for the device twice, for the counts and for the size."""
    place, device = HuffmanLayout(symbols.numel(), alphabet), symbols.device
    if symbols.numel() == 0:
        return torch.zeros(place.body_nbytes(0), dtype=torch.uint8, device=device)
    counts = symbol_counts(symbols, alphabet).sum(0)[:alphabet].cpu().numpy()
    lengths = np.zeros(alphabet, dtype=np.uint8)
    num_used = build_lengths(counts, max_length(alphabet), lengths)
    head = np.zeros(place.sizes_start, dtype=np.uint8)
    head[: (alphabet + 1) // 2] = lengths[::2]
    head[: alphabet // 2] |= lengths[1::2] << 4
    num_streams = STREAMS * place.num_chunks
    ends = torch.zeros(num_streams + 1, dtype=torch.int64, device=device)
    if num_used <= 1:
        return _body(place, head, ends, 0)
    slot = ceil_div(CHUNK // STREAMS * max_length(alphabet), 32) + 2
    words = torch.zeros(num_streams * slot, dtype=torch.int32, device=device)
    _encode_kernel[(num_streams,)](
        symbols, symbols.numel(), _codebook(lengths, device), words, ends, SLOT=slot, TILE=_TILE
    )
    ends.cumsum_(0)
    body = _body(place, head, ends, int(ends[-1]))
    _place_kernel[(num_streams,)](
        words.view(torch.uint8),
        ends,
        body[place.streams_start :],
        SLOT_NBYTES=4 * slot,
        COPIED=_COPIED,
    )
    return body


def _codebook(lengths: Any, device: torch.device) -> torch.Tensor:
    """Return ``code | length << 16`` for each symbol, int32."""
    codes = np.zeros(lengths.size, dtype=np.uint32)
    build_codes(lengths, codes)
    codes |= lengths.astype(np.uint32) << 16
    return torch.from_numpy(codes.view(np.int32)).to(device)


def _body(place: HuffmanLayout, head: Any, ends: torch.Tensor, streams_nbytes: int) -> torch.Tensor:
    """Return a body that is complete except for the streams, which are zero."""
    body = torch.zeros(place.body_nbytes(streams_nbytes), dtype=torch.uint8, device=ends.device)
    body[: place.sizes_start] = torch.from_numpy(head)
    sizes = ends.diff().to(torch.int16).view(torch.uint8)
    body[place.sizes_start : place.sizes_start + sizes.numel()] = sizes
    return body


@triton.jit
def _next_bits(words, num_words, bit, active, LIMIT: tl.constexpr):
    """Return the next ``LIMIT`` bits of each stream from its absolute position ``bit``; 0 past the end."""
    index = bit >> 5
    inside = active & (index < num_words)
    low = tl.load(words + index, mask=inside, other=0).to(tl.int64) & 0xFFFFFFFF
    inside = active & (index + 1 < num_words)
    high = tl.load(words + index + 1, mask=inside, other=0).to(tl.int64)
    both = low | (high << 32)
    return ((both >> (bit & 31)) & ((1 << LIMIT) - 1)).to(tl.int32)


@jit_kernel(do_not_specialize=["num_words", "num_streams", "num_symbols"])
def _decode_kernel(
    words, num_words, offsets, num_streams, single, multi, out, num_symbols, status,
    LIMIT: tl.constexpr, NARROW_ALPHABET: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, decodes 32 streams in parallel.

    As long as four byte symbols are left, one look-up decodes up to four of them, then one at a time.
    A damaged stream may read on into the next one; this is detected after its last symbol.
    """
    stream = tl.program_id(0).to(tl.int64) * _LANES + tl.arange(0, _LANES)
    exists = stream < num_streams
    position, left = _stream_part(stream, num_symbols)
    bit = tl.load(offsets + stream, mask=exists, other=0) * 8
    end = tl.load(offsets + stream + 1, mask=exists, other=0)
    if NARROW_ALPHABET:
        while tl.max(left, axis=0) >= 4:
            active = left >= 4
            index = _next_bits(words, num_words, bit, active, LIMIT)
            entry = tl.load(multi + index, mask=active, other=0)
            found = (entry >> 40).to(tl.int32)
            tl.store(out + position, (entry & 0xFF).to(tl.uint8), mask=active)
            tl.store(out + position + 1, ((entry >> 8) & 0xFF).to(tl.uint8), mask=found > 1)
            tl.store(out + position + 2, ((entry >> 16) & 0xFF).to(tl.uint8), mask=found > 2)
            tl.store(out + position + 3, ((entry >> 24) & 0xFF).to(tl.uint8), mask=found > 3)
            bit += (entry >> 32) & 0xFF
            position += found
            left -= found
    while tl.max(left, axis=0) >= 1:
        active = left >= 1
        index = _next_bits(words, num_words, bit, active, LIMIT)
        entry = tl.load(single + index, mask=active, other=0).to(tl.int32) & 0xFFFF
        tl.store(out + position, entry & 0xFFF, mask=active)
        bit += (entry >> 12).to(tl.int64)
        position += 1
        left -= 1
    num_wrong = tl.sum((exists & (((bit + 7) >> 3) != end)).to(tl.int32), axis=0)
    if num_wrong > 0:
        tl.store(status, 1)


def _tables(lengths: Any, limit: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tables that decode one symbol per look-up and, for byte symbols, up to four."""
    table = single_table(lengths, limit)
    single = torch.from_numpy(table.view(np.int16)).to(device)
    if lengths.size > NARROW:
        return single, single
    return single, torch.from_numpy(multi_table(table, limit).view(np.int64)).to(device)


def huffman_decode(body: torch.Tensor, num_symbols: int, alphabet: int) -> tuple[torch.Tensor, int]:
    """See ``reference.huffman_decode``; waits for the device twice, for the code and for the status."""
    place, device = HuffmanLayout(num_symbols, alphabet), body.device
    head = body[: place.streams_start].cpu().numpy()
    lengths, offsets, nbytes = place.read(head, body.numel())
    dtype = torch.uint8 if alphabet <= NARROW else torch.int16
    if int((lengths > 0).sum()) <= 1:
        symbol = int(lengths.argmax()) if num_symbols else 0
        return torch.full((num_symbols,), symbol, dtype=dtype, device=device), nbytes
    out = torch.empty(num_symbols, dtype=dtype, device=device)
    if num_symbols == 0:
        return out, nbytes
    # the kernel reads aligned 4-byte words, but a body sliced out of a buffer may start anywhere
    body = body if body.data_ptr() % 4 == 0 else body.clone()
    words = body[place.streams_start : nbytes].view(torch.int32)
    single, multi = _tables(lengths, max_length(alphabet), device)
    status = torch.zeros(1, dtype=torch.int32, device=device)
    num_streams = offsets.size - 1
    _decode_kernel[(ceil_div(num_streams, _LANES.value),)](
        words,
        words.numel(),
        torch.from_numpy(offsets).to(device),
        num_streams,
        single,
        multi,
        out,
        num_symbols,
        status,
        LIMIT=max_length(alphabet),
        NARROW_ALPHABET=alphabet <= NARROW,
        num_warps=1,
    )
    if int(status):
        raise CorruptDataError("a Huffman stream does not end where it should")
    return out, nbytes
