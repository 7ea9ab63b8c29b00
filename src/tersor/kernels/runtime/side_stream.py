"""Run two chains of kernels concurrently, between two points of the current stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=64)
def _side_of(device_index: int, current: int) -> torch.cuda.Stream:
    """Return the side stream of the one with the handle ``current``.

    It is one of the 32 streams that torch pools per priority. It has high priority because other code
    seldom takes those.
    """
    return torch.cuda.Stream(device_index, priority=-1)


def _is_capturing(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


@contextmanager
def fork_join(device: torch.device) -> Iterator[AbstractContextManager[Any]]:
    """Run kernels launched in the yielded context concurrently with those in the enclosing block.

    All of them run after the work enqueued on the current stream before the block, and before the work
    enqueued after it; a CUDA graph gets two branches. Memory that the yielded context uses must be
    allocated before the block and held to its end, unless nothing else uses it.

    There is no concurrency on the CPU, nor if the side stream is taking part in a capture while the
    current stream is not.
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
