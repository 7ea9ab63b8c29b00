"""The vocabulary shared by all layers: error bounds, dtypes and tensor descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Literal

import numpy as np
import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.tracing import refuse_fake

# Names are written to files, so entries may be added but never changed.
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}
FLOAT_DTYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The dtypes that support an error bound; all others are stored losslessly."""

MAX_DIMS: Final = 32
_SURELY_STORABLE: Final = 2**58
"""A number of values that takes fewer than 2**63 bytes in any dtype."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A promised maximum error, absolute or relative to the tensor's value range.

    Every finite value decodes to within the bound, compared in float64 without tolerance.

    Example:
        >>> Bound.relative(1e-3).resolve(-2.0, 6.0)
        0.008
    """

    kind: Literal["absolute", "relative"]
    value: float

    def __post_init__(self) -> None:
        """Require a finite number of at least zero."""
        if self.kind not in ("absolute", "relative"):
            raise SpecError(f"bound kind must be 'absolute' or 'relative', not {self.kind!r}")
        object.__setattr__(self, "value", checked_error_bound(self.value))

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"Bound.{self.kind}({self.value!r})"

    @classmethod
    def absolute(cls, value: float) -> Bound:
        """Promise ``|decoded - original| <= value``."""
        return cls("absolute", value)

    @classmethod
    def relative(cls, value: float) -> Bound:
        """Promise ``|decoded - original| <= value * (max - min)`` over the finite values."""
        return cls("relative", value)

    def resolve(self, low: float, high: float) -> float:
        """Return the absolute error bound for finite values in ``[low, high]``.

        ``low > high`` means that there are no finite values; a relative bound is then 0.
        """
        if self.kind == "absolute":
            return self.value
        if low > high:
            return 0.0
        width = high - low
        # the range of float64 data can overflow float64; scale each end first in that case
        error_bound = (
            self.value * width if math.isfinite(width) else self.value * high - self.value * low
        )
        return min(error_bound, torch.finfo(torch.float64).max)

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, ``{"relative": 0.001}`` or ``{"absolute": 0.5}``."""
        return {self.kind: self.value}

    @classmethod
    def from_config(cls, config: Any) -> Bound:
        """Rebuild a bound from its JSON form; unknown keys raise ``SpecError``."""
        if not isinstance(config, Mapping) or len(config) != 1:
            raise SpecError('a bound must be written {"absolute": e} or {"relative": r}')
        ((kind, value),) = config.items()
        return cls(kind, value)


def checked_error_bound(value: object) -> float:
    """Return an error bound as a float64; any real number is accepted, including numpy scalars.

    Raises:
        SpecError: not a number, not finite, or below 0.

    Example:
        >>> checked_error_bound(2)
        2.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpecError(f"an error bound must be a number, not {type(value).__name__}")
    try:
        error_bound = float(value)
    except OverflowError as error:
        raise SpecError("an error bound must fit in a float64") from error
    if not math.isfinite(error_bound) or error_bound < 0:
        raise SpecError(f"an error bound must be finite and at least 0, not {error_bound}")
    return error_bound


