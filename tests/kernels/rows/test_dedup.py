"""Distinct rows, checked against a dictionary of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tersor.kernels.rows.dedup import cpu as dedup
from tersor.kernels.rows.dedup import unique_rows


def by_dictionary(rows: torch.Tensor) -> tuple[list[int], list[int]]:
    numbers: dict[bytes, int] = {}
    index, first = [], []
    for place, row in enumerate(rows.numpy()):
        key = row.tobytes()
        if key not in numbers:
            numbers[key] = len(numbers)
            first.append(place)
        index.append(numbers[key])
    return index, first


def repeated_rows(num_rows: int, num_distinct: int, width: int) -> torch.Tensor:
    """Rows that differ in few bits, so that a weak comparison would take them for equal."""
    generator = torch.Generator().manual_seed(num_rows + width)
    table = torch.zeros(num_distinct, width, dtype=torch.uint8)
    for number in range(num_distinct):
        table[number, -1 - number // 255 % width] = 1 + number % 255
    chosen = torch.randint(0, num_distinct, (num_rows,), generator=generator)
    return table[chosen]


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 31, 64, 200])
def test_rows_are_numbered_by_first_appearance(width):
    for num_rows, num_distinct in ((1, 1), (2, 1), (500, 3), (500, 200), (3000, 255)):
        rows = repeated_rows(num_rows, num_distinct, width)
        index, first = unique_rows(rows)
        assert (index.tolist(), first.tolist()) == by_dictionary(rows)


def test_rows_that_swap_words_differ():
    one = torch.arange(32, dtype=torch.uint8)
    rows = torch.stack([one, one.view(4, 8).flip(0).reshape(-1), one.flip(0), one])
    assert unique_rows(rows)[0].tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("num_hash_bits", [0, 1, 3])
def test_colliding_hashes_are_told_apart(num_hash_bits, monkeypatch):
    """With nearly all hash bits cleared, almost every pair of rows collides."""
    reached = []
    hash_rows, number_exactly = dedup.hash_rows, dedup.number_exactly

    def weak_hash(words, keys, hashes, start, stop):
        hash_rows(words, keys, hashes, start, stop)
        hashes[start:stop] &= np.uint64((1 << num_hash_bits) - 1)

    def watched(*arguments):
        reached.append(True)
        return number_exactly(*arguments)

    monkeypatch.setattr(dedup, "hash_rows", weak_hash)
    monkeypatch.setattr(dedup, "number_exactly", watched)
    rows = repeated_rows(600, 90, 24)
    index, first = dedup.unique_rows(rows)
    assert (index.tolist(), first.tolist()) == by_dictionary(rows)
    assert reached


def test_one_colliding_pair_is_enough(monkeypatch):
    hash_rows = dedup.hash_rows

    def planted(words, keys, hashes, start, stop):
        hash_rows(words, keys, hashes, start, stop)
        hashes[41] = hashes[7]

    monkeypatch.setattr(dedup, "hash_rows", planted)
    rows = torch.arange(50, dtype=torch.uint8)[:, None].expand(50, 16).contiguous()
    index, first = dedup.unique_rows(rows)
    assert index.tolist() == first.tolist() == list(range(50))
