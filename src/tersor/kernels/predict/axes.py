"""Lorenzo prediction along the last one, two or three axes of a tensor."""

from __future__ import annotations

import math

import torch

from tersor.kernels.predict import lorenzo_residual, lorenzo_restore


def is_flat(num_axes: int, dims: int) -> bool:
    """True if each value of a tensor is predicted from its predecessor in memory."""
    return min(dims, num_axes) <= 1


def predicting_shape(shape: tuple[int, ...], dims: int) -> tuple[int, int, int]:
    """Return the last three sizes of a tensor, with 1 for axes it does not have.

    A tensor that ``is_flat`` counts as one line. An empty tensor counts as a single value, because its
    sizes may not fit 32 bits.
    """
    if 0 in shape:
        return 1, 1, 1
    if is_flat(len(shape), dims):
        return 1, 1, math.prod(shape)
    depth, height, width = (1, 1, *shape)[-3:]
    return depth, height, width


def _shaped(codes: torch.Tensor, shape: tuple[int, ...], dims: int) -> tuple[torch.Tensor, int]:
    """Return codes in the shape in which they are predicted, and the number of axes that predict."""
    if is_flat(len(shape), dims):
        return codes.view(-1), 1
    return codes.view(shape), min(dims, len(shape))


def residual(codes: torch.Tensor, shape: tuple[int, ...], dims: int) -> torch.Tensor:
    """Return the flat residual of flat int32 ``codes``, which may be overwritten."""
    shaped, axes = _shaped(codes, shape, dims)
    result: torch.Tensor = lorenzo_residual(shaped, axes)
    return result.view(-1)


def restore(residuals: torch.Tensor, shape: tuple[int, ...], dims: int) -> torch.Tensor:
    """Invert ``residual``."""
    shaped, axes = _shaped(residuals, shape, dims)
    result: torch.Tensor = lorenzo_restore(shaped, axes)
    return result.view(-1)
