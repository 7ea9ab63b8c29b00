"""Row de-duplication in numba: hash all rows, number the hashes, compare every row exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, types

from tersor.errors import CorruptDataError
from tersor.kernels import threads
from tersor.kernels.dedup.layout import IndexLayout
from tersor.kernels.machine.cpu import address_of, load_u64, store_u64

_U = types.uint64
_K0 = np.uint64(0x9E3779B97F4A7C15)
_K1 = np.uint64(0xC2B2AE3D27D4EB4F)
_K2 = np.uint64(0x165667B19E3779F9)
_K3 = np.uint64(0x27D4EB2F165667C5)


@njit(nogil=True, cache=True)
def _load_tail(rows: Any, row: int, done: int) -> int:
    word = _U(0)
    for k in range(done, rows.shape[1]):
        word |= _U(rows[row, k]) << _U(8 * (k - done))
    return word


@njit(nogil=True, cache=True)
def _hash_kernel(rows: Any, hashes: Any, start: int, stop: int) -> None:
    """Hash each row's 64-bit words in four independent lanes, which hides multiply latency."""
    num_words = rows.shape[1] // 8
    base = address_of(rows)
    for row in range(start, stop):
        place = base + _U(row) * _U(rows.shape[1])
        h0, h1, h2, h3 = _K0, _K1, _K2, _K3
        for _ in range(num_words // 4):
            h0 = (h0 ^ load_u64(place)) * _K0
            h1 = (h1 ^ load_u64(place + _U(8))) * _K1
            h2 = (h2 ^ load_u64(place + _U(16))) * _K2
            h3 = (h3 ^ load_u64(place + _U(24))) * _K3
            h0, h1 = h0 ^ (h0 >> _U(29)), h1 ^ (h1 >> _U(31))
            h2, h3 = h2 ^ (h2 >> _U(30)), h3 ^ (h3 >> _U(28))
            place += _U(32)
        for _ in range(num_words % 4):
            h0 = (h0 ^ load_u64(place)) * _K1
            h0 ^= h0 >> _U(29)
            place += _U(8)
        h0 = (h0 ^ _load_tail(rows, row, num_words * 8)) * _K2
        mixed = (h0 ^ (h1 * _K3) ^ (h2 >> _U(7)) ^ (h3 << _U(9))) * _K0
        mixed = (mixed ^ (mixed >> _U(32)) ^ h2) * _K1
        hashes[row] = mixed ^ (mixed >> _U(29)) ^ h3


@njit(nogil=True, cache=True)
def _number_kernel(hashes: Any, index: Any, first: Any) -> int:
    """Number distinct hashes by first appearance, with linear probing in a table half full."""
    size = 16
    while size < 2 * hashes.size:
        size *= 2
    mask = _U(size - 1)
    slots = np.full(size, -1, dtype=np.int32)
    count = 0
    for row in range(hashes.size):
        h = hashes[row]
        slot = h & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = count
                first[count] = row
                index[row] = count
                count += 1
                break
            if hashes[first[known]] == h:
                index[row] = known
                break
            slot = (slot + _U(1)) & mask
    return count


@njit(nogil=True, cache=True)
def _rows_differ(rows: Any, a: int, b: int) -> bool:
    width = rows.shape[1]
    base = address_of(rows)
    pa, pb = base + _U(a) * _U(width), base + _U(b) * _U(width)
    difference = _U(0)
    # no early exit, so that the loop vectorises
    for k in range(width // 8):
        difference |= load_u64(pa + _U(8 * k)) ^ load_u64(pb + _U(8 * k))
    done = width // 8 * 8
    difference |= _load_tail(rows, a, done) ^ _load_tail(rows, b, done)
    return difference != _U(0)


@njit(nogil=True, cache=True)
def _differ_kernel(rows: Any, index: Any, first: Any, start: int, stop: int) -> bool:
    """Say whether any row differs from the distinct row it was given: a hash collision."""
    differ = False
    for row in range(start, stop):
        known = first[index[row]]
        if known != row:
            differ |= _rows_differ(rows, row, known)
    return differ


@njit(nogil=True, cache=True)
def number_exactly(rows: Any, hashes: Any, index: Any, first: Any) -> int:
    """Number distinct rows by comparing rows, not hashes: the way out after a collision."""
    size = 16
    while size < 2 * hashes.size:
        size *= 2
    mask = _U(size - 1)
    slots = np.full(size, -1, dtype=np.int32)
    count = 0
    for row in range(hashes.size):
        slot = hashes[row] & mask
        while True:
            known = slots[slot]
            if known < 0:
                slots[slot] = count
                first[count] = row
                index[row] = count
                count += 1
                break
            if not _rows_differ(rows, row, first[known]):
                index[row] = known
                break
            slot = (slot + _U(1)) & mask
    return count


def unique_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.unique_rows``."""
    data = rows.numpy()
    num_rows, row_nbytes = data.shape
    hashes = np.empty(num_rows, dtype=np.uint64)
    index = np.empty(num_rows, dtype=np.int32)
    first = np.empty(num_rows, dtype=np.int64)
    parts = threads.split(num_rows, max(1, row_nbytes))
    threads.run(_hash_kernel, [(data, hashes, s, e) for s, e in parts])
    count = _number_kernel(hashes, index, first)
    if any(threads.run(_differ_kernel, [(data, index, first, s, e) for s, e in parts])):
        count = number_exactly(data, hashes, index, first)
    return torch.from_numpy(index), torch.from_numpy(first[:count].copy())


@njit(nogil=True, cache=True)
def _pack_index_kernel(index: Any, first: Any, width: int, refs_start: int, packed: Any) -> None:
    place = address_of(packed) + _U(refs_start)
    word, filled = _U(0), _U(0)
    next_new = 0
    for row in range(index.size):
        if next_new < first.size and first[next_new] == row:
            packed[row >> 3] |= np.uint8(1 << (row & 7))
            next_new += 1
            continue
        word |= _U(index[row]) << filled
        filled += _U(width)
        store_u64(place, word)
        place += filled >> _U(3)
        word >>= filled & _U(56)
        filled &= _U(7)
    store_u64(place, word)


def pack_index(index: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """See ``reference.pack_index``."""
    layout = IndexLayout(index.numel(), first.numel())
    packed = np.zeros(layout.nbytes, dtype=np.uint8)
    _pack_index_kernel(index.numpy(), first.numpy(), layout.width, layout.refs_start, packed)
    return torch.from_numpy(packed)


@njit(nogil=True, cache=True)
def _unpack_index_kernel(
    packed: Any, refs_start: int, width: int, num_unique: int, index: Any
) -> bool:
    """Write the index; return false if the flags or a reference are impossible."""
    num_new = 0
    for row in range(index.size):
        num_new += (packed[row >> 3] >> np.uint8(row & 7)) & 1
    if num_new != num_unique:
        return False
    place = address_of(packed) + _U(refs_start)
    mask = (_U(1) << _U(width)) - _U(1)
    bit = _U(0)
    num_new = 0
    for row in range(index.size):
        if (packed[row >> 3] >> np.uint8(row & 7)) & 1:
            index[row] = num_new
            num_new += 1
        else:
            ref = (load_u64(place + (bit >> _U(3))) >> (bit & _U(7))) & mask
            bit += _U(width)
            if ref >= _U(num_unique):
                return False
            index[row] = ref
    return True


def unpack_index(packed: torch.Tensor, num_rows: int, num_unique: int) -> torch.Tensor:
    """See ``reference.unpack_index``."""
    layout = IndexLayout(num_rows, num_unique)
    if packed.numel() < layout.nbytes:
        raise CorruptDataError("a row index is truncated")
    index = np.empty(num_rows, dtype=np.int64)
    if not _unpack_index_kernel(packed.numpy(), layout.refs_start, layout.width, num_unique, index):
        raise CorruptDataError("a row index marks or names rows that do not exist")
    return torch.from_numpy(index)
