"""Lorenzo prediction in numba: one in-place pass over memory per axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import njit


@njit(nogil=True, cache=True)
def _difference_kernel(codes: Any, low: int, high: int, start: int, stop: int) -> None:
    """Subtract row ``j - 1`` from row ``j`` of every matrix; ``codes`` is [outer, rows, inner]."""
    for outer in range(start, stop):
        for j in range(codes.shape[1] - 1, 0, -1):
            row, above = codes[outer, j, low:high], codes[outer, j - 1, low:high]
            for k in range(row.size):
                row[k] = np.int32(row[k] - above[k])


@njit(nogil=True, cache=True)
def _sum_kernel(codes: Any, low: int, high: int, start: int, stop: int) -> None:
    """Add row ``j - 1`` to row ``j`` of every matrix; ``codes`` is [outer, rows, inner]."""
    for outer in range(start, stop):
        for j in range(1, codes.shape[1]):
            row, above = codes[outer, j, low:high], codes[outer, j - 1, low:high]
            for k in range(row.size):
                row[k] = np.int32(row[k] + above[k])


@njit(nogil=True, cache=True)
def _difference_last_kernel(codes: Any, start: int, stop: int) -> None:
    for outer in range(start, stop):
        row = codes[outer]
        previous = np.int32(0)
        for k in range(row.size):
            current = row[k]
            row[k] = np.int32(current - previous)
            previous = current


@njit(nogil=True, cache=True)
def _sum_last_kernel(codes: Any, start: int, stop: int) -> None:
    for outer in range(start, stop):
        row = codes[outer]
        total = np.int32(0)
        for k in range(row.size):
            total = np.int32(total + row[k])
            row[k] = total


@njit(nogil=True, cache=True)
def _add_kernel(line: Any, addend: Any) -> None:
    for k in range(line.size):
        line[k] = np.int32(line[k] + addend)


def _difference_line(line: Any) -> None:
    """Replace one long line by its differences, in one part per thread."""
    parts = threads.split(line.size, 4)
    starts = np.array([start for start, _ in parts[1:]], dtype=np.int64)
    # before any thread overwrites them
    firsts = line[starts] - line[starts - 1]
    threads.run(_difference_last_kernel, [(line[s:e].reshape(1, -1), 0, 1) for s, e in parts])
    line[starts] = firsts


def _sum_line(line: Any) -> None:
    """Replace one long line by its prefix sums: every part from zero, then plus the sum of earlier parts."""
    parts = threads.split(line.size, 4)
    threads.run(_sum_last_kernel, [(line[s:e].reshape(1, -1), 0, 1) for s, e in parts])
    if len(parts) > 1:
        before = np.cumsum([line[end - 1] for _, end in parts[:-1]], dtype=np.int32)
        later = zip(parts[1:], before, strict=True)
        threads.run(_add_kernel, [(line[s:e], addend) for (s, e), addend in later])


def _along_axes(
    codes: torch.Tensor, dims: int, kernel: Any, last_kernel: Any, line_kernel: Any
) -> torch.Tensor:
    codes = codes.contiguous()
    if codes.numel() == 0:
        return codes
    values = codes.numpy()
    for axis in range(codes.dim() - dims, codes.dim() - 1):
        outer, rows = math.prod(codes.shape[:axis]), codes.shape[axis]
        matrices = values.reshape(outer, rows, -1)
        inner = matrices.shape[2]
        if outer > 1:
            spans = threads.split(outer, 4 * rows * inner)
            parts = [(matrices, 0, inner, s, e) for s, e in spans]
        else:
            spans = threads.split(inner, 4 * rows)
            parts = [(matrices, low, high, 0, 1) for low, high in spans]
        threads.run(kernel, parts)
    lines = values.reshape(-1, codes.shape[-1])
    if len(lines) == 1:
        line_kernel(lines[0])
        return codes
    parts_last = [(lines, s, e) for s, e in threads.split(lines.shape[0], 4 * lines.shape[1])]
    threads.run(last_kernel, parts_last)
    return codes


def lorenzo_residual(codes: torch.Tensor, dims: int) -> torch.Tensor:
    """See ``reference.lorenzo_residual``; works in place."""
    return _along_axes(codes, dims, _difference_kernel, _difference_last_kernel, _difference_line)


def lorenzo_restore(residual: torch.Tensor, dims: int) -> torch.Tensor:
    """See ``reference.lorenzo_restore``; works in place."""
    return _along_axes(residual, dims, _sum_kernel, _sum_last_kernel, _sum_line)
