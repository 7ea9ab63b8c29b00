"""Hadamard transform in blocks of 32.

The matrix is sqrt(32) times an orthogonal one: an error of at most e per transformed value becomes
at most e per value after the inverse, and e / sqrt(32) on average.
"""

from __future__ import annotations

import torch

from tersor.kernels.transform import hadamard
from tersor.kernels.transform.reference import ORDER

__all__ = ["ORDER", "forward", "inverse"]


def forward(x: torch.Tensor) -> torch.Tensor:
    """Transform a flat float32 tensor whose length is a multiple of 32."""
    result: torch.Tensor = hadamard(x)
    return result


def inverse(y: torch.Tensor) -> torch.Tensor:
    """Undo ``forward``."""
    result: torch.Tensor = hadamard(y, inverse=True)
    return result
