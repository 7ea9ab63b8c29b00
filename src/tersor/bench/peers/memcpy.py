"""Plain copies, whose speed no codec that reads and writes memory can far exceed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tersor.bench.peers.peer import Peer


class Memcpy(Peer):
    """``numpy.copyto`` into existing memory."""

    name = "memcpy"
    distribution = "numpy"
    bounded = False
    exact = True

    def __init__(self) -> None:
        """Start without buffers; the first call allocates them."""
        super().__init__()
        self._buffers: list[torch.Tensor] = []

    def copy(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Copy one slice with one thread."""
        np.copyto(out.numpy(), x.numpy())

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> list[torch.Tensor]:
        """Copy every slice into its buffer."""
        del error_bounds
        if [(x.shape, x.dtype) for x in xs] != [(one.shape, one.dtype) for one in self._buffers]:
            self._buffers = [torch.zeros_like(x) for x in xs]
        for x, buffer in zip(xs, self._buffers, strict=True):
            self.copy(x, buffer)
        return self._buffers

    def decode_all(
        self, encoded: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Copy every slice back."""
        for x, out in zip(encoded, outs, strict=True):
            self.copy(x, out)
        return outs

    def total_nbytes(self, encoded: Sequence[torch.Tensor]) -> int:
        """Return the size of the values."""
        return sum(x.nbytes for x in encoded)


class DeviceCopy(Memcpy):
    """``torch.Tensor.copy_`` on the device, into existing memory."""

    name = "copy"
    distribution = "torch"
    note = "each direction reads and writes every byte once"

    def copy(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Copy one slice on its device."""
        out.copy_(x)
