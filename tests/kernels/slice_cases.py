"""What the conformance matrix runs for operations on lists of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tersor.kernels.batch import encode_row_slices, pack_slices
from tersor.types import Bound
from tests.kernels.cases import CASES, Out, case, encodings, float_inputs

__all__ = ["CASES"]


def _slice_lists(dtype: torch.dtype) -> Iterator[tuple[str, list[Tensor], Bound]]:
    """All inputs as one list, so that common slices stand beside all others."""
    xs = [x.contiguous() for x in float_inputs(dtype).values()]
    for bound in (Bound.relative(1e-2), Bound.absolute(0.1), Bound.relative(1e-5)):
        yield f"{bound}", xs, bound
    yield "no slices", [], Bound.absolute(0.1)


@case("pack_slices")
def _pack_slices(dtype, encoders):
    for name, xs, bound in _slice_lists(dtype):
        for block in (32, 64):
            yield f"{name} block {block}", (xs, bound, block)


def _decoding(encoders, op, xs, bound, option) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Plain payloads, and some that are not: to be left to others."""
    for by, encoded in encodings(encoders, op, xs, bound, option):
        payloads = [one for one in encoded if isinstance(one, Tensor)]
        outs = [x for x, one in zip(xs, encoded, strict=True) if isinstance(one, Tensor)]
        whole = [Out(tuple(x.shape), x.dtype) for x in outs]
        yield by, (payloads, whole, option)
        cut = [payload[:-8] for payload in payloads]
        unknown = [payload ^ (torch.arange(payload.numel()) == 5).byte() for payload in payloads]
        yield f"{by} not plain", (cut + unknown, whole + whole, option)


@case("unpack_slices")
def _unpack_slices(dtype, encoders):
    for name, (xs, bound, block) in _pack_slices(dtype, encoders):
        for by, arguments in _decoding(encoders, pack_slices, xs, bound, block):
            yield f"{name} {by}", arguments


@case("encode_row_slices")
def _encode_row_slices(dtype, encoders):
    for name, xs, bound in _slice_lists(dtype):
        matrices = [x.view(-1, x.shape[-1] if x.dim() else 1) for x in xs if x.numel()]
        yield f"{name} huffman", (matrices, bound, "huffman")
        if dtype == torch.float32:
            yield f"{name} ans", (matrices[:5], bound, "ans")


@case("decode_row_slices")
def _decode_row_slices(dtype, encoders):
    for name, (xs, bound, coder) in _encode_row_slices(dtype, encoders):
        if bound == Bound.relative(1e-5):
            continue  # slow to decode by the reference, and nothing new
        for by, arguments in _decoding(encoders, encode_row_slices, xs, bound, coder):
            yield f"{name} {by}", arguments
