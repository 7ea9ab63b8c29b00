"""``raw``: the tensor's own bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tersor.codecs.codec import Codec, checked_payload
from tersor.codecs.registry import register
from tersor.errors import CorruptDataError
from tersor.raw_bytes import as_bytes, empty
from tersor.types import DTYPE_NAMES


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Raw(Codec):
    """Store every value exactly, in any dtype."""

    codec_id: ClassVar[str] = "raw"
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"
    guarantee: ClassVar[str] = "bit-exact"

    def supports(self, dtype: torch.dtype) -> bool:
        """Any dtype that a file can name."""
        return dtype in DTYPE_NAMES

    def encode_payload(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        """Copy the bytes."""
        del error_bound
        data = as_bytes(x)
        return empty((data.numel(),), torch.uint8, x.device).copy_(data)

    def decode_payload(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the bytes back."""
        payload = checked_payload(payload)
        if payload.numel() != out.nbytes:
            raise CorruptDataError(f"{out.nbytes} raw bytes expected, {payload.numel()} present")
        as_bytes(out).copy_(payload)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Exactly the tensor's own size."""
        return math.prod(shape) * dtype.itemsize
