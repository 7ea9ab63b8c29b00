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


@triton.jit
def operate(x, y, out, size: tl.constexpr):
    """Store what operators give, one result after another."""
    place = tl.arange(0, size)
    one, other = tl.load(x + place), tl.load(y + (place - size) + size)
    tl.store(out + place, (one + other).to(tl.float64))
    tl.store(out + size + place, (one - 3).to(tl.float64))
    tl.store(out + 2 * size + place, (3 - one).to(tl.float64))
    tl.store(out + 3 * size + place, (one * other).to(tl.float64))
    tl.store(out + 4 * size + place, tl.where(one < other, one, other).to(tl.float64))
    tl.store(out + 5 * size + place, (one >= 0).to(tl.float64))
    tl.store(out + 6 * size + place, (one == other).to(tl.float64))


@triton.jit
def operate_on_bits(x, y, out, size: tl.constexpr):
    """Store what operators give that floats do not have."""
    place = tl.arange(0, size)
    one, other = tl.load(x + place), tl.load(y + place)
    tl.store(out + place, ((one & other) ^ (one | 5)).to(tl.int64))
    tl.store(out + size + place, (one >> 3).to(tl.int64))
    tl.store(out + 2 * size + place, (one << 2).to(tl.int64))


SIGNED, UNSIGNED = (torch.int8, torch.int16, torch.int32, torch.int64), (torch.uint8,)


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """Values at which a type that is a little different gives another result."""
    if dtype.is_floating_point:
        return torch.tensor([0.1, -0.0, -7.75, 1e30], dtype=dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([limits.min, limits.max, limits.max // 3, 1], dtype=dtype)


@pytest.mark.parametrize("other_dtype", [*SIGNED, *UNSIGNED, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED, torch.float32, torch.float64])
def test_operators_that_follow_a_plan_give_what_torch_gives(dtype, other_dtype):
    # the first launch makes the plans, of values that need no type in particular
    for x, y in (
        (torch.ones(4, dtype=dtype), torch.ones(4, dtype=other_dtype)),
        (extremes(dtype), extremes(other_dtype).flip(0)),
    ):
        out = torch.zeros(7, 4, dtype=torch.float64)
        operate[(1,)](x, y, out, size=4)
        common = torch.promote_types(dtype, other_dtype)
        if dtype != other_dtype and not common.is_floating_point:
            # Triton's is C's: the wider of two, and of two that are as wide the unsigned one
            common = max(dtype, other_dtype, key=lambda one: (one.itemsize, not one.is_signed))
        a, b = x.to(common), y.to(common)
        smaller = torch.where(a < b, a, b)
        expected = [a + b, x - 3, 3 - x, a * b, smaller, x >= 0, a == b]
        assert torch.equal(out, torch.stack([one.double() for one in expected]))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_bits_that_follow_a_plan_are_those_of_torch(dtype):
    for x in (torch.ones(4, dtype=dtype), extremes(dtype)):
        y = x.flip(0)
        out = torch.zeros(3, 4, dtype=torch.int64)
        operate_on_bits[(1,)](x, y, out, size=4)
        assert torch.equal(out, torch.stack([(x & y) ^ (x | 5), x >> 3, x << 2]).long())
