"""Tensors that ranks hold in parts, as checkpoints see them: each rank saves the part of its own."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def own_part(value: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor; any other as it is. Neither is copied."""
    return value.to_local() if isinstance(value, DTensor) else value


def sharded_like(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor that this rank has ``part`` of, where ``like`` is sharded; else ``part``.

    A value without axes, such as a counter of steps, is whole on every rank.
    """
    if not part.dim() or not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements,
        run_check=False, shape=like.shape, stride=like.stride(),
    )  # fmt: skip
