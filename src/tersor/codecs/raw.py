"""``raw``: the tensor's own bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.cast import CastCodec
from tersor.codecs.registry import register
from tersor.types import DTYPE_NAMES


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Raw(CastCodec):
    """Store every value exactly, in any dtype."""

    codec_id: ClassVar[str] = "raw"
    guarantee: ClassVar[str] = "bit-exact"
    target: ClassVar[torch.dtype | None] = None

    def supports(self, dtype: torch.dtype) -> bool:
        """True for every dtype that the file format can name."""
        return dtype in DTYPE_NAMES

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the tensor's own size, which the payload always has."""
        return math.prod(shape) * dtype.itemsize
