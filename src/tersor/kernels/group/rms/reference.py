"""Groups scaled by their root mean square, plain torch.

A mean square is a sum of integers, so the order of summation does not matter. Each of the 256 magnitudes is
rounded to the nearest multiple of 2**-10 of the power of two not above the group's largest, and increased by one
such unit. The scale is therefore never below the root mean square, and above it by at most 2**-6 of it.
"""

from __future__ import annotations

from typing import Final

import torch

from tersor.kernels.group.rms.layout import (
    FRACTION_BITS,
    GROUP,
    LARGEST_MAGNITUDE,
    LEAST_FRACTION,
    MIDDLE,
    SCALE_SHIFT,
    SMALLEST_SCALE,
    ZEROS_PER_VALUE,
    RmsCodes,
    f32_step,
    sampled_groups,
    top_of,
)

ABOVE_HALF: Final = 0.5 + 2.0**-24
"""Added to a positive number before rounding to nearest, this rounds it up, and never to 0."""
LEAST_EXPONENT: Final = 11
"""Smallest biased exponent of a group's largest magnitude: below it, scales are ``SMALLEST_SCALE`` anyway."""


def as_scalable(x: torch.Tensor) -> torch.Tensor:
    """Return values in float32; nonzero values that float32 would round to zero become infinite."""
    values = x.to(torch.float32)
    if x.dtype != torch.float64:
        return values
    return torch.where((values == 0) & (x != 0), torch.inf, values)


def rms_quantize(x: torch.Tensor, step: float, zeros: bool | None = None) -> RmsCodes:
    """Quantize groups of consecutive values by their root mean square.

    Args:
        x: flat, any float dtype, at least one value.
        step: quantization step in units of the root mean square of a group.
        zeros: True: 0 stays 0, nothing else becomes 0, and signs are kept; the root mean square is that
            of the nonzero values, and magnitudes are rounded up to whole steps (whole steps stay or
            become one more). False: values are rounded to the nearest whole step, ties to even. None:
            True if more than a twentieth of the sampled values are zeros.
    """
    values = torch.nn.functional.pad(as_scalable(x), (0, -x.numel() % GROUP)).view(-1, GROUP)
    holds = values.abs() < LARGEST_MAGNITUDE
    outliers = ~holds.view(-1)[: x.numel()]
    known = torch.arange(values.numel(), device=x.device).view(-1, GROUP) < x.numel()
    sampled = torch.tensor(sampled_groups(len(values)), device=x.device)
    if zeros is None:
        is_zero = (values == 0) & known
        num_zeros, num_sampled = int(is_zero[sampled].sum()), int(known[sampled].sum())
        zeros = num_zeros * ZEROS_PER_VALUE > num_sampled
    values = torch.where(holds, values, 0.0)
    counted = (values != 0) if zeros else known
    scales = rms_scales(values, counted.sum(1))
    steps = scales * torch.full_like(scales, f32_step(step))
    units = values * (torch.ones_like(steps) / steps)[:, None]
    top = top_of(step)
    if zeros:
        # not the sign of the units, which may be 0 for the smallest values
        codes = torch.sign(values) * torch.round(units.abs() + ABOVE_HALF)
    else:
        codes = torch.round(units)
    symbols = codes.to(torch.int64) + top
    in_sample = known[sampled]
    counts = torch.bincount(symbols[sampled][in_sample], minlength=2 * top + 1)
    fractions = torch.empty(0, dtype=torch.int16, device=x.device)
    if zeros:
        magnitudes = codes[sampled][in_sample].abs().to(torch.int64)
        fractions = fractions_of(*bin_sums(magnitudes, units[sampled][in_sample], top))
    return RmsCodes(
        symbols.view(-1)[: x.numel()].to(torch.uint8),
        (scales.view(torch.int32) >> SCALE_SHIFT).to(torch.int16),
        fractions,
        counts,
        torch.nonzero(outliers).view(-1),
    )


def rms_scales(values: torch.Tensor, num_counted: torch.Tensor) -> torch.Tensor:
    """Return the scale of each group, float32: its root mean square, rounded up to 9 bits.

    ``values`` is [num_groups, 256], with magnitudes below 2**123. ``num_counted`` are the values of each
    group that the mean divides by.
    """
    magnitudes = values.abs()
    exponents = (magnitudes.amax(1).view(torch.int32) >> 23).clamp(min=LEAST_EXPONENT)
    factors = ((264 - exponents) << 23).view(torch.float32)
    whole = torch.round(magnitudes * factors[:, None]).to(torch.int64) + 1
    squares = (whole * whole).sum(1).to(torch.float32)
    root = torch.sqrt(squares / num_counted.clamp(min=1).to(torch.float32))
    rounded = (root.view(torch.int32) + 0x7FFF) >> SCALE_SHIFT << SCALE_SHIFT
    units = ((exponents - 10) << 23).view(torch.float32)
    return (rounded.view(torch.float32) * units).clamp(min=SMALLEST_SCALE)


def bin_sums(
    codes: torch.Tensor, units: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum and the number of magnitudes in each bin except that of zeros, int64 [top].

    ``codes`` are int64 and not negative; sums are in units of 1/65536 step.
    """
    parts = (units.abs() * 2.0**FRACTION_BITS).to(torch.int64)
    both = torch.zeros(2, top + 1, dtype=torch.int64, device=codes.device)
    both[0].scatter_add_(0, codes.reshape(-1), parts.reshape(-1))
    both[1].scatter_add_(0, codes.reshape(-1), torch.ones_like(parts).reshape(-1))
    return both[0, 1:], both[1, 1:]


def fractions_of(sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the fractions for ``level_table`` from the sums, in units of 1/65536 step, and counts of each bin."""
    below = torch.arange(counts.numel(), device=counts.device) << FRACTION_BITS
    means = torch.div(sums, counts.clamp(min=1), rounding_mode="floor") - below - 1
    fractions = torch.where(counts > 0, means, MIDDLE).clamp(0, (1 << FRACTION_BITS) - 1)
    fractions[0].clamp_(min=LEAST_FRACTION)
    return fractions.to(torch.int16)


def rms_dequantize(
    symbols: torch.Tensor, scales: torch.Tensor, levels: torch.Tensor, out: torch.Tensor
) -> None:
    """Write ``levels[symbol] * scale``, a float32 product rounded to its dtype, to ``out``.

    In float16, values that are too large become the largest finite one, and nonzero values do not become 0.

    Args:
        symbols: uint8, less than the number of levels.
        scales: int16, one per 256 symbols, to be read as uint16.
        levels: float32, from ``layout.level_table``.
        out: contiguous, with as many values as there are symbols.
    """
    widened = (scales.to(torch.int32) & 0xFFFF) << SCALE_SHIFT
    factors = widened.view(torch.float32).repeat_interleave(GROUP)[: symbols.numel()]
    values = levels[symbols.to(torch.int64)] * factors
    if out.dtype == torch.float16:
        values = in_f16(values)
    out.view(-1).copy_(values)


def in_f16(values: torch.Tensor) -> torch.Tensor:
    """Round float32 values to float16 and back: none becomes infinite, and only zeros become zero."""
    bounded = values.clamp(-65504.0, 65504.0).to(torch.float16)
    lost = (bounded == 0) & (values != 0)
    return torch.where(lost, torch.sign(values) * 2.0**-24, bounded.to(torch.float32))
