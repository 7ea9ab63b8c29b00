"""The wire frame: all payloads for one peer in one contiguous uint8 buffer.

Sizes travel ahead of the buffer (one small collective), or are known, so a frame has no header:
payload ``i`` starts at ``frame_offsets(sizes)[i]``. Every payload starts at a multiple of 8 bytes, with zeros in
between, so that a decoder may view parts of it as wider numbers in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.runtime.threads import fork_safe

FRAME_ALIGNMENT: Final = 8


def frame_offsets(sizes: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Return where each payload starts, and as last entry the size of the whole frame in bytes.

    Args:
        sizes: bytes per payload; a tensor must be int64 of one dimension.

    Returns:
        int64 of length ``len(sizes) + 1``, on the device of ``sizes`` and without waiting for it.

    Example:
        >>> frame_offsets([3, 0, 8]).tolist()
        [0, 8, 8, 16]
    """
    if not isinstance(sizes, torch.Tensor):
        sizes = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    sizes = sizes.to(torch.int64)
    padded = (sizes + (FRAME_ALIGNMENT - 1)) // FRAME_ALIGNMENT * FRAME_ALIGNMENT
    return torch.cat([padded.new_zeros(1), padded.cumsum(0)])


@fork_safe
def pack_frame(payloads: Sequence[torch.Tensor]) -> torch.Tensor:
    """Copy the payloads into one new buffer on their device, in order.

    Args:
        payloads: one-dimensional uint8 tensors on one device.

    Returns:
        uint8 of length ``frame_offsets([p.numel() for p in payloads])[-1]``; no payloads make an
        empty buffer on the CPU.
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
    # a size above the buffer's is refused before the sum, which then cannot overflow
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
