"""Group quantization: its error, its bias, and what harms whom."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from tersor.kernels.group import (
    group_dequantize,
    group_dequantize_sum_quantize,
    group_quantize,
)
from tersor.kernels.transform import hadamard
from tersor.types import FLOAT_DTYPES

TOP = {4: 7, 8: 127}


def quantized_by_hand(values: list[float], nbits: int) -> tuple[float, list[float]]:
    """Round to the nearest of the levels between plus and minus the largest magnitude."""
    scale = max(abs(value) for value in values) / TOP[nbits]
    return scale, [round(value / scale) * scale for value in values]


@pytest.mark.parametrize("nbits", [4, 8])
@pytest.mark.parametrize("group", [2, 16, 128])
def test_nearest_is_within_half_a_level(nbits, group, generator):
    x = torch.randn(64 * group, generator=generator) * torch.logspace(-30, 30, 64 * group)
    scales, packed = group_quantize(x, nbits, group)
    assert packed.numel() == x.numel() * nbits // 8
    found = group_dequantize(packed, scales, nbits, group).double().view(-1, group)
    absmax = x.double().view(-1, group).abs().amax(1)
    # scale, reciprocal, product and decoded value are rounded to float32: 4 parts in 2**24 of
    # values up to the group's largest, which is TOP levels
    allowed = absmax[:, None] / TOP[nbits] * (0.5 + TOP[nbits] * 4 * 2.0**-24)
    error = (found - x.double().view(-1, group)).abs()
    assert bool((error <= allowed).all())
    assert torch.allclose(scales.double(), absmax / TOP[nbits], rtol=2**-24, atol=0)


@pytest.mark.parametrize("nbits", [4, 8])
def test_stochastic_is_within_one_level(nbits, generator):
    x = torch.randn(6400, generator=generator)
    scales, packed = group_quantize(x, nbits, 64, 12345)
    error = (group_dequantize(packed, scales, nbits, 64) - x).double().view(-1, 64).abs()
    assert bool((error <= scales.double()[:, None] * (1 + TOP[nbits] * 4 * 2.0**-24)).all())


def test_levels_match_a_calculation_by_hand():
    values = [0.7, -0.31, 0.06, 0.0, -0.69, 0.44]
    scales, packed = group_quantize(torch.tensor(values), 4, 6)
    scale, expected = quantized_by_hand(values, 4)
    assert math.isclose(scales.item(), scale, rel_tol=2**-22)
    fields = [byte & 15 for byte in packed.tolist()] + [byte >> 4 for byte in packed.tolist()]
    assert fields == [round(value / scale) + 8 for value in values]
    found = group_dequantize(packed, scales, 4, 6).tolist()
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("nbits", [4, 8])
def test_stochastic_rounding_is_unbiased(nbits):
    """The mean of many roundings is the value itself.

    Rounding to a neighbouring level has a variance of at most a quarter level squared, so the mean
    of n values has a deviation of at most 0.5 / sqrt(n) levels. Six of these are exceeded by chance
    less than once in 10**8.
    """
    num_values = 1 << 16
    for fraction in (0.05, 0.25, 0.5, 0.9):
        x = torch.full((num_values,), fraction / TOP[nbits])
        x[::64] = 1.0
        scales, packed = group_quantize(x, nbits, 64, 7)
        found = group_dequantize(packed, scales, nbits, 64).double()
        is_counted = torch.ones(num_values, dtype=torch.bool)
        is_counted[::64] = False
        levels = found[is_counted] * TOP[nbits]
        assert set(levels.round().tolist()) <= {0.0, 1.0}
        assert abs(float(levels.mean()) - fraction) <= 6 * 0.5 / math.sqrt(int(is_counted.sum()))
        negated = group_dequantize(*reversed(group_quantize(-x, nbits, 64, 8)), nbits, 64)
        mean = float((negated.double()[is_counted] * TOP[nbits]).mean())
        assert abs(mean + fraction) <= 6 * 0.5 / math.sqrt(int(is_counted.sum()))


def test_seeds_repeat_and_differ(generator):
    x = torch.randn(4096, generator=generator)
    codes = {seed: group_quantize(x, 4, 64, seed)[1] for seed in (0, 1, 2**32, 2**64 - 1, None)}
    for seed, packed in codes.items():
        assert torch.equal(group_quantize(x, 4, 64, seed)[1], packed)
    for one, other in combinations(codes.values(), 2):
        # two roundings of the same values agree in about half of the places, not in all
        assert (one != other).sum() > 400


def test_neighbouring_positions_round_independently():
    """Between roundings one apart, the correlation is at most six deviations of 1 / sqrt(n)."""
    num_values = 1 << 16
    x = torch.full((num_values,), 0.5 / 7)
    x[::64] = 1.0
    scales, packed = group_quantize(x, 4, 64, 3)
    found = group_dequantize(packed, scales, 4, 64).view(-1, 64)[:, 1:] * 7 - 0.5
    for distance in (1, 2, 32):
        product = (found[:, :-distance] * found[:, distance:] * 4).double()
        assert abs(float(product.mean())) <= 6 / math.sqrt(product.numel())


@pytest.mark.parametrize("nbits", [4, 8])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_one_special_value_harms_no_other(nbits, special, generator):
    x = torch.randn(256, generator=generator)
    clean = group_dequantize(*reversed(group_quantize(x, nbits, 64)), nbits, 64)
    x[70] = special
    found = group_dequantize(*reversed(group_quantize(x, nbits, 64)), nbits, 64)
    assert bool(found[70].isnan())
    others = torch.arange(256) != 70
    absmax_moved = clean.view(4, 64)[1].abs().argmax() == 70 - 64
    assert not absmax_moved
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("nbits", [4, 8])
def test_zero_and_tiny_groups_decode_to_zero(nbits):
    x = torch.cat([torch.zeros(64), torch.full((64,), 2.0**-130), torch.full((64,), -(2.0**-110))])
    found = group_dequantize(*reversed(group_quantize(x, nbits, 64)), nbits, 64)
    assert not found[:128].any()
    assert torch.equal(found[128:], x[128:])


@pytest.mark.parametrize("nbits", [4, 8])
def test_the_largest_floats_stay_finite(nbits):
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([largest, -largest, largest / 2, 0.0])
    found = group_dequantize(*reversed(group_quantize(x, nbits, 4)), nbits, 4)
    assert found.isfinite().all()


def decoded(scales, data, nbits, group, count, dtype=torch.float32, *, transformed):
    out = torch.full((count,), torch.nan, dtype=dtype)
    group_dequantize(data, scales, nbits, group, transformed, out)
    return out


@pytest.mark.parametrize("nbits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 96, 1024])
def test_fused_steps_give_the_bytes_of_single_ones(nbits, group, generator):
    x = torch.randn(3 * group - 5, generator=generator)
    padded = torch.cat([x, torch.zeros(5)])
    scales, data = group_quantize(x, nbits, group, 9, True)
    expected_scales, expected = group_quantize(hadamard(padded), nbits, group, 9)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(data, expected)
    found = decoded(scales, data, nbits, group, x.numel(), transformed=True)
    values = hadamard(group_dequantize(data, scales, nbits, group), inverse=True)
    assert torch.equal(found, values[:-5])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("transformed", [False, True])
def test_every_dtype_is_rounded_once(dtype, transformed, generator):
    x = torch.randn(1000, generator=generator).to(dtype)
    scales, data = group_quantize(x, 8, 128, None, transformed)
    wide_scales, wide_data = group_quantize(x.float(), 8, 128, None, transformed)
    assert torch.equal(scales, wide_scales)
    assert torch.equal(data, wide_data)
    wide = decoded(scales, data, 8, 128, 1000, transformed=transformed)
    found = decoded(scales, data, 8, 128, 1000, dtype, transformed=transformed)
    assert torch.equal(found, wide.to(dtype))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_what_is_not_finite_is_nan_in_every_dtype(dtype, generator):
    x = torch.randn(640, generator=generator).to(dtype)
    x[[3, 70, 639]] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    scales, data = group_quantize(x, 4, 64)
    found = decoded(scales, data, 4, 64, 640, dtype, transformed=False)
    assert found.isnan().nonzero().view(-1).tolist() == [3, 70, 639]
    scales, data = group_quantize(x, 4, 64, None, True)
    found = decoded(scales, data, 4, 64, 640, dtype, transformed=True)
    assert found.view(-1, 32).isnan().all(1).nonzero().view(-1).tolist() == [0, 2, 19]
    assert found.isnan().sum() == 96


def test_given_buffers_are_written_wherever_they_start(generator):
    x = torch.randn(1280, generator=generator)
    for transformed in (False, True):
        scales, data = group_quantize(x, 4, 128, 5, transformed)
        for lead in (0, 1, 4, 8):
            buffer = torch.full((lead + 640 + 3,), 77, dtype=torch.uint8)
            place = buffer[lead : lead + 640]
            new_scales = torch.empty(10)
            group_quantize(x, 4, 128, 5, transformed, (new_scales, place))
            assert torch.equal(new_scales, scales)
            assert torch.equal(place, data)
            assert buffer[:lead].tolist() + buffer[-3:].tolist() == [77] * (lead + 3)
            found = decoded(scales, place, 4, 128, 1280, transformed=transformed)
            expected = decoded(scales, data, 4, 128, 1280, transformed=transformed)
            assert torch.equal(found, expected)


def sent_by(num_senders, nbits, group, generator):
    """Return one buffer per sender as it arrives: scales, then data."""
    rows = []
    for scale in torch.logspace(0, 3, num_senders):
        scales, data = group_quantize(
            torch.randn(6 * group, generator=generator) * scale, nbits, group
        )
        rows.append(torch.cat([scales.view(torch.uint8), data]))
    payloads = torch.stack(rows)
    return payloads[:, 24:], payloads[:, :24].view(torch.float32)


@pytest.mark.parametrize("group", [32, 128, 4096, 10])
def test_senders_are_summed_in_their_order(group, generator):
    data, scales = sent_by(4, 8, group, generator)
    total = group_dequantize(data[0].clone(), scales[0].clone(), 8, group)
    for one, one_scales in zip(data[1:], scales[1:], strict=True):
        total = total + group_dequantize(one.clone(), one_scales.clone(), 8, group)
    out = decoded(scales, data, 8, group, 6 * group, transformed=False)
    assert torch.equal(out, total)
    new_scales, new_data = group_dequantize_sum_quantize(data, scales, 8, group, 4, 21)
    expected_scales, expected = group_quantize(total, 4, group, 21)
    assert torch.equal(new_scales, expected_scales)
    assert torch.equal(new_data, expected)


def test_a_sum_is_transformed_back_once(generator):
    data, scales = sent_by(3, 4, 64, generator)
    total = decoded(scales, data, 4, 64, 384, transformed=False)
    found = decoded(scales, data, 4, 64, 380, torch.float64, transformed=True)
    assert torch.equal(found, hadamard(total, inverse=True)[:380].double())


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("transformed", [False, True])
def test_differences_are_rounded_as_torch_rounds_them(dtype, transformed, generator):
    x = torch.randn(1003, generator=generator).to(dtype)
    base = (x + torch.randn(1003, generator=generator).to(dtype) * 0.01).to(dtype)
    x[[5, 300, 700]] = torch.tensor([math.nan, math.inf, torch.finfo(dtype).max], dtype=dtype)
    base[[300, 700]] = torch.tensor([math.inf, -torch.finfo(dtype).max], dtype=dtype)
    before = x.clone(), base.clone()
    scales, data = group_quantize(x, 4, 128, 7, transformed, None, base)
    expected_scales, expected = group_quantize(x - base, 4, 128, 7, transformed)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(data, expected)
    assert torch.equal(torch.stack([x, base]).nan_to_num(), torch.stack(before).nan_to_num())


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("transformed", [False, True])
def test_what_is_added_to_a_base_is_rounded_once(dtype, transformed, generator):
    x = torch.randn(1003, generator=generator) * 0.01
    x[5] = math.nan
    base = torch.randn(1003, generator=generator).to(dtype)
    base[[40, 50]] = torch.tensor([math.nan, math.inf], dtype=dtype)
    scales, data = group_quantize(x, 8, 128, None, transformed)
    wide = decoded(scales, data, 8, 128, 1003, transformed=transformed)
    expected = base.clone().add_(wide)
    twice_rounded = base + wide.to(dtype)
    group_dequantize(data, scales, 8, 128, transformed, base, True)
    assert torch.equal(base.isnan(), expected.isnan())
    assert torch.equal(base.nan_to_num(), expected.nan_to_num())
    if dtype in (torch.float16, torch.bfloat16):
        assert not torch.equal(twice_rounded.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("wrong", [(9, 640), (10, 639)], ids=["scales", "data"])
def test_given_buffers_of_a_wrong_size_are_refused_before_anything_is_written(wrong, generator):
    x = torch.randn(1280, generator=generator)
    out = torch.zeros(wrong[0]), torch.zeros(wrong[1], dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        group_quantize(x, 4, 128, out=out)
    assert not any(bool(one.any()) for one in out)
