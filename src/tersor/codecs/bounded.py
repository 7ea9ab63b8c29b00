"""The base of all error-bounded codecs: their bound, and the size of their exact fallback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.codec import Codec
from tersor.errors import SpecError
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.quantize import finite_range
from tersor.types import Bound


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedCodec(Codec):
    """A codec that decodes every finite value to within ``bound``, and NaN and infinities exactly."""

    guarantee: ClassVar[str] = "every finite value within the bound, NaN and infinities kept"

    bound: Bound

    def __post_init__(self) -> None:
        """Reject anything but a ``Bound``."""
        check_is_bound(self.bound)

    def resolve_bound(self, x: torch.Tensor) -> float:
        """Return the absolute error bound for ``x``; 0 if the bound is relative and no value is finite."""
        if self.bound.kind == "absolute":
            return self.bound.value
        return self.bound.resolve(*finite_range(x).tolist())

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the size of exact storage, the fallback for larger encodings: a header and the tensor's bytes."""
        return exact_nbytes(torch.Size(shape).numel() * dtype.itemsize)


def check_is_bound(bound: object) -> None:
    """Raise ``SpecError`` unless ``bound`` is a ``Bound``."""
    if not isinstance(bound, Bound):
        raise SpecError(
            "bound must be Bound.absolute(e) or Bound.relative(r), for example "
            f"Bound.relative(1e-3), not {type(bound).__name__}"
        )
