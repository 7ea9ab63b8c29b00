"""Bit-packed lists in numba: one kernel call for many tensors, in the common case.

Everything else (outliers, float16 and bfloat16, tensors large enough for several threads) goes through
the operations for single tensors, which write the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch

from tersor.kernels.batch import compose
from tersor.kernels.batch.cpu.runs import KernelCall, decode_in_runs, encode_in_runs
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.pipeline import StreamPipeline
from tersor.kernels.pack.blocks.cpu import is_consistent, to_fields, unpack_dequantize_kernel
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES, BitpackLayout
from tersor.kernels.pack.fields.cpu import SLACK_NBYTES, pack_bytes, pack_tile
from tersor.kernels.payload.cpu import HEADER_NBYTES, plain_step, put_header
from tersor.kernels.quantize.cpu.finite_range import INFINITIES, range_if_finite
from tersor.kernels.quantize.cpu.quantize import (
    WIDE,
    BoundArgs,
    fit_grid,
    quantize_bytes,
    quantize_tile,
)
from tersor.kernels.quantize.grid import TILE, limits_of
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import address_of, array_at, njit
from tersor.kernels.runtime.cpu_runs import EMPTY, addresses_of
from tersor.types import Bound


@njit(nogil=True, cache=True)
def _padded(nbytes: int) -> int:
    return (nbytes + 7) // 8 * 8


@njit(nogil=True, cache=True)
def _body_starts(num_codes: int, block: int) -> Any:
    """Return the numbers of tiles and blocks, and where widths and words start."""
    num_tiles, num_blocks = -(-num_codes // TILE), -(-num_codes // block)
    widths_start = _padded(4 * (num_tiles + 1))
    return num_tiles, num_blocks, widths_start, widths_start + _padded(num_blocks)


@njit(nogil=True, cache=True)
def _zigzag_bytes(octets: Any) -> None:
    """Convert codes from -128 to 127 to zigzag fields, in place."""
    zero, ones, least_negative = np.uint8(0), np.uint8(255), np.uint8(128)
    # no shift: processors have none for bytes, and one on wider lanes takes four times as long
    for i in range(octets.size):
        code = octets[i]
        octets[i] = np.uint8(code + code) ^ (ones if code >= least_negative else zero)


@njit(nogil=True, cache=True)
def _pack_slice(values: Any, bound_args: Any, infinities: Any, block: int, body: Any) -> Any:
    """Write one body; return its size (0 if the tensor is not a common case), its step, and its range."""
    low, high = range_if_finite(values, infinities)
    grid = fit_grid(low, high, bound_args, values)
    step, inverse, bound = grid
    if step == 0:
        return 0, np.float64(step), low, high
    narrow = low * inverse > -128 and high * inverse < 127
    num_tiles, num_blocks, widths_start, words_start = _body_starts(values.size, block)
    body[:words_start] = 0
    offsets = body[: 4 * (num_tiles + 1)].view(np.uint32)
    widths = body[widths_start : widths_start + num_blocks]
    codes, fields = np.empty(TILE, dtype=np.int32), np.empty(TILE, dtype=np.uint32)
    octets, pairs = np.empty(TILE, dtype=np.uint8), np.empty(TILE, dtype=np.uint16)
    no_bases = codes[:0]
    per_tile = TILE // block
    start, total = address_of(body) + np.uint64(words_start), np.uint64(0)
    for tile in range(num_tiles):
        part = values[tile * TILE : min(tile * TILE + TILE, values.size)]
        tile_widths = widths[tile * per_tile : min(tile * per_tile + per_tile, num_blocks)]
        address = start + np.uint64(4) * total
        if narrow:
            if not quantize_bytes(part, grid, np.int32(0), octets):
                return 0, np.float64(step), low, high
            _zigzag_bytes(octets[: part.size])
            octets[part.size :] = 0
            total += pack_bytes(octets, block, tile_widths, address)
        else:
            tile_codes = codes[: part.size]
            if quantize_tile(part, inverse, step, bound, bound_args.radius, WIDE, tile_codes) > 0:
                return 0, np.float64(step), low, high
            union = to_fields(tile_codes, fields, block, no_bases)
            total += pack_tile(fields, union, octets, pairs, block, tile_widths, address)
        offsets[tile + 1] = np.uint32(total)
    words_end = words_start + np.int64(4 * total)
    nbytes = _padded(words_end) + TAIL_NBYTES
    body[words_end:nbytes] = 0
    return nbytes, np.float64(step), low, high


@njit(nogil=True, cache=True)
def _pack_kernel(
    addresses: Any,
    counts: Any,
    like: Any,
    bound_args: Any,
    infinities: Any,
    block: int,
    ranges: Any,
    target: Any,
    sizes: Any,
) -> None:
    """Write payloads and ranges of all common tensors that become smaller; the others get size 0."""
    place = 0
    for k in range(addresses.size):
        values = array_at(addresses[k], counts[k], like)
        payload = target[place:]
        body = payload[HEADER_NBYTES:]
        nbytes, step, low, high = _pack_slice(values, bound_args, infinities, block, body)
        ranges[k, 0], ranges[k, 1] = low, high
        if 0 < nbytes < values.size * values.itemsize:
            put_header(step, nbytes, payload)
            sizes[k] = HEADER_NBYTES + nbytes
            place += sizes[k]


def _is_common(x: torch.Tensor) -> bool:
    return (
        x.dtype in INFINITIES
        and x.numel() > 0
        and threads.num_parts(-(-x.numel() // TILE), x.nbytes) == 1
    )


@lru_cache(maxsize=1024)
def _max_nbytes(num_codes: int, block: int) -> int:
    return HEADER_NBYTES + BitpackLayout(num_codes, block).max_nbytes + SLACK_NBYTES


def encode_streams(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    pipeline: StreamPipeline,
    with_ranges: bool = False,
) -> EncodedList:
    """See ``compose.encode_streams``."""
    block = _fused_block(pipeline)
    if block is None:
        return compose.encode_streams(xs, bounds, pipeline, with_ranges)
    return encode_in_runs(
        xs,
        bounds,
        _is_common,
        partial(_packing, block),
        lambda k: compose.encode_stream(xs[k], bounds[k], pipeline),
    )


def _fused_block(pipeline: StreamPipeline) -> int | None:
    """Return the codes per block if the kernels here implement the predictor and encoder; else None."""
    if (pipeline.predictor, pipeline.encoder.form) != (0, "bitpack"):
        return None
    return cast("BitpackEncoder", pipeline.encoder).block


def _packing(block: int, xs: Sequence[torch.Tensor], bound: Bound) -> KernelCall:
    """Return the kernel call that packs tensors of one dtype."""
    counts, dtype = [x.numel() for x in xs], xs[0].dtype
    arguments = (
        addresses_of(xs),
        np.array(counts),
        EMPTY[dtype],
        BoundArgs.of(bound, limits_of(dtype)),
        INFINITIES[dtype],
        block,
    )
    return _pack_kernel, sum(_max_nbytes(count, block) for count in counts), arguments


@njit(nogil=True, cache=True)
def _unpack_slice(body: Any, step: Any, block: int, out: Any) -> bool:
    """Decode one tensor; return whether its body is well formed."""
    num_tiles, num_blocks, widths_start, words_start = _body_starts(out.size, block)
    if body.size < words_start + TAIL_NBYTES:
        return False
    offsets = body[: 4 * (num_tiles + 1)].view(np.uint32)
    widths = body[widths_start : widths_start + num_blocks]
    nbytes = _padded(words_start + 4 * np.int64(offsets[num_tiles])) + TAIL_NBYTES
    if body.size != nbytes or not is_consistent(offsets, widths, block):
        return False
    no_bases = np.empty(0, dtype=np.int32)
    words = body[words_start:]
    unpack_dequantize_kernel(words, offsets, widths, block, no_bases, step, out, 0, num_tiles)
    return True


@njit(nogil=True, cache=True)
def _unpack_kernel(
    payloads: Any,
    sizes: Any,
    outs: Any,
    counts: Any,
    like: Any,
    bound_args: Any,
    block: int,
    decoded: Any,
) -> None:
    """Decode all payloads that ``plain_step`` accepts, given by addresses and sizes."""
    for k in range(payloads.size):
        payload = array_at(payloads[k], sizes[k], decoded.view(np.uint8))
        out = array_at(outs[k], counts[k], like)
        step = plain_step(payload, bound_args, like)
        if step > 0:
            body = payload[HEADER_NBYTES:]
            decoded[k] = _unpack_slice(body, like.dtype.type(step), block, out)


def decode_streams(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: StreamPipeline
) -> None:
    """See ``compose.decode_streams``."""
    block = _fused_block(pipeline)
    if block is None:
        compose.decode_streams(outs, encoded, pipeline)
        return
    payloads = encoded.payloads()
    decode_in_runs(
        outs,
        payloads,
        _is_common,
        partial(_unpack, block),
        lambda k: compose.decode_stream(payloads[k], outs[k], pipeline),
    )


def _unpack(
    block: int, outs: Sequence[torch.Tensor], payloads: Sequence[torch.Tensor]
) -> list[bool]:
    """Decode into tensors of one dtype; return which payloads the kernel decoded."""
    done = np.zeros(len(outs), dtype=np.bool_)
    _unpack_kernel(
        addresses_of(payloads),
        np.array([payload.numel() for payload in payloads]),
        addresses_of(outs),
        np.array([out.numel() for out in outs]),
        EMPTY[outs[0].dtype],
        BoundArgs.of(Bound.absolute(0.0), limits_of(outs[0].dtype)),
        block,
        done,
    )
    return done.tolist()
