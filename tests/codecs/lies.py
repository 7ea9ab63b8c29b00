"""Payloads whose parts agree with each other and claim more than there is.

A changed bit is mostly noticed as a contradiction. These are not: widths fit offsets, code lengths
are complete, frequencies add up; only the coded data ends too early. Layouts: docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

NUM_VALUES: Final = 2500
SHAPE: Final = (NUM_VALUES,)
Lie = tuple[str, bytes]


def lies(codec_id: str, options: dict[str, object]) -> Iterator[Lie]:
    """Yield payloads for a float32 vector of ``NUM_VALUES`` values."""
    bodies = {
        "flat": _packed,
        "delta": _packed,
        "huffman": _huffman,
        "ans": _rans,
        "lz4": _frames,
        "zstd": _frames,
        "rows": _rows,
        "rms": _scaled,
    }
    if codec_id in bodies:
        for label, body in bodies[codec_id](options):
            yield f"lie {label}", _sealed(body)


def _sealed(body: bytes) -> bytes:
    return struct.pack("<B3xIdQ", 1, 0, 0.5, len(body)) + body


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 8) * 8, b"\0")


def _cut(whole: bytes) -> Iterator[Lie]:
    """Yield what is left of the coded data, always whole words of 8 bytes."""
    for nbytes in {0, 8, 16, 24, len(whole) // 16 * 8, len(whole) - 16, len(whole) - 8, len(whole)}:
        yield f"{nbytes} of {len(whole)}", whole[: max(0, nbytes)]


def _packed(options: dict[str, object], num_codes: int = NUM_VALUES) -> Iterator[Lie]:
    block = int(str(options.get("block", 32)))
    leads = [b""]
    if options.get("base"):
        num_blocks = -(-num_codes // block)
        leads = [body for _, body in _packed({}, num_blocks)]
    for lead in leads[:4] + leads[-4:]:
        for width in (0, 1, 7, 8, 9, 16, 17, 31, 32, 33, 64, 255):
            for fill in (b"\0", b"\xff"):
                for label, words in _cut(_words(num_codes, block, width, fill)):
                    head = _packed_head(num_codes, block, width)
                    yield f"width {width} {label}", lead + head + words


def _words(num_codes: int, block: int, width: int, fill: bytes) -> bytes:
    return _padded(fill * (4 * -(-num_codes // block) * (block // 32) * width)) + bytes(16)


def _packed_head(num_codes: int, block: int, width: int) -> bytes:
    num_blocks, num_tiles = -(-num_codes // block), -(-num_codes // 1024)
    per_tile = 1024 // block * (block // 32) * width
    total = num_blocks * (block // 32) * width
    offsets = [min(tile * per_tile, total) for tile in range(num_tiles)] + [total]
    return _padded(struct.pack(f"<{len(offsets)}I", *offsets)) + _padded(
        bytes([width]) * num_blocks
    )


def _symbols_head(alphabet: int, low: int = 0) -> bytes:
    return struct.pack("<iHxxIxxxx", low, alphabet, 0)


def _huffman(options: dict[str, object], num_symbols: int = NUM_VALUES) -> Iterator[Lie]:
    del options
    num_streams = 4 * -(-num_symbols // 32768)
    codes = {"1 bit": [1, 1], "11 bits": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11]}
    codes |= {"8 bits": [8] * 256, "12 bits": [12] * 4096}
    codes["14 bits"] = [*range(1, 14), 14, 14, *[0] * 1000]
    for name, lengths in codes.items():
        nibbles = [*lengths, 0] if len(lengths) % 2 else lengths
        table = bytes(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))
        head = _symbols_head(len(lengths)) + _padded(table)
        for size in (0, 1, 8, 79, 100, 625, 5000, 65535):
            sizes = [size] * num_streams
            for claimed in (sizes, [*sizes[:-1], 0], [0] * (num_streams - 1) + [size]):
                start = head + _padded(struct.pack(f"<{num_streams}H", *claimed))
                for fill in (b"\0", b"\xff", b"\xb6"):
                    for label, streams in _cut(_padded(fill * sum(claimed)) + bytes(16)):
                        yield f"{name} streams of {claimed} {label}", start + streams


def _rans(options: dict[str, object], num_symbols: int = NUM_VALUES) -> Iterator[Lie]:
    num_blocks = -(-num_symbols // 4096)
    tables = {"even": [16] * 256, "steep": [4095, 1], "wide": [4] * 4096, "one": [0, 4096]}
    static = options.get("frequencies")
    if isinstance(static, tuple):
        tables = {"static": list(static)}
    for name, table in tables.items():
        low = -((len(table) - 1) // 2) if static else 0
        head = _symbols_head(len(table), low)
        if not static:
            head += _padded(struct.pack(f"<{len(table)}H", *table))
        for num_words in (0, 1, 31, 32, 33, 2000, 2**20, 2**32 - 1):
            offsets = [0] * num_blocks + [num_words]
            start = head + _padded(struct.pack(f"<{len(offsets)}I", *offsets))
            for state in (0, 1, 2**15, 2**31 - 1, 2**32 - 1):
                states = struct.pack("<I", state) * (32 * num_blocks)
                for fill in (b"\0", b"\xff"):
                    whole = states + _padded(fill * (2 * min(num_words, 3000)))
                    for label, rest in _cut(whole):
                        yield f"{name} {num_words} words, state {state}, {label}", start + rest


def _frames(options: dict[str, object]) -> Iterator[Lie]:
    del options
    for code_nbytes in (0, 1, 2, 3, 4, 255):
        for size in (0, 1, 40, 2**31, 2**32 - 1):
            head = struct.pack("<iB3xI4x", -5, code_nbytes, size)
            for fill in (b"\0", b"\xff", b"\x28\xb5\x2f\xfd"):
                for label, frame in _cut(_padded((fill * 40)[:40])):
                    yield f"{code_nbytes} bytes, frame of {size} {label}", head + frame


def _scaled(options: dict[str, object]) -> Iterator[Lie]:
    """Scales that are there, and a table that is that of rms with its usual step, or is not."""
    del options
    scales = _padded(struct.pack("<H", 0x7F00) * -(-NUM_VALUES // 256))
    for head in (struct.pack("<Q", 0), struct.pack("<Q", 1) + bytes(32)):
        for number, (label, body) in enumerate(_rans({})):
            if number % 11 == 0:
                yield f"scaled {label}", head + scales + body[16:]
        table = struct.pack("<33H", *[124] * 32, 128)
        for num_words in (0, 1, 500, 2**32 - 1):
            body = _padded(table) + struct.pack("<II", 0, num_words) + bytes(1128)
            yield f"scaled {num_words} words", head + scales + body


def _rows(options: dict[str, object]) -> Iterator[Lie]:
    """A vector is one row: one new row, so that its flag is all the index."""
    entropy = _rans if options.get("entropy") == "ans" else _huffman
    flags = struct.pack("<Q", 1)
    for number, (label, body) in enumerate(entropy({})):
        if number % 7 == 0 or label.endswith((" of 336", " of 2520")):
            yield f"row of {label}", struct.pack("<IBBxx", 1, 0, 0) + flags + body
    for label, index in entropy({}, 1):
        yield f"index of {label}", struct.pack("<IBBxx", 1, 1, 0) + index
