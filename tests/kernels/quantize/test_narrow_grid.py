"""Levels of grids of float16 and bfloat16 are values of the dtype, so that rounding makes no outliers."""

from __future__ import annotations

import math

import pytest
import torch

from tersor.codecs import create
from tersor.kernels.payload.layout import CODED, HEADER
from tersor.kernels.quantize import Grid, bounded_quantize
from tersor.kernels.quantize.grid import NARROW_DTYPES
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import read_struct
from tersor.types import Bound
from tests.checks import assert_within_bound

NARROW = tuple(NARROW_DTYPES)
CODECS = {"flat": {}, "delta": {}, "ans": {}, "rows": {}}
NORMAL_BOUNDS = (
    *(Bound.absolute(bound) for bound in (0.3, 0.1, 0.07, 0.03, 0.01, 0.005)),
    *(Bound.relative(bound) for bound in (0.3, 0.1, 0.05, 0.03, 0.01, 0.005, 0.003, 0.001)),
)


def finite_values(dtype: torch.dtype) -> torch.Tensor:
    """Every finite value of a dtype of 16 bits."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    return x[x.isfinite()]


def can_be_coded(x: torch.Tensor, made: Grid) -> torch.Tensor:
    """Mark the values whose code is within the radius and whose level is not infinite."""
    level = (x.double() / made.step).round()
    return (level.abs() < made.radius) & ((level * made.step).to(x.dtype).isfinite())


def outliers(x: torch.Tensor, made: Grid) -> torch.Tensor:
    """Mark those that could have been coded and are outliers."""
    found = torch.zeros(x.numel(), dtype=torch.bool)
    found[bounded_quantize(x, made)[1]] = True
    return found & can_be_coded(x, made)


def some_bounds(dtype: torch.dtype) -> list[float]:
    """Bounds of every magnitude, among them powers of two and their neighbours."""
    generator = torch.Generator().manual_seed(5)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal * info.eps) - 2, math.log2(info.max)
    exponents = torch.rand(60, generator=generator, dtype=torch.float64) * (high - low) + low
    powers = [2.0**k for k in range(int(low), int(high), 7)]
    neighbours = [math.nextafter(power, side) for power in powers for side in (0.0, math.inf)]
    return [*(2.0**exponents).tolist(), *powers, *neighbours]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_normal_values_have_no_outliers(dtype, codec, backend, generator):
    x = torch.randn(500, 16, generator=generator).to(dtype)
    for bound in NORMAL_BOUNDS:
        with use_backend(backend):
            packed = create(codec, bound=bound).pack(x)
        mode, num_outliers, *_ = read_struct(HEADER, packed.payloads[0], slice(1, 4))
        assert (mode, num_outliers) == (CODED, 0), bound


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_step_for_any_range_makes_outliers_only_far_from_zero(dtype):
    x = finite_values(dtype)
    precision, _, step_nbits = NARROW_DTYPES[dtype]
    # with its level, at most one bound farther, a value lies within 2**precision units, which are
    # more than half a bound
    reach = math.inf if step_nbits == 1 else 2 ** (precision - 1) - 1
    for bound in some_bounds(dtype):
        made = Grid.for_bound(bound, dtype)
        if made is not None:
            near = x[x.double().abs() <= reach * made.bound]
            assert not outliers(near, made).any(), bound


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_step_for_a_known_range_makes_no_outliers_in_it(dtype, generator):
    x = finite_values(dtype)
    largest = torch.finfo(dtype).max
    for bound in some_bounds(dtype):
        # from ranges of a few levels to those that no step of two bits can cover
        factor = 2.0 ** float(torch.rand((), generator=generator) * 2 * NARROW_DTYPES[dtype][0])
        peak = float(torch.tensor(min(bound * factor, largest)).to(dtype))
        # whose level may lie beyond a power of two, where the dtype has half as many values
        below = float(x[x.double() < 2.0 ** math.frexp(peak)[1]].max())
        for limits in ((-peak, peak), (0.0, peak), (-peak, -peak / 3), (-below, below)):
            made = Grid.for_bound(bound, dtype, limits)
            if made is None:
                continue
            inside = x[(x.double() >= limits[0]) & (x.double() <= limits[1])]
            assert not outliers(inside, made).any(), (bound, limits)
            assert made.bound <= made.step <= 2 * made.bound


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("value", [1e-4, 1e-3, 0.01, 0.03, 0.3, 2.0])
def test_the_bound_holds_for_every_value_of_a_known_range(dtype, value):
    x = finite_values(dtype)
    for peak in (1.0, 0.7, 300.0, torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal):
        inside = torch.cat([x[x.abs() <= peak], torch.tensor([torch.nan, torch.inf]).to(dtype)])
        packed = create("flat", bound=Bound.relative(value)).pack(inside)
        out = create("flat", bound=Bound.relative(value)).unpack(packed)
        assert_within_bound(inside, out, packed.error_bound)


@pytest.mark.parametrize(
    ("dtype", "bound", "limits", "step"),
    [
        (torch.bfloat16, 0.06, None, 2.0**-4),
        (torch.float16, 0.06, None, 1.5 * 2.0**-4),
        # codes to 9: 9 * 15 fits 8 bits, 9 * 30 would not
        (torch.bfloat16, 0.06, (-1.0, 1.0), 1.875 * 2.0**-4),
        (torch.bfloat16, 0.06, (-0.9, 0.9), 1.875 * 2.0**-4),
        (torch.float16, 0.06, (-1.0, 1.0), 1.90625 * 2.0**-4),
        # codes to 500: a power of two
        (torch.bfloat16, 0.001, (-1.0, 1.0), 2.0**-9),
        (torch.float16, 0.0015, (-1.0, 1.0), 1.5 * 2.0**-9),
        # values that are multiples of 2**-24 themselves
        (torch.float16, 0.9 * 2.0**-25, (-(2.0**-20), 2.0**-20), 2.0**-25),
    ],
)
def test_a_step_has_as_many_bits_as_the_range_allows(dtype, bound, limits, step):
    assert Grid.for_bound(bound, dtype, limits).step == step


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_values_on_ties_need_no_narrower_step(dtype):
    for bound in (2.0**-8, 2.0**-3, 1.0):
        for limits in (None, (0.0, 1.0)):
            made = Grid.for_bound(bound, dtype, limits)
            assert made.step == 2 * bound
            x = (torch.arange(256) * bound).to(dtype)
            assert bounded_quantize(x, made)[1].numel() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wider_dtypes_have_the_same_grid_for_every_range(dtype):
    for bound in (0.3, 0.03, 1e-3, 1e-9):
        assert Grid.for_bound(bound, dtype, (-1.0, 2.0)) == Grid.for_bound(bound, dtype)
        assert Grid.for_bound(bound, dtype).step > 2 * bound * (1 - 2.0**-11)
