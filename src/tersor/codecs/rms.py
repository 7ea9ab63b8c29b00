"""``rms``: codes in steps of the root mean square of each group, entropy-coded. For activations."""

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
    """Groups of 256 values over their root mean square, in whole steps, rANS-coded.

    ``step`` is in root mean squares, from 16/127 (0.126) to 8. With ``zeros`` True a zero stays zero,
    nothing else becomes zero, and every sign stays: the mask that the backward pass of ReLU reads from
    its output is exact. The root mean square is then that of the values that are not zero, and a code
    decodes to the mean of the values that have it. With False values are rounded to the nearest step.
    ``"auto"`` is True for a tensor of whose values, 16,384 of them looked at, more than 5 % are zeros.

    The error of a value is at most ``step`` times the scale of its group, half of that without
    ``zeros``; the scale is the root mean square, rounded up by less than 2 %, and at least 2**-120.
    float32 arithmetic adds at most 2**-20 of the value, and in float16 and bfloat16 the error at most
    doubles. Values that are not finite, that reach 2**123, or that are not zero in float64 but in
    float32, come back exactly. -0.0 becomes 0.0.
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
        """Refuse impossible options."""
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
        """Scale and quantize, entropy-code."""
        zeros = self.zeros if isinstance(self.zeros, bool) else None
        return Pipeline(None, RmsLevels(self.step, zeros), 0, "ans")

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """See ``Codec.encode``; there is no bound."""
        del bounds
        encoded: EncodedList = self.encode_op(xs, self.pipeline())
        return encoded

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """See ``Codec.workspace_nbytes``."""
        del dtype
        # a symbol of one byte and a word of two per value; tables of tiles and groups
        return 4 * num_values

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Header plus the tensor's own size: nothing is ever stored larger than exactly."""
        return exact_nbytes(torch.Size(shape).numel() * dtype.itemsize)
