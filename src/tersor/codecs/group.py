"""``group8`` and ``group4``: a fixed number of bits per value, no error bound."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tersor.codecs.codec import Codec, check_num_values, checked_payload, materialised
from tersor.codecs.fixed_lists import GroupEngine
from tersor.codecs.lists import NO_BOUND, ListEngine
from tersor.codecs.registry import register
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.group import group_dequantize_transform, group_transform_quantize
from tersor.kernels.group.layout import payload_nbytes
from tersor.raw_bytes import empty
from tersor.stages.quantizers.group import GroupQuantizer
from tersor.types import Bound


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCodec(Codec):
    """One float32 scale per group, then the packed codes. Payload: scales, then data, no header.

    ``seed`` None rounds to nearest; a number rounds stochastically, repeatable from the seed and
    the position in the chunk: give every step and tensor its own seed. float64 beyond float32's
    range counts as not finite.

    The error of a finite value is at most half a level, or one level with ``seed``; a level is the
    group's largest finite magnitude over 127 (``group8``) or 7 (``group4``). float32 arithmetic adds
    at most 2**-20 of that magnitude: scale, scaled value and decoded value are rounded five times, by
    2**-24 each, and a scale near float32's largest by a few units more. In float16 and bfloat16 all
    this at most doubles, to one level, or two with ``seed``: the original is itself a value of the
    dtype, so rounding to the nearest such value moves the decoded one by no more than it was off.
    A group whose largest magnitude is below 2**-118 decodes to zeros.

    With ``hadamard`` the level is that of the transformed group, whose magnitudes are up to 32 times
    as large; the inverse averages 32 errors, so none of them grows, and the ten additions each value
    goes through make the 2**-20 a 2**-18. A value that this error carries beyond the dtype's largest
    comes back infinite.
    """

    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"
    guarantee: ClassVar[str] = (
        "a fixed size; error at most half a level of the group's scale, one with seed; in 16-bit "
        "dtypes twice that"
    )

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
        payload = self._new_payload(x)
        self.quantizer().quantize(x, *self._parts(payload, x.numel()))
        return payload

    def encode_difference(self, x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Encode ``x - base``, which is never made: one payload, as ``encode_tensor`` returns it.

        The difference is rounded to the dtype of both, as torch rounds it.

        Raises:
            SpecError: ``base`` differs in shape, dtype or device, or ``x`` cannot be encoded.
        """
        self.check_supported(x.dtype)
        check_num_values(x.numel())
        if (base.shape, base.dtype, base.device) != (x.shape, x.dtype, x.device):
            raise SpecError(
                f"base must be {x.dtype} of shape {tuple(x.shape)} on {x.device}, "
                f"not {base.dtype} of shape {tuple(base.shape)} on {base.device}"
            )
        payload = self._new_payload(x)
        values, subtrahend = materialised(x).view(-1), materialised(base).view(-1)
        out = self._parts(payload, x.numel())
        group_transform_quantize(
            values, self.nbits, self.group, self.seed, self.hadamard, out, subtrahend
        )
        return payload

    def decode_payload(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """See ``Codec.decode_payload``."""
        scales, data = self._parts(self._checked(payload, out), out.numel())
        self.quantizer().dequantize(scales, data, out)

    def decode_add(self, payload: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Add what a payload decodes to to ``base``, in place, and return it.

        The float32 values are added in float32, or in float64 if ``base`` is, and the sum is rounded
        once to the dtype of ``base``, as ``base.add_(values)`` does it.

        Raises:
            SpecError: ``base`` is not contiguous, or requires a gradient.
            CorruptDataError: the payload is not what this codec writes.
        """
        self.check_supported(base.dtype)
        if base.requires_grad or not base.is_contiguous():
            raise SpecError("base must be contiguous and without gradient; give base.detach()")
        scales, data = self._parts(self._checked(payload, base), base.numel())
        group_dequantize_transform(
            data, scales, self.nbits, self.group, self.hadamard, base, add=True
        )
        return base

    def _new_payload(self, x: torch.Tensor) -> torch.Tensor:
        return empty((self.max_nbytes(tuple(x.shape), x.dtype),), torch.uint8, x.device)

    def _checked(self, payload: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        payload = checked_payload(payload)
        expected = self.max_nbytes(tuple(out.shape), out.dtype)
        if payload.numel() != expected:
            raise CorruptDataError(f"{expected} payload bytes expected, {payload.numel()} present")
        return payload

    def _parts(self, payload: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scales and the data of a payload of the right size."""
        scales_nbytes = 4 * self.quantizer().num_groups(numel)
        return payload[:scales_nbytes].view(torch.float32), payload[scales_nbytes:]

    def list_engine(self) -> tuple[ListEngine, Bound] | None:
        """See ``Codec.list_engine``."""
        if not GroupEngine.can_take(self.group):
            return None
        return GroupEngine(self.nbits, self.group, self.seed, self.hadamard), NO_BOUND

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Exactly the payload's size."""
        del dtype
        return payload_nbytes(math.prod(shape), self.nbits, self.group)


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
