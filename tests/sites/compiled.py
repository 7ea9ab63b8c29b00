"""Kernels that ranks need, compiled before any rank waits for another one that compiles."""

from __future__ import annotations

import torch

from tersor import Bound, create
from tersor.kernels.group import (
    group_dequantize,
    group_dequantize_sum_quantize,
    group_quantize,
)
from tersor.sites.embeddings import Exchange


def compile_kernels() -> None:
    """Run in this process what ranks run; the disk keeps the code."""
    bounded = create("rows", bound=Bound.relative(0.01))
    for codec, backward in (("auto", "half"), ("flat", "group8"), ("rows", bounded)):
        rows = torch.randn(64, 8, requires_grad=True)
        (out,) = Exchange([0], 8, bounds=0.03, codec=codec, backward=backward)([rows])
        out.sum().backward()
    _compile_group_kernels()


def _compile_group_kernels() -> None:
    """Compile what shards call, for values of 4 and of 2 bytes."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(2, 64, dtype=dtype)
        for hadamard in (False, True):
            for base in (None, x):
                scales, data = group_quantize(x, 4, 32, hadamard=hadamard, base=base)
            for add in (False, True):
                group_dequantize(data, scales, 4, 32, hadamard, out=x[0], add=add)
        group_dequantize_sum_quantize(data[:, None], scales[:, None], 4, 32, 4)
