"""Finite range in numba, computed on integers that sort like the floats."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit

_IMAGES: Final = {
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
}
"""Integer dtype of the same width, and the bits of infinity."""


@njit(nogil=True, cache=True)
def range_kernel(bits: Any, infinity_bits: Any, sign_shift: Any, start: int, stop: int) -> Any:
    """Return the smallest and largest order-preserving key of the finite values.

    The bits of floats, with the lower bits of negative values inverted, sort like the floats. Integer
    minimum and maximum vectorise without fast-math: 40 GB/s, against 3 for float comparisons.
    """
    part = bits[start:stop]
    integer = bits.dtype.type
    magnitude_bits = integer(~(integer(1) << sign_shift))
    low = magnitude_bits
    high = integer(~magnitude_bits)
    for i in range(part.size):
        value = part[i]
        magnitude = integer(value & magnitude_bits)
        key = integer(value ^ integer(integer(value >> sign_shift) & magnitude_bits))
        finite = magnitude < infinity_bits
        low = min(low, key if finite else magnitude_bits)
        high = max(high, key if finite else integer(~magnitude_bits))
    return low, high


class Infinities(NamedTuple):
    """Bits of infinity as a signed, and of minus infinity as an unsigned integer: arrays of one value."""

    positive: Any
    negative: Any


INFINITIES: Final = {
    torch.float32: Infinities(np.array([0x7F80_0000], "i4"), np.array([0xFF80_0000], "u4")),
    torch.float64: Infinities(np.array([0x7FF << 52], "i8"), np.array([0xFFF << 52], "u8")),
}


@njit(nogil=True, cache=True)
def range_if_finite(values: Any, infinities: Any) -> Any:
    """Return the smallest and largest of at least one value; (1, 0) if any is not finite.

    The bits of positive floats sort like the floats, and those of negative floats in reverse, so
    three integer extremes suffice: a third of the work of ``range_kernel``.
    """
    signed = values.view(infinities.positive.dtype)
    unsigned = values.view(infinities.negative.dtype)
    ends = np.empty(2, dtype=unsigned.dtype)
    largest, furthest, nearest = signed[0], unsigned[0], unsigned[0]
    for i in range(signed.size):
        largest = max(largest, signed[i])
        furthest = max(furthest, unsigned[i])
        nearest = min(nearest, unsigned[i])
    zero = values.dtype.type(0)
    if largest >= infinities.positive[0] or furthest >= infinities.negative[0]:
        return values.dtype.type(1), zero
    sign_bit = unsigned.dtype.type(1) << unsigned.dtype.type(8 * unsigned.itemsize - 1)
    ends[0] = furthest if furthest >= sign_bit else nearest
    ends[1] = furthest if furthest < sign_bit else nearest
    if furthest >= sign_bit and largest >= 0:
        ends[1] = largest
    low, high = ends.view(values.dtype)
    # + 0 turns -0.0 into 0.0
    return low + zero, high + zero


def _to_float(key: int, sign_shift: int, dtype: torch.dtype, image_dtype: torch.dtype) -> float:
    bits = key if key >= 0 else key ^ ((1 << sign_shift) - 1)
    if dtype == torch.float32:
        # struct is ten times faster than a round trip through torch
        value: float = struct.unpack("<f", struct.pack("<i", bits))[0]
    elif dtype == torch.float64:
        value = struct.unpack("<d", struct.pack("<q", bits))[0]
    else:
        value = torch.tensor(bits, dtype=image_dtype, device="cpu").view(dtype).item()
    # + 0.0 turns -0.0 into 0.0, so that every backend gives the same bits
    return value + 0.0


def finite_range(x: torch.Tensor) -> torch.Tensor:
    """See ``reference.finite_range``."""
    image_dtype, infinity_bits = _IMAGES[x.dtype]
    bits = x.reshape(-1).view(image_dtype).numpy()
    integer = bits.dtype.type
    sign_shift = x.dtype.itemsize * 8 - 1
    arguments = (bits, integer(infinity_bits), integer(sign_shift))
    parts = threads.split(bits.size, x.dtype.itemsize)
    ends = threads.run(range_kernel, [(*arguments, start, stop) for start, stop in parts])
    low, high = min(int(low) for low, _ in ends), max(int(high) for _, high in ends)
    if low > high:
        return torch.tensor([torch.inf, -torch.inf], dtype=torch.float64, device="cpu")
    ends_f64 = [_to_float(key, sign_shift, x.dtype, image_dtype) for key in (low, high)]
    return torch.tensor(ends_f64, dtype=torch.float64, device="cpu")
