"""``half``, ``bf16`` and ``fp8``: casts to narrower floats, with a fixed size and no error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch

from tersor.codecs.pipeline import FixedCodec
from tersor.codecs.registry import register
from tersor.errors import SpecError
from tersor.kernels.batch import (
    decode_casts,
    decode_scaled_casts,
    encode_casts,
    encode_scaled_casts,
)
from tersor.kernels.batch.pipeline import (
    CastPipeline,
    FloatFormat,
    Pipeline,
    ScaledCastPipeline,
    ScaledFormat,
)
from tersor.kernels.group.cast.layout import payload_nbytes
from tersor.kernels.runtime.op import Op

_FP8: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True, kw_only=True, slots=True)
class CastCodec(FixedCodec):
    """Store values in a 16-bit float dtype, or unchanged. The payload is the cast values, without a header."""

    encode_op: ClassVar[Op] = encode_casts
    decode_op: ClassVar[Op] = decode_casts
    target: ClassVar[torch.dtype | None]
    """The dtype to cast to; None leaves values in the tensor's dtype."""

    def pipeline(self) -> CastPipeline:
        """Return a pipeline that only casts."""
        return Pipeline(None, FloatFormat(self.target), 0, None)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return two bytes per value."""
        del dtype
        return 2 * math.prod(shape)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Half(CastCodec):
    """float16: 11 significant bits; magnitudes above 65504 become infinite, as in torch."""

    codec_id: ClassVar[str] = "half"
    guarantee: ClassVar[str] = (
        "a fixed size; relative error 2**-11 down to 2**-14, infinite above 65504"
    )
    target: ClassVar[torch.dtype | None] = torch.float16


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Bf16(CastCodec):
    """bfloat16: 8 significant bits, float32's range."""

    codec_id: ClassVar[str] = "bf16"
    guarantee: ClassVar[str] = "a fixed size; relative error 2**-8 in the range of normal float32"
    target: ClassVar[torch.dtype | None] = torch.bfloat16


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8(FixedCodec):
    """8-bit floats with one float32 scale per group. The payload is the scales, then the values.

    ``format`` is ``e4m3`` (4 significant bits) or ``e5m2`` (3, wider range). NaN becomes
    NaN without its sign; infinity becomes NaN (e4m3) or stays infinite (e5m2).
    """

    codec_id: ClassVar[str] = "fp8"
    encode_op: ClassVar[Op] = encode_scaled_casts
    decode_op: ClassVar[Op] = decode_scaled_casts
    guarantee: ClassVar[str] = (
        "a fixed size; relative error 2**-4 (e4m3) or 2**-3 (e5m2) near the group's maximum"
    )

    format: Literal["e4m3", "e5m2"] = "e4m3"
    group: int = 256

    def __post_init__(self) -> None:
        """Reject invalid options."""
        if str(self.format) not in _FP8:
            raise SpecError(f"format must be 'e4m3' or 'e5m2', not {self.format!r}")
        if type(self.group) is not int or not 1 <= self.group <= 2**20:
            raise SpecError(f"group must be from 1 to 1048576, not {self.group}")

    def pipeline(self) -> ScaledCastPipeline:
        """Return a pipeline that scales each group and casts it."""
        return Pipeline(None, ScaledFormat(_FP8[self.format], self.group), 0, None)

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """See ``Codec.workspace_nbytes``."""
        del dtype
        # a single tensor is composed: float32 of the values, twice where whole groups are made of them, and their scales
        return 12 * num_values

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return one byte per value plus four per group."""
        del dtype
        return payload_nbytes(math.prod(shape), self.group)
