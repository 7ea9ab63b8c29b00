"""Two chains of kernels side by side, between two points of the current stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=64)
def _side_of(device_index: int, current: int) -> torch.cuda.Stream:
    """Return the stream beside the one with the handle ``current``.

    One of the 32 that torch keeps per priority: of high priority, because others seldom take those.
    """
    return torch.cuda.Stream(device_index, priority=-1)


def _is_capturing(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


@contextmanager
def fork_join(device: torch.device) -> Iterator[AbstractContextManager[Any]]:
    """Let kernels launched in the yielded context run beside those launched in the block around it.

    All of them come after what the current stream had to do before the block, and before what it has
    to do after it; a CUDA graph gets two branches. Memory that the yielded context uses must be
    allocated before the block and held to its end, unless nothing else uses it. Kernels on the CPU run one after the other, and so
    do those of a stream whose side is in the graph that another one captures.
    """
    if device.type != "cuda":
        yield nullcontext()
        return
    current = torch.cuda.current_stream(device)
    side = _side_of(current.device_index, current.cuda_stream)
    if _is_capturing(side) and not torch.cuda.is_current_stream_capturing():
        yield nullcontext()
        return
    side.wait_stream(current)
    try:
        yield torch.cuda.stream(side)
    finally:
        current.wait_stream(side)
