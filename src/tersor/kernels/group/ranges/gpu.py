"""Range-quantized groups in Triton: device functions on tiles of whole groups, and kernels for one tensor.

Minimum and maximum are taken over keys, integers that sort like the values: no NaN is lost, and zeros of
either sign are ordered. A thread holds 4 or 8 consecutive values, whose fields make one word.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.group.gpu.generic import MAGIC_BITS, floor_bits, hashes_of, seed_words, shifted
from tersor.kernels.group.ranges import layout
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import num_parts
from tersor.kernels.transform.gpu import carrier, store_values, widened

TILE: Final = 1024
"""Values that a warp holds at a time."""
_MOST_VALUES: Final = 4096
"""Size of the largest group that a program holds; larger ones are read twice."""


def _key(number: float) -> int:
    """Return the key of a float32: its bits, with the lower 31 inverted if it is negative."""
    bits = int(np.float32(number).view(np.int32))
    return bits ^ (0x7FFFFFFF if bits < 0 else 0)


_LEAST, _MOST = tl.constexpr(_key(-layout.LARGEST)), tl.constexpr(_key(layout.LARGEST))
_LEAST_INFINITE, _INFINITE = tl.constexpr(_key(-np.inf)), tl.constexpr(_key(np.inf))
_LARGEST_KEY, _SMALLEST_KEY = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
_LARGEST, _SMALLEST_RANGE = tl.constexpr(layout.LARGEST), tl.constexpr(layout.SMALLEST_RANGE)
_TOP, _NAN_RANGE = tl.constexpr(layout.TOP), tl.constexpr(layout.NAN_RANGE)
_MAGIC = tl.constexpr(1.5 * 2.0**23)


class GroupTile(NamedTuple):
    """How a program holds groups: ``num_groups`` groups, ``num_values`` of each at a time, in ``num_warps`` warps."""

    num_groups: int
    num_values: int
    num_warps: int

    @classmethod
    def of(cls, group: int) -> GroupTile:
        """Return the tile for groups of ``group`` values."""
        num_values = min(triton.next_power_of_2(group), _MOST_VALUES)
        num_groups = max(1, TILE // num_values)
        return cls(num_groups, num_values, num_groups * num_values // TILE)


@triton.jit
def payload_nbytes(count, GROUP: tl.constexpr):
    """See ``layout.payload_nbytes``."""
    return num_parts(count, GROUP) * (4 + GROUP // 4)


@triton.jit
def _flipped(numbers):
    """Convert float32 bits to keys, or keys to bits; see ``_key``."""
    return numbers ^ ((numbers >> 31) & 0x7FFFFFFF)


@triton.jit
def _reduced(numbers, GROUPS: tl.constexpr, LARGEST: tl.constexpr):
    """Return the largest or the smallest number of each group."""
    PER_GROUP: tl.constexpr = numbers.shape[0] // GROUPS
    if LARGEST:
        return tl.max(tl.reshape(tl.max(numbers, axis=1), [GROUPS, PER_GROUP]), axis=1)
    else:
        return tl.min(tl.reshape(tl.min(numbers, axis=1), [GROUPS, PER_GROUP]), axis=1)


@triton.jit
def _spread(rows, WORDS: tl.constexpr):
    """Broadcast one number per group to [words, 1]."""
    wide = tl.broadcast_to(rows[:, None], [rows.shape[0], WORDS // rows.shape[0]])
    return tl.reshape(wide, [WORDS])[:, None]


@triton.jit
def _load(places, mask, EVEN: tl.constexpr):
    """Return values in their own dtype, and zeros where the mask is false; ``EVEN`` says that it is true everywhere."""
    if EVEN:
        raw = tl.load(places)
    else:
        raw = tl.load(places, mask=mask, other=0)
    return raw


@triton.jit
def _extremes(raw, places, mask, EVEN: tl.constexpr, GROUPS: tl.constexpr):
    """Return the least and greatest key of each group, and whether a value is not finite.

    The last is only computed for float64, whose finite values may overflow float32; otherwise the keys show it.
    """
    lower = _flipped(widened(raw, places).to(tl.int32, bitcast=True))
    upper = lower
    if not EVEN:
        lower, upper = tl.where(mask, lower, _LARGEST_KEY), tl.where(mask, upper, _SMALLEST_KEY)
    nonfinite = tl.zeros([GROUPS], tl.int32)
    if places.dtype.element_ty == tl.float64:
        nonfinite = _reduced(1 - (tl.abs(raw) < float("inf")).to(tl.int32), GROUPS, True)
    return _reduced(lower, GROUPS, False), _reduced(upper, GROUPS, True), nonfinite


@triton.jit
def _limits(least, greatest, GROUPS: tl.constexpr):
    """Return the stored minima and ranges of groups, the minima in float32, and the reciprocals of levels."""
    bits = _flipped(tl.minimum(tl.maximum(least, _LEAST), _MOST))
    bits = tl.where(bits == _SMALLEST_KEY, 0, bits)
    # round towards minus infinity: the bits of a negative number grow with its magnitude
    minima = (bits + ((bits >> 31) & 0xFFFF)) >> 16
    base = (minima << 16).to(tl.float32, bitcast=True)
    top = _flipped(tl.minimum(tl.maximum(greatest, _LEAST), _MOST)).to(tl.float32, bitcast=True)
    ranges = (tl.maximum((top - base).to(tl.int32, bitcast=True), 0) + 0xFFFF) >> 16
    widths = (ranges << 16).to(tl.float32, bitcast=True)
    is_wide = widths >= _SMALLEST_RANGE
    levels = tl.full([GROUPS], _TOP, tl.float32)
    inverse = tl.div_rn(levels, tl.where(is_wide, widths, 1.0))
    return minima, tl.where(is_wide, ranges, 0), base, tl.where(is_wide, inverse, 0.0)


@triton.jit
def _packed(
    raw, places, mask, group_facts, hashes, high, is_extreme, STOCHASTIC: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Return the fields of [words, n] values, one word per row.

    ``group_facts`` are minima, reciprocals of levels, and whether a value is not finite, as [words, 1].
    ``is_extreme`` says that some value may be infinite, NaN or beyond ``layout.LARGEST``.
    """
    base, inverse, nonfinite = group_facts
    values = widened(raw, places)
    if is_extreme:
        values = tl.minimum(tl.maximum(values, -_LARGEST), _LARGEST)
    scaled = (values - base) * inverse
    if STOCHASTIC:
        codes = floor_bits(shifted(scaled, hashes, high)) - MAGIC_BITS
    else:
        codes = (scaled + _MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    codes = tl.minimum(tl.maximum(codes, 0), _TOP)
    if is_extreme:
        codes = tl.where(nonfinite > 0, 0, codes)
    if not EVEN:
        codes = tl.where(mask, codes, 0)
    return tl.sum(codes << (2 * tl.arange(0, codes.shape[1]))[None, :], axis=1)


@triton.jit
def _chunk(
    start, limit, GROUP: tl.constexpr, GROUPS: tl.constexpr, CHUNK: tl.constexpr,
    PER_WORD: tl.constexpr,
):  # fmt: skip
    """Return the positions of a chunk from value ``start`` of every group of a tile, and which of them exist.

    Those exist that lie in their group and below ``limit``.
    """
    word = tl.arange(0, GROUPS * CHUNK // PER_WORD)[:, None]
    i = start + word % (CHUNK // PER_WORD) * PER_WORD + tl.arange(0, PER_WORD)[None, :]
    place = word // (CHUNK // PER_WORD) * GROUP + i
    return place, (i < GROUP) & (place < limit)


@triton.jit
def _store_fields(
    data_ptr, packed, start, limit, EVEN: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    CHUNK: tl.constexpr, PER_WORD: tl.constexpr,
):  # fmt: skip
    """Store the words of a chunk, also the padding of a group that ends beyond ``limit``."""
    word = tl.arange(0, GROUPS * CHUNK // PER_WORD)
    i, group = start + word % (CHUNK // PER_WORD) * PER_WORD, word // (CHUNK // PER_WORD) * GROUP
    mask = None if EVEN else ((i < GROUP) & (group < limit))
    tl.store(data_ptr + (group + i) // PER_WORD, packed.to(data_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _quantize(
    x_ptr, limits_ptr, data_ptr, num_groups, first, limit, seed, EVEN: tl.constexpr,
    STOCHASTIC: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, CHUNK: tl.constexpr,
    PER_WORD: tl.constexpr,
):  # fmt: skip
    """Write limits and fields of a tile of ``limit`` values, which starts at value ``first`` of its tensor.

    Pointers point to the tile's own parts. ``EVEN`` says that all values of all chunks exist. Groups of more than
    ``CHUNK`` values are read twice.
    """
    low, high = seed
    WORDS: tl.constexpr = GROUPS * CHUNK // PER_WORD
    place, mask = _chunk(0, limit, GROUP, GROUPS, CHUNK, PER_WORD)
    raw = _load(x_ptr + place, mask, EVEN)
    least, greatest, nonfinite = _extremes(raw, x_ptr + place, mask, EVEN, GROUPS)
    for start in range(CHUNK, GROUP, CHUNK):
        at, is_there = _chunk(start, limit, GROUP, GROUPS, CHUNK, PER_WORD)
        values = _load(x_ptr + at, is_there, EVEN)
        found = _extremes(values, x_ptr + at, is_there, EVEN, GROUPS)
        least, greatest = tl.minimum(least, found[0]), tl.maximum(greatest, found[1])
        nonfinite = tl.maximum(nonfinite, found[2])
    if x_ptr.dtype.element_ty != tl.float64:
        nonfinite = ((greatest >= _INFINITE) | (least <= _LEAST_INFINITE)).to(tl.int32)
    minima, ranges, base, inverse = _limits(least, greatest, GROUPS)
    minima, ranges = tl.where(nonfinite > 0, 0, minima), tl.where(nonfinite > 0, _NAN_RANGE, ranges)
    row = tl.arange(0, GROUPS)
    tl.store(limits_ptr + row, minima.to(tl.int16), mask=row * GROUP < limit)
    tl.store(limits_ptr + num_groups + row, ranges.to(tl.int16), mask=row * GROUP < limit)
    is_extreme = (tl.min(least, axis=0) < _LEAST) | (tl.max(greatest, axis=0) > _MOST)
    facts = _spread(base, WORDS), _spread(inverse, WORDS), _spread(nonfinite, WORDS)
    hashes = hashes_of(first + place, low)
    packed = _packed(raw, x_ptr + place, mask, facts, hashes, high, is_extreme, STOCHASTIC, EVEN)
    _store_fields(data_ptr, packed, 0, limit, EVEN, GROUP, GROUPS, CHUNK, PER_WORD)
    for start in range(CHUNK, GROUP, CHUNK):
        at, is_there = _chunk(start, limit, GROUP, GROUPS, CHUNK, PER_WORD)
        values, hashes = _load(x_ptr + at, is_there, EVEN), hashes_of(first + at, low)
        packed = _packed(
            values, x_ptr + at, is_there, facts, hashes, high, is_extreme, STOCHASTIC, EVEN
        )
        _store_fields(data_ptr, packed, start, limit, EVEN, GROUP, GROUPS, CHUNK, PER_WORD)


@triton.jit
def quantize_tile(
    x_ptr, count, payload, tile, seed, STOCHASTIC: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write limits and fields of the ``GROUPS`` groups of a tile into the payload of ``count`` values.

    ``seed`` is what ``generic.seed_words`` returns; ``GROUPS`` and ``CHUNK`` come from ``GroupTile``.
    """
    IS_NARROW: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth == 16 and GROUP % 8 == 0
    PER_WORD: tl.constexpr = 8 if IS_NARROW else 4
    WORD: tl.constexpr = tl.int16 if IS_NARROW else tl.uint8
    IS_EVEN: tl.constexpr = GROUP % CHUNK == 0
    num_groups = num_parts(count, GROUP)
    first = tile * (GROUPS * GROUP)
    limits = payload.to(tl.pointer_type(tl.int16)) + tile * GROUPS
    data = (payload + 4 * num_groups).to(tl.pointer_type(WORD)) + tile * (
        GROUPS * GROUP // PER_WORD
    )
    limit = tl.minimum(count - first, GROUPS * GROUP).to(tl.int32)
    parts, own = (x_ptr + first, limits, data, num_groups), (first, limit, seed)
    # a mask keeps loads from being wide, so only the last tile has one, and groups that are not a multiple of chunks
    if limit == GROUPS * GROUP and IS_EVEN:
        _quantize(*parts, *own, True, STOCHASTIC, GROUP, GROUPS, CHUNK, PER_WORD)
    else:
        _quantize(*parts, *own, False, STOCHASTIC, GROUP, GROUPS, CHUNK, PER_WORD)


@triton.jit
def _dequantize(
    out_ptr, minima_ptr, ranges_ptr, data_ptr, skipped, limit, WHOLE: tl.constexpr,
    GROUP: tl.constexpr, TILE: tl.constexpr, PER_WORD: tl.constexpr,
):  # fmt: skip
    """Decode ``limit`` values of a tile, whose first group begins ``skipped`` values before it."""
    word, j = tl.arange(0, TILE // PER_WORD), tl.arange(0, PER_WORD)[None, :]
    group = (skipped + word * PER_WORD) // GROUP
    position = word[:, None] * PER_WORD + j
    if WHOLE:
        minima, ranges = tl.load(minima_ptr + group), tl.load(ranges_ptr + group)
        packed, mask = tl.load(data_ptr + word), None
    else:
        is_there = word * PER_WORD < limit
        minima = tl.load(minima_ptr + group, mask=is_there, other=0)
        ranges = tl.load(ranges_ptr + group, mask=is_there, other=0)
        packed, mask = tl.load(data_ptr + word, mask=is_there, other=0), position < limit
    base = (minima.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    widths = (ranges.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    levels = tl.div_rn(widths, tl.full([TILE // PER_WORD], _TOP, tl.float32))
    fields = (packed.to(tl.int32)[:, None] >> (2 * j)) & _TOP
    # the bits of 2**23 + field, without a slow conversion
    codes = (fields | 0x4B000000).to(tl.float32, bitcast=True) - 2.0**23
    values = codes * levels[:, None] + base[:, None]
    magnitudes = tl.maximum((minima & 0x7FFF).to(tl.int32), (ranges & 0x7FFF).to(tl.int32))
    if tl.max(magnitudes, axis=0) < 0x7F80:
        if out_ptr.dtype.element_ty == tl.float16:
            values = tl.minimum(tl.maximum(values, -65504.0), 65504.0)
        store_values(out_ptr + position, values, mask, True, False)
    else:
        is_number = tl.abs(values) <= float("inf")
        if out_ptr.dtype.element_ty == tl.float16:
            values = tl.minimum(tl.maximum(values, -65504.0), 65504.0)
        # the NaN that arithmetic produces differs between devices
        values = tl.where(is_number, values, float("nan"))
        store_values(out_ptr + position, values, mask, False, False)


@triton.jit
def dequantize_tile(
    payload, is_whole, out_ptr, count, tile, GROUP: tl.constexpr, TILE: tl.constexpr
):
    """Decode ``TILE`` of ``count`` values, which may start and end within groups; do nothing unless ``is_whole``."""
    IS_NARROW: tl.constexpr = out_ptr.dtype.element_ty.primitive_bitwidth == 16 and GROUP % 8 == 0
    PER_WORD: tl.constexpr = 8 if IS_NARROW else 4
    WORD: tl.constexpr = tl.int16 if IS_NARROW else tl.uint8
    num_groups, first = num_parts(count, GROUP), tile * TILE
    minima = payload.to(tl.pointer_type(tl.int16)) + first // GROUP
    data = (payload + 4 * num_groups).to(tl.pointer_type(WORD)) + tile * (TILE // PER_WORD)
    limit = tl.where(is_whole, tl.minimum(count - first, TILE), 0).to(tl.int32)
    skipped = (first % GROUP).to(tl.int32)
    ranges, out_ptr = minima + num_groups, out_ptr + first
    if limit == TILE:
        _dequantize(out_ptr, minima, ranges, data, skipped, limit, True, GROUP, TILE, PER_WORD)
    else:
        _dequantize(out_ptr, minima, ranges, data, skipped, limit, False, GROUP, TILE, PER_WORD)


@jit_kernel(do_not_specialize=["count", "payload", "low", "high"])
def _quantize_kernel(
    x_ptr, count, payload, low, high, STOCHASTIC: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program quantizes a tile."""
    tile = tl.program_id(0).to(tl.int64)
    quantize_tile(x_ptr, count, payload, tile, (low, high), STOCHASTIC, GROUP, GROUPS, CHUNK)


@jit_kernel(do_not_specialize=["count", "payload"])
def _dequantize_kernel(payload, out_ptr, count, GROUP: tl.constexpr, TILE: tl.constexpr):
    """One program decodes a tile."""
    dequantize_tile(payload, True, out_ptr, count, tl.program_id(0).to(tl.int64), GROUP, TILE)


def range_quantize(
    x: torch.Tensor, group: int, seed: int | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``reference.range_quantize``."""
    numel, tile = x.numel(), GroupTile.of(group)
    if out is None:
        nbytes = layout.payload_nbytes(numel, group)
        out = torch.empty(nbytes, dtype=torch.uint8, device=x.device)
    if numel:
        with torch.cuda.device_of(x):
            _quantize_kernel[(ceil_div(numel, tile.num_groups * group),)](
                carrier(x), numel, out, *seed_words(seed), STOCHASTIC=seed is not None, GROUP=group,
                GROUPS=tile.num_groups, CHUNK=tile.num_values, num_warps=tile.num_warps,
            )  # fmt: skip
    return out


def range_dequantize(payload: torch.Tensor, group: int, out: torch.Tensor) -> None:
    """See ``reference.range_dequantize``."""
    numel = out.numel()
    if numel:
        with torch.cuda.device_of(payload):
            _dequantize_kernel[(ceil_div(numel, TILE),)](
                payload, carrier(out.view(-1)), numel, GROUP=group, TILE=TILE, num_warps=1
            )
