"""Casts to 8-bit floats: the error they promise, and special values."""

from __future__ import annotations

import pytest
import torch

from tersor.kernels.group.cast import scaled_cast, scaled_uncast

# significant bits, and the smallest normal number relative to the largest number
FORMATS = {
    torch.float8_e4m3fn: (4, 2.0**-6 / 448),
    torch.float8_e5m2: (3, 2.0**-14 / 57344),
}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("group", [1, 7, 256])
def test_normal_values_keep_their_significant_bits(dtype, group, generator):
    num_bits, smallest = FORMATS[dtype]
    x = torch.randn(40 * group, generator=generator) * 1e10
    scales, cast = scaled_cast(x, dtype, group)
    found = scaled_uncast(cast, scales, group).double()
    absmax = x.double().view(-1, group).abs().amax(1, keepdim=True).expand(-1, group).reshape(-1)
    # half a unit of the last bit, and float32 rounding of scale, reciprocal and products
    relative = 2.0**-num_bits + 6 * 2.0**-24
    allowed = torch.maximum(x.double().abs(), absmax * smallest) * relative
    assert bool(((found - x.double()).abs() <= allowed).all())


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_special_values_harm_no_other(dtype, generator):
    x = torch.randn(64, generator=generator)
    x[5] = 9.0
    clean = scaled_uncast(*reversed(scaled_cast(x, dtype, 64)), 64)
    changed = x.clone()
    changed[[1, 2, 3]] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    found = scaled_uncast(*reversed(scaled_cast(changed, dtype, 64)), 64)
    others = torch.tensor([place not in (1, 2, 3) for place in range(64)])
    assert torch.equal(found[others], clean[others])
    assert found[1].isnan()
    if dtype == torch.float8_e5m2:
        assert found[2:4].tolist() == [float("inf"), float("-inf")]
    else:
        assert found[2:4].isnan().all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_nan_becomes_the_same_byte(dtype, source):
    x = torch.tensor([float("nan"), 1.0, 0.0, 0.0]).to(source)
    cast = scaled_cast(torch.cat([x, -x]).float(), dtype, 4)[1].view(torch.uint8)
    assert cast[0] == cast[4] == 0x7F


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("exponent", [*range(-126, -100), 0, 100, 127])
def test_groups_of_any_magnitude_keep_it_or_become_zero(dtype, exponent):
    num_bits, _ = FORMATS[dtype]
    x = torch.tensor([2.0**exponent, -(2.0 ** (exponent - 1)), 0.0, 1.75 * 2.0**exponent])
    found = scaled_uncast(*reversed(scaled_cast(x, dtype, 4)), 4)
    if exponent < -111:
        # its scale would not be normal, and the reciprocal of that infinite
        assert torch.equal(found, torch.zeros(4)) or dtype == torch.float8_e4m3fn
    if bool(found.any()):
        error = (found.double() - x.double()).abs()
        assert bool((error <= x.double().abs() * (2.0**-num_bits + 6 * 2.0**-24)).all())
    else:
        assert exponent < -109


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_zero_groups_stay_zero(dtype):
    x = torch.cat([torch.zeros(8), torch.ones(8)])
    found = scaled_uncast(*reversed(scaled_cast(x, dtype, 8)), 8)
    assert torch.equal(found, x)
