"""Smallest and largest finite value, found by a plain loop."""

from __future__ import annotations

import math

import pytest
import torch

from tersor.kernels.quantize import finite_range
from tersor.types import FLOAT_DTYPES
from tests import data


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_range_is_that_of_the_finite_values(dtype):
    for name, x in data.inputs(dtype).items():
        finite = [value for value in x.double().reshape(-1).tolist() if math.isfinite(value)]
        expected = [min(finite), max(finite)] if finite else [math.inf, -math.inf]
        assert finite_range(x).tolist() == expected, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_bit_pattern_alone(dtype):
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    for start in range(0, 2**16, 512):
        part = patterns[start : start + 512]
        finite = part[torch.isfinite(part)].double()
        expected = [math.inf, -math.inf]
        if finite.numel():
            expected = [float(finite.min()), float(finite.max())]
        assert finite_range(part).tolist() == expected


def test_negative_zero_becomes_positive():
    low, high = finite_range(torch.tensor([-0.0, -0.0])).tolist()
    assert math.copysign(1, low) == math.copysign(1, high) == 1
