"""Groups between their smallest and their largest value, plain torch.

```
minima  bfloat16 per group, not above its smallest value
ranges  bfloat16 per group, up to its largest value or beyond; NaN if a value is not finite
fields  2 bits per value, lowest bits first, of whole groups: so many thirds of the range above the minimum
```
"""

from __future__ import annotations

from typing import Final

import torch

from tersor.division import ceil_div
from tersor.kernels.group.reference import uniform

_TOP: Final = 3
_LARGEST: Final = 2.0**126
"""Larger magnitudes count as this: a range is finite."""
_SMALLEST_RANGE: Final = 2.0**-100
"""Groups of a smaller range decode to their minimum: the reciprocal of a level would overflow."""
_NAN: Final = 0x7FC0


def payload_nbytes(numel: int, group: int) -> int:
    """Return the bytes of minima, ranges and fields of ``numel`` values."""
    return ceil_div(numel, group) * (4 + group // 4)


def range_quantize(
    x: torch.Tensor, group: int, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize groups of consecutive values to four levels from the smallest to the largest.

    Args:
        x: flat, any float dtype.
        group: values per range, a multiple of 4.
        seed: round stochastically with this seed (unbiased), or to nearest when None.

    Returns:
        int16 [2, num_groups], minima and ranges as bits of bfloat16; data: uint8 [num_groups * group / 4].
    """
    missing = -x.numel() % group
    values = x.to(torch.float32).clamp(-_LARGEST, _LARGEST)
    values = torch.nn.functional.pad(values, (0, missing)).view(-1, group)
    finite = torch.nn.functional.pad(x.isfinite(), (0, missing), value=True).view(-1, group)
    known = torch.arange(values.numel(), device=x.device).view(-1, group) < x.numel()
    if len(values) == 0:
        return values.new_zeros(2, 0, dtype=torch.int16), values.new_zeros(0, dtype=torch.uint8)
    # of 0.0 and -0.0 devices take either as the smallest; the sum is 0.0 for both
    lowest = (torch.where(known, values, _LARGEST).amin(1) + 0.0).view(torch.int32)
    # towards minus infinity: bits of a negative number grow with its magnitude
    minima = (lowest + ((lowest >> 31) & 0xFFFF)) >> 16
    low = (minima << 16).view(torch.float32)
    spans = torch.where(known, values, -_LARGEST).amax(1) - low
    ranges = (spans.clamp(min=0).view(torch.int32) + 0xFFFF) >> 16
    widths = (ranges << 16).view(torch.float32)
    is_wide = widths >= _SMALLEST_RANGE
    ranges = torch.where(is_wide, ranges, 0)
    tops = torch.full_like(widths, _TOP)
    inverse = torch.where(is_wide, tops / torch.where(is_wide, widths, 1.0), 0.0)
    scaled = (values - low[:, None]) * inverse[:, None]
    if seed is None:
        codes = torch.round(scaled)
    else:
        codes = torch.floor(scaled + uniform(seed, values.numel(), x.device).view(-1, group))
    codes = torch.where(known & finite.all(1)[:, None], codes.clamp(0, _TOP), 0.0)
    shifts = torch.arange(0, 8, 2, device=x.device)
    data = (codes.to(torch.int64).view(-1, 4) << shifts).sum(1).to(torch.uint8)
    ranges = torch.where(finite.all(1), ranges, _NAN)
    minima = torch.where(finite.all(1), minima, 0)
    return torch.stack([minima, ranges]).to(torch.int16), data


def range_dequantize(
    limits: torch.Tensor, data: torch.Tensor, group: int, out: torch.Tensor
) -> None:
    """Write ``minimum + code * (range / 3)`` in float32, rounded to its dtype, into the contiguous ``out``.

    In float16 what is too large becomes the largest finite value. Takes what ``range_quantize`` returns.
    """
    low, widths = (limits.to(torch.int32) << 16).view(torch.float32)
    shifts = torch.arange(0, 8, 2, device=data.device)
    codes = ((data[:, None] >> shifts) & _TOP).view(-1, group).to(torch.float32)
    levels = widths / torch.full_like(widths, _TOP)
    values = (codes * levels[:, None] + low[:, None]).view(-1)[: out.numel()]
    if out.dtype == torch.float16:
        values = values.clamp(-65504.0, 65504.0)
    out.view(-1).copy_(values)
