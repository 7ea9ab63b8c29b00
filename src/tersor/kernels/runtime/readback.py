"""Pinned memory in which numbers from a GPU arrive while the host continues, used again once they are read.

A training step asks for the sizes of thirty lists. With a new allocation and a new event for each, asking took the host
of an H200 0.12 ms per list.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import torch

from tersor.kernels.runtime.device_cache import current_stream

_LEAST_NBYTES: Final = 1 << 12
"""Size of the memory that is used again; a larger request gets memory of its own."""
_MAX_FREE: Final = 16
"""Free readbacks per device that wait for reuse."""


class Readback:
    """Receives the bytes of one tensor at a time."""

    __slots__ = ("_arrived", "_device_index", "_memory", "_nbytes")

    def __init__(self, nbytes: int, device_index: int) -> None:
        """Allocate memory for ``nbytes`` bytes from a CUDA device."""
        # memory made in inference mode could not be written to outside of it
        with torch.inference_mode(False):
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._arrived: Any = torch.cuda.Event()
        self._device_index, self._nbytes = device_index, 0

    @classmethod
    def receiving(cls, device_bytes: torch.Tensor) -> Readback:
        """Return a readback to which uint8 values on a CUDA device are being copied, on its current stream."""
        index, nbytes = device_bytes.device.index, device_bytes.numel()
        try:
            one = _free[index].pop() if nbytes <= _LEAST_NBYTES else cls(nbytes, index)
        except IndexError:
            one = cls(_LEAST_NBYTES, index)
        one._nbytes = nbytes
        one.contents.copy_(device_bytes, non_blocking=True)
        # the stream of that device, which may not be the current device
        one._arrived.record(current_stream(device_bytes.device))
        return one

    @property
    def contents(self) -> torch.Tensor:
        """The bytes, uint8 in main memory; valid once they have arrived and until ``reuse``."""
        return self._memory[: self._nbytes]

    @property
    def has_arrived(self) -> bool:
        """True if the bytes have arrived."""
        return bool(self._arrived.query())

    def wait(self) -> None:
        """Wait until the bytes have arrived, but for no work that was enqueued after their copy."""
        self._arrived.synchronize()

    def reuse(self) -> None:
        """Give the memory to the next tensor; only once, after ``wait``, when the contents have been read."""
        free = _free[self._device_index]
        if self._memory.numel() == _LEAST_NBYTES and len(free) < _MAX_FREE:
            free.append(self)


_free: Final[defaultdict[int, list[Readback]]] = defaultdict(list)
"""Readbacks of each device that nobody waits for. Lists and their methods are thread-safe."""
