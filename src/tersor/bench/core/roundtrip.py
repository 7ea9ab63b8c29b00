"""The check that precedes every speed: encoded data decode to within the bound."""

from __future__ import annotations

import math

import torch

_BLOCK_VALUES = 1 << 20
_DEVICE_BLOCK_VALUES = 1 << 25


def worst_error(original: torch.Tensor, decoded: torch.Tensor) -> float:
    """Return the largest absolute error in float64 (exact for float32 and narrower data).

    The error is infinite if shape or dtype differ, if a NaN or infinity was lost or introduced, or if
    an infinity changed its sign.
    """
    if original.shape != decoded.shape or original.dtype != decoded.dtype:
        return math.inf
    worst = torch.zeros((), dtype=torch.float64, device=original.device)
    block = _BLOCK_VALUES if original.device.type == "cpu" else _DEVICE_BLOCK_VALUES
    flat, flat_decoded = original.reshape(-1), decoded.reshape(-1)
    # block by block, because a float64 copy of everything would triple the memory
    for start in range(0, flat.numel(), block):
        x = flat[start : start + block].to(torch.float64)
        y = flat_decoded[start : start + block].to(torch.float64)
        same = (x == y) | (x.isnan() & y.isnan())
        error = torch.where(same, 0.0, (x - y).abs())
        # a NaN error means that one side is not finite and the other differs
        worst = torch.maximum(worst, error.nan_to_num(nan=math.inf, posinf=math.inf).max())
    return float(worst)
