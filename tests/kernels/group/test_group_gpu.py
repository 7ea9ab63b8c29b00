"""Groups on a GPU, tile by tile: plain ones, which are treated apart, and all others.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors. The conformance
matrix is interpreted on inputs that are smaller than a tile; these are larger.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from tersor.kernels.group import compose, reference
from tersor.kernels.group.reference import uniform
from tersor.kernels.runtime.op import use_backend
from tests.checks import assert_bits_equal
from tests.triton_device import DEVICE, MARKS

pytest.importorskip("triton")
from tersor.kernels.group.gpu import quantize as gpu

pytestmark = MARKS

TILE: Final = 2048
"""Values that a program holds, for groups of 64 to 2048."""

# bits, group, seed, hadamard
OPTIONS: Final = (
    (4, 128, None, True),
    (4, 128, 9, True),
    (4, 2048, None, False),
    (8, 64, 2**40, True),
    (8, 256, None, False),
    (4, 32, 3, True),
    (8, 32, None, False),
    (8, 4096, None, True),
)
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def by_reference(op: Any, *arguments: Any) -> Any:
    with use_backend("reference"):
        return op(*arguments)


def assert_same(expected: Tensor, found: Tensor) -> None:
    """Fail unless the bits are the same; any NaN equals any other."""
    is_nan = expected.isnan()
    assert torch.equal(is_nan, found.cpu().isnan())
    assert_bits_equal(expected.nan_to_num(0.0), found.cpu().nan_to_num(0.0))


def tiles(dtype: torch.dtype) -> Tensor:
    """Return a plain tile, one with values that are not finite, a plain one, and a part of one."""
    x = torch.randn(3 * TILE + 333, generator=torch.Generator().manual_seed(4))
    x[TILE + 40], x[TILE + 700], x[2 * TILE - 1] = torch.nan, torch.inf, -torch.inf
    x[2 * TILE + 256 : 2 * TILE + 512] = 0.0
    return x.to(dtype)


def quantized(x: Tensor, base: Tensor | None, options: Any) -> tuple[Tensor, Tensor]:
    moved = None if base is None else base.to(DEVICE)
    scales, data = gpu.group_quantize(x.to(DEVICE), *options, None, moved)
    return scales.cpu(), data.cpu()


def check_decoding(scales: Tensor, data: Tensor, options: Any, base: Tensor) -> None:
    nbits, group, _, hadamard = options
    for add in (False, True):
        expected, found = base.clone(), base.to(DEVICE, copy=True)
        arguments = (nbits, group, hadamard)
        by_reference(reference.group_dequantize, data, scales, *arguments, expected, add)
        gpu.group_dequantize(data.to(DEVICE), scales.to(DEVICE), *arguments, found, add)
        assert_same(expected, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_tile_has_the_bytes_of_the_reference(options, dtype):
    x = tiles(dtype)
    base = (x.roll(3) * 0.25).to(dtype)
    for subtrahend in (None, base):
        expected = by_reference(reference.group_quantize, x, *options, None, subtrahend)
        found = quantized(x, subtrahend, options)
        assert_bits_equal(expected[0], found[0])
        assert_bits_equal(expected[1], found[1])
    check_decoding(*expected, options, base)


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("nbits", [4, 8])
def test_extreme_scales_decode_as_the_reference_decodes_them(nbits, hadamard):
    """Scales at which a power of two would overflow or lose bits, and those that a peer invents."""
    count = TILE * 2
    group = count // 32
    data = torch.randint(1, 256, (count * nbits // 8,), generator=torch.Generator().manual_seed(1))
    data = torch.where(data % 16 == 0, data + 1, data).to(torch.uint8)
    powers = (
        -149,
        -140,
        -130,
        -126,
        -120,
        -110,
        -101,
        -100,
        -50,
        0,
        50,
        95,
        96,
        97,
        110,
        118,
        121,
        127,
    )
    scales = [1.37 * 2.0**power for power in powers]
    # one scale for all groups, so that every tile is plain, or none
    for scale in (*scales, 0.0, -0.0, -1.0, -1e-40, torch.inf, torch.nan):
        repeated = torch.full((32,), scale)
        check_decoding(repeated, data, (nbits, group, None, hadamard), torch.ones(count))


@pytest.mark.parametrize(("nbits", "absmax"), [(4, 1.087), (8, 1.081)])
@pytest.mark.parametrize(("seed", "position"), [(69, 558), (779, 1300)])
def test_chance_rounds_no_value_beyond_the_largest_level(nbits, absmax, seed, position):
    """At these positions the chance is so large, or so small, that the sum reaches the next level.

    Products with the reciprocal of these largest magnitudes are rounded up.
    """
    chance = float(uniform(seed, TILE)[position])
    x = torch.zeros(TILE)
    x[position] = absmax if chance > 0.5 else -absmax
    scaled = x[position] * (torch.tensor(2.0 ** (nbits - 1) - 1) / x[position].abs())
    assert abs(torch.floor(scaled + chance)) == 2 ** (nbits - 1)
    expected = by_reference(reference.group_quantize, x, nbits, 128, seed)
    found = quantized(x, None, (nbits, 128, seed, False))
    assert_bits_equal(expected[1], found[1])


@pytest.mark.parametrize("out_nbits", [4, 8])
def test_sums_of_plain_and_other_tiles_are_the_reference_s(out_nbits, generator):
    senders = [tiles(torch.float32) * scale for scale in (1.0, 1e-3, 40.0)]
    senders[2] = senders[2].nan_to_num(1.0)
    sent = [by_reference(reference.group_quantize, x, 8, 128, 7) for x in senders]
    scales, data = torch.stack([s for s, _ in sent]), torch.stack([d for _, d in sent])
    expected = by_reference(
        compose.group_dequantize_sum_quantize, data, scales, 8, 128, out_nbits, 5
    )
    found = gpu.group_dequantize_sum_quantize(
        data.to(DEVICE), scales.to(DEVICE), 8, 128, out_nbits, 5
    )
    assert_bits_equal(expected[0], found[0].cpu())
    assert_bits_equal(expected[1], found[1].cpu())
    check_decoding(scales, data, (8, 128, None, True), torch.randn(3 * TILE, generator=generator))
