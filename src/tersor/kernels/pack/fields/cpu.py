"""Packing and unpacking of unsigned fields in numba, one tile or a whole list.

A tile goes through the narrowest lanes that hold it: byte lanes, eight fields per machine word, for fields
of up to 8 bits; 16-bit lanes up to 16 bits; a bit buffer for wider fields. All three write the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types

from tersor.errors import CorruptDataError
from tersor.kernels.pack.fields.reference import fields_nbytes
from tersor.kernels.runtime.cpu.intrinsics import (
    address_of,
    count_leading_zeros,
    load_u64,
    njit,
    spread_bytes,
    spread_pairs,
    squeeze_bytes,
    squeeze_pairs,
    store_u32,
    store_u64,
)

_U = types.uint64

SLACK_NBYTES = 16
"""How far past the last field a tile may be written or read."""


@njit(nogil=True, cache=True)
def pack_bytes(octets: Any, block: int, widths: Any, address: int) -> int:
    """Do what ``pack_tile`` does, for fields that are already bytes."""
    source = address_of(octets)
    start = address
    if block == 32:
        for b in range(widths.size):
            x0, x1 = load_u64(source), load_u64(source + _U(8))
            x2, x3 = load_u64(source + _U(16)), load_u64(source + _U(24))
            union = x0 | x1 | x2 | x3
            union |= union >> _U(32)
            union |= union >> _U(16)
            union |= union >> _U(8)
            width = _U(64) - count_leading_zeros(union & _U(255))
            widths[b] = np.uint8(width)
            store_u64(address, squeeze_bytes(x0, width))
            store_u64(address + width, squeeze_bytes(x1, width))
            store_u64(address + _U(2) * width, squeeze_bytes(x2, width))
            store_u64(address + _U(3) * width, squeeze_bytes(x3, width))
            address += _U(4) * width
            source += _U(32)
        return (address - start) >> _U(2)
    for b in range(widths.size):
        union = _U(0)
        for k in range(block // 8):
            union |= load_u64(source + _U(8 * k))
        union |= union >> _U(32)
        union |= union >> _U(16)
        union |= union >> _U(8)
        width = _U(64) - count_leading_zeros(union & _U(255))
        widths[b] = np.uint8(width)
        for _ in range(block // 8):
            store_u64(address, squeeze_bytes(load_u64(source), width))
            address += width
            source += _U(8)
    return (address - start) >> _U(2)


@njit(nogil=True, cache=True)
def _pack_pairs(fields: Any, lanes: Any, block: int, widths: Any, address: int) -> int:
    for i in range(fields.size):
        lanes[i] = np.uint16(fields[i])
    source = address_of(lanes)
    start = address
    for b in range(widths.size):
        union = _U(0)
        for k in range(block // 4):
            union |= load_u64(source + _U(8 * k))
        union |= union >> _U(32)
        union |= union >> _U(16)
        width = _U(64) - count_leading_zeros(union & _U(0xFFFF))
        widths[b] = np.uint8(width)
        if width == _U(16):
            for k in range(block // 4):
                store_u64(address + _U(8 * k), load_u64(source + _U(8 * k)))
        elif width != _U(0):
            half = _U(4) * width
            rest = _U(64) - half
            for k in range(block // 8):
                low = squeeze_pairs(load_u64(source + _U(16 * k)), width)
                high = squeeze_pairs(load_u64(source + _U(16 * k + 8)), width)
                place = address + width * _U(k)
                store_u64(place, low | (high << half))
                store_u64(place + _U(8), high >> rest)
        address += width * _U(block // 8)
        source += _U(2 * block)
    return (address - start) >> _U(2)


@njit(nogil=True, cache=True)
def _pack_words(fields: Any, block: int, widths: Any, address: int) -> int:
    start = address
    for b in range(widths.size):
        part = fields[b * block : b * block + block]
        union = np.uint32(0)
        for i in range(part.size):
            union |= part[i]
        width = _U(64) - count_leading_zeros(_U(union))
        widths[b] = np.uint8(width)
        word, filled = _U(0), _U(0)
        for i in range(part.size):
            word |= _U(part[i]) << filled
            filled += width
            if filled >= _U(32):
                store_u32(address, np.uint32(word & _U(0xFFFFFFFF)))
                address += _U(4)
                word >>= _U(32)
                filled -= _U(32)
    return (address - start) >> _U(2)


@njit(nogil=True, cache=True)
def pack_tile(
    fields: Any, union: int, octets: Any, pairs: Any, block: int, widths: Any, address: int
) -> int:
    """Write the blocks of one tile at ``address``, and their widths; return the words written.

    Args:
        fields: uint32, whole blocks.
        union: bitwise or of all fields.
        octets: scratch bytes, as many as fields.
        pairs: scratch uint16, as many as fields.
        block: fields per block, 32 or 64.
        widths: receives one byte per block.
        address: where to write the words; up to 16 bytes past them are overwritten.
    """
    if union < np.uint32(1 << 8):
        for i in range(fields.size):
            octets[i] = np.uint8(fields[i])
        return pack_bytes(octets, block, widths, address)
    if union < np.uint32(1 << 16):
        return _pack_pairs(fields, pairs, block, widths, address)
    return _pack_words(fields, block, widths, address)


@njit(nogil=True, cache=True)
def unpack_bytes(octets: Any, block: int, widths: Any, address: int) -> None:
    """Read blocks of at most 8 bits per field into bytes."""
    target = address_of(octets)
    if block == 32:
        for b in range(widths.size):
            width = _U(widths[b])
            store_u64(target, spread_bytes(load_u64(address), width))
            store_u64(target + _U(8), spread_bytes(load_u64(address + width), width))
            store_u64(target + _U(16), spread_bytes(load_u64(address + _U(2) * width), width))
            store_u64(target + _U(24), spread_bytes(load_u64(address + _U(3) * width), width))
            address += _U(4) * width
            target += _U(32)
        return
    for b in range(widths.size):
        width = _U(widths[b])
        for _ in range(block // 8):
            store_u64(target, spread_bytes(load_u64(address), width))
            address += width
            target += _U(8)


@njit(nogil=True, cache=True)
def unpack_pairs(pairs: Any, block: int, widths: Any, address: int) -> None:
    """Read blocks of at most 16 bits per field into 16-bit lanes."""
    target = address_of(pairs)
    for b in range(widths.size):
        width = _U(widths[b])
        half = _U(4) * width
        for _ in range(block // 8):
            high = load_u64(address + (half >> _U(3))) >> (half & _U(7))
            store_u64(target, spread_pairs(load_u64(address), width))
            store_u64(target + _U(8), spread_pairs(high, width))
            address += width
            target += _U(16)


@njit(nogil=True, cache=True)
def unpack_words(fields: Any, block: int, widths: Any, address: int) -> None:
    """Read blocks of any width."""
    for b in range(widths.size):
        width = _U(widths[b])
        mask = (_U(1) << width) - _U(1)
        part = fields[b * block : b * block + block]
        bit = _U(0)
        for i in range(part.size):
            word = load_u64(address + (bit >> _U(3)))
            part[i] = np.uint32((word >> (bit & _U(7))) & mask)
            bit += width
        address += width * _U(block // 8)


@njit(nogil=True, cache=True)
def widest(widths: Any) -> Any:
    """Return the largest width of a tile."""
    result = np.uint8(0)
    for i in range(widths.size):
        result = max(result, widths[i])
    return result


@njit(nogil=True, cache=True)
def unpack_tile(
    fields: Any, octets: Any, pairs: Any, block: int, widths: Any, address: int
) -> None:
    """Read the blocks of one tile that starts at ``address``."""
    width = widest(widths)
    used = fields[: widths.size * block]
    if width <= 8:
        unpack_bytes(octets, block, widths, address)
        for i in range(used.size):
            used[i] = octets[i]
    elif width <= 16:
        unpack_pairs(pairs, block, widths, address)
        for i in range(used.size):
            used[i] = pairs[i]
    else:
        unpack_words(used, block, widths, address)


@njit(nogil=True, cache=True)
def write_fields(values: Any, width: int, target: Any) -> None:
    """Pack ``values`` into ``target``, which has ``fields_nbytes`` bytes."""
    address = address_of(target)
    nbits = _U(width)
    word, filled = _U(0), _U(0)
    for i in range(values.size):
        value = _U(values[i])
        word |= value << filled
        filled += nbits
        if filled >= _U(64):
            store_u64(address, word)
            address += _U(8)
            filled -= _U(64)
            word = value >> (nbits - filled)
    if filled > _U(0):
        store_u64(address, word)


@njit(nogil=True, cache=True)
def read_fields(packed: Any, width: int, values: Any) -> None:
    """Unpack all of ``values`` from ``packed``, whose size was checked."""
    address = address_of(packed)
    nbits = _U(width)
    mask = (_U(1) << nbits) - _U(1)
    word, left = _U(0), _U(0)
    for i in range(values.size):
        if left >= nbits:
            values[i] = np.int32(word & mask)
            word >>= nbits
            left -= nbits
        else:
            following = load_u64(address)
            address += _U(8)
            values[i] = np.int32((word | (following << left)) & mask)
            word = following >> (nbits - left)
            left += _U(64) - nbits


def pack_fields(values: torch.Tensor, width: int) -> torch.Tensor:
    """See ``reference.pack_fields``."""
    packed = np.empty(fields_nbytes(values.numel(), width), dtype=np.uint8)
    write_fields(values.numpy(), width, packed)
    return torch.from_numpy(packed)


def unpack_fields(packed: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """See ``reference.unpack_fields``."""
    if packed.numel() < fields_nbytes(count, width):
        raise CorruptDataError("packed fields are truncated")
    values = np.empty(count, dtype=np.int32)
    read_fields(packed.numpy(), width, values)
    return torch.from_numpy(values)
