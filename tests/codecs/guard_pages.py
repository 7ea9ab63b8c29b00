"""Memory next to a page that must not be touched: one byte too far ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

import torch

PAGE: Final = mmap.PAGESIZE
_PROT_NONE: Final = 0
_libc: Final = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """A stretch of memory with a forbidden page before and after it."""

    def __init__(self, max_nbytes: int) -> None:
        self._nbytes = -(-max_nbytes // PAGE) * PAGE
        self._map = mmap.mmap(-1, self._nbytes + 2 * PAGE)
        mapped = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._start = mapped + PAGE
        for guard in (mapped, self._start + self._nbytes):
            if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect failed")

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, *, at_end: bool) -> torch.Tensor:
        """Return a tensor that ends where the forbidden page begins, or begins where one ends."""
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        if nbytes == 0:
            return torch.zeros(shape, dtype=dtype)
        address = self._start + (self._nbytes - nbytes if at_end else 0)
        block = (ctypes.c_uint8 * nbytes).from_address(address)
        block.memory = self  # lives as long as the tensor does
        return torch.frombuffer(block, dtype=dtype).view(shape)

    def copy(self, data: bytes, *, at_end: bool) -> torch.Tensor:
        """Return the bytes as a guarded uint8 tensor."""
        tensor = self.tensor((len(data),), torch.uint8, at_end=at_end)
        if data:
            tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return tensor
