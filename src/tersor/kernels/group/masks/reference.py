"""Groups in a few bits per value with exact zeros and signs, plain torch. ``layout`` describes the payload.

The scale is the group's largest magnitude divided by its largest code, rounded up. A code is a magnitude in
units of the scale, rounded up; only zeros have code 0. In a group without negative values, a field is the code;
otherwise it is the signed code plus ``2**(nbits - 1)``. Code ``c`` decodes to the mean of the sampled values that
have it: ``c - 1`` scales plus 1 to 65536 parts of a scale in 65536. A group with a value that is not finite has the
scale NaN, and decodes to NaN.
"""

from __future__ import annotations

import torch

from tersor.kernels.group.masks.layout import LARGEST, NAN_SCALE, parts_nbytes, top_of
from tersor.kernels.group.rms.layout import GROUP, NUM_SAMPLED, SMALLEST_SCALE
from tersor.kernels.group.rms.reference import bin_sums, fractions_of, in_f16
from tersor.raw_bytes import as_padded_bytes


def in_range(x: torch.Tensor) -> torch.Tensor:
    """Return float32 values below 2**123 in magnitude; only zeros and NaN become 0."""
    values = x.to(torch.float32)
    if x.dtype == torch.float64:
        smallest = torch.sign(x).to(torch.float32) * 2.0**-149
        values = torch.where(values == 0, smallest, values)
    return torch.where(x.isnan(), 0.0, values.clamp(-LARGEST, LARGEST))


def mask_quantize(x: torch.Tensor, nbits: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Quantize groups of 256 consecutive values to fields of ``nbits``.

    Args:
        x: contiguous, flat, any float dtype.
        nbits: 2 or 4.
        out: uint8 of the payload's size to write to and return, at an address that is a multiple of 8; by default,
            new memory.

    Returns:
        The payload, uint8 [``layout.payload_nbytes``].
    """
    values = in_range(x)
    values = torch.nn.functional.pad(values, (0, -x.numel() % GROUP)).view(-1, GROUP)
    is_signed = (values < 0).any(1)
    tops = torch.where(is_signed, top_of(nbits, is_signed=True), top_of(nbits, is_signed=False))
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
    marked = torch.where(finite.view(-1, GROUP).all(1), marked, NAN_SCALE)
    heads = as_padded_bytes(fractions), as_padded_bytes(marked.to(torch.int16))
    return torch.cat([*heads, data], out=out)


def mask_dequantize(payload: torch.Tensor, nbits: int, out: torch.Tensor) -> None:
    """Decode what ``mask_quantize`` wrote into the contiguous ``out``: float32 products, rounded to its dtype.

    In float16, values that are too large become the largest finite one, and nonzero values do not become 0.
    ``payload`` must have the size for ``out.numel()`` values and start at a multiple of 8 bytes.
    """
    num_groups, top = -(-out.numel() // GROUP), (1 << nbits) - 1
    fractions, scales, data = payload.split_with_sizes(parts_nbytes(out.numel(), nbits))
    fractions, scales = (part.view(torch.int16) for part in (fractions, scales))
    shifts = torch.arange(0, 8, nbits, device=out.device)
    fields = ((data[:, None].to(torch.int64) >> shifts) & top).view(-1, GROUP)
    bits = scales[:num_groups].to(torch.int32) & 0xFFFF
    codes = fields - ((bits >> 15).to(torch.int64) << (nbits - 1))[:, None]
    below = torch.arange(top, device=out.device) << 16
    parts = below + (fractions[:top].to(torch.int64) & 0xFFFF) + 1
    levels = parts.to(torch.float32) * 2.0**-16
    levels = torch.cat([levels.new_zeros(1), levels])[codes.abs()]
    factors = ((bits & 0x7FFF) << 16).view(torch.float32)[:, None]
    values = (torch.where(codes < 0, -levels, levels) * factors).view(-1)[: out.numel()]
    if out.dtype == torch.float16:
        values = torch.where(values.isnan(), values, in_f16(values))
    out.view(-1).copy_(values)
