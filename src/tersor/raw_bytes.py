"""A tensor's memory as bytes, and the alignment that all our layouts share."""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.errors import BackendUnavailableError, CorruptDataError

_HUGE_FROM_NBYTES: Final = 1 << 22
"""Below two huge pages there is little to gain; numpy's own allocator draws the same line."""


@cache
def _madvise() -> Any:
    """Return the system's ``madvise``; None where there are no huge pages to ask for."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a new tensor of arbitrary content, whose pages are cheap to touch for the first time.

    torch leaves large CPU memory in pages of 4 KiB: writing 64 MiB of it takes 26 ms, in huge pages
    6 ms. numpy asks for huge pages too, but torch cannot resize a tensor in numpy's memory.
    """
    out = torch.empty(shape, dtype=dtype, device=device)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= _HUGE_FROM_NBYTES and out.device.type == "cpu" and _madvise() is not None:
        start = ceil_div(out.data_ptr(), mmap.PAGESIZE) * mmap.PAGESIZE
        whole_pages_nbytes = (out.data_ptr() + nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        # a refusal leaves the memory as it was, only slower
        _madvise()(start, whole_pages_nbytes, mmap.MADV_HUGEPAGE)
    return out


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return flat tensors of one dtype one after the other, in memory from ``empty``."""
    first = parts[0]
    out = empty((sum(part.numel() for part in parts),), first.dtype, first.device)
    if out.device.type == "cpu":
        # torch would wake its own threads, which then spin for 4 ms and keep our kernels' threads
        # from the cores
        np.concatenate([part.numpy() for part in parts], out=out.numpy())
        return out
    return torch.cat(list(parts), out=out)


def padded(nbytes: int) -> int:
    """Round up to a multiple of 8: every part of a payload starts at one."""
    return (nbytes + 7) // 8 * 8


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return the values' bytes, flat; a view where ``x`` is contiguous."""
    if x.numel() == 0:
        # torch refuses to reinterpret an empty tensor whose stride is 0
        return torch.empty(0, dtype=torch.uint8, device=x.device)
    flat = x.contiguous().view(-1)
    if flat.numel() == 1:
        # torch calls a single value contiguous whatever its stride, and then refuses to reinterpret it
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)


def as_padded_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of the values' bytes, followed by zeros up to a multiple of 8."""
    data = as_bytes(x)
    return torch.cat([data, data.new_zeros(padded(data.numel()) - data.numel())])


def read_struct(layout: struct.Struct, data: torch.Tensor, zeros: slice) -> tuple[Any, ...]:
    """Return the header fields at the start of ``data``, of which bytes ``zeros`` are reserved.

    Raises:
        CorruptDataError: the data is shorter, or a reserved byte is not zero.
    """
    # slices of numpy's arrays take a fifth of the time of torch's
    on_host = data if data.device.type == "cpu" else data[: layout.size].cpu()
    head = on_host.numpy()[: layout.size].tobytes()
    if len(head) < layout.size or any(head[zeros]):
        raise CorruptDataError("a header is truncated or uses reserved bytes")
    return layout.unpack(head)


def are_ascending(positions: torch.Tensor, stop: int) -> bool:
    """True if int64 positions rise strictly and lie below ``stop``."""
    if positions.numel() == 0:
        return True
    return int(positions[-1]) < stop and bool((positions[1:] > positions[:-1]).all())


def from_struct(header: bytes, device: torch.device) -> torch.Tensor:
    """Return packed header fields as a uint8 tensor."""
    return torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device)


def checksum_of(data: bytes | memoryview) -> int:
    """Return the xxh3_64 checksum; raises ``BackendUnavailableError`` without xxhash."""
    try:
        import xxhash
    except ImportError as error:
        raise BackendUnavailableError(
            "checksums of files and streams need xxhash, which cannot be imported; install it"
        ) from error
    return xxhash.xxh3_64_intdigest(data)
