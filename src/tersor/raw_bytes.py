"""A tensor's memory as bytes, and the alignment common to all payload layouts."""

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
"""Two huge pages, below which there is little to gain; numpy's allocator uses the same threshold."""


@cache
def _madvise() -> Any:
    """Return the system's ``madvise``; None where huge pages are unavailable."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a new uninitialised tensor, in huge pages if it is large and on the CPU.

    torch allocates CPU memory in pages of 4 KiB: first writing 64 MiB of it takes 26 ms, in huge pages
    6 ms. numpy uses huge pages too, but torch cannot resize a tensor in numpy's memory.
    """
    out = torch.empty(shape, dtype=dtype, device=device)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= _HUGE_FROM_NBYTES and out.device.type == "cpu" and _madvise() is not None:
        start = ceil_div(out.data_ptr(), mmap.PAGESIZE) * mmap.PAGESIZE
        whole_pages_nbytes = (out.data_ptr() + nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
        # failure is harmless: the memory is only slower
        _madvise()(start, whole_pages_nbytes, mmap.MADV_HUGEPAGE)
    return out


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate flat tensors of one dtype into memory from ``empty``."""
    first = parts[0]
    out = empty((sum(part.numel() for part in parts),), first.dtype, first.device)
    if out.device.type == "cpu":
        # torch would wake its own threads, which then spin for 4 ms and occupy the cores that our
        # kernels' threads need
        np.concatenate([part.numpy() for part in parts], out=out.numpy())
        return out
    return torch.cat(list(parts), out=out)


def padded(nbytes: int) -> int:
    """Round up to a multiple of 8, the alignment of every part of a payload."""
    return (nbytes + 7) // 8 * 8


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return the bytes of the values, flat; a view if ``x`` is contiguous."""
    if x.numel() == 0:
        # torch cannot reinterpret an empty tensor whose stride is 0
        return torch.empty(0, dtype=torch.uint8, device=x.device)
    flat = x.contiguous().view(-1)
    if flat.numel() == 1:
        # torch calls a single value contiguous whatever its stride, but then cannot reinterpret it
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)


def as_padded_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of the bytes of the values, padded with zeros to a multiple of 8."""
    data = as_bytes(x)
    return torch.cat([data, data.new_zeros(padded(data.numel()) - data.numel())])


def read_struct(layout: struct.Struct, data: torch.Tensor, zeros: slice) -> tuple[Any, ...]:
    """Return the header fields at the start of ``data``; the bytes ``zeros`` are reserved.

    Raises:
        CorruptDataError: the data is too short, or a reserved byte is not zero.
    """
    # slicing numpy arrays takes a fifth of the time of slicing tensors
    on_host = data if data.device.type == "cpu" else data[: layout.size].cpu()
    head = on_host.numpy()[: layout.size].tobytes()
    if len(head) < layout.size or any(head[zeros]):
        raise CorruptDataError("a header is truncated or uses reserved bytes")
    return layout.unpack(head)


def are_ascending(positions: torch.Tensor, stop: int) -> bool:
    """True if int64 positions are strictly ascending and below ``stop``."""
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
