"""Decoders of the bodies that hold codes or streams of others, written from docs/format.md alone."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import xxhash

from tests.container.stranger import require


class Cursor:
    """Takes one part after the other; all that is taken must be there."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, nbytes: int) -> bytes:
        part = self.data[self.position : self.position + nbytes]
        require(len(part) == nbytes, "a part is cut off")
        self.position += nbytes
        return part

    def record(self, kinds: str) -> tuple[Any, ...]:
        part = self.take(struct.calcsize(f"<{kinds}"))
        values = struct.unpack(f"<{kinds}", part)
        reserved_are_zero = "x" not in kinds or struct.pack(f"<{kinds}", *values) == part
        require(reserved_are_zero, "bytes that must be zero")
        return values

    def numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        return self.record(f"{count}{kind}") if count else ()

    def fields(self, width: int, count: int) -> list[int]:
        return bit_fields(self.take(math.ceil(width * count / 8)), width, count)

    def pad8(self) -> None:
        self.take(-self.position % 8)

    def end(self) -> None:
        require(self.position == len(self.data), "bytes left over")


def rising(positions: tuple[int, ...], stop: int) -> bool:
    return list(positions) == sorted({p for p in positions if p < stop})


def wrapped(code: int) -> int:
    return (code + 2**31) % 2**32 - 2**31


