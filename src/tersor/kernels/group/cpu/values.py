"""Conversion of every float dtype to float32 and back in numba, optionally relative to a base.

A stage is a float32 array that fits into a cache; reading into it and writing from it needs no
other memory. numba has no 16-bit floats, so kernels handle their bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from tersor.kernels.runtime.cpu.intrinsics import bits_of, njit

WIDE, F16, BF16 = 0, 1, 2
"""What an array holds: float32 or float64 themselves, or the bits of 16-bit floats."""

_KINDS: Final = {torch.float16: F16, torch.bfloat16: BF16}
_A_NAN: Final = 0x7FFF
"""The bits of a NaN in both 16-bit dtypes."""


def kind_of(dtype: torch.dtype) -> int:
    """Return what an array of a dtype holds."""
    return _KINDS.get(dtype, WIDE)


def array_of(x: torch.Tensor) -> tuple[Any, int]:
    """Return a contiguous tensor as a flat array, and what the array holds."""
    kind = kind_of(x.dtype)
    flat = x.view(-1)
    return (flat.numpy() if kind == WIDE else flat.view(torch.int16).numpy().view(np.uint16)), kind


@njit(nogil=True, cache=True, inline="always")
def _from_bf16(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(nogil=True, cache=True, inline="always")
def _to_bf16(value: Any, nan: Any) -> Any:
    bits = bits_of(value)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    is_number = np.uint32(bits & np.uint32(0x7FFFFFFF)) <= np.uint32(0x7F800000)
    return np.uint16(rounded) if is_number else nan


@njit(nogil=True, cache=True, inline="always")
def _from_f16(bits: Any) -> Any:
    bits = np.uint32(bits)
    shifted = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
    # the exponent biases differ by 112; the product is exact, for subnormals too
    finite = bits_of(np.uint32(shifted).view(np.float32) * np.float32(2.0**112))
    special = np.uint32(shifted | np.uint32(0x7F800000))
    magnitude = finite if shifted < np.uint32(0x0F800000) else special
    sign = np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))
    return np.uint32(magnitude | sign).view(np.float32)


@njit(nogil=True, cache=True, inline="always")
def _to_f16(value: Any, nan: Any) -> Any:
    bits = bits_of(value)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    bits = np.uint32(bits & np.uint32(0x7FFFFFFF))
    odd = np.uint32((bits >> np.uint32(13)) & np.uint32(1))
    rounded = np.uint32(np.uint32(bits + np.uint32(0xFFF) + odd) >> np.uint32(13))
    normal = min(np.uint32(rounded - np.uint32(112 << 10)), np.uint32(0x7C00))
    # between 0.5 and 1 a float32 has the spacing of float16's subnormals
    lifted = bits_of(np.uint32(bits).view(np.float32) + np.float32(0.5))
    subnormal = np.uint32(lifted - np.uint32(0x3F000000))
    magnitude = subnormal if bits < np.uint32(0x38800000) else normal
    return np.uint16(magnitude | sign) if bits <= np.uint32(0x7F800000) else nan


@njit(nogil=True, cache=True)
def read_stage(values: Any, base: Any, kind: int, subtract: bool, start: int, stage: Any) -> None:
    """Fill ``stage`` with the values from ``start`` on, minus those of ``base`` if ``subtract``, then zeros.

    Differences are first rounded to the values' dtype, as torch does.
    """
    nan = np.uint16(_A_NAN)
    count = min(stage.size, values.size - start)
    values, base = values[start : start + count], base[start : start + count]
    # branches inside the loops would prevent vectorisation
    if kind == WIDE and not subtract:
        for i in range(count):
            stage[i] = np.float32(values[i])
    elif kind == WIDE:
        for i in range(count):
            stage[i] = np.float32(values[i] - base[i])
    elif kind == BF16 and not subtract:
        for i in range(count):
            stage[i] = _from_bf16(values[i])
    elif kind == BF16:
        for i in range(count):
            stage[i] = _from_bf16(_to_bf16(_from_bf16(values[i]) - _from_bf16(base[i]), nan))
    elif not subtract:
        for i in range(count):
            stage[i] = _from_f16(values[i])
    else:
        for i in range(count):
            stage[i] = _from_f16(_to_f16(_from_f16(values[i]) - _from_f16(base[i]), nan))
    stage[count:] = np.float32(0)


@njit(nogil=True, cache=True)
def write_stage(stage: Any, out: Any, kind: int, nan: Any, add: bool, start: int) -> None:
    """Write ``stage`` to ``out`` from ``start`` on, as far as there is room, or add it.

    Sums are computed in float32, or in float64 if ``out`` is, and rounded once. Every NaN becomes
    ``nan``, because processors produce different ones.
    """
    count = min(stage.size, out.size - start)
    out = out[start : start + count]
    if kind == WIDE and not add:
        for i in range(count):
            out[i] = nan if np.isnan(stage[i]) else stage[i]
    elif kind == WIDE:
        for i in range(count):
            total = out[i] + stage[i]
            out[i] = nan if np.isnan(total) else total
    elif kind == BF16 and not add:
        for i in range(count):
            out[i] = _to_bf16(stage[i], nan)
    elif kind == BF16:
        for i in range(count):
            out[i] = _to_bf16(_from_bf16(out[i]) + stage[i], nan)
    elif not add:
        for i in range(count):
            out[i] = _to_f16(stage[i], nan)
    else:
        for i in range(count):
            out[i] = _to_f16(_from_f16(out[i]) + stage[i], nan)
