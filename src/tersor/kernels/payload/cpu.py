"""Headers of plain payloads, coded and without outliers, in numba; ``layout.py`` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tersor.kernels.payload.layout import CODED, HEADER
from tersor.kernels.runtime.cpu.intrinsics import njit

HEADER_NBYTES = HEADER.size


@njit(nogil=True, cache=True)
def put_header(step: float, body_nbytes: int, payload: Any) -> None:
    """Write the header of a plain payload."""
    # the mode is the first byte; the reserved bytes and the number of outliers are zeros
    payload[:8].view(np.int64)[0] = CODED
    payload[8:16].view(np.float64)[0] = step
    payload[16:HEADER_NBYTES].view(np.int64)[0] = body_nbytes


@njit(nogil=True, cache=True)
def plain_step(payload: Any, bound_args: Any, like: Any) -> float:
    """Return the step of a plain payload of values like ``like``; 0 if it is not plain or not valid."""
    if payload.size < HEADER_NBYTES or payload[:8].view(np.int64)[0] != CODED:
        return 0.0
    step = payload[8:16].view(np.float64)[0]
    body_nbytes = payload[16:HEADER_NBYTES].view(np.int64)[0]
    if body_nbytes != payload.size - HEADER_NBYTES or body_nbytes % 8 != 0:
        return 0.0
    usable = bound_args.smallest_step <= step <= 2 * bound_args.largest_bound
    return step if usable and np.float64(like.dtype.type(step)) == step else 0.0
