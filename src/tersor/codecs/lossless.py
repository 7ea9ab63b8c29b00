"""``lossless``: every value exactly, in the smallest of a few forms. For masks, indices and sparse features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.pipeline import PipelineCodec
from tersor.codecs.registry import register
from tersor.kernels.batch import decode_exact, encode_exact
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.exact import exact_max_nbytes
from tersor.kernels.batch.pipeline import ExactPipeline, Pipeline, Words
from tersor.kernels.runtime.op import Op
from tersor.types import DTYPE_NAMES, Bound


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Lossless(PipelineCodec):
    """One bit per value of tensors with two values, few bits per value of whole numbers in a small range.

    A tensor of few values other than zero becomes a bitmap and these values. What fits none of the forms is stored as it is.
    Any dtype; every bit comes back, that of NaN and -0.0 too. The host chooses the form, so a GPU is waited for.
    """

    codec_id: ClassVar[str] = "lossless"
    guarantee: ClassVar[str] = "bit-exact"
    encode_op: ClassVar[Op] = encode_exact
    decode_op: ClassVar[Op] = decode_exact

    def pipeline(self) -> ExactPipeline:
        """Choose a form."""
        return Pipeline(None, Words(), 0, None)

    def supports(self, dtype: torch.dtype) -> bool:
        """Any dtype that a file can name."""
        return dtype in DTYPE_NAMES

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """See ``Codec.encode``; there is no bound."""
        del bounds
        encoded: EncodedList = self.encode_op(xs, self.pipeline())
        return encoded

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Header plus the tensor's own size."""
        return exact_max_nbytes(torch.Size(shape).numel() * dtype.itemsize)
