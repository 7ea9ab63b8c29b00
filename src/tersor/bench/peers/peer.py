"""Base classes of peers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch

from tersor.bench.core import codes
from tersor.bench.core.candidate import Candidate, SliceCandidate
from tersor.bench.core.codes import Codes
from tersor.bench.core.machine import package_version


class Peer(Candidate):
    """Another project's codec; importing its module fails if the package is missing."""

    distribution: str

    def __init__(self) -> None:
        """Record the package's version."""
        self.version = package_version(self.distribution) or "unknown"


class SlicePeer(Peer, SliceCandidate):
    """A peer that encodes slices one by one."""


class CodesPeer(SlicePeer):
    """A lossless compressor of codes, measured from float32: our quantizer, then the compressor."""

    note = "quantized by tersor"
    quantized_by_us = True

    @abstractmethod
    def compress(self, values: np.ndarray) -> bytes:
        """Compress int8 or int16 codes."""

    @abstractmethod
    def decompress(self, payload: bytes, num_values: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Decompress to flat codes."""

    def encode(self, x: torch.Tensor, error_bound: float) -> tuple[bytes, Codes, torch.dtype]:
        """Quantize and compress."""
        quantized = codes.quantize(x, error_bound, self.code_dtype)
        payload = self.compress(quantized.values.numpy())
        return payload, quantized.without_values(), quantized.values.dtype

    def decode(self, encoded: tuple[bytes, Codes, torch.dtype], out: torch.Tensor) -> torch.Tensor:
        """Decompress and dequantize."""
        payload, side, dtype = encoded
        numpy_dtype = np.dtype(np.int8 if dtype == torch.int8 else np.int16)
        values = self.decompress(payload, out.numel(), numpy_dtype)
        codes.dequantize(side, torch.from_numpy(values), out)
        return out

    def nbytes(self, encoded: tuple[bytes, Codes, torch.dtype]) -> int:
        """Return the size of the payload, the step and the outliers."""
        payload, side, _ = encoded
        return len(payload) + side.side_nbytes
