"""Groups in few bits per value with exact zeros and signs, plain torch.

```
fractions  u16[2**nbits - 1], see below; padded to 8 bytes
scales     u16 per group: a bfloat16, whose sign says that the group has negative values; padded to 8 bytes
fields     nbits per value, lowest bits first, of whole groups
```

The scale is the group's largest magnitude over its largest code, rounded up, and a code is a magnitude in
scales, rounded up: 0 for zeros alone. A field is the code in a group without negative values, else the code with its sign plus
``2**(nbits - 1)``. Code ``c`` decodes to the mean of the sampled values that have it, ``c - 1`` scales and 1 to 65536 parts
of a scale in 65536. A group with a value that is not finite has the scale NaN, and decodes to NaN.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from tersor.division import ceil_div
from tersor.kernels.group.rms.layout import GROUP, LARGEST_MAGNITUDE, NUM_SAMPLED, SMALLEST_SCALE
from tersor.kernels.group.rms.reference import bin_sums, fractions_of, in_f16
from tersor.raw_bytes import padded

_LARGEST: Final = LARGEST_MAGNITUDE * (1 - 2.0**-24)
_NAN_SCALE: Final = 0x7FC0


class MaskedGroups(NamedTuple):
    """What quantizing a tensor gives.

    Attributes:
        fractions: int16 [2**nbits - 1], to be read as uint16.
        scales: int16 [num_groups], likewise.
        data: uint8 [num_groups * 32 * nbits].
    """

    fractions: torch.Tensor
    scales: torch.Tensor
    data: torch.Tensor


def parts_nbytes(numel: int, nbits: int) -> tuple[int, int, int]:
    """Return the bytes of fractions, scales and fields of ``numel`` values, with their padding."""
    num_groups = ceil_div(numel, GROUP)
    fractions = padded(2 * ((1 << nbits) - 1))
    return fractions, padded(2 * num_groups), num_groups * GROUP * nbits // 8


def _in_range(x: torch.Tensor) -> torch.Tensor:
    """Return float32 values below 2**123 in magnitude, zeros for NaN and for zeros alone."""
    values = x.to(torch.float32)
    if x.dtype == torch.float64:
        smallest = torch.sign(x).to(torch.float32) * 2.0**-149
        values = torch.where(values == 0, smallest, values)
    return torch.where(x.isnan(), 0.0, values.clamp(-_LARGEST, _LARGEST))


def mask_quantize(x: torch.Tensor, nbits: int) -> MaskedGroups:
    """Quantize groups of 256 consecutive values to fields of ``nbits``, 2 or 4.

    ``x`` is flat, of any float dtype.
    """
    values = _in_range(x)
    values = torch.nn.functional.pad(values, (0, -x.numel() % GROUP)).view(-1, GROUP)
    is_signed = (values < 0).any(1)
    tops = torch.where(is_signed, (1 << (nbits - 1)) - 1, (1 << nbits) - 1)
    wanted = values.abs().amax(1) / tops.to(torch.float32) if len(values) else values.view(-1)
    stored = (wanted.clamp(min=SMALLEST_SCALE).view(torch.int32) + 0xFFFF) >> 16
    scales = (stored << 16).view(torch.float32)
    units = values.abs() * (torch.ones_like(scales) / scales)[:, None]
    codes = torch.minimum(units.ceil().clamp(min=1), tops[:, None]).to(torch.int64) * (values != 0)
    num_sampled = min(NUM_SAMPLED, len(values))
    sampled = torch.arange(num_sampled, device=x.device) * len(values) // max(1, num_sampled)
    fractions = fractions_of(*bin_sums(codes[sampled], units[sampled], (1 << nbits) - 1))
    fields = torch.where(values < 0, -codes, codes)
    fields = fields + torch.where(is_signed, 1 << (nbits - 1), 0)[:, None]
    shifts = torch.arange(0, 8, nbits, device=x.device)
    data = (fields.view(-1, 8 // nbits) << shifts).sum(1).to(torch.uint8)
    finite = torch.nn.functional.pad(x.isfinite(), (0, -x.numel() % GROUP), value=True)
    marked = stored | (is_signed.to(torch.int32) << 15)
    marked = torch.where(finite.view(-1, GROUP).all(1), marked, _NAN_SCALE)
    return MaskedGroups(fractions, marked.to(torch.int16), data)


def mask_dequantize(
    fractions: torch.Tensor, scales: torch.Tensor, data: torch.Tensor, nbits: int, out: torch.Tensor
) -> None:
    """Write the values of ``mask_quantize``, float32 products rounded to its dtype, into the contiguous ``out``.

    In float16, what is too large becomes the largest finite value, and what is not 0 does not become 0.
    """
    top = (1 << nbits) - 1
    shifts = torch.arange(0, 8, nbits, device=out.device)
    fields = ((data[:, None].to(torch.int64) >> shifts) & top).view(-1, GROUP)
    bits = scales.to(torch.int32) & 0xFFFF
    codes = fields - ((bits >> 15).to(torch.int64) << (nbits - 1))[:, None]
    parts = (torch.arange(top, device=out.device) << 16) + (fractions.to(torch.int64) & 0xFFFF) + 1
    levels = parts.to(torch.float32) * 2.0**-16
    levels = torch.cat([levels.new_zeros(1), levels])[codes.abs()]
    factors = ((bits & 0x7FFF) << 16).view(torch.float32)[:, None]
    values = (torch.where(codes < 0, -levels, levels) * factors).view(-1)[: out.numel()]
    if out.dtype == torch.float16:
        values = torch.where(values.isnan(), values, in_f16(values))
    out.view(-1).copy_(values)
