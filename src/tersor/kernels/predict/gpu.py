"""Lorenzo prediction in Triton, along all axes at once: of codes in memory, or fused with quantization."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.quantize.gpu.values import load_values, quantize_values
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel

_TILE: Final = 4096
_MAX_COLUMNS: Final = 1024


@triton.jit
def _line(codes_ptr, rows, columns, inside, width):
    """Return the differences of codes along rows where ``inside``, and 0 elsewhere."""
    at = rows[:, None] * width + columns[None, :]
    code = tl.load(codes_ptr + at, mask=inside, other=0)
    before = tl.load(codes_ptr + at - 1, mask=inside & (columns > 0)[None, :], other=0)
    return code - before


@jit_kernel()
def _residual_kernel(
    codes_ptr,
    num_rows,
    width,
    height,
    depth,
    num_column_tiles,
    residual_ptr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program predicts [ROWS, COLUMNS] codes; rows are numbered across all leading axes."""
    tile = tl.program_id(0).to(tl.int64)
    rows = (tile // num_column_tiles) * ROWS + tl.arange(0, ROWS)
    columns = (tile % num_column_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < width)[None, :]
    residual = _line(codes_ptr, rows, columns, inside, width)
    if DIMS >= 2:
        below = inside & (rows % height > 0)[:, None]
        residual -= _line(codes_ptr, rows - 1, columns, below, width)
    if DIMS == 3:
        behind = inside & ((rows // height) % depth > 0)[:, None]
        residual -= _line(codes_ptr, rows - height, columns, behind, width)
        corner = behind & (rows % height > 0)[:, None]
        residual += _line(codes_ptr, rows - height - 1, columns, corner, width)
    tl.store(residual_ptr + rows[:, None] * width + columns[None, :], residual, mask=inside)


@triton.jit
def _code(address, position, usable, limit, grid, TYPE: tl.constexpr):
    """Return codes of values and whether each keeps the bound; 0 and true where not ``usable``."""
    # the position ``limit`` is masked out
    place = tl.where(usable, position, limit)
    values = load_values(address, place, limit, 0.0, TYPE, False, False)
    codes, holds = quantize_values(values, grid[0], grid[1], grid[2], TYPE)
    return tl.where(usable, codes, 0), holds | ~usable


@triton.jit
def _differences(address, position, usable, offset, has_left, limit, grid, TYPE: tl.constexpr):
    """Return the codes ``offset`` values back minus their predecessors; 0 where not ``usable``."""
    code, _ = _code(address, position - offset, usable, limit, grid, TYPE)
    left, _ = _code(address, position - offset - 1, usable & has_left, limit, grid, TYPE)
    return code - left


@cached_on_stream
def shape_table(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> torch.Tensor:
    """Return int32 [num_tensors, 3]: the sizes of the last three axes, innermost first."""
    return to_device_async([shape[::-1] for shape in shapes], torch.int32, device)


@triton.jit
def load_shape(shapes, k):
    """Return the sizes of the last three axes of tensor ``k``, innermost first, from ``shape_table``."""
    return tl.load(shapes + 3 * k), tl.load(shapes + 3 * k + 1), tl.load(shapes + 3 * k + 2)


@triton.jit
def residual_codes(address, position, limit, shape, grid, TYPE: tl.constexpr, DIMS: tl.constexpr):
    """Quantize values and predict their codes from lower neighbours.

    The neighbours are quantized again, which is cheaper than storing all codes.

    Args:
        address: address of the tensor's first value.
        position: int32, positions of the values in the tensor.
        limit: int32, number of values in the tensor.
        shape: sizes of the last three axes, innermost first; 1 for an axis it does not have.
        grid: step, inverse and checked bound.
        TYPE: dtype of the values.
        DIMS: how many of these axes predict, 2 or 3; all but the innermost may have size 1. With 0 codes
            are not predicted and serve as residuals.

    Returns:
        The int32 residuals and codes, both 0 from ``limit`` on, and whether each value has a code.
    """
    width, height, depth = shape
    inside = position < limit
    codes, holds = _code(address, position, inside, limit, grid, TYPE)
    residuals = codes
    if DIMS >= 2:
        row = position // width
        has_left = inside & (position > row * width)
        left, _ = _code(address, position - 1, has_left, limit, grid, TYPE)
        has_upper = inside & (row % height > 0)
        upper = _differences(address, position, has_upper, width, has_left, limit, grid, TYPE)
        residuals = codes - left - upper
    if DIMS == 3:
        has_back = inside & ((row // height) % depth > 0)
        plane = width * height
        residuals -= _differences(address, position, has_back, plane, has_left, limit, grid, TYPE)
        residuals += _differences(
            address, position, has_back & has_upper, plane + width, has_left, limit, grid, TYPE
        )
    return residuals, codes, holds


def lorenzo_residual(codes: torch.Tensor, dims: int) -> torch.Tensor:
    """See ``reference.lorenzo_residual``."""
    codes = codes.contiguous()
    residual = torch.empty_like(codes)
    if codes.numel() == 0:
        return residual
    depth, height, width = (1, 1, *codes.shape)[-3:]
    num_rows = codes.numel() // width
    columns = min(triton.next_power_of_2(width), _MAX_COLUMNS)
    rows = _TILE // columns
    num_column_tiles = ceil_div(width, columns)
    with torch.cuda.device_of(codes):
        _residual_kernel[(ceil_div(num_rows, rows) * num_column_tiles,)](
            codes,
            num_rows,
            width,
            height,
            depth,
            num_column_tiles,
            residual,
            DIMS=dims,
            ROWS=rows,
            COLUMNS=columns,
        )
    return residual
