"""Reading groups of any float dtype as float32, and packing fields of a few bits, in numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from tersor.kernels.group.cpu.values import read_stage
from tersor.kernels.runtime.cpu.intrinsics import njit

_MAGNITUDE = 0x7FFFFFFF
_INFINITE = 0x7F800000


@njit(nogil=True, cache=True)
def read_group(values: Any, kind: int, start: int, stage: Any) -> tuple[Any, Any]:
    """Fill ``stage`` with the values from ``start`` on, then zeros; return whether all are finite, and their peak.

    A float64 beyond the range of float32 becomes infinite in ``stage`` but counts as finite. The peak is the bits of
    the largest float32 magnitude.
    """
    read_stage(values, values, kind, False, start, stage)
    bits = stage.view(np.int32)
    peak = np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & np.int32(_MAGNITUDE)))
    if values.itemsize != 8 or peak < np.int32(_INFINITE):
        return peak < np.int32(_INFINITE), peak
    is_finite = True
    for i in range(min(stage.size, values.size - start)):
        is_finite &= abs(values[start + i]) < np.inf
    return is_finite, peak


@njit(nogil=True, cache=True)
def pack_fields(fields: Any, nbits: int, data: Any) -> None:
    """Pack fields of 2 or 4 bits, given as bytes, back to back, lowest bits first."""
    # shifting words and truncating them to a byte vectorises
    if nbits == 4:
        pairs = fields.view(np.uint16)
        for i in range(data.size):
            data[i] = np.uint8(pairs[i] | np.uint16(pairs[i] >> np.uint16(4)))
    else:
        quads = fields.view(np.uint32)
        for i in range(data.size):
            two = np.uint32(quads[i] | np.uint32(quads[i] >> np.uint32(6)))
            data[i] = np.uint8(two | np.uint32(two >> np.uint32(12)))
