"""``half``, ``bf16`` and ``fp8``: narrower floats, a fixed size and no error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch

from tersor.codecs.codec import Codec, checked_payload
from tersor.codecs.fixed_lists import CastEngine, ScaledCastEngine
from tersor.codecs.lists import NO_BOUND, ListEngine
from tersor.codecs.registry import register
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.group.cast import scaled_cast, scaled_uncast
from tersor.kernels.group.cast.layout import payload_nbytes
from tersor.raw_bytes import as_bytes, empty
from tersor.types import Bound

_FP8: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True, kw_only=True, slots=True)
class CastCodec(Codec):
    """Store the values in a 16-bit float dtype; payload: the cast values."""

    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"
    target: ClassVar[torch.dtype]

    def encode_payload(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        """See ``Codec.encode_payload``."""
        del error_bound
        return as_bytes(empty(x.shape, self.target, x.device).copy_(x))

    def decode_payload(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Codec.decode_payload``."""
        payload = checked_payload(payload)
        if payload.numel() != 2 * out.numel():
            raise CorruptDataError(
                f"{2 * out.numel()} payload bytes expected, {payload.numel()} present"
            )
        out.view(-1).copy_(payload.view(self.target))

    def list_engine(self) -> tuple[ListEngine, Bound] | None:
        """See ``Codec.list_engine``."""
        return CastEngine(self.target), NO_BOUND

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Two bytes per value."""
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
    target: ClassVar[torch.dtype] = torch.float16


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Bf16(CastCodec):
    """bfloat16: 8 significant bits, float32's range."""

    codec_id: ClassVar[str] = "bf16"
    guarantee: ClassVar[str] = "a fixed size; relative error 2**-8 in the range of normal float32"
    target: ClassVar[torch.dtype] = torch.bfloat16


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8(Codec):
    """8-bit floats with one float32 scale per group. Payload: scales, then values.

    ``format`` is ``e4m3`` (4 significant bits) or ``e5m2`` (3, wider range). Values that are not
    finite become NaN (e4m3) or stay as they are (e5m2).
    """

    codec_id: ClassVar[str] = "fp8"
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"
    guarantee: ClassVar[str] = (
        "a fixed size; relative error 2**-4 (e4m3) or 2**-3 (e5m2) near the group's maximum"
    )

    format: Literal["e4m3", "e5m2"] = "e4m3"
    group: int = 256

    def __post_init__(self) -> None:
        """Refuse impossible options."""
        if str(self.format) not in _FP8:
            raise SpecError(f"format must be 'e4m3' or 'e5m2', not {self.format!r}")
        if type(self.group) is not int or not 1 <= self.group <= 2**20:
            raise SpecError(f"group must be from 1 to 1048576, not {self.group}")

    def encode_payload(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        """See ``Codec.encode_payload``."""
        del error_bound
        values = x.reshape(-1).to(torch.float32)
        values = torch.cat([values, values.new_zeros(-values.numel() % self.group)])
        scales, data = scaled_cast(values, _FP8[self.format], self.group)
        return torch.cat([as_bytes(scales), as_bytes(data)[: x.numel()]])

    def decode_payload(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Codec.decode_payload``."""
        payload = checked_payload(payload)
        expected = self.max_nbytes(tuple(out.shape), out.dtype)
        if payload.numel() != expected:
            raise CorruptDataError(f"{expected} payload bytes expected, {payload.numel()} present")
        scales_nbytes = expected - out.numel()
        scales = payload[:scales_nbytes].view(torch.float32)
        data = payload[scales_nbytes:]
        data = torch.cat([data, data.new_zeros(-data.numel() % self.group)])
        values = scaled_uncast(data.view(_FP8[self.format]), scales, self.group)
        out.view(-1).copy_(values[: out.numel()])

    def list_engine(self) -> tuple[ListEngine, Bound] | None:
        """See ``Codec.list_engine``."""
        if not ScaledCastEngine.can_take(self.group):
            return None
        return ScaledCastEngine(_FP8[self.format], self.group), NO_BOUND

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """One byte per value and four per group."""
        del dtype
        return payload_nbytes(math.prod(shape), self.group)
