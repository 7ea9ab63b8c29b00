"""On a GPU ``auto`` weighs size and time of what is fast there; in Triton's interpreter where there is none."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from tersor import Bound, compress, decompress, use_backend
from tersor.codecs.auto import Auto
from tests.checks import assert_within_bound
from tests.triton_device import DEVICE, MARKS

pytestmark = MARKS


def noise(count: int = 1000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def spiky() -> torch.Tensor:
    """Small values with a large one in almost every block, which decides the width of all its fields."""
    x = 0.3 * noise(2000)
    x[::10] = 30 * x[::10].sign()
    return x


def chosen(x: torch.Tensor, bound: Bound, **options: float) -> tuple[str, str]:
    with use_backend("gpu"):
        packed = compress(x, bound, **options)
        assert_within_bound(x, decompress(packed), packed.error_bound)
    return packed.codec.codec_id, packed.reason


def test_only_codecs_with_kernels_for_lists_or_prediction_are_tried():
    with use_backend("gpu"):
        found = Auto(bound=Bound.relative(0.01)).candidates(torch.zeros(2, 3, 4, device=DEVICE))
    names = [codec.codec_id for codec in found]
    assert names == ["flat", "ans", "delta", "delta", "delta", "rows", "raw"]
    assert found[-2].entropy == "ans"


def test_few_codes_are_coded_by_rans_and_many_packed():
    codec, reason = chosen(spiky(), Bound.absolute(0.5))
    assert codec == "ans"
    assert "fastest over 400 Gbit/s" in reason
    # 600 codes: rANS takes a second pass, which costs more time than its bytes save
    assert chosen(spiky(), Bound.absolute(0.05))[0] == "flat"


def test_a_bandwidth_that_is_named_takes_the_place_of_400_gbit():
    codec, reason = chosen(spiky(), Bound.absolute(0.5), bandwidth_gbit_s=1e6)
    assert codec == "raw"
    assert "fastest over 1e+06 Gbit/s" in reason


def test_repeated_rows_are_found():
    table = noise(2 * 32).view(2, 32)
    rows = table[torch.arange(96, device=DEVICE) % 2]
    assert chosen(rows, Bound.relative(0.03))[0] == "rows"


def test_values_that_are_not_finite_are_no_range():
    x = noise()
    x[::7] = torch.nan
    x[3] = torch.inf
    assert chosen(x, Bound.absolute(0.2))[0] in ("ans", "flat")
    assert chosen(torch.full((64,), torch.nan, device=DEVICE), Bound.absolute(0.2))[0]
