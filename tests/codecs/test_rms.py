"""What only ``rms`` promises: an error per group, exact zeros and signs, and small bytes."""

from __future__ import annotations

import math

import pytest
import torch

from tersor import Codec, create, decompress
from tersor.kernels.group.rms.layout import GROUP, SMALLEST_SCALE
from tersor.kernels.payload.layout import CODED, EXACT
from tersor.types import FLOAT_DTYPES
from tests import data
from tests.checks import assert_bits_equal

DTYPES = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
STEPS = pytest.mark.parametrize("step", [0.13, 0.5, 1.0, 3.3])
LARGEST = 2.0**123


def relu(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).relu()


def has_zeros(payload: torch.Tensor) -> bool:
    """Say what the payload records; exact ones keep everything."""
    return bool(payload[0] == EXACT) or bool(payload[24] & 1)


def root_mean_squares(x: torch.Tensor, of_nonzeros: bool) -> torch.Tensor:
    """Return that of the group of each value, in float64; what is stored exactly counts as 0."""
    flat = x.double().contiguous().view(-1)
    flat = torch.where(flat.abs() < LARGEST, flat, 0.0)
    flat = torch.where(flat.float() == 0, 0.0, flat)
    groups = torch.nn.functional.pad(flat, (0, -flat.numel() % GROUP)).view(-1, GROUP)
    counted = (groups != 0).sum(1)
    if not of_nonzeros:
        known = torch.arange(groups.numel()).view(-1, GROUP) < flat.numel()
        counted = known.sum(1)
    means = groups.square().sum(1) / counted.clamp(min=1)
    return means.sqrt().repeat_interleave(GROUP)[: flat.numel()]


def assert_error_within_steps(x: torch.Tensor, codec: Codec, shift: float = 0.0) -> None:
    """Check what the codec's docstring says; ``shift`` plants an error."""
    packed = codec.pack(x)
    decoded = decompress(packed).contiguous().view(-1)
    if shift:
        decoded[:1] += shift
    flat = x.contiguous().view(-1)
    zeros = has_zeros(packed.payloads[0])
    # the scale is rounded up to 9 significant bits, after magnitudes grew by up to 1.5 of 1024 units
    scales = root_mean_squares(x, zeros).mul(1 + 2.0**-6).clamp(min=SMALLEST_SCALE)
    allowed = codec.step * (1.0 if zeros else 0.5) * scales + 2.0**-20 * flat.double().abs()
    allowed *= 2.0 if x.dtype in (torch.float16, torch.bfloat16) else 1.0
    finite = flat.isfinite()
    error = (decoded.double() - flat.double()).abs()
    assert bool((error <= allowed)[finite].all())
    exact = ~(flat.double().abs() < LARGEST)
    assert_bits_equal(decoded[exact], flat[exact])
    if zeros:
        assert torch.equal(decoded.sign()[finite], flat.sign()[finite])
    assert not bool(decoded[flat == 0].any())


@DTYPES
@STEPS
@pytest.mark.parametrize("zeros", [True, False, "auto"])
def test_the_error_is_that_of_the_group(dtype, step, zeros):
    codec = create("rms", step=step, zeros=zeros)
    for name, x in data.inputs(dtype).items():
        try:
            assert_error_within_steps(x, codec)
        except AssertionError as error:
            error.add_note(name)
            raise


@DTYPES
def test_the_error_holds_in_long_tensors_of_mixed_groups(dtype):
    scales = torch.logspace(-4, 3, 200).repeat_interleave(300)
    x = (relu(60_000) * scales).to(dtype)
    x[::977] *= -1
    x[5], x[7000], x[59_999] = math.nan, -math.inf, math.inf
    for zeros in (True, False):
        codec = create("rms", step=0.5, zeros=zeros)
        assert codec.pack(x).payloads[0][0] == CODED
        assert_error_within_steps(x, codec)


def test_a_planted_error_is_noticed():
    assert_error_within_steps(relu(5000), create("rms"))
    with pytest.raises(AssertionError):
        assert_error_within_steps(relu(5000), create("rms"), shift=3.0)


def test_means_of_bins_keep_the_sum():
    """Middles of bins would not: large magnitudes are rarer than small ones in each bin."""
    x = torch.distributions.Exponential(1.0).sample((1 << 14,)) * (relu(1 << 14) > 0)
    decoded = decompress(create("rms", zeros=True).pack(x))
    # all groups are sampled, whose scales differ by a few per cent
    assert abs(float(decoded.sum() / x.sum()) - 1) < 0.01


def test_zeros_are_looked_for_in_a_sample():
    signed = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1))
    few, many = signed.clone(), signed.clone()
    few[::40] = 0
    many[::10] = 0
    for x, expected in ((signed, False), (few, False), (many, True), (relu(1 << 16), True)):
        assert has_zeros(create("rms").pack(x).payloads[0]) is expected


def test_a_group_between_sampled_ones_keeps_the_promise():
    x = torch.zeros(300 * GROUP)
    x[GROUP : 2 * GROUP] = torch.linspace(-4, 4, GROUP) ** 3
    for zeros in (True, False):
        codec = create("rms", step=0.5, zeros=zeros)
        assert_error_within_steps(x, codec)
        assert codec.pack(x).payloads[0][0] == CODED


def test_the_sign_of_zero_is_lost():
    x = torch.zeros(3000)
    x[::3], x[1::3] = -0.0, 1.0
    decoded = decompress(create("rms").pack(x))
    assert not bool(decoded[::3].signbit().any())


@pytest.mark.parametrize(("step", "ratio"), [(1.0, 17.8), (0.5, 13.0)])
def test_rectified_noise_takes_as_little_as_planned(step, ratio):
    x = relu(1 << 20)
    packed = create("rms", step=step).pack(x)
    assert x.nbytes / packed.nbytes > ratio


def test_float16_neither_overflows_nor_loses_a_sign():
    x = torch.full((2048,), 2.0**-24, dtype=torch.float16)
    x[::64], x[1::64], x[2::64] = 65504.0, -65504.0, 0.0
    decoded = decompress(create("rms", zeros=True).pack(x))
    assert bool(decoded.isfinite().all())
    assert torch.equal(decoded.sign(), x.sign())


def test_what_does_not_get_smaller_is_stored_exactly():
    x = torch.tensor([1.0, -0.0, 3.5])
    packed = create("rms").pack(x)
    assert_bits_equal(decompress(packed), x)
