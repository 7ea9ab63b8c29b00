"""What the conformance matrix runs for operations on lists of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tersor.kernels import batch
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.encoders.entropy import AnsEncoder, HuffmanEncoder
from tersor.kernels.batch.encoders.lz import ZstdEncoder
from tersor.kernels.batch.pipeline import (
    Bounded,
    FloatFormat,
    GroupLevels,
    MaskLevels,
    Pipeline,
    RangeLevels,
    RmsLevels,
    ScaledFormat,
    Words,
)
from tersor.types import FLOAT_DTYPES, Bound
from tests.kernels.cases import CASES, RARE, Out, case, encodings, float_inputs, rare_if
from tests.kernels.group_cases import field_inputs

__all__ = ["CASES"]

STREAMS = (
    (0, BitpackEncoder(block=32)),
    (0, BitpackEncoder(block=64)),
    (0, BitpackEncoder(base=True)),
    (0, AnsEncoder()),
    (0, HuffmanEncoder()),
    (0, AnsEncoder(frequencies=(*([9] * 255), 4096 - 9 * 255))),
    (1, BitpackEncoder()),
    (1, AnsEncoder()),
    (3, AnsEncoder()),
    # not every machine with a GPU has zstandard
    (2, ZstdEncoder() if find_spec("zstandard") else BitpackEncoder()),
)


def _lists(dtype: torch.dtype) -> Iterator[tuple[str, list[Tensor], list[Bound]]]:
    """All inputs as one list, so that common tensors share a list with all others; and each few alone."""
    xs = [x.contiguous() for x in float_inputs(dtype).values()]
    bounds = (Bound.relative(1e-2), Bound.absolute(0.1), Bound.relative(1e-5))
    yield "short", _short(dtype), [bounds[0], bounds[1], bounds[0], bounds[2]]
    yield "one bound", xs, [bounds[0]] * len(xs)
    yield "several bounds", xs, [bounds[k % 3] for k in range(len(xs))]
    for k, x in enumerate(xs[::4]):
        yield f"input {4 * k} alone", [x], [bounds[k % 3]]


def _short(dtype: torch.dtype) -> list[Tensor]:
    """A list that the interpreter can run on fused kernels: repeated rows, NaN, nothing, noise."""
    noise = torch.randn(300, generator=torch.Generator().manual_seed(3))
    rows = noise[:48].view(3, 16).repeat(4, 1)
    rows[2, 5] = torch.nan
    return [
        noise[:48].view(3, 16).repeat(5, 1).to(dtype),
        rows.to(dtype),
        noise[:0].to(dtype),
        noise.to(dtype),
    ]


@case("encode_streams")
def _encode_streams(dtype, encoders):
    for name, xs, bounds in _lists(dtype):
        for number, (dims, encoder) in enumerate(STREAMS if len(xs) > 1 else STREAMS[:4]):
            # all of a short list; of long ones float32 meets all encoders, the other three dtypes share them
            is_shared = dtype != torch.float32 and name != "short"
            is_rare = is_shared and (number + FLOAT_DTYPES.index(dtype)) % 3 > 0
            label = rare_if(f"{name} {dims} {encoder}", is_rare)
            yield label, (xs, bounds, Pipeline(None, Bounded(), dims, encoder))


def _decoding(encoders, op, xs, *arguments) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Payloads of a list, and each of some alone that is malformed."""
    options = arguments if op.name not in ("encode_streams", "encode_row_lists") else arguments[1:]
    for by, encoded in encodings(encoders, op, xs, *arguments):
        outs = [Out(tuple(x.shape), x.dtype) for x in xs]
        yield by, (outs, EncodedList.apart(encoded), *options)
        for k in range(0, len(xs), 7):
            payload = encoded[k]
            yield f"{by} cut {k}", ([outs[k]], EncodedList.apart([payload[:-8]]), *options)


@case("decode_streams")
def _decode_streams(dtype, encoders):
    for name, (xs, *arguments) in _encode_streams(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_streams, xs, *arguments):
            yield f"{name.removeprefix(RARE)} {by}", found


