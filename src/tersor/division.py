"""Division of sizes on the host."""

from __future__ import annotations


def ceil_div(count: int, size: int) -> int:
    """Return ``count / size``, rounded up.

    For host code only: numba kernels divide inline, Triton kernels use ``tl.cdiv``. ``triton.cdiv`` takes
    2 us per call on the host, half a millisecond for a list of 208 tensors.
    """
    return -(-count // size)
