"""``mask4`` and ``mask2``: fixed-size codes that preserve zeros and signs, for activations."""

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
    """Quantize each group of 256 values between zero and its largest magnitude; each scale takes 2 bytes.

    Zeros stay zero, no other value becomes zero, and signs are preserved, as in ``rms`` with ``zeros``. The size
    follows from the shape alone, as collectives and ``torch.compile`` require. -0.0 becomes 0.0.

    The error of a value is at most one level. A level is the group's largest magnitude over ``2**nbits - 1``, or over
    ``2**(nbits - 1) - 1`` in a group with negative values. It is rounded up to a bfloat16, which makes it larger by at
    most a factor of 1 + 2**-7, and it is at least 2**-120. float32 arithmetic adds at most 2**-20 of the value, and in
    float16 and bfloat16 the error at most doubles. Magnitudes above 2**123 are clamped to it. A group with a
    NaN or an infinity decodes to NaN.
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
        """Return a pipeline that scales and quantizes."""
        return Pipeline(None, MaskLevels(self.nbits), 0, None)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the exact size of the payload."""
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