def _matrices(dtype: torch.dtype) -> Iterator[tuple[str, list[Tensor], list[Bound]]]:
    """Each input alone, as a matrix, with bounds from loose to none at all."""
    bounds = (Bound.relative(1e-2), Bound.absolute(0.1), Bound.relative(1e-5), Bound.absolute(0.0))
    for name, x in float_inputs(dtype).items():
        if x.numel() == 0:
            continue
        width = x.shape[-1] if x.dim() > 1 else 13 if x.numel() % 13 == 0 else 1
        matrix = x.contiguous().view(-1, width)
        for bound in bounds if dtype == torch.float32 else bounds[:2]:
            label = "slow" if bound == Bound.relative(1e-5) else "matrix"
            yield f"{label} {name} {bound}", [matrix], [bound]


@case("encode_row_lists")
def _encode_rows(dtype, encoders):
    for name, xs, bounds in (*_lists(dtype), *_matrices(dtype)):
        yield f"{name} huffman", (xs, bounds, _rows("huffman"))
        if dtype == torch.float32:
            yield f"{name} ans", (xs[:5], bounds[:5], _rows("ans"))


def _rows(coder):
    return Pipeline("distinct-rows", Bounded(), 0, coder)


@case("decode_row_lists")
def _decode_rows(dtype, encoders):
    for name, (xs, *arguments) in _encode_rows(dtype, encoders):
        if name.startswith(("several", "slow")):
            continue  # slow to decode by the reference, and nothing new
        for by, found in _decoding(encoders, batch.encode_row_lists, xs, *arguments):
            yield f"{name} {by}", found


@case("encode_groups")
def _encode_groups(dtype, encoders):
    for name, xs, _ in _lists(dtype):
        yield f"{name} 8 bits", (xs, _groups(8, 128))
        yield f"{name} 4 bits", (xs, _groups(4, 32, "hadamard"), 2**40 + 3)
        yield f"{name} wide", (xs[:3], _groups(4, 8192), 5)


def _groups(nbits, group, transform=None):
    return Pipeline(transform, GroupLevels(nbits, group), 0, None)


@case("decode_groups")
def _decode_groups(dtype, encoders):
    for name, (xs, pipeline, *_) in _encode_groups(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_groups, xs, pipeline):
            yield f"{name} {by}", found


def _field_lists(dtype: torch.dtype) -> Iterator[tuple[str, list[Tensor]]]:
    for name, xs, _ in _lists(dtype):
        yield name, xs
    for name, x in field_inputs(dtype).items():
        yield name, [x[:520], x[-300:]]


@case("encode_masks")
def _encode_masks(dtype, encoders):
    for name, xs in _field_lists(dtype):
        for nbits in (2, 4):
            yield f"{name} {nbits} bits", (xs, Pipeline(None, MaskLevels(nbits), 0, None))


@case("decode_masks")
def _decode_masks(dtype, encoders):
    for name, (xs, pipeline) in _encode_masks(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_masks, xs, pipeline):
            yield f"{name} {by}", found


@case("encode_ranges")
def _encode_ranges(dtype, encoders):
    for name, xs in _field_lists(dtype):
        yield name, (xs, Pipeline(None, RangeLevels(256), 0, None))
        yield f"{name} seed", (xs, Pipeline(None, RangeLevels(12), 0, None), 2**40 + 3)


@case("decode_ranges")
def _decode_ranges(dtype, encoders):
    for name, (xs, pipeline, *_) in _encode_ranges(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_ranges, xs, pipeline):
            yield f"{name} {by}", found


def _words() -> Iterator[tuple[str, list[Tensor]]]:
    generator = torch.Generator().manual_seed(6)
    picks = torch.randint(0, 9, (700,), generator=generator)
    sparse = torch.where(picks == 0, torch.randn(700, generator=generator), 0.0)
    floats = torch.where(picks > 4, 1.25, 0.0)
    yield "short masks", [picks > 4, floats, floats.to(torch.bfloat16), sparse, sparse[:0]]
    yield "whole numbers", [picks, picks - 4, picks.to(torch.uint8), picks * 2**40, picks.short()]
    yield "constant", [torch.full((70_000,), 7), torch.zeros(9), torch.full((3,), -0.0)]


@case("encode_exact")
def _encode_exact(dtype, encoders):
    pipeline = Pipeline(None, Words(), 0, None)
    for name, xs, _ in _lists(dtype):
        yield name, (xs, pipeline)
    for name, xs in _words() if dtype == torch.float32 else ():
        yield name, (xs, pipeline)


