"""Sharded tensors in checkpoints: each rank saves and loads its own part."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def own_part(value: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, or any other tensor unchanged, without a copy."""
    return value.to_local() if isinstance(value, DTensor) else value


def sharded_like(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the sharded tensor whose local part is ``part``, if ``like`` is sharded; else ``part``.

    A 0-dimensional value, such as a step counter, is replicated and returned unchanged.
    """
    if not part.dim() or not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements,
        run_check=False, shape=like.shape, stride=like.stride(),
    )  # fmt: skip
