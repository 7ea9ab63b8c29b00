"""SZ3 through pysz."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pysz import sz, szAlgorithm, szConfig, szErrorBoundMode

from tersor.bench.peers.peer import Peer

_MAX_DIMS = 4


class Sz3(Peer):
    """SZ3's default algorithm with an absolute bound, one thread."""

    name = "sz3"
    distribution = "pysz"
    slow = True
    note = "absolute bound given"
    algorithm: ClassVar[int] = szAlgorithm.INTERP_LORENZO
    algorithm_name: ClassVar[str] = "interp-lorenzo"

    def options(self) -> dict[str, Any]:
        """Return the algorithm."""
        return {"algorithm": self.algorithm_name}

    def encode(self, x: torch.Tensor, error_bound: float) -> tuple[np.ndarray, tuple[int, ...]]:
        """Compress with a new config, which also carries the shape."""
        values = x.numpy() if x.dim() <= _MAX_DIMS else x.numpy().reshape(-1)
        config = szConfig()
        config.errorBoundMode = szErrorBoundMode.ABS
        config.absErrorBound = error_bound
        config.cmprAlgo = self.algorithm
        compressed, _ = sz.compress(values, config)
        return compressed, values.shape

    def decode(
        self, encoded: tuple[np.ndarray, tuple[int, ...]], out: torch.Tensor
    ) -> torch.Tensor:
        """Decompress into memory that pysz allocates."""
        compressed, shape = encoded
        decoded, _ = sz.decompress(compressed, np.float32, shape)
        return torch.from_numpy(decoded).view(out.shape)

    def nbytes(self, encoded: tuple[np.ndarray, tuple[int, ...]]) -> int:
        """Return the size of the stream."""
        return encoded[0].nbytes


class Sz3NoPrediction(Sz3):
    """SZ3 without prediction: its best choice by far on looked-up rows and noise."""

    name = "sz3-nopred"
    algorithm = szAlgorithm.NOPRED
    algorithm_name = "nopred"
