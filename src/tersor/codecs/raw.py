"""``raw``: the tensor's own bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.pipeline import FixedCodec
from tersor.codecs.registry import register
from tersor.kernels.batch import decode_casts, encode_casts
from tersor.kernels.batch.pipeline import CastPipeline, FloatFormat, Pipeline
from tersor.kernels.runtime.op import Op
from tersor.types import DTYPE_NAMES


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Raw(FixedCodec):
    """Store every value exactly, in any dtype."""

    codec_id: ClassVar[str] = "raw"
    guarantee: ClassVar[str] = "bit-exact"
    encode_op: ClassVar[Op] = encode_casts
    decode_op: ClassVar[Op] = decode_casts

    def supports(self, dtype: torch.dtype) -> bool:
        """Any dtype that a file can name."""
        return dtype in DTYPE_NAMES

    def pipeline(self) -> CastPipeline:
        """Keep the tensor's own dtype."""
        return Pipeline(None, FloatFormat(None), 0, None)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Exactly the tensor's own size."""
        return math.prod(shape) * dtype.itemsize
