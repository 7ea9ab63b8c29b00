"""Contiguous fields of one width, plain torch."""

from __future__ import annotations

import torch

from tersor.errors import CorruptDataError
from tersor.raw_bytes import padded


def fields_nbytes(count: int, width: int) -> int:
    """Return the size of ``count`` packed fields: whole bytes, padded to a multiple of 8."""
    return padded((count * width + 7) // 8)


def pack_fields(values: torch.Tensor, width: int) -> torch.Tensor:
    """Pack the low ``width`` bits of each value, lowest bit first, without gaps.

    Args:
        values: int32, flat, values in [0, 2**width).
        width: 0 to 31.

    Example:
        >>> pack_fields(torch.tensor([1, 0, 3], dtype=torch.int32), 2).tolist()
        [49, 0, 0, 0, 0, 0, 0, 0]
    """
    count = values.numel()
    bits = torch.zeros(8 * fields_nbytes(count, width), dtype=torch.int64, device=values.device)
    shifts = torch.arange(width, device=values.device)
    bits[: count * width] = ((values[:, None] >> shifts) & 1).reshape(-1)
    weights = 1 << torch.arange(8, device=values.device)
    return (bits.view(-1, 8) * weights).sum(1).to(torch.uint8)


def unpack_fields(packed: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """Return ``count`` int32 values that ``pack_fields`` packed.

    Raises:
        CorruptDataError: there are fewer bytes than ``count`` fields take.
    """
    nbytes = fields_nbytes(count, width)
    if packed.numel() < nbytes:
        raise CorruptDataError("packed fields are truncated")
    bits = (packed[:nbytes, None].to(torch.int64) >> torch.arange(8, device=packed.device)) & 1
    weights = 1 << torch.arange(width, device=packed.device)
    fields = bits.reshape(-1)[: count * width].view(count, width)
    return (fields * weights).sum(1).to(torch.int32)
