"""Payloads of error-bounded codecs, put together and taken apart. Layout: ``kernels.payload.layout``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.payload.layout import CODED, CONSTANT, EXACT, HEADER, exact_nbytes
from tersor.raw_bytes import (
    are_ascending,
    as_bytes,
    as_padded_bytes,
    from_struct,
    padded,
    read_struct,
)

__all__ = [
    "CODED",
    "CONSTANT",
    "EXACT",
    "HEADER",
    "Body",
    "Opened",
    "exact_nbytes",
    "open_payload",
    "seal",
    "seal_exact",
]


@dataclass(frozen=True, slots=True)
class Opened:
    """A payload taken apart; sizes are checked, the body is not."""

    mode: int
    step: float
    body: torch.Tensor
    positions: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Body:
    """What a codec made of a tensor: step, coded bytes, outliers by position (int64) and value.

    ``data`` begins with ``HEADER.size`` bytes of room for the header, so that a large body need not
    be copied to get one.
    """

    step: float
    data: torch.Tensor
    positions: torch.Tensor
    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Size of the payload this body makes."""
        num_outliers = self.positions.numel()
        if num_outliers == 0:
            return self.data.numel()
        return self.data.numel() + padded(4 * num_outliers) + padded(self.values.nbytes)


def seal(mode: int, body: Body) -> torch.Tensor:
    """Put a payload together."""
    body_nbytes = body.data.numel() - HEADER.size
    fields = (mode, body.positions.numel(), body.step, body_nbytes)
    if body.data.device.type == "cpu":
        # in place: a slice assignment through torch takes five times as long
        HEADER.pack_into(body.data.numpy().data, 0, *fields)
    else:
        body.data[: HEADER.size] = from_struct(HEADER.pack(*fields), body.data.device)
    if body.positions.numel() == 0:
        return body.data
    outliers = [as_padded_bytes(body.positions.to(torch.int32)), as_padded_bytes(body.values)]
    return torch.cat([body.data, *outliers])


def seal_exact(x: torch.Tensor) -> torch.Tensor:
    """Store the values as they are."""
    none = torch.empty(0, dtype=torch.int64, device=x.device)
    data = torch.zeros(exact_nbytes(x.nbytes), dtype=torch.uint8, device=x.device)
    data[HEADER.size : HEADER.size + x.nbytes] = as_bytes(x)
    return seal(EXACT, Body(0.0, data, none, none))


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def open_payload(payload: torch.Tensor, out: torch.Tensor) -> Opened:
    """Take a payload for a tensor like ``out`` apart.

    Raises:
        CorruptDataError: sizes, mode or outlier positions are impossible.
    """
    mode, num_outliers, step, body_nbytes = read_struct(HEADER, payload, slice(1, 4))
    positions_start = HEADER.size + body_nbytes
    values_start = positions_start + padded(4 * num_outliers)
    end = values_start + padded(num_outliers * out.dtype.itemsize)
    if body_nbytes % 8 or num_outliers > out.numel() or end > payload.numel():
        raise CorruptDataError("a payload is truncated or its sizes are impossible")
    if end < payload.numel() and bool(payload[end:].any()):
        raise CorruptDataError("a payload has bytes left over")
    if mode not in (EXACT, CODED, CONSTANT) or not math.isfinite(step):
        raise CorruptDataError(f"a payload has the impossible mode {mode} or step {step}")
    body = payload[HEADER.size : positions_start]
    if num_outliers == 0:
        # the common case, kept short: small payloads are many
        nothing = _nothing(torch.int64, out.device), _nothing(out.dtype, out.device)
        return Opened(mode, step, body, *nothing)
    positions = payload[positions_start : positions_start + 4 * num_outliers]
    positions = positions.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if not are_ascending(positions, out.numel()):
        raise CorruptDataError("outliers are out of order or outside the tensor")
    values = payload[values_start : values_start + num_outliers * out.dtype.itemsize]
    return Opened(mode, step, body, positions, values.view(out.dtype))