def bound_share(error: float, error_bound: float) -> float:
    """Return error over bound; above 1 the bound is violated. A bound of 0 allows no error.

    Example:
        >>> bound_share(0.25, 0.5), bound_share(0.0, 0.0), bound_share(1e-30, 0.0)
        (0.5, 0.0, inf)
    """
    if error_bound > 0:
        return error / error_bound
    return 0.0 if error == 0 else math.inf


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and dtype of a tensor, which a decoder needs to rebuild it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Validate shape and dtype; ``check_storable`` checks the size limits."""
        object.__setattr__(self, "shape", _checked_shape(self.shape))
        check_dtype(self.dtype)

    @classmethod
    def of(cls, x: torch.Tensor) -> TensorInfo:
        """Describe ``x``.

        Raises:
            SpecError: ``x`` is not a tensor, or has a dtype, layout or shape that cannot be stored.
        """
        check_tensor(x)
        info = cls(tuple(x.shape), x.dtype)
        # called for every tensor of a list, so the full check runs only if it could fail
        if x.dim() > MAX_DIMS or not 0 < x.numel() < _SURELY_STORABLE:
            info.check_storable()
        return info

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the uncompressed values in bytes."""
        return self.numel * self.dtype.itemsize

    def check_storable(self) -> None:
        """Raise ``SpecError`` if readers would reject a file with such a tensor."""
        problem = self._size_problem()
        if problem:
            raise SpecError(f"{problem}; reshape the tensor")

    def _size_problem(self) -> str:
        """Return why no file can hold such a shape; empty if one can."""
        if len(self.shape) > MAX_DIMS:
            return f"a shape of {len(self.shape)} sizes is longer than the {MAX_DIMS} of a file"
        # a size of 0 makes nbytes 0, but torch still computes strides from the other sizes
        strided_nbytes = math.prod(max(1, size) for size in self.shape) * self.dtype.itemsize
        if strided_nbytes >= 2**63:
            return f"the shape {self.shape} has sizes that multiply to 2**63 bytes or more"
        return ""

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, ``{"shape": [2, 3], "dtype": "f32"}``."""
        return {"shape": list(self.shape), "dtype": DTYPE_NAMES[self.dtype]}

    @classmethod
    def from_config(cls, config: Any) -> TensorInfo:
        """Rebuild from the JSON form; anything unexpected raises ``CorruptDataError``."""
        if not isinstance(config, Mapping) or set(config) != {"shape", "dtype"}:
            raise CorruptDataError("a tensor description must have exactly 'shape' and 'dtype'")
        shape, dtype = config["shape"], config["dtype"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise CorruptDataError(f"unknown dtype {dtype!r} in a tensor description")
        try:
            info = cls(shape, DTYPES[dtype])
        except SpecError as error:
            raise CorruptDataError("a shape must be a list of sizes of at least 0") from error
        problem = info._size_problem()
        if problem:
            raise CorruptDataError(problem)
        return info


def _checked_shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, tuple | list):
        raise SpecError(f"a shape must be sizes, as in (2, 3), not {shape!r}")
    for size in shape:
        if type(size) is not int or size < 0:
            raise SpecError(f"a shape must be sizes of at least 0, as in (2, 3), not {shape!r}")
    return tuple(shape)


def check_dtype(dtype: object) -> None:
    """Raise ``SpecError`` unless this is a dtype whose values can be stored."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPE_NAMES:
        raise SpecError(f"a dtype must be one that can be stored, as torch.float32, not {dtype!r}")


def check_unmasked(x: object) -> None:
    """Raise ``SpecError`` for a masked array, whose mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        raise SpecError(
            "a masked array would lose its mask; fill it first, as in x.filled(0), or give x.data"
        )


_USUAL_KINDS: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def _check_kind(x: object) -> None:
    """Raise ``SpecError`` unless ``x`` is a tensor that can have values."""
    if not isinstance(x, torch.Tensor):
        check_unmasked(x)
        raise SpecError(f"expected a torch tensor, not {type(x).__name__}; use torch.as_tensor")
    refuse_fake(type(x))


def check_tensor(x: torch.Tensor) -> None:
    """Raise ``SpecError`` unless ``x`` is a dense tensor with values, of a dtype that can be stored."""
    if type(x) not in _USUAL_KINDS:
        _check_kind(x)
    # the older kind of nested tensor reports a dense layout, and has no shape
    if x.is_nested:
        raise SpecError(
            "a nested tensor cannot be compressed as a whole; compress each of x.unbind(), or "
            "torch.nested.to_padded_tensor(x, 0.0)"
        )
    if x.layout is not torch.strided:
        raise SpecError(f"only dense tensors can be compressed, not {x.layout}; use .to_dense()")
    if x.is_meta:
        raise SpecError("a tensor on the meta device has no values; materialise it first")
    if x.dtype not in DTYPE_NAMES:
        raise SpecError(f"tensors of {x.dtype} cannot be stored; convert to float32 first")
