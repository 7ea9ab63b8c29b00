"""Group quantization, plain torch.

Quantization is symmetric and linear, with ``top = 2**(nbits - 1) - 1`` levels on each side of zero
(7 or 127). A field is ``code + 2**(nbits - 1)``; field 0 marks a value that is not finite, and decodes
to NaN. Two 4-bit fields share a byte: element ``i`` of a group is in the low nibble, ``i + group / 2``
in the high one.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import numpy as np
import torch

from tersor.kernels.transform.reference import hadamard as hadamard_transform

SMALLEST_ABSMAX: Final = 2.0**-118
"""Groups whose largest magnitude is below this decode to zero: the reciprocal of their scale would overflow."""


def largest_scale(nbits: int) -> float:
    """Return the largest float32 scale whose largest code still decodes to a finite value."""
    top = np.float32(2 ** (nbits - 1) - 1)
    scale = np.float32(np.finfo(np.float32).max / top)
    while float(scale) * float(top) > float(np.finfo(np.float32).max):
        scale = np.nextafter(scale, np.float32(0))
    return float(scale)


def nan_of(dtype: torch.dtype) -> torch.Tensor:
    """Return the NaN that torch casts to in a dtype, [1]; it differs between processors."""
    return torch.full((1,), torch.nan, device="cpu").to(dtype)


def uniform(seed: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return ``count`` float32 numbers in [0, 1), a function of seed and position alone."""
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    h = (torch.arange(count, device=device, dtype=torch.int64) * 0x9E3779B1 + low) & 0xFFFFFFFF
    h = ((h ^ (h >> 16) ^ high) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return ((h ^ (h >> 16)) >> 8).to(torch.float32) * 2.0**-24


def group_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    hadamard: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    base: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize groups of consecutive values by their largest finite magnitude.

    Args:
        x: [..., num_values], any float dtype, rounded to float32. Every row has its own groups, and is
            padded with zeros to whole groups.
        nbits: 8 or 4.
        group: values per scale, even; with ``hadamard`` a multiple of 32.
        seed: round stochastically with this seed (unbiased), or to nearest when None.
        hadamard: whether to transform every 32 values first.
        out: scales and data to write to and return instead of new ones. Each row is contiguous, with any
            distance between rows: a view of the buffers of several peers receives the rows of ``x`` in order.
        base: quantize ``x - base`` instead, rounded to the dtype that both share.

    Returns:
        scales: float32 [..., num_groups]; data: uint8 [..., num_groups * group * nbits / 8].
    """
    rows = (x if base is None else x - base).to(torch.float32)
    rows = torch.nn.functional.pad(rows, (0, -x.shape[-1] % group))
    flat = rows.reshape(-1)
    values = (hadamard_transform(flat) if hadamard else flat).view(-1, group)
    top = 2 ** (nbits - 1) - 1
    finite = torch.isfinite(values)
    peak = torch.where(finite, values.abs(), 0.0)
    absmax = peak.amax(1) if len(values) else peak.new_zeros(0)
    live = absmax >= SMALLEST_ABSMAX
    # divide by a tensor: torch may turn a division by a scalar into a multiplication
    tops = torch.full_like(absmax, top)
    inverse = torch.where(live, tops / torch.where(live, absmax, 1.0), 0.0)
    scales = torch.where(live, (absmax / tops).clamp(max=largest_scale(nbits)), 0.0)
    scaled = torch.where(finite, values, 0.0) * inverse[:, None]
    if seed is None:
        codes = torch.round(scaled)
    else:
        codes = torch.floor(scaled + uniform(seed, values.numel(), x.device).view(-1, group))
    fields = codes.clamp(-top, top).to(torch.int64) + (top + 1)
    fields = torch.where(finite, fields, 0)
    if nbits == 4:
        fields = fields[:, : group // 2] | fields[:, group // 2 :] << 4
    scales = scales.view(*x.shape[:-1], rows.shape[-1] // group)
    data = fields.to(torch.uint8).view(*x.shape[:-1], rows.shape[-1] * nbits // 8)
    return (scales, data) if out is None else (out[0].copy_(scales), out[1].copy_(data))


def group_dequantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool = False,
    out: torch.Tensor | None = None,
    add: bool = False,
) -> torch.Tensor:
    """Decode what ``group_quantize`` returned, or the sum of several senders, into ``out``.

    Senders are added one after the other, in float32 and before the inverse transform, which runs
    once. A NaN from one sender makes the sum NaN.

    Args:
        data: uint8, flat, or [num_senders, nbytes], or [num_senders, num_rows, nbytes]; each row
            contiguous.
        scales: float32, with the same leading dimensions and one scale per group.
        nbits: 8 or 4.
        group: values per scale.
        hadamard: whether to invert the transform.
        out: contiguous, any float dtype, or [num_rows, num_values] with contiguous rows; may end
            inside the last group of a row. Every NaN in it is ``nan_of`` its dtype. By default flat
            float32 of whole groups.
        add: add the float32 values to what ``out`` holds. The sum is computed in float32, or in float64
            if ``out`` is, and rounded once.

    Returns:
        ``out``.
    """
    data, scales = by_sender(data, scales)
    num_rows = data.shape[1]
    senders = zip(data, scales, strict=True)
    values = reduce(torch.add, (_values(*sender, nbits, group) for sender in senders))
    if hadamard:
        values = hadamard_transform(values, inverse=True)
    out = torch.empty_like(values) if out is None else out
    rows = out.view(num_rows, -1) if out.is_contiguous() else out
    values = values.view(num_rows, -1)[:, : rows.shape[1]]
    values = rows + values if add else values
    nan = nan_of(out.dtype).to(out.device)
    rows.copy_(torch.where(values.isnan(), nan, values.to(out.dtype)))
    return out


def by_sender(data: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """View data and scales of one or several senders and rows as [num_senders, num_rows, ...]."""
    if data.dim() == 3:
        return data, scales
    return torch.atleast_2d(data).unsqueeze(1), torch.atleast_2d(scales).unsqueeze(1)


def _values(data: torch.Tensor, scales: torch.Tensor, nbits: int, group: int) -> torch.Tensor:
    fields = data.reshape(scales.numel(), group * nbits // 8)
    if nbits == 4:
        fields = torch.cat([fields & 15, fields >> 4], 1)
    codes = fields.to(torch.float32) - 2.0 ** (nbits - 1)
    return torch.where(fields == 0, torch.nan, codes * scales.reshape(-1, 1)).view(-1)
