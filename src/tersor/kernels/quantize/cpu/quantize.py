"""Bounded quantization in numba; the tile functions are shared with the fused kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from tersor.kernels.quantize.grid import SHRINK, TILE, Grid, Limits
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import bits_of, njit
from tersor.raw_bytes import empty
from tersor.types import Bound

WIDE, TO_F16, TO_BF16 = 0, 1, 2
"""How a decoded value is rounded before its error is checked: not at all, to float16 or to bfloat16."""


@njit(nogil=True, cache=True, inline="always")
def _round_to_bf16(value: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    bits = np.uint32(bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint32(bits & np.uint32(0xFFFF0000)).view(np.float32)


@njit(nogil=True, cache=True, inline="always")
def _round_to_f16(value: Any) -> Any:
    value = np.float32(value)
    bits = value.view(np.uint32)
    bits = np.uint32(bits + np.uint32(0xFFF) + np.uint32((bits >> np.uint32(13)) & np.uint32(1)))
    normal = np.uint32(bits & np.uint32(0xFFFFE000)).view(np.float32)
    # below 2**-14 float16 has the fixed spacing 2**-24
    subnormal = np.float32(np.rint(value * np.float32(2.0**24))) * np.float32(2.0**-24)
    magnitude = abs(value)
    if magnitude < np.float32(2.0**-14):
        return subnormal
    return normal if abs(normal) < np.float32(65536.0) else np.float32(np.inf)


@njit(nogil=True, cache=True, inline="always")
def _holds(value: Any, scaled: Any, step: Any, bound: Any, radius: Any, narrow: int) -> Any:
    """True if the code ``scaled`` is within the radius and decodes to within the bound; false for NaN."""
    decoded = scaled * step
    if narrow == TO_BF16:
        decoded = _round_to_bf16(decoded)
    elif narrow == TO_F16:
        decoded = _round_to_f16(decoded)
    return (abs(value - decoded) <= bound) & (abs(scaled) <= radius)


@njit(nogil=True, cache=True)
def quantize_tile(
    values: Any, inverse: Any, step: Any, bound: Any, radius: Any, narrow: int, codes: Any
) -> Any:
    """Write the codes of one tile and return the number of outliers, whose codes are 0."""
    zero, one = np.int32(0), np.int32(1)
    num_outliers = zero
    # ``narrow`` is tested outside the loop, otherwise float32 would not vectorise
    if narrow == WIDE:
        for i in range(values.size):
            scaled = np.rint(values[i] * inverse)
            holds = _holds(values[i], scaled, step, bound, radius, WIDE)
            codes[i] = np.int32(scaled) if holds else zero
            num_outliers = np.int32(num_outliers + (zero if holds else one))
    else:
        for i in range(values.size):
            scaled = np.rint(values[i] * inverse)
            holds = _holds(values[i], scaled, step, bound, radius, narrow)
            codes[i] = np.int32(scaled) if holds else zero
            num_outliers = np.int32(num_outliers + (zero if holds else one))
    return num_outliers


@njit(nogil=True, cache=True)
def collect_outliers(
    values: Any, inverse: Any, step: Any, bound: Any, radius: Any, narrow: int, tile_outliers: Any
) -> Any:
    """Return the ascending positions of all outliers, given how many each tile has."""
    positions = np.empty(tile_outliers.sum(), dtype=np.int64)
    count = 0
    for tile in range(tile_outliers.size):
        if tile_outliers[tile] == 0:
            continue
        for i in range(tile * TILE, min(tile * TILE + TILE, values.size)):
            scaled = np.rint(values[i] * inverse)
            if not _holds(values[i], scaled, step, bound, radius, narrow):
                positions[count] = i
                count += 1
    return positions


@njit(nogil=True, cache=True)
def _at_most(value: float, like: Any) -> Any:
    """Round a positive float64 down to the dtype of the array ``like``."""
    rounded = like.dtype.type(value)
    if np.float64(rounded) > value:
        rounded = np.nextafter(rounded, like.dtype.type(0))
    return rounded


class BoundArgs(NamedTuple):
    """A bound and the limits of a compute dtype, in the form that kernels take."""

    relative: bool
    value: float
    largest_bound: float
    smallest_step: float
    radius: Any

    @classmethod
    def of(cls, bound: Bound, limits: Limits) -> BoundArgs:
        """Combine a bound with the limits of a compute dtype."""
        return cls(
            bound.kind == "relative",
            bound.value,
            limits.largest_bound,
            limits.smallest_step,
            limits.compute(limits.radius),
        )


@njit(nogil=True, cache=True)
def fit_grid(low: Any, high: Any, bound_args: Any, like: Any) -> Any:
    """Do the same as ``Grid.for_bound`` inside a kernel, for float32 or float64 values in ``[low, high]``.

    Returns ``(step, inverse, bound)``. The step is 0 if no grid keeps the bound, if ``low`` is above
    ``high``, and for extreme bounds, which the caller leaves to ``Grid``.
    """
    real = like.dtype.type
    width = np.float64(high) - np.float64(low)
    error_bound = bound_args.value * width if bound_args.relative else bound_args.value
    bound = real(0)
    if error_bound <= bound_args.largest_bound and low <= high:
        bound = _at_most(error_bound, like)
    step = _at_most(2.0 * np.float64(bound) * SHRINK, like)
    if step < bound_args.smallest_step:
        return real(0), real(0), bound
    return step, real(real(1) / step), bound


@njit(nogil=True, cache=True)
def quantize_bytes(values: Any, grid: Any, offset: Any, octets: Any) -> bool:
    """Write ``code - offset``, which must fit in a byte, for values that must be finite.

    Returns whether every code keeps the bound; if not, the bytes are meaningless. Takes half the time of
    ``quantize_tile``: less is stored, no code can be out of range, and the largest error is found on
    its bits, which sort like the errors and whose maximum vectorises.
    """
    step, inverse, bound = grid
    worst = bits_of(values.dtype.type(0))
    for i in range(values.size):
        scaled = np.rint(values[i] * inverse)
        worst = max(worst, bits_of(abs(values[i] - scaled * step)))
        octets[i] = np.uint8(np.int32(scaled) - offset)
    return worst <= bits_of(bound)


def quantizer_arguments(x: torch.Tensor, grid: Grid) -> tuple[Any, ...]:
    """Return ``(values, inverse, step, bound, radius, narrow)``, the arguments of the tile functions."""
    narrow = {torch.float16: TO_F16, torch.bfloat16: TO_BF16}.get(x.dtype, WIDE)
    values = x.reshape(-1).to(torch.float32).numpy() if narrow else x.reshape(-1).numpy()
    compute = values.dtype.type
    return (
        values,
        compute(grid.inverse),
        compute(grid.step),
        compute(grid.bound),
        compute(grid.radius),
        narrow,
    )


@njit(nogil=True, cache=True)
def _quantize_kernel(
    values: Any,
    inverse: Any,
    step: Any,
    bound: Any,
    radius: Any,
    narrow: int,
    codes: Any,
    tile_outliers: Any,
    start: int,
    stop: int,
) -> None:
    for tile in range(start, stop):
        low = tile * TILE
        high = min(low + TILE, values.size)
        tile_outliers[tile] = quantize_tile(
            values[low:high], inverse, step, bound, radius, narrow, codes[low:high]
        )


def bounded_quantize(x: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.bounded_quantize``."""
    arguments = quantizer_arguments(x, grid)
    codes = np.empty(x.numel(), dtype=np.int32)
    tile_outliers = np.zeros(-(-x.numel() // TILE), dtype=np.int64)
    threads.run(
        _quantize_kernel,
        [
            (*arguments, codes, tile_outliers, start, stop)
            for start, stop in threads.split(tile_outliers.size, 4 * TILE)
        ],
    )
    positions = collect_outliers(*arguments, tile_outliers)
    return torch.from_numpy(codes), torch.from_numpy(positions)


@njit(nogil=True, cache=True)
def _dequantize_kernel(codes: Any, step: Any, out: Any, start: int, stop: int) -> None:
    # slices, because their indices cannot be negative and the loop vectorises (3 -> 12 GB/s)
    source, target = codes[start:stop], out[start:stop]
    for i in range(source.size):
        target[i] = out.dtype.type(source[i]) * step


def bounded_dequantize(codes: torch.Tensor, step: float, out: torch.Tensor) -> None:
    """See ``reference.bounded_dequantize``."""
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    decoded = out.view(-1) if out.dtype == wide else empty((out.numel(),), wide, out.device)
    values = decoded.numpy()
    threads.run(
        _dequantize_kernel,
        [
            (codes.numpy(), values.dtype.type(step), values, start, stop)
            for start, stop in threads.split(values.size, 8)
        ],
    )
    if out.dtype != wide:
        out.view(-1).copy_(decoded)
