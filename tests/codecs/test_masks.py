"""What only ``mask4``, ``mask2`` and ``group2`` promise: zeros and signs, errors by the group, and no bias."""

from __future__ import annotations

import math

import pytest
import torch

from tersor import create, decompress
from tersor.types import FLOAT_DTYPES
from tests import data

DTYPES = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
LARGEST = 2.0**123


def groups_of(flat: torch.Tensor, group: int) -> torch.Tensor:
    """Return float64 groups; the last one is filled up with its last value."""
    missing = -flat.numel() % group
    wide = flat.double()
    return torch.cat([wide, wide[-1:].expand(missing)]).view(-1, group)


def spread(numbers: torch.Tensor, group: int, count: int) -> torch.Tensor:
    return numbers.repeat_interleave(group)[:count]


@DTYPES
@pytest.mark.parametrize("nbits", [2, 4])
def test_masks_keep_zeros_and_signs_within_a_level(dtype, nbits):
    for name, x in data.inputs(dtype).items():
        flat = x.contiguous().view(-1)
        if not flat.numel():
            continue
        decoded = decompress(create(f"mask{nbits}").pack(x)).contiguous().view(-1)
        groups = groups_of(flat, 256)
        nonfinite = spread(~groups.isfinite().all(1), 256, flat.numel())
        top = torch.where((groups < 0).any(1), 2 ** (nbits - 1) - 1, 2**nbits - 1)
        level = (groups.abs().amax(1) / top * (1 + 2.0**-7)).clamp(min=2.0**-119)
        allowed = spread(level, 256, flat.numel()) + 2.0**-20 * flat.double().abs()
        allowed *= 2.0 if dtype in (torch.float16, torch.bfloat16) else 1.0
        plain = ~nonfinite & (flat.double().abs() < LARGEST)
        assert bool(decoded[nonfinite].isnan().all()), name
        assert bool(((decoded.double() - flat.double()).abs() <= allowed)[plain].all()), name
        assert torch.equal(decoded.sign()[plain], flat.sign()[plain]), name


@DTYPES
@pytest.mark.parametrize("seed", [None, 5])
def test_group2_errs_by_a_part_of_the_range(dtype, seed):
    for name, x in data.inputs(dtype).items():
        flat = x.contiguous().view(-1)
        if not flat.numel():
            continue
        decoded = decompress(create("group2", seed=seed).pack(x)).contiguous().view(-1)
        groups = groups_of(flat, 256)
        nonfinite = spread(~groups.isfinite().all(1), 256, flat.numel())
        low, high = groups.amin(1), groups.amax(1)
        level = ((high - low + 2.0**-7 * low.abs()) * (1 + 2.0**-7) / 3).clamp(min=2.0**-99)
        allowed = level * (0.5 if seed is None else 1.0) + 2.0**-20 * groups.abs().amax(1)
        # the smallest value itself is rounded to a bfloat16, and to the subnormals of that
        allowed = spread(allowed + 2.0**-130, 256, flat.numel())
        allowed *= 2.0 if dtype in (torch.float16, torch.bfloat16) else 1.0
        plain = ~nonfinite & spread(groups.abs().amax(1) < 2.0**126, 256, flat.numel())
        assert bool(decoded[nonfinite].isnan().all()), name
        assert bool(((decoded.double() - flat.double()).abs() <= allowed)[plain].all()), name


def test_stochastic_rounding_of_group2_has_no_bias():
    x = torch.linspace(0, 1, 256).repeat(4)
    mean = sum(decompress(create("group2", seed=seed).pack(x)) for seed in range(400)) / 400
    # a level is 1/3, so that 1600 roundings of each value have a standard error below 1/6/40
    assert float((mean.view(4, 256).mean(0) - x[:256]).abs().max()) < 6 / 240
    assert float((mean.mean() - x.mean()).abs()) < 1e-3


def test_float16_neither_overflows_nor_loses_a_sign():
    x = torch.full((2048,), 2.0**-24, dtype=torch.float16)
    x[::64], x[1::64], x[2::64] = 65504.0, -65504.0, 0.0
    for codec_id in ("mask4", "mask2"):
        decoded = decompress(create(codec_id).pack(x))
        assert bool(decoded.isfinite().all())
        assert torch.equal(decoded.sign(), x.sign())


def test_a_group_with_a_nan_spoils_no_other():
    x = torch.randn(1000)
    x[300] = math.nan
    for codec_id in ("mask4", "mask2", "group2"):
        decoded = decompress(create(codec_id).pack(x))
        assert decoded.isnan().nonzero().view(-1).tolist() == list(range(256, 512))


def test_group2_has_the_same_bytes_whichever_zero_is_taken_for_the_smallest():
    zeros = [torch.tensor(pair).repeat(128) for pair in ([0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0])]
    first, *others = [create("group2").pack(x).payloads[0] for x in zeros]
    assert all(torch.equal(first, other) for other in others)
