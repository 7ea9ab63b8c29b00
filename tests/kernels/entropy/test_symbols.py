"""Codes to symbols of a small alphabet: which window is taken, and what escapes it."""

from __future__ import annotations

import pytest
import torch

from tersor.kernels.entropy.symbols import map_symbols, unmap_symbols
from tersor.kernels.entropy.symbols.alphabet import Window


def decoded(mapped) -> list[int]:
    """Undo the mapping symbol by symbol."""
    codes = [mapped.low + symbol for symbol in mapped.symbols.tolist()]
    for position, code in zip(
        mapped.escape_positions.tolist(), mapped.escape_codes.tolist(), strict=True
    ):
        assert mapped.symbols[position] == mapped.alphabet - 1
        codes[position] = code
    return codes


def spread_codes(count: int, deviation: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return (torch.randn(count, generator=generator) * deviation).round().to(torch.int32)


@pytest.mark.parametrize("deviation", [0, 3, 30, 300, 5000, 1e8])
@pytest.mark.parametrize("shift", [0, -(10**6), 2**31 - 1])
def test_codes_come_back(deviation, shift):
    codes = (spread_codes(6000, deviation).long() + shift).clamp(-(2**31), 2**31 - 1)
    codes = codes.to(torch.int32)
    mapped = map_symbols(codes)
    assert decoded(mapped) == codes.tolist()
    assert torch.equal(unmap_symbols(mapped.symbols, mapped), codes)
    positions = mapped.escape_positions
    assert torch.equal(positions, positions.sort().values)
    assert int(mapped.symbols.max()) < mapped.alphabet <= 4096
    assert mapped.symbols.dtype == (torch.uint8 if mapped.alphabet <= 256 else torch.int16)


def test_all_codes_get_a_symbol_where_256_suffice():
    codes = torch.arange(-128, 128, dtype=torch.int32)
    mapped = map_symbols(codes)
    assert (mapped.low, mapped.alphabet, mapped.escape_positions.numel()) == (-128, 256, 0)
    assert map_symbols(torch.arange(-128, 129, dtype=torch.int32)).escape_positions.numel() == 2


def test_few_outsiders_escape_a_narrow_alphabet():
    codes = spread_codes(100_000, 10)
    codes[[7, 70_000]] = torch.tensor([10**6, -(10**6)], dtype=torch.int32)
    mapped = map_symbols(codes)
    assert mapped.alphabet == 256
    assert mapped.escape_positions.tolist() == [7, 70_000]
    assert mapped.escape_codes.tolist() == [10**6, -(10**6)]


def test_many_outsiders_widen_the_alphabet():
    mapped = map_symbols(spread_codes(100_000, 300))
    assert 256 < mapped.alphabet <= 4096
    assert mapped.escape_positions.numel() == 0


def test_escapes_cost_less_than_they_save():
    """Where escapes are used at all, they are under an eighth of a byte per code, or 2 KiB."""
    for deviation in (60, 80, 120, 200):
        codes = spread_codes(50_000, deviation)
        mapped = map_symbols(codes)
        assert 8 * mapped.escape_positions.numel() <= max(2048, codes.numel() // 8)


def test_a_given_window_is_kept():
    codes = torch.tensor([-3, -2, 0, 2, 3], dtype=torch.int32)
    mapped = map_symbols(codes, Window(-2, 5, escapes=True))
    assert mapped.symbols.tolist() == [5, 0, 2, 4, 5]
    assert mapped.escape_positions.tolist() == [0, 4]
    assert decoded(mapped) == codes.tolist()


def test_no_codes():
    mapped = map_symbols(torch.zeros(0, dtype=torch.int32))
    assert mapped.alphabet == 1
    assert unmap_symbols(mapped.symbols, mapped).numel() == 0
