"""Clearing memory in a kernel, so that a recording of a call (``runtime/recording.py``) repeats it."""

from __future__ import annotations

from typing import Final

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.runtime.gpu.launch import jit_kernel

_LANES: Final = 1024


@jit_kernel(do_not_specialize=["num"])
def _clear_kernel(target, num, LANES: tl.constexpr):
    """One program sets ``LANES`` of ``num`` int64 numbers to 0."""
    k = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    tl.store(target + k, tl.zeros([LANES], dtype=tl.int64), mask=k < num)


def clear(numbers: torch.Tensor) -> None:
    """Set int64 numbers, at least one, to 0."""
    num = numbers.numel()
    _clear_kernel[(ceil_div(num, _LANES),)](numbers, num, LANES=_LANES)