def bit_fields(data: bytes, width: int, count: int) -> list[int]:
    if width == 0:
        return [0] * count
    fields = []
    for bit in range(0, width * count, width):
        covering = int.from_bytes(data[bit // 8 : (bit + width + 7) // 8], "little")
        fields.append((covering >> bit % 8) % (1 << width))
    return fields


def packed_codes(body: Cursor, count: int, block: int, has_bases: bool) -> list[int]:
    num_blocks = math.ceil(count / block)
    bases = packed_codes(body, num_blocks, 32, False) if has_bases else []
    offsets = body.numbers("I", math.ceil(count / 1024) + 1)
    body.pad8()
    widths = body.take(num_blocks)
    body.pad8()
    require(all(width <= 32 for width in widths), "width")
    codes, num_words, base = [], 0, 0
    for b, width in enumerate(widths):
        if b * block % 1024 == 0:
            require(offsets[b * block // 1024] == num_words, "tile offset")
        block_words = width * block // 32
        fields = bit_fields(body.take(4 * block_words), width, block)
        num_words += block_words
        if has_bases:
            base += bases[b]
            codes += [wrapped(base + field) for field in fields]
        else:
            codes += [-(field + 1) // 2 if field % 2 else field // 2 for field in fields]
    require(offsets[-1] == num_words, "number of words")
    body.pad8()
    body.take(16)
    return codes[:count]


def symbol_codes(
    body: Cursor,
    count: int,
    coder: str,
    table: list[int] | None = None,
    is_index: bool = False,
) -> list[int]:
    low, alphabet, num_escapes = body.record("iHxxIxxxx")
    require(1 <= alphabet <= 4096 and low + alphabet <= 2**31, "alphabet")
    require(num_escapes <= count, "number of escapes")
    if table is not None:
        require((alphabet, low) == (len(table), -((len(table) - 1) // 2)), "static alphabet")
    require(not is_index or (low == 0 and num_escapes == 0), "alphabet of an index")
    positions = body.numbers("I", num_escapes)
    escape_codes = body.numbers("i", num_escapes)
    require(rising(positions, count), "escape position")
    if coder == "huffman":
        symbols = huffman_symbols(body, count, alphabet)
    else:
        symbols = rans_symbols(body, count, alphabet, table)
    codes = [low + symbol for symbol in symbols]
    for position, code in zip(positions, escape_codes, strict=True):
        codes[position] = code
    return codes


def huffman_symbols(body: Cursor, count: int, alphabet: int) -> list[int]:
    halves = [half for byte in body.take((alphabet + 1) // 2) for half in (byte & 15, byte >> 4)]
    body.pad8()
    lengths = halves[:alphabet]
    num_segments = math.ceil(count / 32768)
    sizes = body.numbers("H", 4 * num_segments)
    body.pad8()
    streams = [body.take(size) for size in sizes]
    body.pad8()
    body.take(16)
    used = [symbol for symbol, length in enumerate(lengths) if length]
    if len(used) == 1:
        require(lengths[used[0]] == 1 and not any(sizes), "single symbol")
        return used * count
    require(max(lengths) <= (11 if alphabet <= 256 else 14), "length")
    require(sum(2.0 ** -lengths[symbol] for symbol in used) == 1, "complete code")
    table = canonical_table(lengths)
    symbols = []
    for segment in range(num_segments):
        left = min(32768, count - segment * 32768)
        quarter = math.ceil(left / 4)
        for stream in streams[4 * segment : 4 * segment + 4]:
            symbols += stream_symbols(stream, table, min(quarter, left))
            left -= min(quarter, left)
    return symbols


def canonical_table(lengths: list[int]) -> dict[tuple[int, int], int]:
    """Return the symbol of every (length, code)."""
    table: dict[tuple[int, int], int] = {}
    code, previous = -1, 0
    for length, symbol in sorted((length, s) for s, length in enumerate(lengths) if length):
        code = (code + 1) << (length - previous) if table else 0
        table[length, code] = symbol
        previous = length
    return table


def stream_symbols(stream: bytes, table: dict[tuple[int, int], int], count: int) -> list[int]:
    symbols, bit = [], 0
    for _ in range(count):
        length = code = 0
        while (length, code) not in table:
            require(bit < 8 * len(stream), "a stream ends early")
            code = code << 1 | stream[bit // 8] >> bit % 8 & 1
            length, bit = length + 1, bit + 1
        symbols.append(table[length, code])
    require(math.ceil(bit / 8) == len(stream), "a stream ends late")
    return symbols


def rans_symbols(body: Cursor, count: int, alphabet: int, table: list[int] | None) -> list[int]:
    num_bits = 12 if alphabet <= 256 else 14
    if table is None:
        table = list(body.numbers("H", alphabet))
        body.pad8()
    require(sum(table) == 1 << num_bits, "frequencies")
    limits = ((2**15, 4096), (2**17, 8192))
    block = next((size for limit, size in limits if count < limit), 16384)
    num_blocks = math.ceil(count / block)
    offsets = body.numbers("I", num_blocks + 1)
    body.pad8()
    require(offsets[0] == 0 and list(offsets) == sorted(offsets), "block offsets")
    used = [symbol for symbol, frequency in enumerate(table) if frequency]
    if len(used) == 1:
        require(offsets[-1] == 0, "words of a single symbol")
        return used * count
    states = body.numbers("I", 32 * num_blocks)
    words = body.numbers("H", offsets[-1])
    body.pad8()
    symbols = []
    for b in range(num_blocks):
        part = words[offsets[b] : offsets[b + 1]]
        symbols += block_symbols(
            list(states[32 * b : 32 * b + 32]), part, table, min(block, count - b * block)
        )
    return symbols


def block_symbols(x: list[int], words: tuple[int, ...], table: list[int], count: int) -> list[int]:
    cumulative = list(itertools.accumulate(table, initial=0))
    symbol_of = [symbol for symbol, frequency in enumerate(table) for _ in range(frequency)]
    scale = len(symbol_of)
    symbols, p = [], 0
    for i in range(count):
        lane = i % 32
        rest, slot = divmod(x[lane], scale)
        s = symbol_of[slot]
        x[lane] = table[s] * rest + slot - cumulative[s]
        if x[lane] < 2**15:
            require(p < len(words), "a block ends early")
            x[lane] = x[lane] * 2**16 + words[p]
            p += 1
        symbols.append(s)
    require(p == len(words) and x == [2**15] * 32, "end of a block")
    return symbols


def frame_codes(body: Cursor, count: int, codec_id: str) -> list[int]:
    low, code_nbytes = body.record("iB3x")
    require(code_nbytes in (1, 2, 4), "bytes per code")
    sizes = body.numbers("I", math.ceil(count / 2**20))
    body.pad8()
    codes = []
    for index, size in enumerate(sizes):
        num_codes = min(2**20, count - index * 2**20)
        plain = decompress(body.take(size), num_codes * code_nbytes, codec_id)
        planes = [plain[p * num_codes : (p + 1) * num_codes] for p in range(code_nbytes)]
        codes += [
            wrapped(low + int.from_bytes(code, "little")) for code in zip(*planes, strict=True)
        ]
    body.pad8()
    return codes


def decompress(frame: bytes, nbytes: int, codec_id: str) -> bytes:
    # here, because machines that only run the GPU tests need not have them
    import lz4.block
    import zstandard

    try:
        if codec_id == "lz4":
            plain = lz4.block.decompress(frame, uncompressed_size=nbytes)
        else:
            stated = zstandard.get_frame_parameters(frame).content_size
            require(stated == nbytes, "content size of a frame")
            plain = zstandard.ZstdDecompressor().decompress(frame)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise ValueError(f"malformed file: {error}") from error
    require(len(plain) == nbytes, "size of a frame")
    return plain


def foreign_values(body: Cursor, shape: list[int], codec_id: str, dtype: str) -> list[float]:
    """Return the values of a stream that SZ3 or zfp wrote."""
    nbytes, checksum = body.record("QQ")
    stream = body.take(nbytes)
    body.pad8()
    require(xxhash.xxh3_64_intdigest(stream) == checksum, "checksum of a stream")
    sizes = [size for size in shape if size != 1] or [1]
    most = (48, 24, 16, 12) if codec_id == "zfp" else (64,) * 4
    while len(sizes) > 4 or max(sizes) > 2 ** most[len(sizes) - 1]:
        sizes = [sizes[0] * sizes[1], *sizes[2:]]
    if codec_id == "sz3":
        import pysz

        data = np.frombuffer(stream, np.uint8)
        return pysz.sz.decompress(data, dtype, sizes)[0].reshape(-1).tolist()
    import zfpy

    values = zfpy.decompress_numpy(stream)
    require((values.shape, values.dtype) == (tuple(sizes), np.dtype(dtype)), "header of zfp")
    return values.reshape(-1).tolist()
