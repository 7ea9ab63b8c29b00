"""Group quantization in numba, alone and fused with the Hadamard transform, sums and a base.

Groups are numbered across all rows of a tensor. Fused kernels go through a stage: a few groups of
float32, small enough to stay in a cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.kernels.group.cpu.groups import (
    Rounding,
    dequantize_groups,
    quantize_groups,
    sum_senders,
)
from tersor.kernels.group.cpu.values import array_of, kind_of, read_stage, write_stage
from tersor.kernels.group.layout import outputs, row_strides
from tersor.kernels.group.reference import by_sender, nan_of
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import array_at, njit
from tersor.kernels.transform.cpu import hadamard_rows
from tersor.kernels.transform.reference import ORDER
from tersor.raw_bytes import empty

_STAGE_VALUES = 4096


@cache
def _empty_array(dtype: torch.dtype) -> Any:
    return array_of(torch.empty(0, dtype=dtype))[0]


@cache
def _nan_element(dtype: torch.dtype) -> Any:
    return array_of(nan_of(dtype))[0][0]


class Rows(NamedTuple):
    """The rows of a tensor, as kernels take them; the tensor must outlive the kernel."""

    addresses: Any
    """uint64, [num_outer, num_inner] or flat."""
    size: int
    """Elements per row."""
    like: Any
    """An empty array of their dtype."""

    @classmethod
    def of(cls, x: torch.Tensor) -> Rows:
        """Take [..., size] with any distance between rows; each row is contiguous.

        Raises:
            ValueError: a row is not contiguous.
        """
        outer, inner = (stride * x.element_size() for stride in row_strides(x))
        first, (num_outer, num_inner) = x.data_ptr(), (1, 1, *x.shape)[-3:-1]
        # Python integers: numpy takes longer for the few rows that most tensors have
        places = [
            [first + i * outer + j * inner for j in range(num_inner)] for i in range(num_outer)
        ]
        addresses = np.array(places, dtype=np.uint64).reshape(num_outer, num_inner)
        return cls(addresses, x.shape[-1], _empty_array(x.dtype))

    def flat(self) -> Rows:
        """Return the rows as one list, in the order of the dimensions."""
        return self._replace(addresses=self.addresses.reshape(-1))


@njit(nogil=True, cache=True, inline="always")
def _of_row(rows: Any, row: int) -> Any:
    return array_at(rows.addresses[row], rows.size, rows.like)


@njit(nogil=True, cache=True, inline="always")
def _within(row: int, num_groups: int, start: int, stop: int) -> tuple[int, int]:
    """Return the first and last group of a row within ``[start, stop)`` of all groups."""
    return max(start - row * num_groups, 0), min(stop - row * num_groups, num_groups)


@njit(nogil=True, cache=True)
def _quantize_kernel(
    x: Any, group: int, rounding: Any, scales: Any, data: Any, start: int, stop: int
) -> None:
    """Quantize groups ``[start, stop)`` of rows of whole groups of float32."""
    num_groups = scales.size
    for row in range(start // num_groups, -(-stop // num_groups)):
        first, last = _within(row, num_groups, start, stop)
        values = _of_row(x, row).reshape(num_groups, group)
        target = _of_row(scales, row), _of_row(data, row).reshape(num_groups, -1)
        at = row * num_groups * group
        quantize_groups(values, values.view(np.int32), at, rounding, *target, first, last)


@njit(nogil=True, cache=True)
def _staged_quantize_kernel(
    x: Any,
    base: Any,
    kind: int,
    subtract: bool,
    hadamard: bool,
    is_f32: bool,
    group: int,
    rounding: Any,
    scales: Any,
    data: Any,
    start: int,
    stop: int,
) -> None:
    """Quantize groups ``[start, stop)`` of any float dtype; ``is_f32`` says that the dtype is float32."""
    num_groups = scales.size
    num_staged = max(1, _STAGE_VALUES // group)
    stage = np.empty((num_staged, group), dtype=np.float32)
    bits, flat = stage.view(np.int32), stage.reshape(-1)
    hadamards = stage.reshape(-1, ORDER if hadamard else group)
    for row in range(start // num_groups, -(-stop // num_groups)):
        begin, end = _within(row, num_groups, start, stop)
        values, subtrahend = _of_row(x, row), _of_row(base, row)
        row_scales, row_data = _of_row(scales, row), _of_row(data, row).reshape(num_groups, -1)
        for first in range(begin, end, num_staged):
            count = min(num_staged, end - first)
            num_rows = count * group // ORDER
            if hadamard and is_f32 and not subtract and (first + count) * group <= values.size:
                # saves the pass through the cache that staging takes
                hadamard_rows(values[first * group :], np.float32(1), hadamards, 0, num_rows)
            else:
                staged = flat[: count * group]
                read_stage(values, subtrahend, kind, subtract, first * group, staged)
                if hadamard:
                    hadamard_rows(hadamards, np.float32(1), hadamards, 0, num_rows)
            at = (row * num_groups + first) * group
            targets = row_scales[first:], row_data[first:]
            quantize_groups(stage, bits, at, rounding, *targets, 0, count)


def group_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    hadamard: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    base: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.group_quantize``."""
    num_groups = ceil_div(x.shape[-1], group)
    scales, data = outputs(tuple(x.shape[:-1]), num_groups, nbits, group, out, x.device)
    if scales.numel() == 0:
        return scales, data
    source, rounding = Rows.of(x).flat(), Rounding.of(nbits, seed)
    targets = Rows.of(scales).flat(), Rows.of(data).flat()
    parts = threads.split(scales.numel(), x.element_size() * group)
    if x.dtype == torch.float32 and x.shape[-1] % group == 0 and base is None and not hadamard:
        arguments = (source, group, rounding, *targets)
        threads.run(_quantize_kernel, [(*arguments, s, e) for s, e in parts])
        return scales, data
    subtrahend = source if base is None else Rows.of(base.view(x.shape)).flat()
    kind = kind_of(x.dtype)
    how = (kind, base is not None, hadamard, x.dtype == torch.float32)
    staged = (source, subtrahend, *how, group, rounding, *targets)
    threads.run(_staged_quantize_kernel, [(*staged, s, e) for s, e in parts])
    return scales, data


