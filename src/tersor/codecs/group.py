"""``group8`` and ``group4``: a fixed number of bits per value, no error bound."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tersor.codecs.codec import Codec, checked_payload
from tersor.codecs.registry import register
from tersor.errors import CorruptDataError, SpecError
from tersor.raw_bytes import empty
from tersor.stages.quantizers.group import GroupQuantizer


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCodec(Codec):
    """One float32 scale per group, then the packed codes. Payload: scales, then data, no header.

    ``seed`` None rounds to nearest; a number rounds stochastically, repeatable from the seed and
    the position in the chunk: give every step and tensor its own seed. float64 beyond float32's
    range counts as not finite.
    """

    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"
    guarantee: ClassVar[str] = "a fixed size; error at most one level of the group's scale"

    group: int = 128
    seed: int | None = None
    hadamard: bool = False

    def __post_init__(self) -> None:
        """Refuse impossible options."""
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 2**64):
            raise SpecError(f"seed must be a whole number from 0 to 2**64 - 1, not {self.seed}")
        self.quantizer()

    @property
    @abstractmethod
    def nbits(self) -> int:
        """Bits per value."""

    def quantizer(self) -> GroupQuantizer:
        """Return the quantizer this spec describes."""
        return GroupQuantizer(
            nbits=self.nbits, group=self.group, seed=self.seed, hadamard=self.hadamard
        )

    def encode_payload(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        """See ``Codec.encode_payload``."""
        del error_bound
        quantizer = self.quantizer()
        payload = empty((self.max_nbytes(tuple(x.shape), x.dtype),), torch.uint8, x.device)
        scales_nbytes = 4 * quantizer.num_groups(x.numel())
        scales = payload[:scales_nbytes].view(torch.float32)
        quantizer.quantize(x, scales, payload[scales_nbytes:])
        return payload

    def decode_payload(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Codec.decode_payload``."""
        payload = checked_payload(payload)
        expected = self.max_nbytes(tuple(out.shape), out.dtype)
        if payload.numel() != expected:
            raise CorruptDataError(f"{expected} payload bytes expected, {payload.numel()} present")
        quantizer = self.quantizer()
        scales_nbytes = 4 * quantizer.num_groups(out.numel())
        scales = payload[:scales_nbytes].view(torch.float32)
        quantizer.dequantize(scales, payload[scales_nbytes:], out)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Exactly the payload's size."""
        del dtype
        num_groups = self.quantizer().num_groups(torch.Size(shape).numel())
        return num_groups * (4 + self.group * self.nbits // 8)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Group8(GroupCodec):
    """8 bits per value, 127 levels on each side of zero."""

    codec_id: ClassVar[str] = "group8"

    @property
    def nbits(self) -> int:
        """Bits per value."""
        return 8


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Group4(GroupCodec):
    """4 bits per value, 7 levels on each side of zero."""

    codec_id: ClassVar[str] = "group4"

    @property
    def nbits(self) -> int:
        """Bits per value."""
        return 4
