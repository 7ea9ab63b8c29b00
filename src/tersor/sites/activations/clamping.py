"""What ReLU6, Hardtanh and threshold save: backward only asks which gradients pass, so one bit per value is exact.

Decoded with an error, values near a limit would change sides: at a step of 0.5 every tenth gradient of ReLU6 did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from tersor.sites.activations.forms import BitFields, values_per_call

_ARGUMENTS: Final = {
    "relu6": ("input",),
    "hardtanh": ("input", "min_val", "max_val"),
    "hardtanh_": ("input", "min_val", "max_val"),
    "threshold": ("input", "threshold", "value"),
    "threshold_": ("input", "threshold", "value"),
}
CLAMPS: Final = frozenset(_ARGUMENTS)
_LARGEST: Final = 65504.0
"""The largest number of float16."""


class Limits(NamedTuple):
    """Gradients of values between ``low`` and ``high`` pass; without ``high``, those of all above ``low``."""

    low: float
    high: float | None

    @classmethod
    def of_call(cls, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Limits:
        """Return the limits of a call of one of ``CLAMPS``."""
        given = {**dict(zip(_ARGUMENTS[name], args, strict=False)), **kwargs}
        if name == "relu6":
            return cls(0.0, 6.0)
        if name.startswith("threshold"):
            return cls(float(given["threshold"]), None)
        return cls(float(given.get("min_val", -1.0)), float(given.get("max_val", 1.0)))

    def passes(self, values: torch.Tensor) -> torch.Tensor:
        """Return whether the gradient of each value passes, as torch's own backward decides for NaN and at the limits."""
        ones = torch.ones((), dtype=values.dtype, device=values.device).expand_as(values)
        passed: torch.Tensor
        if self.high is None:
            passed = torch.ops.aten.threshold_backward(ones, values, self.low)
        else:
            passed = torch.ops.aten.hardtanh_backward(ones, values, self.low, self.high)
        return passed != 0

    @property
    def inside(self) -> float:
        """A value whose gradient passes if that of any value does."""
        if self.high is None:
            return math.inf
        # an infinite end becomes a finite one that leaves numbers of every dtype in between
        below = -_LARGEST if self.high > -_LARGEST else self.high - 2 * abs(self.high)
        above = _LARGEST if self.low < _LARGEST else self.low + 2 * abs(self.low)
        return (max(self.low, below) + min(self.high, above)) / 2


class PassedGradients(NamedTuple):
    """The form of a tensor that is saved for one of ``CLAMPS``: one bit per value.

    Attributes:
        passes: True where the gradient passes.
        inside: restored for these; minus infinity for the others.
        dtype: dtype of the tensor.
    """

    passes: tuple[BitFields, ...]
    inside: float
    dtype: torch.dtype

    @classmethod
    def of(cls, values: torch.Tensor, limits: Limits) -> PassedGradients:
        """Return the form of flat floating-point values."""
        parts = values.split(values_per_call(values))
        bits = tuple(BitFields.of(limits.passes(part), 1) for part in parts)
        return cls(bits, limits.inside, values.dtype)

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return sum(part.nbytes for part in self.passes)

    def restored(self) -> torch.Tensor:
        """Return values, flat, through which the same gradients pass."""
        flags = torch.cat([part.restored() for part in self.passes])
        values = torch.full_like(flags, -math.inf, dtype=self.dtype)
        # none passes if the dtype has no such number
        is_number = math.isinf(self.inside) or abs(self.inside) <= torch.finfo(self.dtype).max
        return values.masked_fill_(flags, self.inside) if is_number else values
