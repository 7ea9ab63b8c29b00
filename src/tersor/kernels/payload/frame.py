"""The wire frame: all payloads for one peer in one contiguous uint8 buffer.

Sizes are sent ahead of the buffer (in one small collective), or are known, so a frame has no header:
payload ``i`` starts at ``frame_offsets(sizes)[i]``. Every payload starts at a multiple of 8 bytes, after zero
padding, so that a decoder can view parts of it as wider types in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.runtime.threads import fork_safe
from tersor.raw_bytes import empty, padded

FRAME_ALIGNMENT: Final = 8


def frame_offsets(sizes: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Return the offset of each payload in bytes, and as the last entry the size of the whole frame.

    Args:
        sizes: bytes per payload; a tensor must be one-dimensional int64.

    Returns:
        int64 of length ``len(sizes) + 1``, on the device of ``sizes``, computed without waiting for it.

    Example:
        >>> frame_offsets([3, 0, 8]).tolist()
        [0, 8, 8, 16]
    """
    if not isinstance(sizes, torch.Tensor):
        sizes = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    sizes = sizes.to(torch.int64)
    rooms = (sizes + (FRAME_ALIGNMENT - 1)) // FRAME_ALIGNMENT * FRAME_ALIGNMENT
    return torch.cat([rooms.new_zeros(1), rooms.cumsum(0)])


@fork_safe
def pack_frame(payloads: Sequence[torch.Tensor]) -> torch.Tensor:
    """Copy the payloads into one new buffer on their device, in order.

    Args:
        payloads: one-dimensional uint8 tensors on one device.

    Returns:
        uint8 of length ``frame_offsets([p.numel() for p in payloads])[-1]``; without payloads, an empty
        buffer on the CPU.
    """
    if not payloads:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    if any(payload.dtype != torch.uint8 or payload.dim() != 1 for payload in payloads):
        raise SpecError("a frame is made of one-dimensional uint8 tensors")
    zeros = payloads[0].new_zeros(FRAME_ALIGNMENT)
    parts: list[torch.Tensor] = []
    for payload in payloads:
        parts += (payload, zeros[: -payload.numel() % FRAME_ALIGNMENT])
    return torch.cat(parts)


def frame_views(
    sizes: Sequence[int], device: torch.device, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a frame for payloads of known sizes, and a view for each; the padding is already zeroed.

    ``out`` is the memory to use, which must be large enough; by default it is newly allocated.
    """
    ends = list(accumulate((padded(size) for size in sizes), initial=0))
    frame = empty((ends[-1],), torch.uint8, device) if out is None else out[: ends[-1]]
    payloads = []
    for size, start, end in zip(sizes, ends, ends[1:], strict=False):
        payloads.append(frame[start : start + size])
        if start + size < end:
            frame[start + size : end] = 0
    return frame, payloads


def checked_memory(out: torch.Tensor, sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return ``out`` after checking that it can hold a frame of payloads of these sizes.

    Raises:
        SpecError: it is not one-dimensional contiguous uint8 on ``device``, too small, or misaligned.
    """
    nbytes = sum(map(padded, sizes))
    if (
        out.dtype != torch.uint8
        or out.dim() != 1
        or not out.is_contiguous()
        or out.device != device
    ):
        raise SpecError(
            f"out must be contiguous uint8 of one dimension on {device}, not {out.dtype} of shape "
            f"{tuple(out.shape)} on {out.device}"
        )
    is_aligned = not (out.data_ptr() % FRAME_ALIGNMENT or out.storage_offset() % FRAME_ALIGNMENT)
    if out.numel() < nbytes or not is_aligned:
        raise SpecError(
            f"out must have {nbytes} bytes from an address that is a multiple of {FRAME_ALIGNMENT} "
            f"on, not {out.numel()}; each payload takes its size rounded up to 8"
        )
    return out


def frame_places(
    sizes: torch.Tensor, least_nbytes: Sequence[int], frame_nbytes: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Locate the payloads of a frame and check their sizes; on a GPU without waiting.

    Args:
        sizes: int64, size of each payload; not trusted.
        least_nbytes: smallest possible size of each payload.
        frame_nbytes: size of the frame.

    Returns:
        offsets: int64, offset of each payload.
        checked: int64, the sizes; all 0 if one of them is impossible or the frame cannot hold them.
        status: int32 [1 + len(sizes)]; the first entry is 0 if the sizes are possible, the others are 0.
    """
    numbers = sizes.tolist()
    pairs = zip(numbers, least_nbytes, strict=True)
    are_possible = all(least <= size <= frame_nbytes for size, least in pairs)
    are_possible = are_possible and sum(map(padded, numbers)) <= frame_nbytes
    checked = sizes.clone() if are_possible else torch.zeros_like(sizes)
    status = torch.zeros(1 + len(numbers), dtype=torch.int32, device=sizes.device)
    status[0] = not are_possible
    return frame_offsets(checked)[:-1], checked, status


def join_frame(
    buffers: Sequence[torch.Tensor],
    sizes: Sequence[torch.Tensor],
    places: Sequence[int],
    rooms: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the payloads of several frames into one buffer of worst-case size; on a GPU without waiting.

    Args:
        buffers: the frames, each at an address that is a multiple of 8.
        sizes: per frame, the size of each payload, int64 on the device of the frame.
        places: index in the new frame of each payload, starting with all those of the first frame.
        rooms: largest possible size of each payload of the new frame, a multiple of 8.

    Returns:
        frame: uint8; bytes after the last payload are undefined.
        sizes: int64, size of each payload.
    """
    found: dict[int, torch.Tensor] = {}
    left = iter(places)
    for buffer, nbytes in zip(buffers, sizes, strict=True):
        ends = frame_offsets(nbytes).tolist()
        for start, size in zip(ends, nbytes.tolist(), strict=False):
            found[next(left)] = buffer[start : start + size]
    payloads = [found[k] for k in range(len(found))]
    frame = buffers[0].new_empty(sum(rooms))
    joined = pack_frame(payloads)
    frame[: joined.numel()] = joined
    return frame, torch.tensor([one.numel() for one in payloads], device=frame.device)


def split_frame(buffer: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return the payloads of a frame as views of ``buffer``, without copying or waiting.

    Args:
        buffer: one-dimensional uint8, on any device.
        sizes: bytes per payload, known to the host.

    Raises:
        CorruptDataError: a size is negative, or the sizes do not add up to the buffer.

    Example:
        >>> frame = pack_frame([torch.tensor([1, 2], dtype=torch.uint8)])
        >>> split_frame(frame, [2])
        (tensor([1, 2], dtype=torch.uint8),)
    """
    if buffer.dtype != torch.uint8 or buffer.dim() != 1:
        raise CorruptDataError("a frame must be a one-dimensional uint8 tensor")
    # sizes larger than the buffer are rejected first, so that the sum cannot overflow
    if any(type(size) is not int or not 0 <= size <= buffer.numel() for size in sizes):
        raise CorruptDataError(f"a payload size in {list(sizes)[:8]} lies outside of the frame")
    offsets = frame_offsets(sizes).tolist()
    if offsets[-1] != buffer.numel():
        raise CorruptDataError(
            f"a frame of {offsets[-1]} bytes was announced, {buffer.numel()} bytes arrived"
        )
    return tuple(
        buffer[offset : offset + size] for offset, size in zip(offsets, sizes, strict=False)
    )
