"""A compressed tensor in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tersor.errors import CorruptDataError, SpecError
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

    Raises:
        SpecError: a payload is not a tensor, or ``chunk_values`` is not a whole number above 0.
    """

    info: TensorInfo
    codec: Codec
    payloads: tuple[torch.Tensor, ...]
    chunk_values: int
    error_bound: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Check ``chunk_values`` and the types of the payloads."""
        if type(self.chunk_values) is not int or self.chunk_values < 1:
            raise SpecError(
                f"chunk_values must be a whole number above 0, not {self.chunk_values!r}"
            )
        for payload in self.payloads:
            if not isinstance(payload, torch.Tensor):
                raise SpecError(f"payloads must be torch tensors, not {type(payload).__name__}")

    def __repr__(self) -> str:
        """Return what was encoded and how, without the payloads, which may be large and on a GPU."""
        bound = "" if self.error_bound is None else f", error at most {self.error_bound:.4g}"
        return f"Packed({self.info}, {self.codec}, {self.nbytes:,} bytes, ratio {self.ratio:.2f}{bound})"

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
        """The device of the payloads.

        Raises:
            CorruptDataError: there is no payload.
        """
        if not self.payloads:
            raise CorruptDataError("a packed tensor has no payload")
        return self.payloads[0].device
