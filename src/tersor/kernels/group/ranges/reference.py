"""Quantization of groups between their smallest and largest value, plain torch. ``layout`` describes the payload."""

from __future__ import annotations

import torch

from tersor.kernels.group.ranges.layout import LARGEST, NAN_RANGE, SMALLEST_RANGE, TOP
from tersor.kernels.group.reference import uniform
from tersor.raw_bytes import as_bytes


def range_quantize(
    x: torch.Tensor, group: int, seed: int | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Quantize groups of consecutive values to four levels between their smallest and largest value.

    Args:
        x: contiguous, flat, any float dtype.
        group: values per range, a multiple of 4.
        seed: round stochastically with this seed (unbiased), or to nearest when None.
        out: uint8 of the payload's size to write to and return, at an address that is a multiple of 8; by default,
            new memory.

    Returns:
        The payload, uint8 [``layout.payload_nbytes``].
    """
    missing = -x.numel() % group
    values = x.to(torch.float32).clamp(-LARGEST, LARGEST)
    values = torch.nn.functional.pad(values, (0, missing)).view(-1, group)
    finite = torch.nn.functional.pad(x.isfinite(), (0, missing), value=True).view(-1, group)
    known = torch.arange(values.numel(), device=x.device).view(-1, group) < x.numel()
    if len(values) == 0:
        return values.new_zeros(0, dtype=torch.uint8) if out is None else out
    # devices differ in which of 0.0 and -0.0 is the smallest; adding 0.0 makes both 0.0
    lowest = (torch.where(known, values, LARGEST).amin(1) + 0.0).view(torch.int32)
    # round towards minus infinity: the bits of a negative number grow with its magnitude
    minima = (lowest + ((lowest >> 31) & 0xFFFF)) >> 16
    low = (minima << 16).view(torch.float32)
    spans = torch.where(known, values, -LARGEST).amax(1) - low
    ranges = (spans.clamp(min=0).view(torch.int32) + 0xFFFF) >> 16
    widths = (ranges << 16).view(torch.float32)
    is_wide = widths >= SMALLEST_RANGE
    ranges = torch.where(is_wide, ranges, 0)
    tops = torch.full_like(widths, TOP)
    inverse = torch.where(is_wide, tops / torch.where(is_wide, widths, 1.0), 0.0)
    scaled = (values - low[:, None]) * inverse[:, None]
    if seed is None:
        codes = torch.round(scaled)
    else:
        codes = torch.floor(scaled + uniform(seed, values.numel(), x.device).view(-1, group))
    codes = torch.where(known & finite.all(1)[:, None], codes.clamp(0, TOP), 0.0)
    shifts = torch.arange(0, 8, 2, device=x.device)
    data = (codes.to(torch.int64).view(-1, 4) << shifts).sum(1).to(torch.uint8)
    ranges = torch.where(finite.all(1), ranges, NAN_RANGE)
    minima = torch.where(finite.all(1), minima, 0)
    limits = torch.stack([minima, ranges]).to(torch.int16)
    return torch.cat([as_bytes(limits), data], out=out)


def range_dequantize(payload: torch.Tensor, group: int, out: torch.Tensor) -> None:
    """Write ``minimum + code * (range / 3)``, computed in float32 and rounded to its dtype, to the contiguous ``out``.

    In float16, values that are too large become the largest finite one. ``payload`` is what ``range_quantize`` returns
    for as many values, at an address that is a multiple of 8.
    """
    num_groups = -(-out.numel() // group)
    if num_groups == 0:
        return
    limits, data = payload.split_with_sizes((4 * num_groups, num_groups * group // 4))
    bits = limits.view(torch.int16).view(2, num_groups)
    low, widths = (bits.to(torch.int32) << 16).view(torch.float32)
    shifts = torch.arange(0, 8, 2, device=data.device)
    codes = ((data[:, None] >> shifts) & TOP).view(-1, group).to(torch.float32)
    levels = widths / torch.full_like(widths, TOP)
    values = (codes * levels[:, None] + low[:, None]).view(-1)[: out.numel()]
    if out.dtype == torch.float16:
        values = values.clamp(-65504.0, 65504.0)
    out.view(-1).copy_(values)
