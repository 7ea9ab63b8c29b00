"""Quantization, with optional prediction, of a list of tensors to symbols of ``ans`` in Triton.

Values become bytes, their codes modulo 256. Which codes the bytes stand for is known once all are written, and is
built into the coder's tables. If a bound implies more codes, values become int16, their codes modulo 4096
(``ans_wide.py``). A static table defines the symbols beforehand, and values become these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
import triton.language as tl

from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu.ans_plan import Quantized, decide_alphabets
from tersor.kernels.batch.gpu.ans_tile import (
    quantize_predicted,
    quantize_tile,
    quantize_whole_tile,
)
from tersor.kernels.batch.gpu.ans_wide import Routes
from tersor.kernels.entropy.rans.gpu.encode_streams import Streams
from tersor.kernels.entropy.rans.gpu.table import StaticTable, static_table
from tersor.kernels.entropy.symbols.alphabet import Window
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx, run_counts
from tersor.kernels.payload.gpu.uncoded import examine_tile, load_grid
from tersor.kernels.predict.axes import predicting_shape
from tersor.kernels.predict.gpu import load_shape, shape_table
from tersor.kernels.quantize.gpu.finite_range import TILE as RANGE_TILE
from tersor.kernels.quantize.gpu.finite_range import fold_ranges
from tersor.kernels.quantize.gpu.grids import grid_table
from tersor.kernels.runtime.gpu.element_types import F64, TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import (
    TileTable,
    addresses,
    are_aligned,
    bound_table,
    tile_table,
)
from tersor.kernels.runtime.recording import working_tensor
from tersor.kernels.runtime.workspace import Layout
from tersor.types import Bound

TILE: Final = 4096
VALUES_PER_STEP: Final = 1024
"""Values that a second scan of a tile takes at a time."""
RUN: Final = 16
"""Tiles of a run, whose symbols one program counts; a power of two."""
_PIECE_SHARE: Final = 16
"""The symbols of a piece take this fraction of the bytes of the values."""
_WARPS: Final = 4
"""Each thread holds 32 values, whose loads are all in flight at once."""
_MAX_REGISTERS: Final = 80
"""Per thread. The careful path, which few tiles take, would need more and leave room for fewer programs:
436 MB take 135 us with 96 registers, 128 us with 80."""


@jit_kernel(do_not_specialize=["num_narrow", "window_low", "window_size", "first_run"])
def _quantize_kernel(
    starts, counts, first_tiles, owners, grids, keys, places, symbols, extents, uncoded, varying,
    escaping, streams, num_narrow, window_low, window_size, shapes, first_runs,
    first_run, TYPE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
    NBYTES: tl.constexpr, HAS_BOTH: tl.constexpr, STATIC: tl.constexpr, DIMS: tl.constexpr,
    RUN: tl.constexpr,
):  # fmt: skip
    """One program quantizes one tile to symbols of ``NBYTES``, and stores the facts of ``Quantized`` about it.

    ``HAS_BOTH`` says that some tensors have symbols of another size; their tiles are skipped. A nonzero ``RUN`` is
    the number of tiles per run: the kernel then takes the runs from ``first_run`` on, ``owners`` are those of runs,
    and ``symbols`` has memory for these runs only.

    After this, only a tensor whose values may all be equal needs its range and its number of non-finite values.
    Therefore each tile either proves that its values vary, or scans them again.
    """
    # backwards: the values that the previous pass read last are still in the cache
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    place = tile * (TILE * NBYTES)
    if RUN > 0:
        run = first_run + tile // RUN
        k = tl.load(owners + run)
        tile = tl.load(first_tiles + k) + (run - tl.load(first_runs + k)) * RUN + tile % RUN
        if tile >= tl.load(first_tiles + k + 1):
            return
    else:
        k = tl.load(owners + tile)
    if HAS_BOTH and (tl.load(streams + k) >= num_narrow) != (NBYTES == 2):
        return
    base, count = (tile - tl.load(first_tiles + k)) * TILE, tl.load(counts + k)
    address, grid = tl.load(starts + k) + base * (TYPE.primitive_bitwidth // 8), load_grid(grids, k)
    limit = tl.minimum(count - base, TILE).to(tl.int32)
    if RUN == 0:
        place = tl.load(places + k) + base * NBYTES
    target = symbols + place
    window = window_low, window_size
    low, high, num_uncoded, num_escapes = limit * 0, limit * 0, limit * 0, limit * 0
    is_done = limit < 0
    if (TYPE != F64) and (DIMS == 0) and (limit == TILE):
        low, high, num_escapes, is_done = quantize_whole_tile(
            address, grid, target, window, TYPE, ALIGNED, TILE, NBYTES, STATIC
        )
    varies = low < high
    if not is_done:
        if DIMS == 0:
            low, high, num_uncoded, num_escapes, varies = quantize_tile(
                address, limit, grid, target, window, TYPE, ALIGNED, TILE, NBYTES, STATIC
            )
        else:
            low, high, num_uncoded, num_escapes, varies = quantize_predicted(
                tl.load(starts + k), base, limit, count, load_shape(shapes, k), grid, target,
                window, TYPE, ALIGNED, NBYTES, STATIC, DIMS,
            )  # fmt: skip
    specials = 0
    if not varies:
        specials = examine_tile(address, limit, keys + 2 * k, TYPE, PART)
    # one location per tile: thousands of programs writing to the same location take 1 ns each
    tl.store(extents + 2 * tile, low)
    tl.store(extents + 2 * tile + 1, high)
    tl.store(uncoded + tile, (num_uncoded.to(tl.int64) << 32) | specials)
    tl.store(varying + tile, varies.to(tl.int8))
    if STATIC:
        tl.store(escaping + tile, num_escapes.to(tl.int64))


@lru_cache(maxsize=64)
def _layout(num_tensors: int, num_tiles: int, num_symbols: int, is_static: bool) -> Layout:
    """Return the memory layout of the symbols and the fields of ``Quantized``."""
    return Layout.of(
        {
            "symbols": (torch.uint8, num_symbols),
            "extents": (torch.int32, 2 * num_tiles),
            "uncoded": (torch.int64, num_tiles),
            "varying": (torch.int8, num_tiles),
            "escaping": (torch.int64, num_tiles * is_static),
            "totals": (torch.int64, 3 * num_tensors),
            "counts": (torch.int64, num_tensors),
            "alphabets": (torch.int32, num_tensors),
            "lows": (torch.int32, num_tensors),
        }
    )


def shapes_of(xs: Sequence[torch.Tensor], dims: int) -> torch.Tensor | None:
    """Return the sizes of the predicting axes, on the device; None if there are none."""
    if dims == 0:
        return None
    shapes = tuple(predicting_shape(tuple(x.shape), dims) for x in xs)
    return shape_table(shapes, xs[0].device)


@dataclass(frozen=True, slots=True)
class Task:
    """A list of tensors to quantize.

    Attributes:
        xs: contiguous tensors of one dtype and device, kept alive because kernels have only their addresses.
        starts: their addresses, on the device.
        dims: number of predicting axes; 0 for none.
        encoder: encoder of the symbols.
        routes: the stream of each tensor.
        tiles: tiles of ``TILE`` values.
        grids: quantization grids of the tensors.
        keys: ranges of tensors with relative bounds, and of those that may not vary.
        status: int32 [tensors], written by ``decide_alphabets``.
    """

    xs: Sequence[torch.Tensor]
    starts: torch.Tensor
    dims: int
    encoder: AnsEncoder
    routes: Routes
    tiles: TileTable
    grids: torch.Tensor
    keys: torch.Tensor
    status: torch.Tensor

    @classmethod
    def of(
        cls,
        xs: Sequence[torch.Tensor],
        bounds: Sequence[Bound],
        encoder: AnsEncoder,
        dims: int,
        routes: Routes,
        keys: torch.Tensor,
    ) -> Task:
        """Compute the ranges that relative bounds need, and the grids; ``keys`` must be zeros."""
        device, dtype = xs[0].device, xs[0].dtype
        numels, starts = tuple(x.numel() for x in xs), addresses(xs, device)
        limits = bound_table(tuple((b.value, b.kind == "relative") for b in bounds), device)
        if any(b.kind == "relative" for b in bounds):
            ranges = tile_table(numels, RANGE_TILE, device)
            fold_ranges(starts, ranges, keys, dtype, are_aligned(xs))
        grids = grid_table(keys, limits, dtype)
        # a result, unless there is a static table, with which no tensor is left
        new = torch.empty if encoder.frequencies is None else working_tensor
        status = new((len(xs),), dtype=torch.int32, device=device)
        tiles = tile_table(numels, TILE, device)
        return cls(xs, starts, dims, encoder, routes, tiles, grids, keys, status)

    @property
    def window(self) -> Window | None:
        """The codes that a static table has symbols for; None without such a table."""
        return self.encoder.window()

    @property
    def window_numbers(self) -> tuple[int, int]:
        """Low and size of ``window`` for kernels; zeros without one."""
        window = self.window
        return (0, 0) if window is None else (window.low, window.size)

    @property
    def table(self) -> StaticTable | None:
        """The static table on the device; None without one."""
        frequencies = self.encoder.frequencies
        return None if frequencies is None else static_table(frequencies, self.status.device)

    @property
    def symbol_sizes(self) -> list[int]:
        """The symbol sizes in bytes that occur in the list: 1, 2 or both."""
        num_narrow = self.routes.num_narrow
        return [1] * (num_narrow > 0) + [2] * (num_narrow < len(self.xs))

    def room(self, num_symbols: int) -> tuple[torch.Tensor, Quantized]:
        """Return memory for ``num_symbols`` bytes of symbols, and for the facts about the list."""
        is_static = self.window is not None
        layout = _layout(len(self.xs), self.tiles.num_tiles, num_symbols, is_static)
        held = layout.carve(self.status.device)
        symbols = held.pop("symbols")
        return symbols, Quantized(**held)

    def launch(
        self,
        symbols: torch.Tensor,
        quantized: Quantized,
        nbytes: int,
        piece: tuple[int, int] | None = None,
    ) -> None:
        """Quantize the tensors whose symbols have ``nbytes`` bytes: all tiles, or the runs ``[first, last)`` of ``piece``."""
        tiles, dtype = self.tiles, self.xs[0].dtype
        runs, num_programs, first_run = None, tiles.num_tiles, 0
        if piece is not None:
            runs, first_run = self.runs, piece[0]
            num_programs = (piece[1] - first_run) * RUN
        is_limited = has_ptx(self.status) and dtype != torch.float64 and self.dims == 0
        _quantize_kernel[(num_programs,)](
            self.starts, tiles.counts, tiles.first_tiles,
            tiles.owners if runs is None else runs.owners, self.grids, self.keys,
            self.routes.places, symbols, quantized.extents, quantized.uncoded, quantized.varying,
            quantized.escaping, self.routes.streams, self.routes.num_narrow, *self.window_numbers,
            shapes_of(self.xs, self.dims), None if runs is None else runs.first_tiles, first_run,
            TYPE=TYPES[dtype], ALIGNED=are_aligned(self.xs), TILE=TILE, PART=VALUES_PER_STEP,
            NBYTES=nbytes, HAS_BOTH=len(self.symbol_sizes) > 1, STATIC=self.window is not None,
            DIMS=self.dims, RUN=0 if runs is None else RUN, num_warps=_WARPS,
            **({"maxnreg": _MAX_REGISTERS} if is_limited else {}),
        )  # fmt: skip

    @property
    def runs(self) -> TileTable:
        """Runs of ``RUN`` tiles."""
        numels = tuple(x.numel() for x in self.xs)
        return tile_table(numels, RUN * TILE, self.status.device)

    def decide(self, quantized: Quantized) -> None:
        """Decide the alphabets, once all tiles are quantized."""
        routes = self.routes
        decide_alphabets(
            self.tiles, quantized, self.grids, self.status, routes.streams, routes.num_narrow, self.window
        )  # fmt: skip


def quantize(task: Task) -> tuple[Streams, Quantized]:
    """Quantize all tensors, with prediction; return their streams and the facts about them."""
    routes = task.routes
    symbols, quantized = task.room(routes.nbytes)
    for nbytes in task.symbol_sizes:
        task.launch(symbols, quantized, nbytes)
    task.decide(quantized)
    # a code modulo 256 or 4096 is the symbol, rotated by the smallest code
    streams = Streams(
        symbols, routes.starts, quantized.counts, routes.capacities, quantized.alphabets,
        quantized.lows, routes.num_narrow, routes.narrow_nbytes, task.table,
    )  # fmt: skip
    return streams, quantized


def count_in_pieces(task: Task, counts: torch.Tensor) -> Quantized:
    """Quantize all tensors and count their symbols without keeping them; return the facts about the tensors.

    The symbols of a piece take a sixteenth of the bytes of the values.
    """
    runs = task.runs
    largest = max(task.symbol_sizes)
    nbytes = sum(x.nbytes for x in task.xs) // _PIECE_SHARE
    per_piece = max(1, nbytes // (RUN * TILE * largest))
    symbols, quantized = task.room(per_piece * RUN * TILE * largest)
    with torch.cuda.device_of(symbols):
        for size in task.symbol_sizes:
            for first in range(0, runs.num_tiles, per_piece):
                piece = first, min(first + per_piece, runs.num_tiles)
                task.launch(symbols, quantized, size, piece)
                if task.window is None:
                    run_counts(
                        symbols, task.tiles.counts, runs, task.routes.streams,
                        task.routes.num_narrow, piece, RUN * TILE, size, counts,
                    )  # fmt: skip
        task.decide(quantized)
    return quantized
