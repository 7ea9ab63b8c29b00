"""Hadamard transform in plain torch."""

from __future__ import annotations

from typing import Final

import torch

ORDER: Final = 32


def hadamard(x: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Multiply every 32 consecutive values by the Sylvester matrix of order 32.

    There are five butterfly levels, of strides 1, 2, 4, 8 and 16. They only add and subtract, so the
    result is the same on every backend. The matrix is its own inverse up to the factor 1/32, which
    the inverse applies.

    Args:
        x: float32, flat; its length is a multiple of 32.
        inverse: undo the transform.

    Example:
        >>> hadamard(torch.ones(32))[:3].tolist()
        [32.0, 0.0, 0.0]
    """
    values = x.view(-1, ORDER)
    for level in range(5):
        stride = 1 << level
        pairs = values.view(-1, ORDER // (2 * stride), 2, stride)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        values = torch.stack([first + second, first - second], 2).view(-1, ORDER)
    values = values * (1.0 / ORDER) if inverse else values
    return values.reshape(-1)
