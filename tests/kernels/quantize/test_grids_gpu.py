"""Grids computed on the device are those of the host, and make no more outliers.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tersor.codecs import create
from tersor.kernels.payload.layout import CODED, HEADER
from tersor.kernels.quantize import Grid
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import read_struct
from tersor.types import FLOAT_DTYPES, Bound
from tests.kernels.quantize.test_narrow_grid import NARROW
from tests.triton_device import DEVICE, MARKS

pytest.importorskip("triton")
from tersor.kernels.quantize.gpu.finite_range import TILE, fold_ranges, key_dtype
from tersor.kernels.quantize.gpu.grids import grid_table
from tersor.kernels.runtime.gpu.tiles import addresses, are_aligned, bound_table, tile_table

pytestmark = MARKS

significands = st.integers(2**23, 2**24)
bounds = st.one_of(
    st.floats(1e-9, 4.0).map(Bound.relative),
    st.floats(0.0, allow_infinity=False, allow_nan=False).map(Bound.absolute),
    st.builds(math.ldexp, significands, st.integers(-174, 104)).map(Bound.absolute),
    # where float16 has a fixed spacing
    st.builds(math.ldexp, significands, st.integers(-52, -46)).map(Bound.absolute),
)
values = st.one_of(
    st.floats(width=16),
    st.floats(width=32),
    st.integers(-140, 127).map(lambda exponent: 2.0**exponent),
)


def grids_on_device(
    ranges: list[tuple[float, float]], asked: list[Bound], dtype: torch.dtype
) -> list[list[float]]:
    """Return step, inverse and checked bound of tensors with these smallest and largest values."""
    xs = [torch.tensor(ends, dtype=torch.float64).to(dtype).to(DEVICE) for ends in ranges]
    keys = torch.zeros(2 * len(xs), dtype=key_dtype(dtype), device=DEVICE)
    tiles = tile_table((2,) * len(xs), TILE, DEVICE)
    fold_ranges(addresses(xs, DEVICE), tiles, keys, dtype, are_aligned(xs))
    table = tuple((bound.value, bound.kind == "relative") for bound in asked)
    return grid_table(keys, bound_table(table, DEVICE), dtype).double().tolist()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@settings(
    max_examples=200, deadline=timedelta(seconds=20), suppress_health_check=[HealthCheck.too_slow]
)
@given(cases=st.lists(st.tuples(bounds, values, values), min_size=1, max_size=8))
def test_grids_have_the_bits_of_the_reference(dtype, cases):
    asked = [bound for bound, _, _ in cases]
    ranges = [(one, other) for _, one, other in cases]
    for found, bound, ends in zip(
        grids_on_device(ranges, asked, dtype), asked, ranges, strict=True
    ):
        finite = [one for one in torch.tensor(ends, dtype=torch.float64).to(dtype).tolist()
                  if abs(one) < math.inf]  # fmt: skip
        low, high = (min(finite), max(finite)) if finite else (math.inf, -math.inf)
        limits = (low, high) if bound.kind == "relative" else None
        made = Grid.for_bound(bound.resolve(low, high), dtype, limits)
        if made is None:
            assert found[0] == 0
        else:
            assert found == [made.step, made.inverse, made.bound]


@pytest.mark.parametrize("codec", ["flat", "delta", "ans", "rows"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_normal_values_have_no_outliers(dtype, codec, generator):
    options = {"entropy": "ans"} if codec == "rows" else {}
    x = torch.randn(100, 16, generator=generator).to(dtype)
    # at most 256 different codes, as the fused kernels of ans and rows know
    for bound in (Bound.absolute(0.07), Bound.relative(0.03), Bound.relative(0.01)):
        coder = create(codec, bound=bound, **options)
        with use_backend("gpu"):
            packed = coder.pack(x.to(DEVICE))
        payload = packed.payloads[0].cpu()
        mode, num_outliers, *_ = read_struct(HEADER, payload, slice(1, 4))
        assert (mode, num_outliers) == (CODED, 0), bound
        with use_backend("reference"):
            assert torch.equal(payload, coder.pack(x).payloads[0])
