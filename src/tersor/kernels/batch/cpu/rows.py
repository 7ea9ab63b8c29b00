"""Lists of row matrices in numba: one kernel call for many tensors, in the common case.

Most tensors in an exchange of embeddings are small, and a composition of operations would spend more
time between its kernels than in them. Everything else (outliers, escapes, wide alphabets, row widths
that are not a multiple of 8, rANS) goes through the composition, which writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tersor.kernels.batch import compose
from tersor.kernels.batch.compose import as_rows
from tersor.kernels.batch.cpu.runs import KernelCall, decode_in_runs, encode_in_runs
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import RowPipeline
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.payload.cpu import HEADER_NBYTES, plain_step, put_header
from tersor.kernels.quantize.cpu.finite_range import INFINITIES, range_if_finite
from tersor.kernels.quantize.cpu.quantize import BoundArgs, fit_grid, quantize_bytes
from tersor.kernels.quantize.grid import limits_of
from tersor.kernels.rows.cpu.index import (
    put_index,
    put_symbols,
    symbols_head,
    take_index,
    take_symbols,
)
from tersor.kernels.rows.dedup.cpu import distinct_rows
from tersor.kernels.runtime.cpu.intrinsics import array_at, njit
from tersor.kernels.runtime.cpu_runs import EMPTY, addresses_of
from tersor.types import Bound


@njit(nogil=True, cache=True)
def _gather(values: Any, width: int, first: Any, rows: Any) -> Any:
    """Return the rows ``first`` back to back, because loops over whole arrays vectorise and those over rows do not."""
    if first.size * width == values.size:
        return values
    for k in range(first.size):
        source = values[first[k] * width : first[k] * width + width]
        target = rows[k * width : k * width + width]
        for j in range(width):
            target[j] = source[j]
    return rows[: first.size * width]


@njit(nogil=True, cache=True)
def _merge(words: Any, hashes: Any, index: Any, first: Any) -> int:
    """Merge rows with equal symbols in place; return the number of distinct rows."""
    num_distinct = first.size
    again = np.empty(num_distinct, dtype=np.int32)
    unique = np.empty(num_distinct, dtype=np.int64)
    count = distinct_rows(words, hashes, again, unique)
    if count < num_distinct:
        for k in range(count):
            first[k] = first[unique[k]]
            for j in range(words.shape[1]):
                words[k, j] = words[unique[k], j]
        for row in range(index.size):
            index[row] = again[index[row]]
    return count


@njit(nogil=True, cache=True)
def _encode_slice(
    values: Any, width: int, bound_args: Any, infinities: Any, buffers: Any, target: Any
) -> Any:
    """Write the body of one matrix; return its size (0 if it is not a common case), its step, and its range."""
    hashes, indices, firsts, refs, flags, rows, octets = buffers
    num_rows = values.size // width
    index = indices[:num_rows]
    words = values.view(np.uint64).reshape(num_rows, width * values.itemsize // 8)
    count = distinct_rows(words, hashes, index, firsts)
    distinct = _gather(values, width, firsts[:count], rows)
    low, high = range_if_finite(distinct, infinities)
    grid = fit_grid(low, high, bound_args, values)
    step, inverse, _ = grid
    if step == 0 or not max(abs(low), abs(high)) * inverse < bound_args.radius:
        return 0, np.float64(step), low, high
    # rounding is monotonic, so the limits of the range have the extreme codes
    smallest = np.int32(np.rint(low * inverse))
    alphabet = np.int64(np.int32(np.rint(high * inverse))) - np.int64(smallest) + 1
    if alphabet > NARROW:
        return 0, np.float64(step), low, high
    symbols = octets[: distinct.size]
    if not quantize_bytes(distinct, grid, smallest, symbols):
        return 0, np.float64(step), low, high
    symbol_words = symbols.view(np.uint64).reshape(count, width // 8)
    count = _merge(symbol_words, hashes, index, firsts[:count])
    nbytes = put_index(index, firsts[:count], refs, flags, target)
    nbytes += put_symbols(symbols[: count * width], smallest, alphabet, target[nbytes:])
    return nbytes, np.float64(step), low, high


@njit(nogil=True, cache=True)
def _encode_kernel(
    addresses: Any,
    shapes: Any,
    like: Any,
    bound_args: Any,
    infinities: Any,
    ranges: Any,
    target: Any,
    sizes: Any,
) -> None:
    """Write payloads and ranges of all common matrices that become smaller; the others get size 0."""
    most_rows, most_values = _largest(shapes)
    buffers = (
        np.empty(most_rows, dtype=np.uint64),
        np.empty(most_rows, dtype=np.int32),
        np.empty(most_rows, dtype=np.int64),
        np.empty(most_rows, dtype=np.int32),
        np.empty(most_rows, dtype=np.int32),
        np.empty(most_values, dtype=like.dtype),
        np.empty(most_values, dtype=np.uint8),
    )
    place = 0
    for k in range(addresses.size):
        values = array_at(addresses[k], shapes[k, 0] * shapes[k, 1], like)
        payload = target[place:]
        body = payload[HEADER_NBYTES:]
        nbytes, step, low, high = _encode_slice(
            values, shapes[k, 1], bound_args, infinities, buffers, body
        )
        ranges[k, 0], ranges[k, 1] = low, high
        if 0 < nbytes < values.size * values.itemsize:
            put_header(step, nbytes, payload)
            sizes[k] = HEADER_NBYTES + nbytes
            place += sizes[k]


@njit(nogil=True, cache=True)
def _largest(shapes: Any) -> Any:
    """Return the largest number of rows, and of values, of any matrix."""
    most_rows, most_values = np.int64(0), np.int64(0)
    for k in range(len(shapes)):
        most_rows = max(most_rows, shapes[k, 0])
        most_values = max(most_values, shapes[k, 0] * shapes[k, 1])
    return most_rows, most_values


def _max_nbytes(num_rows: int, width: int) -> int:
    """Return the size of the worst case: 14 bits per row for the index, 11 per value, and tables."""
    chunks = num_rows * (width + 1) // 8192 + 2
    return 4096 + 2 * num_rows + num_rows // 4 + num_rows * width * 11 // 8 + 16 * chunks


def _is_common(x: torch.Tensor) -> bool:
    # rows must be whole 64-bit words, also after quantizing to bytes
    return x.dtype in INFINITIES and x.numel() > 0 and x.shape[1] % 8 == 0


def encode_row_lists(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    pipeline: RowPipeline,
    with_ranges: bool = False,
) -> EncodedList:
    """See ``compose.encode_row_lists``."""
    if pipeline.encoder != "huffman":
        return compose.encode_row_lists(xs, bounds, pipeline, with_ranges)
    return encode_in_runs(
        [as_rows(x) for x in xs],
        bounds,
        _is_common,
        _encoding,
        lambda k: compose.encode_row_payload(xs[k], bounds[k], pipeline),
    )


def _encoding(matrices: Sequence[torch.Tensor], bound: Bound) -> KernelCall:
    """Return the kernel call that encodes matrices of one dtype."""
    shapes, dtype = [tuple(x.shape) for x in matrices], matrices[0].dtype
    arguments = (
        addresses_of(matrices),
        np.array(shapes),
        EMPTY[dtype],
        BoundArgs.of(bound, limits_of(dtype)),
        INFINITIES[dtype],
    )
    return _encode_kernel, sum(_max_nbytes(*shape) for shape in shapes), arguments


@njit(nogil=True, cache=True)
def _decode_slice(body: Any, step: Any, width: int, buffers: Any, out: Any) -> bool:
    """Decode one matrix; return False if its body is malformed or not a common case."""
    indices, highs, refs, rows, octets = buffers
    index = indices[: out.size // width]
    count, start = take_index(body, highs, refs, index)
    if count == 0:
        return False
    low, alphabet = symbols_head(body[start:])
    if alphabet == 0 or alphabet > NARROW:
        return False
    symbols = octets[: count * width]
    nbytes = take_symbols(body[start:], alphabet, symbols)
    if nbytes == 0 or start + nbytes != body.size:
        return False
    distinct = rows[: count * width]
    for i in range(distinct.size):
        distinct[i] = out.dtype.type(np.int32(np.int32(symbols[i]) + low)) * step
    for row in range(index.size):
        number = np.int64(index[row])
        source = distinct[number * width : number * width + width]
        target = out[row * width : row * width + width]
        for j in range(width):
            target[j] = source[j]
    return True


@njit(nogil=True, cache=True)
def _decode_kernel(
    payloads: Any, sizes: Any, outs: Any, shapes: Any, like: Any, bound_args: Any, decoded: Any
) -> None:
    """Decode all payloads that ``plain_step`` accepts and that are common, given by addresses and sizes."""
    most_rows, most_values = _largest(shapes)
    buffers = (
        np.empty(most_rows, dtype=np.int32),
        np.empty(most_rows, dtype=np.int32),
        np.empty(most_rows, dtype=np.int32),
        np.empty(most_values, dtype=like.dtype),
        np.empty(most_values, dtype=np.uint8),
    )
    for k in range(payloads.size):
        payload = array_at(payloads[k], sizes[k], decoded.view(np.uint8))
        out = array_at(outs[k], shapes[k, 0] * shapes[k, 1], like)
        step = plain_step(payload, bound_args, like)
        if step > 0:
            body = payload[HEADER_NBYTES:]
            decoded[k] = _decode_slice(body, like.dtype.type(step), shapes[k, 1], buffers, out)


def decode_row_lists(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RowPipeline
) -> None:
    """See ``compose.decode_row_lists``."""
    if pipeline.encoder != "huffman":
        compose.decode_row_lists(outs, encoded, pipeline)
        return
    payloads = encoded.payloads()
    decode_in_runs(
        [as_rows(out) for out in outs],
        payloads,
        lambda out: out.dtype in INFINITIES and out.numel() > 0,
        _decode,
        lambda k: compose.decode_row_payload(payloads[k], outs[k], pipeline),
    )


def _decode(outs: Sequence[torch.Tensor], payloads: Sequence[torch.Tensor]) -> list[bool]:
    """Decode into matrices of one dtype; return which payloads the kernel decoded."""
    done = np.zeros(len(outs), dtype=np.bool_)
    _decode_kernel(
        addresses_of(payloads),
        np.array([payload.numel() for payload in payloads]),
        addresses_of(outs),
        np.array([out.shape for out in outs]),
        EMPTY[outs[0].dtype],
        BoundArgs.of(Bound.absolute(0.0), limits_of(outs[0].dtype)),
        done,
    )
    return done.tolist()
