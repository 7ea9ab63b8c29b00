"""The shared inputs under the name that tests use; ``tersor.testing.inputs`` has them."""

import torch

from tersor.testing.inputs import FACTORIES, TIE_STEP, inputs, ties

__all__ = ["FACTORIES", "TIE_STEP", "inputs", "make", "ties"]


def make(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Return one shared input in ``dtype``; ``FACTORIES`` holds the names."""
    return FACTORIES[name](dtype)
