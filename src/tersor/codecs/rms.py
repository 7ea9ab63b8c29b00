"""``rms``: entropy-coded steps of the root mean square of each group, for activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tersor.codecs.pipeline import PipelineCodec
from tersor.codecs.registry import register
from tersor.errors import SpecError
from tersor.kernels.batch import decode_rms, encode_rms
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import Pipeline, RmsLevels, RmsPipeline
from tersor.kernels.group.rms.layout import LEAST_STEP, MOST_STEP
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.runtime.op import Op
from tersor.types import Bound


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Rms(PipelineCodec):
    """Quantize groups of 256 values in steps of their root mean square (RMS), and rANS-code the result.

    ``step`` is in units of the RMS, from 16/127 (0.126) to 8.

    With ``zeros=True``, zeros stay zero, no other value becomes zero, and signs are preserved, so the mask that the
    backward pass of ReLU reads from its output is exact. The RMS is then taken over the non-zero values, and each code
    decodes to the mean of the values that share it. With ``zeros=False``, values are rounded to the nearest step.
    ``"auto"`` means True if more than 5 % of a sample of 16,384 values are zeros.

    The error of a value is at most ``step`` times the scale of its group, or half of that without ``zeros``. The scale
    is the RMS rounded up by less than 2 %, and at least 2**-120. float32 arithmetic adds at most 2**-20 of the value,
    and in float16 and bfloat16 the error at most doubles. NaN, infinities, magnitudes of 2**123 and more, and non-zero
    float64 values that underflow to zero in float32 are restored exactly. -0.0 becomes 0.0.
    """

    codec_id: ClassVar[str] = "rms"
    encode_op: ClassVar[Op] = encode_rms
    decode_op: ClassVar[Op] = decode_rms
    guarantee: ClassVar[str] = (
        "error at most half a step of the group's root mean square; with zeros one step, and zeros "
        "and signs kept; NaN and infinities kept"
    )

    step: float = 1.0
    zeros: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        """Reject invalid options."""
        given: object = self.step
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not LEAST_STEP <= self.step <= MOST_STEP:
            raise SpecError(
                f"step must be from 16/127 (0.126) to 8 root mean squares, not {self.step!r}"
            )
        object.__setattr__(self, "step", float(self.step))
        if not isinstance(self.zeros, bool) and self.zeros != "auto":
            raise SpecError(f"zeros must be true, false or 'auto', not {self.zeros!r}")

    def pipeline(self) -> RmsPipeline:
        """Return a pipeline that scales, quantizes and entropy-codes."""
        zeros = self.zeros if isinstance(self.zeros, bool) else None
        return Pipeline(None, RmsLevels(self.step, zeros), 0, "ans")

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """See ``Codec.encode``; there is no error bound."""
        del bounds
        encoded: EncodedList = self.encode_op(xs, self.pipeline())
        return encoded

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """See ``Codec.workspace_nbytes``."""
        del dtype
        # a symbol of one byte and a word of two per value; tables of tiles and groups
        return 4 * num_values

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the size of exact storage, the fallback for larger encodings: a header and the tensor's bytes."""
        return exact_nbytes(torch.Size(shape).numel() * dtype.itemsize)
