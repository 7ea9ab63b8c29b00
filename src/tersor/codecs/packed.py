"""A compressed tensor in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tersor.types import TensorInfo

if TYPE_CHECKING:
    from tersor.codecs.codec import Codec


@dataclass(frozen=True, slots=True)
class Packed:
    """An encoded tensor, with everything needed to decode it.

    Attributes:
        info: shape and dtype of the original.
        codec: the codec that wrote the payloads, with its full spec.
        payloads: one uint8 tensor per chunk of ``ChunkPlan(info.shape, chunk_values)``.
        chunk_values: maximum number of values per chunk.
        error_bound: the guaranteed absolute error; None for codecs with a fixed size or a bit-exact guarantee.
        reason: why ``auto`` chose this codec; empty if it did not choose.
    """

    info: TensorInfo
    codec: Codec
    payloads: tuple[torch.Tensor, ...]
    chunk_values: int
    error_bound: float | None = None
    reason: str = ""

    @property
    def nbytes(self) -> int:
        """Encoded size in bytes, including the headers of the payloads."""
        return sum(payload.numel() for payload in self.payloads)

    @property
    def ratio(self) -> float:
        """Original size over encoded size."""
        return self.info.nbytes / max(1, self.nbytes)

    @property
    def device(self) -> torch.device:
        """The device of the payloads."""
        return self.payloads[0].device
