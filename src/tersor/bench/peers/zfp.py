"""zfp through zfpy."""

from __future__ import annotations

import torch
import zfpy

from tersor.bench.peers.peer import Peer

_MAX_DIMS = 4


class Zfp(Peer):
    """zfp in fixed-accuracy mode, one thread."""

    name = "zfp"
    distribution = "zfpy"
    slow = True
    note = "tolerance given"

    def encode(self, x: torch.Tensor, error_bound: float) -> bytes:
        """Compress within the tolerance, with zfp's own header."""
        values = x.numpy() if x.dim() <= _MAX_DIMS else x.numpy().reshape(-1)
        return bytes(zfpy.compress_numpy(values, tolerance=error_bound))

    def decode(self, encoded: bytes, out: torch.Tensor) -> torch.Tensor:
        """Decompress into memory that zfpy allocates."""
        return torch.from_numpy(zfpy.decompress_numpy(encoded)).view(out.shape)

    def nbytes(self, encoded: bytes) -> int:
        """Return the size of the stream."""
        return len(encoded)
