"""Copying the values on the device: the speed no codec there can be far above."""

from __future__ import annotations

import torch

from tersor.bench.peers.memcpy import Memcpy


class DeviceCopy(Memcpy):
    """``torch.Tensor.copy_`` into memory that is already there."""

    name = "copy"
    distribution = "torch"
    note = "each direction reads and writes every byte once"

    def copy(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Copy one slice on its device."""
        out.copy_(x)
