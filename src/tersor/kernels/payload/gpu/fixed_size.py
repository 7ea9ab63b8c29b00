"""Lists of payloads whose sizes follow from the shapes, in Triton: one launch handles all tensors.

The host knows all offsets in advance. A program looks up which tensor its tile belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
import triton
import triton.language as tl

from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import BF16, TYPES
from tersor.kernels.runtime.gpu.launch import Kernel
from tersor.kernels.runtime.gpu.tiles import addresses, store_zeros, tile_table
from tersor.kernels.runtime.gpu.tiles import padded as padded_on_device
from tersor.raw_bytes import padded

PAYLOAD_ALIGNMENT: Final = 8
"""Every payload starts at a multiple of this many bytes."""

WIDEST: Final = 16
"""Bytes of the widest load, which needs an address that is a multiple of this."""

_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@dataclass(frozen=True, slots=True)
class FixedFrame:
    """Memory for payloads of known sizes.

    Attributes:
        buffer: uint8, uninitialised.
        offsets: int64 on the device, offset of each payload.
        sizes: int64 on the device, uninitialised.
        starts: the offsets, on the host.
        nbytes: the sizes, on the host.
    """

    buffer: torch.Tensor
    offsets: torch.Tensor
    sizes: torch.Tensor
    starts: tuple[int, ...]
    nbytes: Sequence[int]


def fixed_frame(
    sizes: Sequence[int], device: torch.device, out: torch.Tensor | None = None
) -> FixedFrame:
    """Return memory for payloads of these sizes: ``out``, which must be large enough, or new memory."""
    ends = tuple(accumulate((padded(size) for size in sizes), initial=0))
    buffer = (
        torch.empty(ends[-1], dtype=torch.uint8, device=device) if out is None else out[: ends[-1]]
    )
    noted = torch.empty(len(sizes), dtype=torch.int64, device=device)
    return FixedFrame(buffer, on_device(ends[:-1], device), noted, ends[:-1], sizes)


def common_alignment(places: Sequence[int]) -> int:
    """Return the largest power of two up to ``WIDEST`` that divides all ``places``."""
    return math.gcd(WIDEST, *places)


@triton.jit
def own_tile(counts, first_tiles, owners):
    """Return the program's tensor, its tile within that tensor, and the tensor's number of values."""
    tile = tl.program_id(0).to(tl.int64)
    k = tl.load(owners + tile)
    return k, tile - tl.load(first_tiles + k), tl.load(counts + k)


@triton.jit
def typed(place, TYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    """Convert an address or a pointer, a multiple of ``ALIGNMENT``, to a pointer to ``TYPE``.

    In Triton's interpreter a bfloat16 is handled as an int16 with its bits, because the interpreter truncates
    to bfloat16 instead of rounding.
    """
    element: tl.constexpr = tl.int16 if _INTERPRETED and TYPE == BF16 else TYPE
    return tl.multiple_of(place.to(tl.pointer_type(element)), ALIGNMENT)


@triton.jit
def new_payload(out, offsets, sizes, k, tile, nbytes):
    """Return a pointer to payload ``k``; the program of its first tile stores its size and zero padding."""
    payload = out + tl.load(offsets + k)
    if tile == 0:
        tl.store(sizes + k, nbytes)
        store_zeros(payload + nbytes, padded_on_device(nbytes) - nbytes, 8)
    return payload


def encode_tiles(
    kernel: Kernel,
    tile: int,
    xs: Sequence[torch.Tensor],
    frame: FixedFrame,
    *numbers: int,
    **constants: Any,
) -> FixedFrame:
    """Encode contiguous tensors of one dtype and device, with one program per tile.

    Args:
        kernel: takes addresses of the tensors, their counts, first tiles, owners of tiles, offsets, buffer and sizes of
            the frame, and ``numbers``; then ``TYPE`` and ``ALIGNMENT`` of the tensors, and ``constants``.
        tile: number of values that a program encodes.
        xs: the tensors to encode.
        frame: memory for the payloads.
        *numbers: further arguments of the kernel.
        **constants: constants of the kernel and options of its launch.

    Returns:
        ``frame``, with the payloads and their sizes written.
    """
    device = xs[0].device
    tiles = tile_table(tuple(x.numel() for x in xs), tile, device)
    with torch.cuda.device_of(xs[0]):
        kernel[(tiles.num_tiles,)](
            addresses(xs, device), tiles.counts, tiles.first_tiles, tiles.owners, frame.offsets,
            frame.buffer, frame.sizes, *numbers, TYPE=TYPES[xs[0].dtype],
            ALIGNMENT=common_alignment([x.data_ptr() for x in xs]), **constants,
        )  # fmt: skip
    return frame


def decode_tiles(
    kernel: Kernel,
    tile: int,
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    outs: Sequence[torch.Tensor],
    status: torch.Tensor | None,
    **constants: Any,
) -> torch.Tensor:
    """Decode payloads into contiguous tensors of one dtype and device, with one program per tile.

    Args:
        kernel: takes buffer, offsets, sizes, addresses of the outputs, their counts, first tiles, owners of tiles,
            and status; then ``TYPE`` and ``ALIGNMENT`` of the outputs, and ``constants``.
        tile: number of values that a program decodes.
        places: buffer, offsets and sizes, as in ``batch.gpu.group.decode_groups``.
        outs: receive the values.
        status: int32 [len(outs)], receives 1 for payloads of a wrong size, else 0; new memory by default.
        **constants: constants of the kernel and options of its launch.

    Returns:
        The status.
    """
    buffer, offsets, sizes = places
    device = buffer.device
    if status is None:
        status = torch.empty(len(outs), dtype=torch.int32, device=device)
    tiles = tile_table(tuple(out.numel() for out in outs), tile, device)
    with torch.cuda.device_of(buffer):
        kernel[(tiles.num_tiles,)](
            buffer, offsets, sizes, addresses(outs, device), tiles.counts, tiles.first_tiles,
            tiles.owners, status, TYPE=TYPES[outs[0].dtype],
            ALIGNMENT=common_alignment([out.data_ptr() for out in outs]), **constants,
        )  # fmt: skip
    return status


@triton.jit
def given_payload(buffer, offsets, sizes, status, k, tile, nbytes):
    """Return a pointer to payload ``k``, and whether its size is ``nbytes``, as it must be.

    The program of the first tile stores in ``status`` whether it is not.
    """
    is_whole = tl.load(sizes + k) == nbytes
    if tile == 0:
        tl.store(status + k, (~is_whole).to(tl.int32))
    return buffer + tl.load(offsets + k), is_whole
