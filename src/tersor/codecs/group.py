"""``group8`` and ``group4``: a fixed number of bits per value, without an error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tersor.codecs.arguments import check_num_values, checked_payload, materialised
from tersor.codecs.pipeline import FixedCodec
from tersor.codecs.registry import register
from tersor.errors import SpecError
from tersor.kernels.batch import decode_groups, encode_groups
from tersor.kernels.batch.compose import check_nbytes, split_scales
from tersor.kernels.batch.pipeline import GroupLevels, GroupPipeline, Pipeline
from tersor.kernels.group import group_dequantize, group_quantize
from tersor.kernels.group.layout import is_held_whole, payload_nbytes
from tersor.kernels.payload.frame import frame_views
from tersor.kernels.runtime.op import Op
from tersor.kernels.transform.reference import ORDER


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCodec(FixedCodec):
    """One float32 scale and a block of packed codes per group.

    The payload is all scales, then all codes, without a header.

    With ``seed=None``, values are rounded to nearest. With a number, they are rounded stochastically; the result is
    reproducible from the seed and the position in the chunk. Give every step and tensor its own seed. float64 values
    beyond float32's range are treated as non-finite.

    The error of a finite value is at most half a level, or one level with ``seed``. A level is the group's largest
    finite magnitude over 127 (``group8``) or 7 (``group4``). float32 arithmetic adds at most 2**-20 of that magnitude:
    scale, scaled value and decoded value are rounded five times, by 2**-24 each, and a scale near float32's maximum by
    a few units more. In float16 and bfloat16 the total at most doubles, to one level, or two with ``seed``: the
    original is itself a value of the dtype, so rounding the decoded value to the nearest value of the dtype moves it
    by no more than its error. A group whose largest magnitude is below 2**-118 decodes to zeros.

    With ``hadamard``, the level is that of the transformed group, whose magnitudes are up to 32 times as large. The
    inverse averages 32 errors, so no error grows, and each value goes through ten additions, which raises the 2**-20 to
    2**-18. A value that this error pushes beyond the dtype's maximum decodes to infinity.
    """

    nbits: ClassVar[int]
    """Bits per value."""
    takes_seed: ClassVar[bool] = True
    encode_op: ClassVar[Op] = encode_groups
    decode_op: ClassVar[Op] = decode_groups
    guarantee: ClassVar[str] = (
        "a fixed size; error at most half a level of the group's scale, one with seed; in 16-bit "
        "dtypes twice that"
    )

    group: int = 128
    seed: int | None = None
    hadamard: bool = False

    def __post_init__(self) -> None:
        """Reject invalid options."""
        check_seed(self.seed)
        if type(self.group) is not int or not 2 <= self.group <= 2**20 or self.group % 2:
            raise SpecError(f"group must be an even number from 2 to 1048576, not {self.group}")
        if not isinstance(self.hadamard, bool):
            raise SpecError(f"hadamard must be true or false, not {self.hadamard!r}")
        if self.hadamard and self.group % ORDER:
            raise SpecError(f"with hadamard, group must be a multiple of 32, not {self.group}")

    def pipeline(self) -> GroupPipeline:
        """Return a pipeline that quantizes, after the Hadamard transform if it is enabled."""
        transform: Literal["hadamard"] | None = "hadamard" if self.hadamard else None
        return Pipeline(transform, GroupLevels(self.nbits, self.group), 0, None)

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """See ``Codec.workspace_nbytes``."""
        if self.hadamard and not is_held_whole(self.group):
            # the transform is not fused with groups that no program holds whole: it stores float32 values
            return 4 * num_values
        # ``super()`` fails because slots make a new class
        return FixedCodec.workspace_nbytes(self, num_values, dtype)

    def seeding(self, seed: int | None) -> dict[str, int | None]:
        """See ``FixedCodec.seeding``."""
        check_seed(seed)
        return {"seed": self.seed if seed is None else seed}

    def encode_difference(
        self,
        x: torch.Tensor,
        base: torch.Tensor,
        *,
        seed: int | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Encode ``x - base`` without materialising it, and return the payload.

        The difference is rounded to the dtype of ``x``, as torch rounds it.

        Args:
            x: the minuend.
            base: the subtrahend, which the decoder adds back; same shape, dtype and device as ``x``.
            seed: seed of stochastic rounding, which takes precedence over the codec's own.
            out: memory for the payload, as in ``encode``.

        Raises:
            SpecError: ``base`` differs in shape, dtype or device, ``x`` cannot be encoded, or ``out``
                does not fit.
        """
        self.check_supported(x.dtype)
        check_num_values(x.numel())
        if (base.shape, base.dtype, base.device) != (x.shape, x.dtype, x.device):
            raise SpecError(
                f"base must be {x.dtype} of shape {tuple(x.shape)} on {x.device}, "
                f"not {base.dtype} of shape {tuple(base.shape)} on {base.device}"
            )
        nbytes = self.max_nbytes(tuple(x.shape), x.dtype)
        _, (payload,) = frame_views([nbytes], x.device, self.memory([x], out))
        values, subtrahend = materialised(x).view(-1), materialised(base).view(-1)
        target = split_scales(payload, x.numel(), self.group)
        own = self.seeding(seed)["seed"]
        group_quantize(values, self.nbits, self.group, own, self.hadamard, target, subtrahend)
        return payload

    def decode_add(self, payload: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Add the values of a payload to ``base`` in place, and return ``base``.

        The decoded float32 values are added in float32, or in float64 if ``base`` is float64. The sum is rounded once
        to the dtype of ``base``, as in ``base.add_(values)``.

        Raises:
            SpecError: ``base`` is not contiguous or requires a gradient.
            CorruptDataError: the payload is not what this codec writes.
        """
        self.check_supported(base.dtype)
        if base.requires_grad or not base.is_contiguous():
            raise SpecError("base must be contiguous and without gradient; give base.detach()")
        payload = checked_payload(payload)
        check_nbytes(payload, self.max_nbytes(tuple(base.shape), base.dtype))
        scales, data = split_scales(payload, base.numel(), self.group)
        group_dequantize(data, scales, self.nbits, self.group, self.hadamard, base, add=True)
        return base

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the exact size of the payload."""
        del dtype
        return payload_nbytes(math.prod(shape), self.nbits, self.group)


def check_seed(seed: object) -> None:
    """Raise ``SpecError`` unless ``seed`` is None or an unsigned 64-bit integer."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**64):
        raise SpecError(f"seed must be a whole number from 0 to 2**64 - 1, not {seed}")


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Group8(GroupCodec):
    """8 bits per value, 127 levels on each side of zero."""

    codec_id: ClassVar[str] = "group8"
    nbits: ClassVar[int] = 8


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Group4(GroupCodec):
    """4 bits per value, 7 levels on each side of zero."""

    codec_id: ClassVar[str] = "group4"
    nbits: ClassVar[int] = 4
