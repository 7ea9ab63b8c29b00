"""Fixed-length packing of codes in Triton.

Both directions wait once for the device: packing for the size of the body, unpacking for the size and for whether
the body is well formed. ``kernels/batch/gpu/packed.py`` quantizes and packs lists of tensors without waiting.
"""

from __future__ import annotations

import torch
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.pack.blocks.gpu.pack_tile import measure_tile, tile_fields
from tersor.kernels.pack.blocks.gpu.tile import (
    PACK_RUN,
    TILE,
    UNPACK_RUN,
    close_body,
    decode_tile,
    put_tile,
)
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES, BitpackLayout
from tersor.kernels.quantize.grid import TILE as TILE_VALUES
from tersor.kernels.runtime.gpu.element_types import I32
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import are_aligned, padded, sum_before
from tersor.raw_bytes import padded as padded_nbytes

_TAIL = tl.constexpr(TAIL_NBYTES)


@jit_kernel(do_not_specialize=["address", "count", "num_tiles"])
def _measure_kernel(
    address, count, num_tiles, num_words, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):  # fmt: skip
    """One program stores the number of words of each of ``RUN`` tiles."""
    begin = tl.program_id(0).to(tl.int64) * RUN
    for tile in range(begin, tl.minimum(begin + RUN, num_tiles)):
        found, _, _ = measure_tile(
            address, tile * TILE, count, (1, 1, 1), (0.0, 0.0, 0.0), I32, ALIGNED, BLOCK, 0
        )
        tl.store(num_words + tile, found.to(tl.int64))


@jit_kernel(do_not_specialize=["address", "count", "num_tiles", "body"])
def _write_kernel(
    address, count, num_tiles, ends, body, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    RUN: tl.constexpr,
):  # fmt: skip
    """One program writes ``RUN`` tiles into the body; the first one also closes the body."""
    count, last = count.to(tl.int64), num_tiles.to(tl.int64)
    begin = tl.program_id(0).to(tl.int64) * RUN
    for tile in range(begin, tl.minimum(begin + RUN, last)):
        # the inputs are already codes, so the grid is not used
        fields = tile_fields(address, tile * TILE, count, (0.0, 0.0, 0.0), I32, ALIGNED)
        before, end = sum_before(ends, tile), sum_before(ends, tile + 1)
        put_tile(body, count, tile, last, before, end, fields, BLOCK)
    if begin == 0:
        close_body(body, count, last, sum_before(ends, last), BLOCK)


def _pack(codes: torch.Tensor, block: int, lead: int) -> torch.Tensor:
    """Return the packed body of codes, without bases."""
    layout = BitpackLayout(codes.numel(), block)
    device, num_tiles, codes = codes.device, layout.num_tiles, codes.contiguous()
    if num_tiles == 0:
        return torch.zeros(lead + layout.body_nbytes(0), dtype=torch.uint8, device=device)
    num_words = torch.empty(num_tiles, dtype=torch.int64, device=device)
    place = codes.data_ptr(), codes.numel(), num_tiles
    constants = {"ALIGNED": are_aligned([codes]), "BLOCK": block, "RUN": PACK_RUN, "num_warps": 1}
    with torch.cuda.device_of(codes):
        programs = (ceil_div(num_tiles, PACK_RUN),)
        _measure_kernel[programs](*place, num_words, **constants)
        ends = num_words.cumsum(0)
        room = padded_nbytes(lead)
        nbytes = room + layout.body_nbytes(int(ends[-1]))
        out = torch.empty(nbytes, dtype=torch.uint8, device=device)
        _write_kernel[programs](*place, ends, out[room:], **constants)
    out[:room] = 0
    return out[room - lead :]


def _spread(bases: torch.Tensor, block: int, num_codes: int) -> torch.Tensor:
    """Return the base of each code."""
    return bases[:, None].expand(-1, block).reshape(-1)[:num_codes]


def pack(codes: torch.Tensor, block: int = 32, base: bool = False, lead: int = 0) -> torch.Tensor:
    """See ``reference.pack``; with ``base`` this waits twice."""
    if not base:
        return _pack(codes, block, lead)
    num_blocks = BitpackLayout(codes.numel(), block).num_blocks
    blocks = codes.new_full((num_blocks * block,), torch.iinfo(torch.int32).max)
    blocks[: codes.numel()] = codes
    bases = blocks.view(num_blocks, block).amin(1)
    fields = codes - _spread(bases, block, codes.numel())
    # inverse zigzag, because packing zigzags its codes
    relative = ((fields >> 1) & 0x7FFFFFFF) ^ -(fields & 1)
    differences = torch.diff(bases, prepend=bases.new_zeros(1))
    return torch.cat([pack(differences, 32, lead=lead), pack(relative, block)])


@jit_kernel(do_not_specialize=["body", "nbytes", "address", "count", "num_tiles"])
def _unpack_kernel(
    body, nbytes, address, count, num_tiles, status, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One program decodes ``RUN`` tiles, unless the body is longer than the ``nbytes`` bytes present.

    ``status[0]`` becomes nonzero if the body is inconsistent; ``status[1]`` receives the number of its words.
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
    stop = tl.minimum((run + 1) * RUN, last)
    for tile in range(run * RUN, tl.where(body_nbytes <= nbytes, stop, run * RUN)):
        decode_tile(
            body, body_nbytes, count, tile, last, 0.0, address, status, I32, ALIGNED, BLOCK, ROWS
        )  # fmt: skip


def _unpack(body: torch.Tensor, out: torch.Tensor, block: int) -> int:
    """Decode into contiguous codes; return the body bytes read."""
    if body.data_ptr() % 8 or body.storage_offset() % 8:
        body = body.clone()
    layout = BitpackLayout(out.numel(), block)
    words_nbytes = layout.split(body)[2].numel()
    status = torch.zeros(2, dtype=torch.int64, device=body.device)
    with torch.cuda.device_of(body):
        _unpack_kernel[(max(1, ceil_div(layout.num_tiles, UNPACK_RUN)),)](
            body, body.numel(), out.data_ptr(), out.numel(), layout.num_tiles, status,
            ALIGNED=are_aligned([out]), BLOCK=block, ROWS=TILE_VALUES // block, RUN=UNPACK_RUN,
            num_warps=1,
        )  # fmt: skip
    inconsistent, num_words = status.tolist()
    return layout.checked_nbytes(not inconsistent, num_words, words_nbytes)


def unpack(
    body: torch.Tensor, num_codes: int, block: int = 32, base: bool = False
) -> tuple[torch.Tensor, int]:
    """See ``reference.unpack``; with ``base`` this waits twice."""
    codes = torch.empty(num_codes, dtype=torch.int32, device=body.device)
    if not base:
        return codes, _unpack(body, codes, block)
    num_blocks = BitpackLayout(num_codes, block).num_blocks
    differences, lead_nbytes = unpack(body, num_blocks, 32)
    bases = differences.cumsum(0, dtype=torch.int32)
    nbytes = _unpack(body[lead_nbytes:], codes, block)
    fields = (codes << 1) ^ (codes >> 31)
    return fields + _spread(bases, block, num_codes), lead_nbytes + nbytes
