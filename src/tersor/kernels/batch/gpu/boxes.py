"""Division of tensors into boxes, and prefix sums over the faces of boxes, in Triton.

A code is the sum of the residuals up to its position along every axis. Of the residuals before a box, only their sums
along each line of values through the box are needed: sums over the columns, rows and planes of boxes, called faces,
which are then summed along all axes. In large lists they take a 64th, a 16th and a 32nd of the number of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.runtime.device_cache import cached_on_stream, copy_async, to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel

ROWS: Final = 16
_WIDE_COLUMNS, _NARROW_COLUMNS, _DEEP_PLANES, _FLAT_PLANES = 64, 16, 32, 8
_LARGE_LIST: Final = 1 << 24
"""From this many values on, a list gets deep boxes, which have few faces; shorter lists need more boxes to have
enough programs."""

NUM_FIELDS = tl.constexpr(6)
"""Fields per tensor in the table of boxes: its last three sizes, last first, and where its three faces start."""

_MAX_SHORT_LINE: Final = 2048
"""Largest number of sums in a line that shares a program with others. Longer lines take a whole program each, if there
are fewer than ``_MANY_LINES`` lines."""
_MANY_LINES: Final = 4096


class Box(NamedTuple):
    """Planes, rows and columns of a box; kernels need powers of two for the last two."""

    planes: int
    rows: int
    columns: int

    @classmethod
    def for_list(cls, shapes: Sequence[tuple[int, ...]]) -> Box:
        """Choose the box for tensors whose shapes end in depth, height and width."""
        num_values = sum(math.prod(shape) for shape in shapes)
        columns = (
            _NARROW_COLUMNS
            if max(shape[-1] for shape in shapes) <= _NARROW_COLUMNS
            else _WIDE_COLUMNS
        )
        return cls(_DEEP_PLANES if num_values >= _LARGE_LIST else _FLAT_PLANES, ROWS, columns)


class _Scan(NamedTuple):
    """Prefix sums along the middle axis of [outer, length, inner] numbers, from ``start`` on."""

    start: int
    outer: int
    length: int
    inner: int

    @property
    def num_lines(self) -> int:
        return self.outer * self.inner

    @property
    def is_long(self) -> bool:
        return self.length > _MAX_SHORT_LINE and self.num_lines < _MANY_LINES


class _Faces(NamedTuple):
    """The faces of one tensor [batch, depth, height, width], from number ``start`` on.

    The last box along an axis has no face there, because no box follows it.
    """

    shape: tuple[int, int, int, int]
    box: Box
    start: int

    @property
    def num_boxes(self) -> tuple[int, int, int]:
        """Number of boxes along depth, height and width."""
        _, depth, height, width = self.shape
        planes, rows, columns = self.box
        return ceil_div(depth, planes), ceil_div(height, rows), ceil_div(width, columns)

    @property
    def ends(self) -> tuple[int, int, int]:
        """Where the sums over columns, over rows and over planes end."""
        batch, depth, height, width = self.shape
        deep, down, across = self.num_boxes
        counts = (
            batch * depth * height * (across - 1),
            batch * depth * (down - 1) * width,
            batch * (deep - 1) * height * width,
        )
        first, second, third = accumulate(counts)
        return self.start + first, self.start + second, self.start + third

    def scans(self) -> tuple[list[_Scan], list[_Scan], list[_Scan]]:
        """Return the prefix sums to compute, in three steps."""
        batch, depth, height, width = self.shape
        deep, down, across = self.num_boxes
        across, down, deep = across - 1, down - 1, deep - 1
        columns, rows, planes = self.start, *self.ends[:2]
        return (
            [
                _Scan(columns, batch * depth * height, across, 1),
                _Scan(rows, batch * depth, down, width),
                _Scan(planes, batch, deep, height * width),
            ],
            [
                _Scan(columns, batch * depth, height, across),
                _Scan(rows, batch, depth, down * width),
            ],
            [_Scan(columns, batch, depth, height * across)],
        )


class _ScanTable(NamedTuple):
    """Prefix sums of one launch: int64 [num_scans, 5], the scan of each program, and whether lines are long."""

    scans: torch.Tensor
    owners: torch.Tensor
    is_long: bool


@dataclass(frozen=True, slots=True)
class BoxTable:
    """The boxes of a list of tensors.

    Attributes:
        box: size of a box.
        fields: int64 [num_tensors, NUM_FIELDS].
        first_boxes: int64 [num_tensors + 1], number of the first box of each tensor.
        owners: int32, the tensor of each box.
        num_sums: number of int32 sums in the faces of all tensors.
        is_split: whether lines may start at positions that are not multiples of four.
        steps: prefix sums to compute one after the other.
    """

    box: Box
    fields: torch.Tensor
    first_boxes: torch.Tensor
    owners: torch.Tensor
    num_sums: int
    is_split: bool
    steps: tuple[_ScanTable, ...]


@cached_on_stream
def box_table(shapes: tuple[tuple[int, int, int, int], ...], device: torch.device) -> BoxTable:
    """Return the boxes of tensors [batch, depth, height, width], none of them empty."""
    box, faces, start = Box.for_list(shapes), [], 0
    for shape in shapes:
        faces.append(_Faces(shape, box, start))
        start = faces[-1].ends[-1]
    fields = [[*one.shape[:0:-1], one.start, *one.ends[:2]] for one in faces]
    firsts = [0, *accumulate(one.shape[0] * math.prod(one.num_boxes) for one in faces)]
    steps = chain.from_iterable(
        _scan_tables(list(chain(*step)), device)
        for step in zip(*(one.scans() for one in faces), strict=True)
    )
    return BoxTable(
        box,
        to_device_async(fields, torch.int64, device),
        to_device_async(firsts, torch.int64, device),
        _owners(firsts, device),
        start,
        any(shape[-1] % 4 for shape in shapes),
        tuple(steps),
    )  # fmt: skip


def _owners(firsts: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return int32 [firsts[-1]], the interval of ``firsts`` in which each number lies."""
    counts = torch.tensor(firsts, device="cpu").diff()
    numbers = torch.arange(len(firsts) - 1, dtype=torch.int32, device="cpu")
    return copy_async(numbers.repeat_interleave(counts), device)


