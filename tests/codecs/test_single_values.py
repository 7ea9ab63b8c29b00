"""A tensor of one value may have any stride, and torch still calls it contiguous."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch

from tersor import (
    Bound,
    GraphCodec,
    compress,
    decode_batch,
    decompress,
    encode_batch,
    load,
    save,
    use_backend,
)
from tersor.types import TensorInfo
from tests.checks import assert_bits_equal
from tests.codecs.variants import AUTO, PAYLOADS, build

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "column": lambda value: value.expand(1, 4).contiguous()[:, 0],
    "step": lambda value: value.expand(3).contiguous()[::3],
    "expanded": lambda value: value.expand(1, 1),
    "corner": lambda value: value.expand(4, 3).contiguous().t()[:1, :1],
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
VALUES = (0.0, 1.25, math.nan, -math.inf)
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference"])


def made(view: str, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return one value with a stride of its own."""
    x = VIEWS[view](torch.tensor(value, dtype=dtype))
    assert x.is_contiguous()
    assert x.stride(-1) != 1
    return x


def plain(x: torch.Tensor) -> torch.Tensor:
    """Return the same value with the strides that its shape usually has."""
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)


@BACKENDS
@pytest.mark.parametrize("variant", [*PAYLOADS, *AUTO])
def test_a_single_value_of_any_stride_is_encoded_and_decoded_like_any_other(variant, backend):
    codec = build(variant, Bound.absolute(0.1))
    for view, dtype, value in product(VIEWS, DTYPES, VALUES):
        x, out = made(view, value, dtype), made(view, 7.0, dtype)
        with use_backend(backend):
            expected, packed = codec.pack(plain(x)), codec.pack(x)
            assert_bits_equal(packed.payloads[0], expected.payloads[0])
            decoded = packed.codec.unpack(packed)
            assert packed.codec.unpack(packed, out) is out
        assert_bits_equal(decoded, plain(out))


@pytest.mark.parametrize("variant", PAYLOADS)
def test_lists_and_graph_codecs_take_a_single_value_of_any_stride(variant):
    codec = build(variant, Bound.absolute(0.1))
    for view in VIEWS:
        x, outs = made(view, 1.25), [made(view, 7.0), made(view, 7.0)]
        expected = codec.unpack(codec.pack(plain(x)))
        batch = encode_batch([x, x], [codec, codec])
        decode_batch(batch, [TensorInfo.of(x)] * 2, [codec] * 2, out=outs)
        for found in (*outs, GraphCodec(codec).round_trip(x)):
            assert_bits_equal(plain(found), expected)


@pytest.mark.parametrize("view", VIEWS)
def test_files_hold_a_single_value_of_any_stride(view, tmp_path):
    path = tmp_path / "one.tsr"
    save(path, {"x": made(view, 1.25), "n": made(view, 3, torch.int64)}, Bound.absolute(0.1))
    loaded = load(path)
    assert abs(loaded["x"].item() - 1.25) <= 0.1
    assert loaded["n"].item() == 3


def test_an_array_of_a_single_value_may_be_decoded_into():
    room = np.zeros((2, 4), np.float32)
    packed = compress(np.full((1,), 1.25, np.float32), codec="raw")
    decompress(packed, out=room[:1, 2])
    assert room[0, 2] == 1.25
    assert room.sum() == 1.25
