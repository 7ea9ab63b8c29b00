"""The interpreter that ``tests/interpreter.py`` made faster gives what it gave before."""

from __future__ import annotations

import pytest
import torch

from tests.triton_device import INTERPRETED

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled")


@triton.jit
def after(scale, offset, next_scale, next_offset):
    """Apply one line after another: associative, but not commutative."""
    return scale * next_scale, offset * next_scale + next_offset


@triton.jit
def compose_lines(scales, offsets, out, axis: tl.constexpr, keep: tl.constexpr):
    rows, columns = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    place = rows * 8 + columns
    scale, offset = tl.load(scales + place), tl.load(offsets + place)
    scale, offset = tl.reduce((scale, offset), axis, after, keep_dims=keep)
    if keep:
        tl.store(out + (rows if axis == 1 else columns), offset * 1000 + scale)
    else:
        tl.store(out + tl.arange(0, 4 if axis == 1 else 8), offset * 1000 + scale)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_reduced_keeps_its_order(axis, keep):
    generator = torch.Generator().manual_seed(0)
    scales = torch.randint(1, 3, (4, 8), generator=generator, dtype=torch.int32)
    offsets = torch.randint(-9, 9, (4, 8), generator=generator, dtype=torch.int32)
    expected = []
    for lines in zip(scales.movedim(axis, 1), offsets.movedim(axis, 1), strict=True):
        scale, offset = 1, 0
        for one, other in zip(*map(torch.Tensor.tolist, lines), strict=True):
            scale, offset = scale * one, offset * one + other
        expected.append(offset * 1000 + scale)
    out = torch.zeros(len(expected), dtype=torch.int32)
    compose_lines[(1,)](scales, offsets, out, axis=axis, keep=keep)
    assert out.tolist() == expected


@triton.jit
def xor_and_shape(x, out):
    block = tl.load(x + tl.arange(0, 16))
    tl.static_assert(block.shape[0] == 16)
    tl.static_assert(block.reshape(2, 8).shape[1] == 8)
    tl.static_assert(block.to(tl.int64).numel == 16)
    tl.store(out, tl.xor_sum(block, 0))
    tl.store(out + 1, tl.xor_sum(block.reshape(2, 8)))


def test_shapes_and_reductions_to_one_value_are_as_a_compiler_has_them():
    x = torch.arange(16, dtype=torch.int32) ** 3
    out = torch.zeros(2, dtype=torch.int32)
    xor_and_shape[(1,)](x, out)
    expected = 0
    for value in x.tolist():
        expected ^= value
    assert out.tolist() == [expected] * 2


@triton.jit
def add_all(x, out):
    place = tl.arange(0, 4)
    tl.store(out + place, tl.load(x + place) + tl.load(x + place))


def test_integers_wrap():
    x = torch.full((4,), 2**31 - 1, dtype=torch.int32)
    out = torch.zeros_like(x)
    add_all[(1,)](x, out)
    assert out.tolist() == [-2] * 4
