"""Adverse inputs that every kernel and codec is tested with, one named factory each.

Each call creates new tensors, identical in every process. All are small, to keep tests over the product
of operation, backend, bound and dtype fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

TIE_STEP: Final = 0.2
"""Quantization step of the ``ties`` input, which is that of an absolute bound of 0.1."""

Factory = Callable[[torch.dtype], Tensor]


def inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    """Return every shared input in ``dtype`` by name."""
    return {name: factory(dtype) for name, factory in FACTORIES.items()}


def integers(dtype: torch.dtype) -> dict[str, Tensor]:
    """Return inputs by name in a dtype outside of ``FLOAT_DTYPES``."""
    values = torch.arange(-300, 300)
    return {
        "empty": torch.zeros(0, dtype=dtype),
        "scalar": torch.tensor(1).to(dtype),
        "zeros": torch.zeros(100, dtype=dtype),
        "integers": values.to(dtype),
        "transposed integers": values.view(20, 30).to(dtype).t(),
    }


def ties(step: float, dtype: torch.dtype) -> Tensor:
    """Return ``(i + 0.5) * step`` for i in -64..63, each halfway between two quantization levels."""
    return ((torch.arange(-64, 64, dtype=torch.float64) + 0.5) * step).to(dtype)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(20260714)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=_generator())


def _uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=_generator())


def _finite(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast without creating infinities: values are clamped to the range of the dtype."""
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)


def _wave(*shape: int) -> Tensor:
    """Return the sum of one slow sine per dimension."""
    axes = torch.meshgrid(*(torch.linspace(0, 3, size) for size in shape), indexing="ij")
    return sum((torch.sin(axis.double() * (i + 1)) for i, axis in enumerate(axes)), torch.zeros(()))


def _embedding_rows(dtype: torch.dtype) -> Tensor:
    """Return embedding look-ups whose rows repeat with Zipf-distributed frequencies."""
    table = _normal(500, 16) * 0.05
    weights = 1.0 / torch.arange(1, 501, dtype=torch.float64) ** 1.1
    return table[torch.multinomial(weights, 200, replacement=True, generator=_generator())].to(
        dtype
    )


def _grid(dtype: torch.dtype) -> Tensor:
    """Return 8-bit image values, k / 255."""
    values = torch.randint(0, 256, (40, 50), generator=_generator())
    return (values.double() / 255).to(dtype)


def _huge(dtype: torch.dtype) -> Tensor:
    largest = torch.finfo(dtype).max
    values = (0.9 + 0.1 * _uniform(500)) * largest
    values[::2] *= -1
    values[:2] = torch.tensor([largest, -largest], dtype=torch.float64)
    return _finite(values, dtype)


def _subnormal(dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    values = ((_uniform(500) * 2 - 1) * info.smallest_normal).to(dtype)
    values[0] = info.smallest_normal * info.eps
    return values


def _nan_and_inf(dtype: torch.dtype) -> Tensor:
    """Return mostly ordinary values, with NaN and both infinities alone and in runs."""
    values = _normal(2000)
    values[[0, 77, 1999]] = float("nan")
    values[[1, 500, 501]] = float("inf")
    values[[2, 502, 1000]] = float("-inf")
    values[640:720] = float("nan")
    return values.to(dtype)


def _odd_nans(dtype: torch.dtype) -> Tensor:
    """Return NaNs of both signs with only the lowest mantissa bit set, or all; truncation loses the former."""
    values = _normal(130).to(dtype)
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    infinity = torch.tensor([float("inf"), float("-inf")], dtype=dtype).view(words)
    values.view(words)[[0, 64]] = infinity + 1
    values.view(words)[[65, 129]] = infinity.bitwise_or(int(1 / torch.finfo(dtype).eps) - 1)
    return values


def _far_from_zero(dtype: torch.dtype) -> Tensor:
    """Return a million plus or minus one, or as close to that as the dtype can resolve."""
    info = torch.finfo(dtype)
    center = min(1e6, 0.9 * info.max)
    spread = max(1.0, 8 * info.eps * center)
    return _finite(center + spread * (_uniform(1500) * 2 - 1), dtype)


def _wide_range(dtype: torch.dtype) -> Tensor:
    """Return lognormal magnitudes over some thirty decades, with both signs."""
    values = torch.exp(10 * _normal(2000))
    values[::2] *= -1
    return _finite(values, dtype)


FACTORIES: Final[dict[str, Factory]] = {
    "empty": lambda dtype: torch.zeros(0, dtype=dtype),
    "empty_2d": lambda dtype: torch.zeros(0, 5, dtype=dtype),
    "scalar": lambda dtype: torch.tensor(-1.75, dtype=dtype),
    "one_element": lambda dtype: torch.tensor([3.25], dtype=dtype),
    "one_nan": lambda dtype: torch.tensor([float("nan")], dtype=dtype),
    "odd_size": lambda dtype: _normal(1237).to(dtype),
    "block_plus_one": lambda dtype: _normal(4097).to(dtype),
    "constant": lambda dtype: torch.full((33, 31), 0.3, dtype=dtype),
    "zeros": lambda dtype: torch.zeros(1000, dtype=dtype),
    "smooth_1d": lambda dtype: _wave(3000).to(dtype),
    "smooth_2d": lambda dtype: _wave(61, 47).to(dtype),
    "smooth_3d": lambda dtype: _wave(13, 17, 19).to(dtype),
    "smooth_4d": lambda dtype: _wave(3, 5, 7, 11).to(dtype),
    "noise": lambda dtype: _normal(64, 64).to(dtype),
    "embedding_rows": _embedding_rows,
    "relu_activations": lambda dtype: _normal(4, 8, 10, 12).relu().to(dtype),
    "gradients": lambda dtype: _normal(48, 65).mul(1e-3).to(dtype),
    "ties": lambda dtype: ties(TIE_STEP, dtype),
    # ties that every dtype represents exactly
    "ties_power_of_two": lambda dtype: ties(0.25, dtype),
    "grid": _grid,
    "huge": _huge,
    "subnormal": _subnormal,
    "signed_zeros": lambda dtype: torch.tensor([0.0, -0.0] * 100, dtype=dtype),
    "nan_and_inf": _nan_and_inf,
    "odd_nans": _odd_nans,
    "all_nan": lambda dtype: torch.full((129,), float("nan"), dtype=dtype),
    "all_inf": lambda dtype: torch.tensor([float("inf"), float("-inf")] * 40, dtype=dtype),
    "transposed": lambda dtype: _normal(40, 30).to(dtype).t(),
    "strided": lambda dtype: _wave(60, 90).to(dtype)[5::2, ::3],
    "expanded": lambda dtype: _normal(1, 64).to(dtype).expand(20, 64),
    "far_from_zero": _far_from_zero,
    "wide_range": _wide_range,
    # codes far outside a 12-bit alphabet, at any bound below 1
    "large_codes": lambda dtype: _uniform(4999).mul(2).sub(1).mul(30000).to(dtype),
}
"""Factory of each shared input, by name; takes a dtype."""