def _scan_tables(scans: Sequence[_Scan], device: torch.device) -> Iterator[_ScanTable]:
    for is_long in (False, True):
        _, lanes = _scan_block(is_long)
        chosen = [
            scan for scan in scans if scan.length > 1 and scan.num_lines and scan.is_long == is_long
        ]
        if chosen:
            firsts = [0, *accumulate(ceil_div(scan.num_lines, lanes) for scan in chosen)]
            rows = [[*scan, first] for scan, first in zip(chosen, firsts, strict=False)]
            table = to_device_async(rows, torch.int64, device)
            yield _ScanTable(table, _owners(firsts, device), is_long)


def _scan_block(is_long: bool) -> tuple[int, int]:
    """Return the numbers per line, and the lines, that a program takes at a time."""
    return (512, 1) if is_long else (16, 32)


@jit_kernel()
def _scan_kernel(sums, scans, owners, STEPS: tl.constexpr, LINES: tl.constexpr):
    """One program replaces ``LINES`` lines of numbers by their prefix sums, modulo 2**32."""
    program = tl.program_id(0).to(tl.int64)
    scan = scans + 5 * tl.load(owners + program)
    outer, length, inner = tl.load(scan + 1), tl.load(scan + 2), tl.load(scan + 3)
    line = (program - tl.load(scan + 4)) * LINES + tl.arange(0, LINES)
    places = sums + tl.load(scan) + (line // inner) * (length * inner) + line % inner
    before = tl.zeros([LINES], dtype=tl.int32)
    for start in range(0, length, STEPS):
        step = start + tl.arange(0, STEPS)
        here = places[None, :] + step[:, None] * inner
        inside = (step < length)[:, None] & (line < outer * inner)[None, :]
        numbers = tl.load(here, mask=inside, other=0)
        tl.store(here, tl.cumsum(numbers, axis=0) + before[None, :], mask=inside)
        before += tl.sum(numbers, axis=0)


def sum_faces(table: BoxTable, sums: torch.Tensor) -> None:
    """Replace the faces of boxes by the sums of all residuals before the boxes that follow them."""
    for step in table.steps:
        num_numbers, num_lines = _scan_block(step.is_long)
        _scan_kernel[(step.owners.numel(),)](
            sums, step.scans, step.owners, STEPS=num_numbers, LINES=num_lines, num_warps=1
        )


@triton.jit
def open_box(
    fields, first_boxes, k, number, planes, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Return the position of box ``number`` in tensor ``k``, in boxes, and the tensor's sizes.

    Returns:
        (batch, plane, row, column) of the box; (depth, height, width) of the tensor in values, then in boxes.
    """
    row = fields + k * NUM_FIELDS
    width, height, depth = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    across, down = (width + COLUMNS - 1) // COLUMNS, (height + ROWS - 1) // ROWS
    deep = (depth + planes - 1) // planes
    local = number - tl.load(first_boxes + k)
    line, layer = local // across, local // (across * down)
    place = (layer // deep, layer % deep, line % down, local % across)
    return place, (depth, height, width), (deep, down, across)


@triton.jit
def column_sums(sums, fields, k, place, sizes, boxes, line):
    """Return pointers to the sums of ``line`` over the columns of a box; those of the box before are 1 lower."""
    return sums + tl.load(fields + k * NUM_FIELDS + 3) + line * (boxes[2] - 1) + place[3]


@triton.jit
def row_sums(sums, fields, k, place, sizes, boxes, plane, x):
    """Return pointers to a plane's sums over the rows of a box; those of the box before are a width lower."""
    number = (place[0] * sizes[0] + plane) * (boxes[1] - 1) + place[2]
    return sums + tl.load(fields + k * NUM_FIELDS + 4) + number * sizes[2] + x


@triton.jit
def plane_sums(sums, fields, k, place, sizes, boxes, y, x):
    """Return pointers to the sums over the planes of a box; those of the box before are a plane lower."""
    line = (place[0] * (boxes[0] - 1) + place[1]) * sizes[1] + y
    return sums + tl.load(fields + k * NUM_FIELDS + 5) + (line * sizes[2])[:, None] + x[None, :]
