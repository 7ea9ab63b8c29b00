"""``lossless``: bit-exact storage in the smallest of a few forms, for masks, indices and sparse features."""

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
    """Bit-exact storage of tensors that hold little information.

    A tensor with two distinct values takes one bit per value. Integers in a small range take few bits per value. A
    sparse tensor becomes a bitmap and its non-zero values. Any other tensor is stored unchanged. Every dtype is
    supported, and every bit is preserved, including those of NaN and -0.0. The host chooses the form, so encoding
    waits for a GPU.
    """

    codec_id: ClassVar[str] = "lossless"
    guarantee: ClassVar[str] = "bit-exact"
    encode_op: ClassVar[Op] = encode_exact
    decode_op: ClassVar[Op] = decode_exact

    def pipeline(self) -> ExactPipeline:
        """Return a pipeline that chooses the smallest form."""
        return Pipeline(None, Words(), 0, None)

    def supports(self, dtype: torch.dtype) -> bool:
        """True for every dtype that the file format can name."""
        return dtype in DTYPE_NAMES

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """See ``Codec.encode``; there is no error bound."""
        del bounds
        encoded: EncodedList = self.encode_op(xs, self.pipeline())
        return encoded

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the size of a header and the tensor's bytes."""
        return exact_max_nbytes(torch.Size(shape).numel() * dtype.itemsize)