@case("decode_exact")
def _decode_exact(dtype, encoders):
    for name, (xs, pipeline) in _encode_exact(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_exact, xs, pipeline):
            yield f"{name} {by}", found


RMS = ((1.0, None), (0.5, True), (0.13, False))


@case("encode_rms")
def _encode_rms(dtype, encoders):
    for name, xs, _ in _lists(dtype):
        if name.startswith("several"):
            continue  # bounds mean nothing here
        for step, zeros in RMS:
            pipeline = Pipeline(None, RmsLevels(step, zeros), 0, "ans")
            yield f"{name} {step} {zeros}", (xs, pipeline)
    rectified = torch.randn(700, generator=torch.Generator().manual_seed(4)).relu().to(dtype)
    rectified[3], rectified[300] = torch.nan, -torch.inf
    yield (
        "short rectified",
        ([rectified, rectified[:40]], Pipeline(None, RmsLevels(1.0, None), 0, "ans")),
    )


@case("decode_rms")
def _decode_rms(dtype, encoders):
    for name, (xs, pipeline) in _encode_rms(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_rms, xs, pipeline):
            yield f"{name} {by}", found


@case("encode_casts")
def _encode_casts(dtype, encoders):
    for name, xs, _ in _lists(dtype):
        for target in (None, torch.float16, torch.bfloat16):
            # which NaN a cast makes depends on the machine
            plain = [x.nan_to_num(nan=3.0) for x in xs] if target is not None else xs
            yield f"{name} {target}", (plain, _floats(target))


def _floats(dtype):
    return Pipeline(None, FloatFormat(dtype), 0, None)


@case("decode_casts")
def _decode_casts(dtype, encoders):
    for name, (xs, pipeline) in _encode_casts(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_casts, xs, pipeline):
            yield f"{name} {by}", found


@case("encode_scaled_casts")
def _encode_scaled_casts(dtype, encoders):
    for name, xs, _ in _lists(dtype):
        yield f"{name} e4m3", (xs, _scaled(torch.float8_e4m3fn, 256))
        yield f"{name} e5m2", (xs, _scaled(torch.float8_e5m2, 7))


def _scaled(dtype, group):
    return Pipeline(None, ScaledFormat(dtype, group), 0, None)


@case("decode_scaled_casts")
def _decode_scaled_casts(dtype, encoders):
    for name, (xs, *options) in _encode_scaled_casts(dtype, encoders):
        for by, found in _decoding(encoders, batch.encode_scaled_casts, xs, *options):
            yield f"{name} {by}", found


def _frames() -> Iterator[tuple[str, list[int]]]:
    yield "payloads", [24, 3, 0, 17, 8]
    yield "nothing", [0]
    yield "many", [k % 40 for k in range(600)]


@case("frame_places", dtypes=(torch.float32,))
def _frame_places(dtype, encoders):
    for name, sizes in _frames():
        room = sum(-(-size // 8) * 8 for size in sizes)
        given = torch.tensor(sizes)
        yield name, (given, [0] * len(sizes), room)
        yield f"{name}, too small a frame", (given, [0] * len(sizes), room - 8)
        yield f"{name}, too small a payload", (given, [25] * len(sizes), room)
        yield f"{name}, negative", (-1 - given, [0] * len(sizes), room)
        yield f"{name}, overflowing", (given + (1 << 62), [0] * len(sizes), room)


@case("join_frame", dtypes=(torch.float32,))
def _join_frame(dtype, encoders):
    for name, sizes in _frames():
        room = sum(-(-size // 8) * 8 for size in sizes)
        buffers = [(torch.arange(room + 8) % 251).byte() + k for k in (0, 3)]
        places = list(range(1, 2 * len(sizes), 2)) + list(range(0, 2 * len(sizes), 2))
        given = [torch.tensor(sizes), torch.tensor(sizes)]
        zeroed = [_zero_padding(buffer, sizes) for buffer in buffers]
        yield name, (zeroed, given, places, [640] * (2 * len(sizes)))


def _zero_padding(buffer: Tensor, sizes: list[int]) -> Tensor:
    """Return the frame with zeros between its payloads, as frames have them."""
    start = 0
    for size in sizes:
        end = start + -(-size // 8) * 8
        buffer[start + size : end] = 0
        start = end
    return buffer
