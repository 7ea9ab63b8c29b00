"""Copying the values on the device: the speed no codec there can be far above."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.bench.peers.peer import Peer


class DeviceCopy(Peer):
    """``torch.Tensor.copy_`` into memory that is already there."""

    name = "copy"
    distribution = "torch"
    bounded = False
    note = "each direction reads and writes every byte once"

    def __init__(self) -> None:
        """Start without buffers; the first call makes them."""
        super().__init__()
        self._buffers: list[torch.Tensor] = []

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> list[torch.Tensor]:
        """Copy every slice into its buffer."""
        del error_bounds
        if [x.shape for x in xs] != [buffer.shape for buffer in self._buffers]:
            self._buffers = [torch.zeros_like(x) for x in xs]
        for x, buffer in zip(xs, self._buffers, strict=True):
            buffer.copy_(x)
        return self._buffers

    def encode(self, x: torch.Tensor, error_bound: float) -> torch.Tensor:
        """Copy one slice into new memory."""
        del error_bound
        return x.clone()

    def decode(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Copy it back."""
        return out.copy_(encoded)

    def nbytes(self, encoded: torch.Tensor) -> int:
        """Return the size of the values."""
        return encoded.nbytes
