"""Huffman coding in plain torch. Layout: ``huffman/layout.py``."""

from __future__ import annotations

import numpy as np
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.huffman.layout import (
    CHUNK,
    STREAMS,
    HuffmanLayout,
    canonical_codes,
    code_lengths,
    max_length,
)


def huffman_encode(symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
    """Encode symbols below ``alphabet`` into a uint8 body whose size is a multiple of 8 bytes.

    Example:
        >>> huffman_encode(torch.zeros(100, dtype=torch.uint8), 1).numel()
        32
    """
    layout = HuffmanLayout(symbols.numel(), alphabet)
    counts = torch.bincount(symbols.to(torch.int64), minlength=alphabet).cpu().numpy()
    lengths = code_lengths(counts, max_length(alphabet))
    stream, start_bit, sizes = _place(symbols, lengths, layout)
    body = np.zeros(layout.body_nbytes(int(sizes.sum())), dtype=np.uint8)
    padded_lengths = np.append(lengths, np.zeros(alphabet % 2, dtype=np.uint8)).reshape(-1, 2)
    body[: len(padded_lengths)] = padded_lengths[:, 0] | padded_lengths[:, 1] << 4
    sizes_end = layout.sizes_start + 2 * sizes.size
    body[layout.sizes_start : sizes_end] = sizes.astype(np.uint16).view(np.uint8)
    if sizes.any():
        starts = torch.from_numpy(np.cumsum(sizes) - sizes)[stream] * 8 + start_bit
        codes = torch.from_numpy(canonical_codes(lengths).astype(np.int64))
        bits = np.zeros(8 * (body.size - layout.streams_start), dtype=np.uint8)
        index = symbols.to(torch.int64).cpu()
        for bit in range(max_length(alphabet)):
            present = torch.from_numpy(lengths.astype(np.int64))[index] > bit
            bits[(starts[present] + bit).numpy()] = ((codes[index[present]] >> bit) & 1).numpy()
        body[layout.streams_start :] = np.packbits(bits, bitorder="little")
    return torch.from_numpy(body).to(symbols.device)


def _stream_of(layout: HuffmanLayout) -> torch.Tensor:
    """Return the stream number of every symbol."""
    position = torch.arange(layout.num_symbols, device="cpu")
    chunk = position // CHUNK
    last = layout.num_symbols - (layout.num_chunks - 1) * CHUNK
    chunk_size = torch.where(chunk == layout.num_chunks - 1, last, CHUNK)
    quarter = (chunk_size + STREAMS - 1) // STREAMS
    return chunk * STREAMS + (position % CHUNK) // quarter


def _place(
    symbols: torch.Tensor, lengths: np.ndarray, layout: HuffmanLayout
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Return the stream and first bit of each symbol, and the size in bytes of each stream."""
    num_streams = STREAMS * layout.num_chunks
    if (lengths > 0).sum() <= 1:
        empty = torch.zeros(symbols.numel(), dtype=torch.int64, device="cpu")
        return empty, empty, np.zeros(num_streams, dtype=np.int64)
    stream = _stream_of(layout)
    nbits = torch.from_numpy(lengths.astype(np.int64))[symbols.to(torch.int64).cpu()]
    end = nbits.cumsum(0)
    stream_nbits = torch.zeros(num_streams, dtype=torch.int64, device="cpu").scatter_add_(
        0, stream, nbits
    )
    before = stream_nbits.cumsum(0) - stream_nbits
    return stream, end - nbits - before[stream], ((stream_nbits + 7) // 8).numpy()


def huffman_decode(body: torch.Tensor, num_symbols: int, alphabet: int) -> tuple[torch.Tensor, int]:
    """Return the symbols (uint8, or int16 above 256) and the number of body bytes read.

    Raises:
        CorruptDataError: the body is not one that ``huffman_encode`` could have written.
    """
    layout = HuffmanLayout(num_symbols, alphabet)
    data = body.cpu().numpy()
    lengths, offsets, nbytes = layout.read(data)
    dtype = torch.uint8 if alphabet <= 256 else torch.int16
    symbols = torch.zeros(num_symbols, dtype=torch.int64, device="cpu")
    if (lengths > 0).sum() <= 1:
        symbols += int(lengths.argmax()) if num_symbols else 0
        return symbols.to(dtype).to(body.device), nbytes
    _decode_streams(
        torch.from_numpy(data[layout.streams_start : nbytes]), lengths, offsets, symbols
    )
    return symbols.to(dtype).to(body.device), nbytes


def _decode_streams(
    streams: torch.Tensor, lengths: np.ndarray, offsets: np.ndarray, symbols: torch.Tensor
) -> None:
    """Decode all streams in lockstep, one symbol per stream and round."""
    layout = HuffmanLayout(symbols.numel(), lengths.size)
    symbol_of, length_of = decode_table(lengths, max_length(lengths.size))
    stream_sizes = torch.bincount(_stream_of(layout), minlength=STREAMS * layout.num_chunks)
    first = stream_sizes.cumsum(0) - stream_sizes
    bit = torch.from_numpy(offsets[:-1] * 8)
    limit = torch.from_numpy(offsets[1:] * 8)
    data = streams.to(torch.int64)
    for step in range(int(stream_sizes.max())):
        active = torch.nonzero(stream_sizes > step).view(-1)
        byte = bit[active] >> 3
        window = data[byte] | data[byte + 1] << 8 | data[byte + 2] << 16
        window = (window >> (bit[active] & 7)) & ((1 << max_length(lengths.size)) - 1)
        symbols[first[active] + step] = symbol_of[window]
        bit[active] += length_of[window]
        if bool((bit[active] > limit[active]).any()):
            raise CorruptDataError("a Huffman stream ends early")
    if not torch.equal((bit + 7) >> 3, limit >> 3):
        raise CorruptDataError("a Huffman stream has bytes left over")


def decode_table(lengths: np.ndarray, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the symbol and the code length for each possible value of the next ``limit`` bits."""
    symbol_of = torch.zeros(1 << limit, dtype=torch.int64, device="cpu")
    length_of = torch.zeros(1 << limit, dtype=torch.int64, device="cpu")
    codes = canonical_codes(lengths)
    for symbol in np.flatnonzero(lengths):
        symbol_of[int(codes[symbol]) :: 1 << int(lengths[symbol])] = int(symbol)
        length_of[int(codes[symbol]) :: 1 << int(lengths[symbol])] = int(lengths[symbol])
    return symbol_of, length_of
