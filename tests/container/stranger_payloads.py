"""Decoders of all payloads written from docs/format.md alone; they share nothing with tersor.

Plain integers, floats and bytes: slow, and easy to compare with the page. A decoded value is held
as its bytes in the array's dtype, so that outliers need no conversion.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np

from tests.container.stranger import Array, Chunk, require
from tests.container.stranger_coders import (
    Cursor,
    foreign_values,
    frame_codes,
    packed_codes,
    rans_symbols,
    rising,
    symbol_codes,
    wrapped,
)

ITEMSIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "bool": 1} | {
    f"{kind}{bits}": bits // 8 for kind in "iu" for bits in (8, 16, 32, 64)
}
ITEMSIZES |= {"c64": 8, "c128": 16}


class Outliers(NamedTuple):
    """Exact values and where they belong."""

    positions: tuple[int, ...]
    values: list[bytes]

    def put(self, values: list[bytes]) -> list[bytes]:
        for position, value in zip(self.positions, self.values, strict=True):
            require(position < len(values), "outlier position")
            values[position] = value
        return values


def decode_array(array: Array) -> np.ndarray:
    """Return the array as bytes, one row of them per value; malformed payloads raise ValueError."""
    dtype = array.config["dtype"]
    data = b"".join(decode_chunk(chunk, dtype, array.config["codec"]) for chunk in array.chunks)
    return np.frombuffer(data, np.uint8).reshape(*array.config["shape"], ITEMSIZES[dtype])


def decode_chunk(chunk: Chunk, dtype: str, codec: dict[str, Any]) -> bytes:
    require(codec["version"] == 1, "codec version")
    cursor, count = Cursor(chunk.payload), math.prod(chunk.shape)
    if codec["id"] == "raw":
        data = cursor.take(count * ITEMSIZES[dtype])
    elif codec["id"] in ("half", "bf16"):
        data = b"".join(encode(value, dtype) for value in narrow_floats(cursor, codec["id"], count))
    elif codec["id"] == "fp8":
        data = b"".join(encode(value, dtype) for value in scaled_floats(cursor, codec, count))
    elif codec["id"] in ("group8", "group4"):
        data = b"".join(encode(value, dtype) for value in grouped_floats(cursor, codec, count))
    elif codec["id"] == "lossless":
        return exact_words(cursor, count * ITEMSIZES[dtype], ITEMSIZES[dtype])
    elif codec["id"] == "group2":
        data = b"".join(saturated(value, dtype) for value in range_floats(cursor, codec, count))
    elif codec["id"] in ("mask4", "mask2"):
        nbits = 4 if codec["id"] == "mask4" else 2
        data = b"".join(scaled_value(value, dtype) for value in masked_floats(cursor, nbits, count))
    else:
        return bounded(cursor, chunk.shape, dtype, codec)
    cursor.end()
    return data


def exact_words(cursor: Cursor, nbytes: int, itemsize: int) -> bytes:
    form, width, number = cursor.record("BB6xq")
    size = min(8, itemsize)
    count = nbytes // size
    if form == 0:
        data = cursor.take(nbytes)
        cursor.pad8()
    elif form == 1:
        both = [word.to_bytes(8, "little", signed=True)[:size] for word in cursor.numbers("q", 2)]
        data = b"".join(both[bit] for bit in cursor.fields(1, count))
        cursor.pad8()
    elif form == 2:
        words = [number + field for field in cursor.fields(width, count)]
        data = b"".join(word.to_bytes(8, "little", signed=True)[:size] for word in words)
        cursor.pad8()
    else:
        require(form == 3, "form")
        bits = cursor.fields(1, count)
        cursor.pad8()
        require(sum(bits) == number, "number of words")
        data = b"".join(cursor.take(size) if bit else bytes(size) for bit in bits)
        cursor.pad8()
    require(not any(cursor.data[cursor.position :]), "bytes after the last part")
    return data


def round_f32(value: float) -> float:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def encode(value: float, dtype: str) -> bytes:
    """Return the bytes of an f32 value (f64 if that is the dtype), rounded to ``dtype``."""
    if dtype == "bf16":
        (bits,) = struct.unpack("<I", struct.pack("<f", round_f32(value)))
        if math.isnan(value):
            return b"\xc0\x7f"
        return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    kind = {"f64": "<d", "f32": "<f", "f16": "<e"}[dtype]
    try:
        return struct.pack(kind, value)
    except OverflowError:
        return struct.pack(kind, math.copysign(math.inf, value))


def holds(value: float, dtype: str) -> bool:
    """Say whether ``dtype`` has a value equal to ``value``, which is finite."""
    if dtype == "bf16":
        return decode_upper_halves([*struct.unpack("<H", encode(value, dtype))])[0] == value
    kind = {"f64": "<d", "f32": "<f", "f16": "<e"}[dtype]
    return struct.unpack(kind, encode(value, dtype))[0] == value


def decode_upper_halves(halves: list[int]) -> list[float]:
    count = len(halves)
    return [*struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(h << 16 for h in halves)))]


def narrow_floats(cursor: Cursor, codec_id: str, count: int) -> list[float]:
    if codec_id == "half":
        return list(cursor.numbers("e", count))
    return decode_upper_halves([*cursor.numbers("H", count)])


def scaled_floats(cursor: Cursor, codec: dict[str, Any], count: int) -> list[float]:
    scales = cursor.numbers("f", math.ceil(count / codec["group"]))
    octets = cursor.take(count)
    return [
        round_f32(float_of_8_bits(octet, codec["format"]) * scales[i // codec["group"]])
        for i, octet in enumerate(octets)
    ]


def float_of_8_bits(octet: int, name: str) -> float:
    num_mantissa_bits, bias = {"e4m3": (3, 7), "e5m2": (2, 15)}[name]
    sign = -1.0 if octet & 0x80 else 1.0
    exponent, mantissa = divmod(octet & 0x7F, 1 << num_mantissa_bits)
    if name == "e4m3" and octet & 0x7F == 0x7F:
        return math.nan
    if name == "e5m2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    fraction = mantissa / (1 << num_mantissa_bits)
    if exponent == 0:
        return sign * 2.0 ** (1 - bias) * fraction
    return sign * 2.0 ** (exponent - bias) * (1 + fraction)


def grouped_floats(cursor: Cursor, codec: dict[str, Any], count: int) -> list[float]:
    group, nbits = codec["group"], 8 if codec["id"] == "group8" else 4
    num_groups = math.ceil(count / group)
    scales = cursor.numbers("f", num_groups)
    values = []
    for scale in scales:
        fields = list(cursor.take(group * nbits // 8))
        if nbits == 4:
            fields = [byte & 15 for byte in fields] + [byte >> 4 for byte in fields]
        values += [
            round_f32((field - 2 ** (nbits - 1)) * scale) if field else math.nan for field in fields
        ]
    if codec["hadamard"]:
        for start in range(0, len(values), 32):
            values[start : start + 32] = inverse_hadamard(values[start : start + 32])
    return values[:count]


def masked_floats(cursor: Cursor, nbits: int, count: int) -> list[float]:
    num_groups = math.ceil(count / 256)
    fractions = cursor.numbers("H", 2**nbits - 1)
    cursor.pad8()
    scales = cursor.numbers("H", num_groups)
    cursor.pad8()
    fields = cursor.fields(nbits, 256 * num_groups)
    factors = decode_upper_halves([scale & 0x7FFF for scale in scales])
    values = []
    for i, field in enumerate(fields[:count]):
        code = field - (2 ** (nbits - 1) if scales[i // 256] >> 15 else 0)
        part = 65536 * (abs(code) - 1) + fractions[abs(code) - 1] + 1 if code else 0
        values.append(math.copysign(part / 65536, code) * factors[i // 256])
    return values


def range_floats(cursor: Cursor, codec: dict[str, Any], count: int) -> list[float]:
    group = codec["group"]
    num_groups = math.ceil(count / group)
    minima = decode_upper_halves([*cursor.numbers("H", num_groups)])
    ranges = decode_upper_halves([*cursor.numbers("H", num_groups)])
    fields = cursor.fields(2, group * num_groups)
    levels = [round_f32(width / 3) for width in ranges]
    return [
        round_f32(round_f32(field * levels[i // group]) + minima[i // group])
        for i, field in enumerate(fields[:count])
    ]


def saturated(value: float, dtype: str) -> bytes:
    is_large = dtype == "f16" and abs(value) > 65504
    return encode(math.copysign(65504.0, value) if is_large else value, dtype)


def inverse_hadamard(y: list[float]) -> list[float]:
    for stride in (1, 2, 4, 8, 16):
        for i in range(32):
            if not i & stride:
                first, second = y[i], y[i + stride]
                y[i], y[i + stride] = round_f32(first + second), round_f32(first - second)
    return [round_f32(value / 32) for value in y]


def bounded(cursor: Cursor, shape: list[int], dtype: str, codec: dict[str, Any]) -> bytes:
    count, itemsize = math.prod(shape), ITEMSIZES[dtype]
    mode, num_outliers, step, body_nbytes = cursor.record("B3xIdQ")
    require(mode in (0, 1, 2) and math.isfinite(step), "mode or step")
    require(body_nbytes % 8 == 0 and num_outliers <= count, "body size or number of outliers")
    body = cursor.take(body_nbytes)
    positions = cursor.numbers("I", num_outliers)
    cursor.pad8()
    outliers = Outliers(positions, [cursor.take(itemsize) for _ in positions])
    cursor.pad8()
    require(not any(cursor.data[cursor.position :]), "bytes after the last part")
    require(rising(positions, count), "outlier position")
    if mode == 0:
        require(num_outliers == 0 and body_nbytes == (count * itemsize + 7) // 8 * 8, "exact body")
        return body[: count * itemsize]
    if mode == 2:
        require(body_nbytes == 0 and holds(step, dtype), "constant")
        return b"".join(outliers.put([encode(step, dtype)] * count))
    require(step_is_possible(step, dtype), "step")
    if codec["id"] == "rms":
        return b"".join(outliers.put(scaled_values(Cursor(body), count, dtype, codec, step)))
    return b"".join(coded(Cursor(body), shape, dtype, codec, step, outliers))


def scaled_values(
    body: Cursor, count: int, dtype: str, codec: dict[str, Any], step: float
) -> list[bytes]:
    require(step == round_f32(codec["step"]), "step of the codec")
    top = math.ceil(16 / step)
    (flags,) = body.record("Q")
    require(flags in (0, 1), "flags")
    fractions = body.numbers("H", top * flags)
    body.pad8()
    scales = body.numbers("H", math.ceil(count / 256))
    require(max(scales) < 0xFF00, "scale")
    body.pad8()
    symbols = rans_symbols(body, count, 2 * top + 1, None)
    body.end()
    scales = struct.unpack(
        f"<{len(scales)}f", struct.pack(f"<{len(scales)}I", *(s << 15 for s in scales))
    )
    parts = [65536 * c - 65535 + f for c, f in enumerate(fractions, 1)] if flags else None
    values = []
    for i, symbol in enumerate(symbols):
        code = symbol - top
        part = parts[abs(code) - 1] if parts and code else 65536 * abs(code)
        level = math.copysign(round_f32(part * (step / 65536)), code)
        values.append(scaled_value(level * scales[i // 256], dtype))
    return values


def scaled_value(value: float, dtype: str) -> bytes:
    rounded = round_f32(value)
    if dtype != "f16":
        return encode(rounded, dtype)
    if abs(rounded) >= 65504:
        return encode(math.copysign(65504.0, rounded), dtype)
    half = encode(rounded, dtype)
    is_lost = rounded != 0 and half in (b"\0\0", b"\0\x80")
    return encode(math.copysign(2.0**-24, rounded), dtype) if is_lost else half


def step_is_possible(step: float, dtype: str) -> bool:
    if dtype == "f64":
        return 2.0**-1020 <= step <= 2.0**1022
    return 2.0**-124 <= step <= 2.0**126 and round_f32(step) == step


def coded(
    body: Cursor,
    shape: list[int],
    dtype: str,
    codec: dict[str, Any],
    step: float,
    outliers: Outliers,
) -> list[bytes]:
    count = math.prod(shape)
    if codec["id"] == "rows":
        width = shape[-1] if shape else 1
        index, codes = row_codes(body, count // width, width, codec["entropy"])
        body.end()
        distinct = outliers.put(decoded(codes, step, dtype))
        return [value for row in index for value in distinct[row * width : (row + 1) * width]]
    if codec["id"] in ("sz3", "zfp"):
        values = foreign_values(body, shape, codec["id"], "<f8" if dtype == "f64" else "<f4")
        body.end()
        return outliers.put([encode(value, dtype) for value in values])
    if codec["id"] in ("flat", "delta"):
        codes = packed_codes(body, count, codec["block"], codec.get("base", False))
    elif codec["id"] in ("huffman", "ans"):
        codes = symbol_codes(body, count, codec["id"], codec.get("frequencies"))
    else:
        codes = frame_codes(body, count, codec["id"])
    body.end()
    return outliers.put(decoded(restore(codes, shape, codec["lorenzo"]), step, dtype))


def decoded(codes: list[int], step: float, dtype: str) -> list[bytes]:
    def value(code: int) -> bytes:
        if dtype == "f64":
            return encode(code * step, dtype)
        return encode(round_f32(round_f32(float(code)) * step), dtype)

    values = {code: value(code) for code in set(codes)}
    return [values[code] for code in codes]


def restore(codes: list[int], shape: list[int], lorenzo: int) -> list[int]:
    if lorenzo == 0:
        return codes
    num_axes = min(lorenzo, len(shape))
    if num_axes <= 1:
        shape, num_axes = [len(codes)], 1
    for axis in range(len(shape) - num_axes, len(shape)):
        stride = math.prod(shape[axis + 1 :])
        for i in range(len(codes)):
            if i // stride % shape[axis]:
                codes[i] = wrapped(codes[i] + codes[i - stride])
    return codes


def row_codes(body: Cursor, num_rows: int, width: int, coder: str) -> tuple[list[int], list[int]]:
    """Return the distinct row that each row is, and the codes of the distinct rows."""
    num_unique, index_mode, low_nbits = body.record("IBBxx")
    require(1 <= num_unique <= num_rows and index_mode in (0, 1), "row header")
    num_bits = (num_unique - 1).bit_length()
    require(low_nbits == (max(0, num_bits - 11) if index_mode else 0), "low bits")
    if index_mode == 0:
        marks = [1 - flag for flag in body.fields(1, num_rows)]
        body.pad8()
        high = [0] * sum(marks)
    else:
        marks = symbol_codes(body, num_rows, coder, is_index=True)
        high = [code - 1 for code in marks if code]
        num_bits = low_nbits
    require(marks.count(0) == num_unique, "number of new rows")
    fields = body.fields(num_bits, len(high))
    body.pad8()
    repeated = [upper << num_bits | field for upper, field in zip(high, fields, strict=True)]
    require(all(row < num_unique for row in repeated), "repeated row")
    new_rows, old_rows = iter(range(num_unique)), iter(repeated)
    index = [next(old_rows) if mark else next(new_rows) for mark in marks]
    return index, symbol_codes(body, num_unique * width, coder)
