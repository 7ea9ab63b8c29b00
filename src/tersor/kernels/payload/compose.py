"""Assembling and parsing the payloads of error-bounded codecs. Layout: ``layout.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.payload.layout import (
    CODED,
    CONSTANT,
    EXACT,
    HEADER,
    exact_nbytes,
)
from tersor.kernels.quantize import finite_range
from tersor.kernels.quantize.body import Body
from tersor.kernels.quantize.grid import Range, is_step
from tersor.raw_bytes import (
    are_ascending,
    as_bytes,
    as_padded_bytes,
    from_struct,
    padded,
    read_struct,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of a payload, whose sizes have been checked; the body has not."""

    mode: int
    step: float
    body: torch.Tensor
    positions: torch.Tensor
    values: torch.Tensor


def seal(mode: int, body: Body) -> torch.Tensor:
    """Assemble a payload; ``body.data`` must start with space for the header, which is written in place."""
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
    """Return a payload that stores the values exactly."""
    none = torch.empty(0, dtype=torch.int64, device=x.device)
    data = torch.zeros(exact_nbytes(x.nbytes), dtype=torch.uint8, device=x.device)
    data[HEADER.size : HEADER.size + x.nbytes] = as_bytes(x)
    return seal(EXACT, Body(0.0, data, none, none))


def seal_smallest(x: torch.Tensor, body: Body | None, limits: Range | None = None) -> torch.Tensor:
    """Return the payload of ``x``: coded if that is smaller than exact; else constant or exact.

    Args:
        x: the tensor that was encoded.
        body: its coded form; None if no grid can keep the bound.
        limits: its finite range, if the caller knows it.
    """
    if body is not None and body.nbytes < exact_nbytes(x.nbytes):
        return seal(CODED, body)
    return _seal_constant(x, limits) if x.numel() else seal_exact(x)


def _seal_constant(x: torch.Tensor, limits: Range | None) -> torch.Tensor:
    """Return a constant payload if all finite values are equal and it is smaller, else an exact one."""
    low, high = finite_range(x).tolist() if limits is None else limits
    if low != high:
        return seal_exact(x)
    positions = torch.nonzero(~torch.isfinite(x.view(-1))).view(-1)
    room = torch.zeros(HEADER.size, dtype=torch.uint8, device=x.device)
    body = Body(low, room, positions, x.view(-1)[positions])
    small = body.nbytes < exact_nbytes(x.nbytes)
    return seal(CONSTANT, body) if small else seal_exact(x)


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def open_payload(payload: torch.Tensor, out: torch.Tensor) -> Opened:
    """Split a payload for a tensor of the size and dtype of ``out`` into its parts.

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
        # a short path for the common case, because there are many small payloads
        nothing = _nothing(torch.int64, out.device), _nothing(out.dtype, out.device)
        return Opened(mode, step, body, *nothing)
    positions = payload[positions_start : positions_start + 4 * num_outliers]
    positions = positions.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if not are_ascending(positions, out.numel()):
        raise CorruptDataError("outliers are out of order or outside the tensor")
    values = payload[values_start : values_start + num_outliers * out.dtype.itemsize]
    return Opened(mode, step, body, positions, values.view(out.dtype))


def decode_payload(
    payload: torch.Tensor, out: torch.Tensor, decode_body: Callable[[Opened, torch.Tensor], int]
) -> None:
    """Decode into the contiguous ``out``.

    Args:
        payload: uint8, at an address that is a multiple of 8.
        out: receives the values.
        decode_body: decodes a coded body, including outliers, and returns the number of bytes it read.

    Raises:
        CorruptDataError: the payload is malformed.
    """
    opened = open_payload(payload, out)
    if opened.mode != EXACT and out.numel() == 0:
        raise CorruptDataError("an empty tensor is stored exactly, not coded")
    if opened.mode == CODED:
        if not is_step(opened.step, out.dtype):
            raise CorruptDataError(f"a payload has the impossible step {opened.step}")
        if decode_body(opened, out) != opened.body.numel():
            raise CorruptDataError("a coded body has bytes left over")
    elif opened.mode == CONSTANT:
        _fill(opened, out)
    else:
        if opened.body.numel() != padded(out.nbytes) or opened.positions.numel():
            raise CorruptDataError("exactly stored values have the wrong size")
        as_bytes(out).copy_(opened.body[: out.nbytes])


def _fill(opened: Opened, out: torch.Tensor) -> None:
    """Write the constant and the outliers of a constant payload."""
    in_range = abs(opened.step) <= torch.finfo(out.dtype).max
    if opened.body.numel() or not in_range:
        raise CorruptDataError("a constant payload has a body or an impossible value")
    out.fill_(opened.step)
    if out.numel() and float(out.view(-1)[0]) != opened.step:
        raise CorruptDataError("a constant payload has a value that its dtype cannot hold")
    put_outliers(opened, out)


def put_outliers(opened: Opened, out: torch.Tensor) -> None:
    """Overwrite decoded values with the exactly stored ones."""
    if opened.positions.numel():
        out.view(-1)[opened.positions] = opened.values
