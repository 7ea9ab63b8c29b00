"""Prefix codes in numba; the plain versions in ``huffman/layout.py`` define the results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from tersor.kernels.runtime.cpu.intrinsics import njit

_U = types.uint64


@njit(nogil=True, cache=True)
def _sorted_keys(counts: Any) -> Any:
    """Return ``count << 12 | symbol`` of the used symbols, ascending, by a bottom-up merge sort.

    It is written out because numba's own sort takes ten seconds to compile.
    """
    keys = np.empty(counts.size, dtype=np.int64)
    size = 0
    for symbol in range(counts.size):
        if counts[symbol] > 0:
            keys[size] = (counts[symbol] << 12) | symbol
            size += 1
    keys = keys[:size]
    other = np.empty_like(keys)
    run = 1
    while run < size:
        for low in range(0, size, 2 * run):
            a, middle, high = low, min(low + run, size), min(low + 2 * run, size)
            b = middle
            for k in range(low, high):
                if a < middle and (b >= high or keys[a] < keys[b]):
                    other[k] = keys[a]
                    a += 1
                else:
                    other[k] = keys[b]
                    b += 1
        keys, other = other, keys
        run *= 2
    return keys


@njit(nogil=True, cache=True)
def _merge_depths(keys: Any, depths: Any) -> None:
    """Write the depth of each leaf of the Huffman tree over ascending keys."""
    num_leaves = keys.size
    num_nodes = 2 * num_leaves - 1
    weights = np.zeros(num_nodes, dtype=np.int64)
    parent = np.zeros(num_nodes, dtype=np.int32)
    for leaf in range(num_leaves):
        weights[leaf] = keys[leaf] >> 12
    leaf, inner = 0, num_leaves
    for new in range(num_leaves, num_nodes):
        for _ in range(2):
            if leaf < num_leaves and (inner == new or weights[leaf] <= weights[inner]):
                child = leaf
                leaf += 1
            else:
                child = inner
                inner += 1
            parent[child] = new
            weights[new] += weights[child]
    levels = np.zeros(num_nodes, dtype=np.int32)
    for node in range(num_nodes - 2, -1, -1):
        levels[node] = levels[parent[node]] + 1
    for leaf in range(num_leaves):
        depths[leaf] = levels[leaf]


@njit(nogil=True, cache=True)
def build_lengths(counts: Any, limit: int, lengths: Any) -> int:
    """Write code lengths as ``huffman.layout.code_lengths`` does; return the number of used symbols."""
    lengths[:] = 0
    keys = _sorted_keys(counts)
    if keys.size <= 1:
        for key in keys:
            lengths[key & 4095] = 1
        return keys.size
    depths = np.empty(keys.size, dtype=np.int64)
    _merge_depths(keys, depths)
    excess = -(np.int64(1) << limit)
    for k in range(keys.size):
        depths[k] = min(depths[k], limit)
        excess += np.int64(1) << (limit - depths[k])
    k = 0
    while excess > 0:
        if depths[k] < limit:
            depths[k] += 1
            excess -= np.int64(1) << (limit - depths[k])
        else:
            k += 1
    while excess < 0:
        for k in range(keys.size - 1, -1, -1):
            gain = np.int64(1) << (limit - depths[k])
            if gain <= -excess:
                depths[k] -= 1
                excess += gain
    for k in range(keys.size):
        lengths[keys[k] & 4095] = depths[k]
    return keys.size


@njit(nogil=True, cache=True)
def build_codes(lengths: Any, codes: Any) -> None:
    """Write canonical codes, first bit lowest, as ``huffman.layout.canonical_codes`` does."""
    starts = np.zeros(17, dtype=np.int64)
    for symbol in range(lengths.size):
        starts[lengths[symbol] + 1] += 1
    starts[1] = 0
    code = 0
    for length in range(1, 16):
        count = starts[length + 1]
        starts[length] = code
        code = (code + count) << 1
    for symbol in range(lengths.size):
        length = lengths[symbol]
        code = starts[length]
        starts[length] += 1
        reversed_code = 0
        for _ in range(length):
            reversed_code = (reversed_code << 1) | (code & 1)
            code >>= 1
        codes[symbol] = reversed_code


@njit(nogil=True, cache=True)
def is_complete(lengths: Any, limit: int) -> bool:
    """True if the lengths are those of a complete prefix code, none longer than ``limit``."""
    total = np.int64(0)
    for symbol in range(lengths.size):
        if lengths[symbol] > limit:
            return False
        if lengths[symbol] > 0:
            total += np.int64(1) << (limit - lengths[symbol])
    return total == np.int64(1) << limit


@njit(nogil=True, cache=True)
def single_table(lengths: Any, limit: int) -> Any:
    """Return ``symbol | length << 12`` for each value of the next ``limit`` bits, uint16.

    At 14 bits the table takes 32 KiB and fits in first-level cache.
    """
    codes = np.zeros(lengths.size, dtype=np.uint32)
    build_codes(lengths, codes)
    table = np.zeros(1 << limit, dtype=np.uint16)
    for symbol in range(lengths.size):
        length = np.int64(lengths[symbol])
        if length > 0:
            entry = np.uint16(symbol | (length << 12))
            for k in range(np.int64(codes[symbol]), 1 << limit, np.int64(1) << length):
                table[k] = entry
    return table


@njit(nogil=True, cache=True)
def multi_table(single: Any, limit: int) -> Any:
    """Return ``symbols | bits << 32 | count << 40`` for each value of the next ``limit`` bits, uint64.

    ``symbols`` are up to 4 bytes, ``count`` their number and ``bits`` the total length of their codes.
    """
    table = np.empty(single.size, dtype=np.uint64)
    for k in range(single.size):
        packed, nbits, count = _U(0), _U(0), _U(0)
        while count < _U(4):
            entry = single[_U(k) >> nbits]
            length = _U(entry >> np.uint16(12))
            if nbits + length > _U(limit):
                break
            packed |= _U(entry & np.uint16(0xFFF)) << (_U(8) * count)
            nbits += length
            count += _U(1)
        table[k] = packed | (nbits << _U(32)) | (count << _U(40))
    return table
