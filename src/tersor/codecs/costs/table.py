"""The cost model of encoding and decoding on a device: a fixed time per call, and a speed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

import torch

from tersor.errors import SpecError
from tersor.kernels.quantize import Grid

Source = Literal["shipped", "measured", "assumed"]
WIDE_ANS: Final = "ans-wide"
"""The cost of ``ans`` with more than 256 codes, which other GPU kernels encode; for small tensors, in a second pass."""
_NUM_FUSED_CODES: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecCost:
    """The cost of one codec: a call on ``nbytes`` takes ``fixed_us`` plus ``nbytes / gb_s``.

    Attributes:
        encode_fixed_us: microseconds per call to encode, independent of the tensor's size.
        encode_gb_s: encoding speed, in 10**9 bytes of the original tensor per second.
        decode_fixed_us: microseconds per call to decode, independent of the tensor's size.
        decode_gb_s: decoding speed, in 10**9 bytes of the original tensor per second.
    """

    encode_fixed_us: float
    encode_gb_s: float
    decode_fixed_us: float
    decode_gb_s: float

    def __post_init__(self) -> None:
        """Reject values that are not finite, negative times, and speeds that are not positive."""
        for field in fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_speed = field.name.endswith("gb_s")
            # an int too large for a float counts as infinite
            if not is_number or not 0 <= value <= sys.float_info.max or (is_speed and value == 0):
                raise SpecError(
                    f"{field.name} of a cost must be a finite time or speed, not {value!r}"
                )

    @classmethod
    def of(cls, encode: tuple[float, float], decode: tuple[float, float]) -> Self:
        """Return a cost from two pairs of fixed time in us and speed in GB/s."""
        return cls(
            encode_fixed_us=encode[0],
            encode_gb_s=encode[1],
            decode_fixed_us=decode[0],
            decode_gb_s=decode[1],
        )

    def encoding_s(self, nbytes: int, num_sharing: int = 1) -> float:
        """Return the time to encode ``nbytes`` in seconds, in a call whose fixed time ``num_sharing`` tensors share."""
        return self.encode_fixed_us * 1e-6 / num_sharing + nbytes / (self.encode_gb_s * 1e9)

    def decoding_s(self, nbytes: int, num_sharing: int = 1) -> float:
        """Return the time to decode to ``nbytes`` in seconds; see ``encoding_s``."""
        return self.decode_fixed_us * 1e-6 / num_sharing + nbytes / (self.decode_gb_s * 1e9)

    def coding_s(self, nbytes: int) -> float:
        """Return the time to encode and decode ``nbytes`` in seconds, in one call each."""
        return self.encoding_s(nbytes) + self.decoding_s(nbytes)


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of codecs on one device.

    Attributes:
        device: name of the device.
        source: ``shipped`` with the package, ``measured`` on this GPU, or ``assumed`` from another GPU because this
            one was not measured.
        codecs: costs by codec id, and of ``ans-wide``.
    """

    device: str
    source: Source
    codecs: Mapping[str, CodecCost]

    def of(self, codec_id: str, sample: torch.Tensor, error_bound: float | None) -> CodecCost:
        """Return the cost of a codec on tensors like ``sample`` within an absolute error bound."""
        if codec_id == "ans" and WIDE_ANS in self.codecs and _has_many_codes(sample, error_bound):
            return self.codecs[WIDE_ANS]
        return self.codecs[codec_id]

    @property
    def origin(self) -> str:
        """A phrase that says where the costs come from."""
        if self.source == "measured":
            return f"costs measured on this GPU ({self.device})"
        if self.source == "assumed":
            return f"costs of {self.device} (shipped), since this GPU is not measured"
        return f"costs of {self.device} (shipped)"

    def to_config(self) -> dict[str, Any]:
        """Return the costs of the codecs as JSON-ready values."""
        return {name: asdict(cost) for name, cost in self.codecs.items()}


def _has_many_codes(sample: torch.Tensor, error_bound: float | None) -> bool:
    finite = sample[sample.isfinite()]
    if finite.numel() == 0 or error_bound is None:
        return False
    low, high = (float(x) for x in finite.aminmax())
    grid = Grid.for_bound(error_bound, sample.dtype)
    return high - low > (grid.step if grid else 0.0) * _NUM_FUSED_CODES
