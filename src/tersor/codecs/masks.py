"""``mask4`` and ``mask2``: few bits per value with exact zeros and signs, a fixed size. For activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.pipeline import FixedCodec
from tersor.codecs.registry import register
from tersor.kernels.batch import decode_masks, encode_masks
from tersor.kernels.batch.pipeline import MaskLevels, MaskPipeline, Pipeline
from tersor.kernels.group.masks.layout import payload_nbytes
from tersor.kernels.runtime.op import Op


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskCodec(FixedCodec):
    """Levels from zero to the largest magnitude of a group of 256 values, 2 bytes for the scale of each.

    A zero stays zero, nothing else becomes zero, and every sign stays, as in ``rms`` with ``zeros``, in a size that
    follows from the shape: for collectives and ``torch.compile``. -0.0 becomes 0.0.

    The error of a value is at most one level, which is the group's largest magnitude over
    ``2**nbits - 1``, or over ``2**(nbits - 1) - 1`` in a group with negative values; at most 2**-7
    more, as it is rounded up to a bfloat16, and at least 2**-120. float32 arithmetic adds at most 2**-20 of
    the value, and in float16 and bfloat16 the error at most doubles. Magnitudes from 2**123 on count as that.
    A group with a value that is not finite decodes to NaN.
    """

    nbits: ClassVar[int]
    """Bits per value."""
    encode_op: ClassVar[Op] = encode_masks
    decode_op: ClassVar[Op] = decode_masks
    guarantee: ClassVar[str] = (
        "a fixed size; zeros and signs kept, error at most one level of the group's scale; groups with "
        "NaN or infinities become NaN"
    )

    def pipeline(self) -> MaskPipeline:
        """Scale and quantize."""
        return Pipeline(None, MaskLevels(self.nbits), 0, None)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Exactly the payload's size."""
        del dtype
        return payload_nbytes(torch.Size(shape).numel(), self.nbits)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Mask4(MaskCodec):
    """4 bits per value: 15 levels above zero, or 7 on each side in a group with negative values."""

    codec_id: ClassVar[str] = "mask4"
    nbits: ClassVar[int] = 4


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Mask2(MaskCodec):
    """2 bits per value: 3 levels above zero, or 1 on each side in a group with negative values."""

    codec_id: ClassVar[str] = "mask2"
    nbits: ClassVar[int] = 2
