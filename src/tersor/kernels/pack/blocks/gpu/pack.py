"""Fixed-length packing in Triton, alone and fused with quantization, for one tensor.

Both directions wait once: packing for the size of the body and the number of outliers, unpacking
for the size of the body and whether it is well formed. Lists of tensors need not wait: see
``kernels/flat``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.pack.blocks.gpu.pack_tile import pack_tile
from tersor.kernels.pack.blocks.gpu.tile import (
    PACK_RUN,
    PLACE_RUN,
    PLACE_WORDS,
    SCAN_VALUES,
    SLOT_NBYTES,
    TILE,
    UNPACK_RUN,
    decode_tile,
    place_tiles,
    slot_of,
)
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES, BitpackLayout
from tersor.kernels.quantize.gpu.quantize import (
    I32,
    KINDS,
    bounded_dequantize,
    bounded_quantize,
    load_values,
    quantize_values,
)
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.quantize.grid import Grid
from tersor.kernels.runtime.device_cache import cached_on_stream, to_device_async
from tersor.kernels.runtime.gpu.tiles import are_aligned, padded, tile_end
from tersor.raw_bytes import padded as padded_nbytes

_TAIL = tl.constexpr(TAIL_NBYTES)


@triton.jit
def _load_grid(grid, KIND: tl.constexpr):
    """Return step, inverse and bound; codes have no use for them."""
    if KIND == I32:
        return 0.0, 0.0, 0.0
    else:
        return tl.load(grid), tl.load(grid + 1), tl.load(grid + 2)


@triton.jit(do_not_specialize=["address", "count", "num_tiles"])
def _pack_kernel(
    address, count, num_tiles, grid, slots, widths, stats, KIND: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One program packs ``RUN`` tiles, each into its slot, and notes their words and outliers."""
    numbers = _load_grid(grid, KIND)
    begin = tl.program_id(0).to(tl.int64) * RUN
    stop = tl.minimum(begin + RUN, num_tiles)
    for k in range(stop - begin):
        tile = begin + k
        nwords, outliers, _ = pack_tile(
            address, tile * TILE, count, numbers, slot_of(slots, tile),
            widths + tile * (TILE // BLOCK), KIND, ALIGNED, BLOCK,
        )  # fmt: skip
        tl.store(stats + tile, nwords.to(tl.int64))
        tl.store(stats + num_tiles + tile, outliers.to(tl.int64))


@triton.jit
def _place_positions(address, count, tile, before, numbers, positions, KIND: tl.constexpr):
    """Write where the outliers of one tile are; ``before`` come earlier."""
    step, inverse, bound = numbers
    for part in range(0, TILE, SCAN_VALUES):
        position = tile * TILE + part + tl.arange(0, SCAN_VALUES)
        values = load_values(address, position, count, 0.0, KIND, False, False)
        _, holds = quantize_values(values, step, inverse, bound, KIND)
        special = (position < count) & ~holds
        chosen = special.to(tl.int64)
        rank = before + tl.cumsum(chosen, axis=0) - chosen
        tl.store(positions + rank, position, mask=special)
        before += tl.sum(chosen, axis=0)


@triton.jit(do_not_specialize=["address", "count", "num_tiles", "body"])
def _place_kernel(
    address, count, num_tiles, grid, slots, widths, ends, body, positions, KIND: tl.constexpr,
    BLOCK: tl.constexpr, RUN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program puts ``RUN`` tiles and the positions of their outliers in place."""
    # an empty tensor has the address 0, which is passed in 32 bits
    address = address.to(tl.int64)
    count, last = count.to(tl.int64), num_tiles.to(tl.int64)
    tile = tl.program_id(0).to(tl.int64) * RUN
    stop = tl.minimum(tile + RUN, last)
    place_tiles(body, count, tile, stop, last - last, last, ends, slots, widths, BLOCK, RUN, PART)
    if KIND != I32:
        origin = tile_end(ends, last)
        for t in range(tile, stop):
            before = tile_end(ends, last + t) - origin
            if tile_end(ends, last + t + 1) - origin > before:
                numbers = _load_grid(grid, KIND)
                _place_positions(address, count, t, before, numbers, positions, KIND)


@cached_on_stream
def _on_device(
    numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return numbers in the dtype that values of ``dtype`` are computed in."""
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    return to_device_async(numbers, compute, device)


def _pack_values(
    x: torch.Tensor, numbers: tuple[float, ...], block: int, lead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed body of floats or codes, and the positions of outliers."""
    layout = BitpackLayout(x.numel(), block)
    device, num_tiles, x = x.device, layout.num_tiles, x.contiguous()
    if num_tiles == 0:
        body = torch.zeros(lead + layout.body_nbytes(0), dtype=torch.uint8, device=device)
        return body, torch.empty(0, dtype=torch.int64, device=device)
    grid = _on_device(numbers, x.dtype, device)
    slots = torch.empty(num_tiles * SLOT_NBYTES, dtype=torch.uint8, device=device)
    widths = torch.empty(num_tiles * (TILE_VALUES // block), dtype=torch.uint8, device=device)
    stats = torch.empty(2 * num_tiles, dtype=torch.int64, device=device)
    kind = KINDS[x.dtype]
    with torch.cuda.device_of(x):
        _pack_kernel[(ceil_div(num_tiles, PACK_RUN),)](
            x.data_ptr(), x.numel(), num_tiles, grid, slots, widths, stats, KIND=kind,
            ALIGNED=are_aligned([x]), BLOCK=block, RUN=PACK_RUN, num_warps=1,
            enable_fp_fusion=False,
        )  # fmt: skip
        ends = stats.cumsum(0)
        num_words, total = ends.view(2, num_tiles)[:, -1].tolist()
        positions = torch.empty(total - num_words, dtype=torch.int64, device=device)
        room = padded_nbytes(lead)
        out = torch.empty(room + layout.body_nbytes(num_words), dtype=torch.uint8, device=device)
        _place_kernel[(ceil_div(num_tiles, PLACE_RUN),)](
            x.data_ptr(), x.numel(), num_tiles, grid, slots, widths, ends, out[room:], positions,
            KIND=kind, BLOCK=block, RUN=PLACE_RUN, PART=PLACE_WORDS, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    out[:room] = 0
    return out[room - lead :], positions


def _spread(bases: torch.Tensor, block: int, num_codes: int) -> torch.Tensor:
    """Return the base of each code."""
    return bases[:, None].expand(-1, block).reshape(-1)[:num_codes]


def pack(codes: torch.Tensor, block: int = 32, base: bool = False, lead: int = 0) -> torch.Tensor:
    """See ``reference.pack``; with ``base`` it waits twice."""
    if not base:
        return _pack_values(codes, (), block, lead)[0]
    num_blocks = BitpackLayout(codes.numel(), block).num_blocks
    blocks = codes.new_full((num_blocks * block,), torch.iinfo(torch.int32).max)
    blocks[: codes.numel()] = codes
    bases = blocks.view(num_blocks, block).amin(1)
    fields = codes - _spread(bases, block, codes.numel())
    # the codes whose zigzag the fields are
    relative = ((fields >> 1) & 0x7FFFFFFF) ^ -(fields & 1)
    differences = torch.diff(bases, prepend=bases.new_zeros(1))
    return torch.cat([pack(differences, 32, lead=lead), pack(relative, block)])


def quantize_pack(
    x: torch.Tensor, grid: Grid, block: int = 32, base: bool = False, lead: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``compose.quantize_pack``."""
    if base:
        codes, positions = bounded_quantize(x, grid)
        return pack(codes, block, base, lead), positions
    return _pack_values(x, (grid.step, grid.inverse, grid.bound), block, lead)


@triton.jit(do_not_specialize=["body", "nbytes", "address", "count", "num_tiles"])
def _unpack_kernel(
    body, nbytes, address, count, num_tiles, step, status, KIND: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One program decodes ``RUN`` tiles of a body of at most ``nbytes`` bytes, if it is so short.

    ``status`` is set to not 0 if the body is inconsistent, then the number of its words.
    """
    # an empty tensor has the address 0, which is passed in 32 bits
    address = address.to(tl.int64)
    count, last = count.to(tl.int64), num_tiles.to(tl.int64)
    offsets = body.to(tl.pointer_type(tl.uint32))
    num_words = tl.load(offsets + last).to(tl.int64)
    fixed = padded(4 * (last + 1)) + padded((count + BLOCK - 1) // BLOCK) + _TAIL
    body_nbytes = fixed + padded(4 * num_words)
    run = tl.program_id(0).to(tl.int64)
    if run == 0:
        tl.store(status + 1, num_words)
        if tl.load(offsets) != 0:
            tl.atomic_or(status, 1)
    factor = tl.load(step)
    stop = tl.minimum((run + 1) * RUN, last)
    for tile in range(run * RUN, tl.where(body_nbytes <= nbytes, stop, run * RUN)):
        decode_tile(
            body, body_nbytes, count, tile, last, factor, address, status, KIND, ALIGNED, BLOCK,
            ROWS,
        )  # fmt: skip


def _unpack_values(body: torch.Tensor, step: float, out: torch.Tensor, block: int) -> int:
    """Decode into contiguous floats or codes; return the body bytes read."""
    if body.data_ptr() % 8 or body.storage_offset() % 8:
        body = body.clone()
    layout = BitpackLayout(out.numel(), block)
    words_nbytes = layout.split(body)[2].numel()
    status = torch.zeros(2, dtype=torch.int64, device=body.device)
    with torch.cuda.device_of(body):
        _unpack_kernel[(max(1, ceil_div(layout.num_tiles, UNPACK_RUN)),)](
            body, body.numel(), out.data_ptr(), out.numel(), layout.num_tiles,
            _on_device((step,), out.dtype, body.device), status, KIND=KINDS[out.dtype],
            ALIGNED=are_aligned([out]), BLOCK=block, ROWS=TILE_VALUES // block, RUN=UNPACK_RUN,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    inconsistent, num_words = status.tolist()
    return layout.checked_nbytes(not inconsistent, num_words, words_nbytes)


def unpack(
    body: torch.Tensor, num_codes: int, block: int = 32, base: bool = False
) -> tuple[torch.Tensor, int]:
    """See ``reference.unpack``; with ``base`` it waits twice."""
    codes = torch.empty(num_codes, dtype=torch.int32, device=body.device)
    if not base:
        return codes, _unpack_values(body, 0.0, codes, block)
    num_blocks = BitpackLayout(num_codes, block).num_blocks
    differences, lead_nbytes = unpack(body, num_blocks, 32)
    bases = differences.cumsum(0, dtype=torch.int32)
    nbytes = _unpack_values(body[lead_nbytes:], 0.0, codes, block)
    fields = (codes << 1) ^ (codes >> 31)
    return fields + _spread(bases, block, num_codes), lead_nbytes + nbytes


def unpack_dequantize(
    body: torch.Tensor, step: float, out: torch.Tensor, block: int = 32, base: bool = False
) -> int:
    """See ``compose.unpack_dequantize``."""
    if not base:
        return _unpack_values(body, step, out, block)
    codes, nbytes = unpack(body, out.numel(), block, base)
    bounded_dequantize(codes, step, out)
    return nbytes
