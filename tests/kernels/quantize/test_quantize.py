"""The bound holds exactly: at ties, on grids, for every 16-bit float and at every magnitude."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tersor.kernels.quantize import Grid, bounded_dequantize, bounded_quantize, grid
from tersor.kernels.quantize.cpu import quantize as quantize_cpu
from tersor.kernels.quantize.grid import is_step
from tersor.types import FLOAT_DTYPES
from tests.checks import assert_within_bound
from tests.data import ties

NARROW = (torch.float16, torch.bfloat16)


def restored(x: torch.Tensor, made: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize, dequantize and put the outliers back; return values and outlier positions."""
    codes, positions = bounded_quantize(x, made)
    decoded = torch.full_like(x.contiguous(), torch.nan).view(-1)
    bounded_dequantize(codes, made.step, decoded)
    decoded[positions] = x.reshape(-1)[positions]
    return decoded.view(x.shape), positions


def around(values: torch.Tensor) -> torch.Tensor:
    """Return the values and their neighbours on both sides."""
    return torch.cat([values, values.nextafter(values + 1), values.nextafter(values - 1)])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("bound", [0.1, 0.125, 1 / 3, 1e-3, 7.0, 1e6, 1e-30])
def test_bound_holds_at_ties(dtype, bound):
    made = Grid.for_bound(bound, dtype)
    if made is None:
        return
    for step in (2 * bound, made.step, bound):
        x = ties(step, dtype)
        x = x if dtype in NARROW else around(x)
        decoded, _ = restored(x, made)
        assert_within_bound(x, decoded, bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_on_the_promised_grid_do_not_become_outliers(dtype):
    x = torch.arange(256, dtype=dtype) / 255
    for numerator in (1, 2, 3):
        made = Grid.for_bound(numerator / 255, dtype)
        assert restored(x, made)[1].numel() == 0


def test_without_the_shrink_such_values_would_be_outliers(monkeypatch):
    monkeypatch.setattr(grid, "SHRINK", 1.0)
    x = torch.arange(256, dtype=torch.float64) / 255
    made = Grid.for_bound(1 / 255, torch.float64)
    assert restored(x, made)[1].numel() > 16


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_a_grid_never_promises_more_than_it_was_given(dtype):
    generator = torch.Generator().manual_seed(3)
    exponents = torch.rand(400, generator=generator, dtype=torch.float64) * 600 - 300
    for bound in [*(10.0**exponents).tolist(), 5e-324, 1.7e308]:
        made = Grid.for_bound(bound, dtype)
        if made is not None:
            assert 0 < made.bound <= bound
            # levels that are values of the dtype may be twice the bound apart
            assert 0 < made.step <= 2 * made.bound
            assert dtype in NARROW or made.step < 2 * made.bound
            assert math.isfinite(made.inverse)
            assert is_step(made.step, dtype)
    assert Grid.for_bound(0.0, dtype) is None


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_bound_holds_at_every_magnitude(dtype):
    generator = torch.Generator().manual_seed(6)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal * info.eps), math.log2(info.max)
    powers = torch.rand(3000, generator=generator, dtype=torch.float64) * (high - low) + low
    values = (2.0**powers).clamp(max=info.max)
    values[::2] *= -1
    x = torch.cat([values, torch.tensor([info.max, info.min, 0.0, -0.0])]).to(dtype)
    for exponent in range(-330, 308, 29):
        bound = 10.0**exponent
        made = Grid.for_bound(bound, dtype)
        if made is not None:
            assert_within_bound(x, restored(x, made)[0], bound)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("bound", [1e-7, 3e-5, 1e-3, 0.1, 1 / 3, 1.0, 100.0, 5e4, 1e30])
def test_every_16_bit_float_is_kept_or_handed_over_rightly(dtype, bound):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    made = Grid.for_bound(bound, dtype)
    codes, positions = bounded_quantize(x, made)
    decoded = (codes.float() * made.step).to(dtype)
    error = (decoded.double() - x.double()).abs()
    outlier = torch.zeros(x.numel(), dtype=torch.bool)
    outlier[positions] = True
    assert bool((error[~outlier] <= bound).all())
    assert bool(outlier[~torch.isfinite(x)].all())
    assert not codes[outlier].any()
    # what was handed over could not have been kept: the nearest level, rounded, is too far
    level = torch.round(x.float() * made.inverse)
    nearest = (level * made.step).to(dtype).double()
    missed = ~((nearest - x.double()).abs() <= made.bound) | (level.abs() > made.radius)
    assert torch.equal(outlier, missed)


@pytest.mark.parametrize(
    ("dtype", "emulated"),
    [
        (torch.float16, quantize_cpu._round_to_f16),
        (torch.bfloat16, quantize_cpu._round_to_bf16),
    ],
    ids=["float16", "bfloat16"],
)
def test_rounding_is_that_of_the_cast_at_every_midpoint(dtype, emulated):
    levels = torch.arange(0, 2**15).to(torch.int16).view(dtype).float()
    levels = levels[levels.isfinite()]
    middle = ((levels[1:].double() + levels[:-1].double()) / 2).float()
    beyond = torch.tensor([float(levels[-1]) * (1 + 2.0**-k) for k in range(1, 24)])
    values = torch.cat([levels, around(middle), beyond[beyond.isfinite()]])
    expected = values.to(dtype).float()
    found = np.array([emulated(value) for value in values.numpy()], dtype=np.float32)
    assert torch.equal(torch.from_numpy(found), expected)
    negative = np.array([emulated(value) for value in -values.numpy()[::7]], dtype=np.float32)
    # the sign of an infinity does not matter: it is beyond every bound
    assert torch.equal(torch.from_numpy(negative).abs(), expected[::7])


def test_codes_beyond_the_radius_are_outliers():
    made = Grid.for_bound(0.5, torch.float32)
    x = torch.tensor([made.radius * made.step, (made.radius + 2) * made.step, -1e38])
    codes, positions = bounded_quantize(x, made)
    assert positions.tolist() == [1, 2]
    assert int(codes[0]) == made.radius
