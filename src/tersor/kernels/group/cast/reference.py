"""Casts to 8-bit floats with one scale per group, plain torch."""

from __future__ import annotations

from typing import Final

import torch

from tersor.kernels.group.reference import SMALLEST_ABSMAX

SMALLEST: Final = {torch.float8_e4m3fn: SMALLEST_ABSMAX, torch.float8_e5m2: 2.0**-110}
"""Groups whose largest magnitude is below this decode to zero. The wider the range of a format, the sooner
a scale becomes subnormal in float32 and its reciprocal infinite."""


def scaled_cast(
    x: torch.Tensor, dtype: torch.dtype, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast groups of values after scaling their largest finite magnitude to the dtype's maximum.

    Args:
        x: float32, flat, a multiple of ``group`` long.
        dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
        group: values per scale.

    Returns:
        scales: float32 [num_groups]; the cast values, flat. NaN, and in e4m3 also infinity, becomes
        the NaN 0x7F and does not affect the rest of its group.
    """
    values = x.view(-1, group)
    finite = torch.isfinite(values)
    peak = torch.where(finite, values.abs(), 0.0)
    absmax = peak.amax(1) if len(values) else peak.new_zeros(0)
    live = absmax >= SMALLEST[dtype]
    top = torch.full_like(absmax, torch.finfo(dtype).max)
    scales = torch.where(live, absmax / top, 1.0)
    inverse = torch.where(live, top / torch.where(live, absmax, 1.0), 1.0)
    # e4m3 has no infinity, and a cast may saturate instead of returning NaN; all NaN become the same
    # one, because a GPU drops the sign of a NaN when it widens a float16
    keeps_infinity = dtype == torch.float8_e5m2
    special = torch.where(torch.isinf(values) & keeps_infinity, values, torch.nan)
    return scales, torch.where(finite, values * inverse[:, None], special).to(dtype).view(-1)


def scaled_uncast(data: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """Return the float32 values of ``scaled_cast``'s output, flat."""
    return (data.view(-1, group).to(torch.float32) * scales[:, None]).view(-1)
