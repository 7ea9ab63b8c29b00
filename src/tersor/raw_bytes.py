"""A tensor's memory as bytes, and the alignment that all our layouts share."""

from __future__ import annotations

import struct
from typing import Any

import torch

from tersor.errors import CorruptDataError


def padded(nbytes: int) -> int:
    """Round up to a multiple of 8: every part of a payload starts at one."""
    return (nbytes + 7) // 8 * 8


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return the values' bytes, flat; a view where ``x`` is contiguous."""
    if x.numel() == 0:
        # torch refuses to reinterpret an empty tensor whose stride is 0
        return torch.empty(0, dtype=torch.uint8, device=x.device)
    return x.contiguous().view(-1).view(torch.uint8)


def as_padded_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values' bytes, followed by zeros up to a multiple of 8."""
    data = as_bytes(x)
    return torch.cat([data, data.new_zeros(padded(data.numel()) - data.numel())])


def read_struct(layout: struct.Struct, data: torch.Tensor, zeros: slice) -> tuple[Any, ...]:
    """Return the header fields at the start of ``data``, of which bytes ``zeros`` are reserved.

    Raises:
        CorruptDataError: the data is shorter, or a reserved byte is not zero.
    """
    head = data[: layout.size].cpu().numpy().tobytes()
    if len(head) < layout.size or any(head[zeros]):
        raise CorruptDataError("a header is truncated or uses reserved bytes")
    return layout.unpack(head)


def are_ascending(positions: torch.Tensor, stop: int) -> bool:
    """Say whether int64 positions rise strictly and lie below ``stop``."""
    if positions.numel() == 0:
        return True
    return int(positions[-1]) < stop and bool((positions[1:] > positions[:-1]).all())


def from_struct(header: bytes, device: torch.device) -> torch.Tensor:
    """Return packed header fields as a uint8 tensor."""
    return torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device)
