"""Lists of slices in numba: one kernel call for many, in the common case.

What is not common (outliers, float16 and bfloat16, slices worth several threads of their own) goes
through the operations for single tensors, which write the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tersor.kernels.batch.compose import pack_slice, unpack_slice
from tersor.kernels.pack.blocks.cpu import is_consistent, to_fields, unpack_dequantize_kernel
from tersor.kernels.pack.blocks.layout import TAIL_NBYTES, BitpackLayout
from tersor.kernels.pack.fields.cpu import SLACK_NBYTES, pack_bytes, pack_tile
from tersor.kernels.payload.cpu import HEADER_NBYTES, plain_step, put_header
from tersor.kernels.quantize.cpu.finite_range import INFINITIES, range_if_finite
from tersor.kernels.quantize.cpu.quantize import (
    WIDE,
    Promise,
    fit_grid,
    quantize_bytes,
    quantize_tile,
)
from tersor.kernels.quantize.encoded import Encoded
from tersor.kernels.quantize.grid import TILE, limits_of
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu.intrinsics import address_of, array_at, njit
from tersor.kernels.runtime.cpu_runs import EMPTY, addresses_of, cut, written_by
from tersor.types import Bound


@njit(nogil=True, cache=True)
def _padded(nbytes: int) -> int:
    return (nbytes + 7) // 8 * 8


@njit(nogil=True, cache=True)
def _body_starts(num_codes: int, block: int) -> Any:
    """Return number of tiles, number of blocks, and where widths and words start."""
    num_tiles, num_blocks = -(-num_codes // TILE), -(-num_codes // block)
    widths_start = _padded(4 * (num_tiles + 1))
    return num_tiles, num_blocks, widths_start, widths_start + _padded(num_blocks)


@njit(nogil=True, cache=True)
def _zigzag_bytes(octets: Any) -> None:
    """Turn codes from -128 to 127 into zigzag fields."""
    zero, ones, least_negative = np.uint8(0), np.uint8(255), np.uint8(128)
    # no shift: processors have none for bytes, and four times as long for the wider ones
    for i in range(octets.size):
        code = octets[i]
        octets[i] = np.uint8(code + code) ^ (ones if code >= least_negative else zero)


@njit(nogil=True, cache=True)
def _pack_slice(values: Any, promise: Any, infinities: Any, block: int, body: Any) -> Any:
    """Write one body; return its size, 0 if the slice is not common, and the step."""
    low, high = range_if_finite(values, infinities)
    grid = fit_grid(low, high, promise, values)
    step, inverse, bound = grid
    if step == 0:
        return 0, np.float64(step)
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
                return 0, np.float64(step)
            _zigzag_bytes(octets[: part.size])
            octets[part.size :] = 0
            total += pack_bytes(octets, block, tile_widths, address)
        else:
            tile_codes = codes[: part.size]
            if quantize_tile(part, inverse, step, bound, promise.radius, WIDE, tile_codes) > 0:
                return 0, np.float64(step)
            union = to_fields(tile_codes, fields, block, no_bases)
            total += pack_tile(fields, union, octets, pairs, block, tile_widths, address)
        offsets[tile + 1] = np.uint32(total)
    words_end = words_start + np.int64(4 * total)
    nbytes = _padded(words_end) + TAIL_NBYTES
    body[words_end:nbytes] = 0
    return nbytes, np.float64(step)


@njit(nogil=True, cache=True)
def _pack_kernel(
    addresses: Any,
    counts: Any,
    like: Any,
    promise: Any,
    infinities: Any,
    block: int,
    target: Any,
    sizes: Any,
) -> None:
    """Write the payloads of all common slices that get smaller; others get size 0."""
    place = 0
    for k in range(addresses.size):
        values = array_at(addresses[k], counts[k], like)
        payload = target[place:]
        body = payload[HEADER_NBYTES:]
        nbytes, step = _pack_slice(values, promise, infinities, block, body)
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


def pack_slices(
    xs: Sequence[torch.Tensor], bound: Bound, block: int = 32
) -> list[torch.Tensor | Encoded | None]:
    """See ``reference.pack_slices``."""
    packed: dict[int, torch.Tensor] = {}
    common = [k for k, x in enumerate(xs) if _is_common(x)]
    for run in cut(xs, common):
        counts = [xs[k].numel() for k in run]
        dtype = xs[run[0]].dtype
        payloads = written_by(
            _pack_kernel,
            sum(_max_nbytes(count, block) for count in counts),
            len(run),
            addresses_of([xs[k] for k in run]),
            np.array(counts),
            EMPTY[dtype],
            Promise.of(bound, limits_of(dtype)),
            INFINITIES[dtype],
            block,
        )
        packed |= {k: payload for k, payload in zip(run, payloads, strict=True) if len(payload)}
    return [packed[k] if k in packed else pack_slice(x, bound, block) for k, x in enumerate(xs)]


@njit(nogil=True, cache=True)
def _unpack_slice(body: Any, step: Any, block: int, out: Any) -> bool:
    """Decode one slice; return whether the body is well formed."""
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
    promise: Any,
    block: int,
    decoded: Any,
) -> None:
    """Decode all plain payloads, given by addresses and sizes."""
    for k in range(payloads.size):
        payload = array_at(payloads[k], sizes[k], decoded.view(np.uint8))
        out = array_at(outs[k], counts[k], like)
        step = plain_step(payload, promise, like)
        if step > 0:
            body = payload[HEADER_NBYTES:]
            decoded[k] = _unpack_slice(body, like.dtype.type(step), block, out)


def unpack_slices(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], block: int = 32
) -> list[bool]:
    """See ``reference.unpack_slices``."""
    decoded = [False] * len(outs)
    common = [k for k, out in enumerate(outs) if _is_common(out)]
    for run in cut(outs, common):
        dtype = outs[run[0]].dtype
        done = np.zeros(len(run), dtype=np.bool_)
        _unpack_kernel(
            addresses_of([payloads[k] for k in run]),
            np.array([payloads[k].numel() for k in run]),
            addresses_of([outs[k] for k in run]),
            np.array([outs[k].numel() for k in run]),
            EMPTY[dtype],
            Promise.of(Bound.absolute(0.0), limits_of(dtype)),
            block,
            done,
        )
        for k, was_done in zip(run, done.tolist(), strict=True):
            decoded[k] = was_done
    for k in set(range(len(outs))).difference(common):
        decoded[k] = unpack_slice(payloads[k], outs[k], block)
    return decoded