@njit(nogil=True, cache=True)
def _dequantize_kernel(
    data: Any, scales: Any, nbits: int, group: int, out: Any, start: int, stop: int
) -> None:
    """Decode groups ``[start, stop)`` of one sender into float32 rows of whole groups."""
    num_groups = scales.size
    for row in range(start // num_groups, -(-stop // num_groups)):
        first, last = _within(row, num_groups, start, stop)
        fields = _of_row(data, row).reshape(num_groups, -1)
        target = _of_row(out, row).reshape(num_groups, group)
        dequantize_groups(fields, _of_row(scales, row), nbits, target, first, last)


@njit(nogil=True, cache=True)
def _staged_dequantize_kernel(
    data: Any,
    scales: Any,
    nbits: int,
    group: int,
    hadamard: bool,
    out: Any,
    kind: int,
    nan: Any,
    add: bool,
    start: int,
    stop: int,
) -> None:
    """Decode the sums of groups ``[start, stop)`` over senders into any float dtype."""
    num_groups = scales.size
    num_staged = max(1, _STAGE_VALUES // group)
    stage = np.empty((num_staged, group), dtype=np.float32)
    addend = np.empty((num_staged, group), dtype=np.float32)
    flat = stage.reshape(-1)
    hadamards = stage.reshape(-1, ORDER if hadamard else group)
    for row in range(start // num_groups, -(-stop // num_groups)):
        begin, end = _within(row, num_groups, start, stop)
        target = _of_row(out, row)
        senders = data.addresses[:, row], scales.addresses[:, row]
        for first in range(begin, end, num_staged):
            count = min(num_staged, end - first)
            sum_senders(*senders, nbits, first, stage[:count], addend)
            if hadamard:
                factor = np.float32(1.0 / ORDER)
                hadamard_rows(hadamards, factor, hadamards, 0, count * group // ORDER)
            write_stage(flat[: count * group], target, kind, nan, add, first * group)


def group_dequantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool = False,
    out: torch.Tensor | None = None,
    add: bool = False,
) -> torch.Tensor:
    """See ``reference.group_dequantize``."""
    data, scales = by_sender(data, scales)
    num_senders, num_rows, num_groups = scales.shape
    # a wrong size raises here, not beyond the end of the data
    data = data.view(num_senders, num_rows, num_groups * group * nbits // 8)
    if out is None:
        out = empty((num_rows * num_groups * group,), torch.float32, data.device)
    rows = out.view(num_rows, -1) if out.is_contiguous() else out
    if scales.numel() == 0:
        return out
    target, kind = Rows.of(rows).flat(), kind_of(out.dtype)
    parts = threads.split(num_rows * num_groups, 4 * group)
    is_plain = out.dtype == torch.float32 and not (hadamard or add)
    if is_plain and num_senders == 1 and rows.shape[1] == num_groups * group:
        arguments = (Rows.of(data).flat(), Rows.of(scales).flat(), nbits, group, target)
        threads.run(_dequantize_kernel, [(*arguments, s, e) for s, e in parts])
        return out
    nan = _nan_element(out.dtype)
    sent = (Rows.of(data), Rows.of(scales), nbits, group)
    staged = (*sent, hadamard, target, kind, nan, add)
    threads.run(_staged_dequantize_kernel, [(*staged, s, e) for s, e in parts])
    return out


@njit(nogil=True, cache=True)
def _staged_requantize_kernel(
    data: Any,
    scales: Any,
    nbits: int,
    group: int,
    rounding: Any,
    new_scales: Any,
    new_data: Any,
    start: int,
    stop: int,
) -> None:
    """Requantize the sums of groups ``[start, stop)`` while they are in a cache."""
    num_groups = scales.size
    num_staged = max(1, _STAGE_VALUES // group)
    stage = np.empty((num_staged, group), dtype=np.float32)
    addend = np.empty((num_staged, group), dtype=np.float32)
    bits = stage.view(np.int32)
    for row in range(start // num_groups, -(-stop // num_groups)):
        begin, end = _within(row, num_groups, start, stop)
        row_scales = _of_row(new_scales, row)
        row_data = _of_row(new_data, row).reshape(num_groups, -1)
        senders = data.addresses[:, row], scales.addresses[:, row]
        for first in range(begin, end, num_staged):
            count = min(num_staged, end - first)
            sum_senders(*senders, nbits, first, stage[:count], addend)
            at = (row * num_groups + first) * group
            targets = row_scales[first:], row_data[first:]
            quantize_groups(stage, bits, at, rounding, *targets, 0, count)


def group_dequantize_sum_quantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out_nbits: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``compose.group_dequantize_sum_quantize``."""
    rows = tuple(data.shape[1:-1])
    data, scales = by_sender(data, scales)
    num_senders, num_rows, num_groups = scales.shape
    # a wrong size raises here, not beyond the end of the data
    data = data.view(num_senders, num_rows, num_groups * group * nbits // 8)
    targets = outputs(rows, num_groups, out_nbits, group, out, data.device)
    if scales.numel() == 0:
        return targets
    sent = (Rows.of(data), Rows.of(scales), nbits, group)
    staged = (*sent, Rounding.of(out_nbits, seed), *(Rows.of(target).flat() for target in targets))
    parts = threads.split(num_rows * num_groups, 4 * group * num_senders)
    threads.run(_staged_requantize_kernel, [(*staged, s, e) for s, e in parts])
    return targets
