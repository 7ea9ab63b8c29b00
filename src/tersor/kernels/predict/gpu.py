"""Lorenzo prediction in Triton: all axes at once."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.runtime.gpu.launch import jit_kernel

_TILE: Final = 4096
_MAX_COLUMNS: Final = 1024


@triton.jit
def _line(codes_ptr, rows, columns, inside, width):
    """Return the differences along rows where ``inside``, and 0 elsewhere."""
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
    """One program predicts [ROWS, COLUMNS] codes; rows are counted through all leading axes."""
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
