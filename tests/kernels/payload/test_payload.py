"""The frame around every bounded body: what it stores, and what it refuses."""

from __future__ import annotations

import struct

import pytest
import torch

from tersor import Bound
from tersor.errors import CorruptDataError
from tersor.kernels.payload import layout
from tersor.types import FLOAT_DTYPES
from tests.checks import assert_bits_equal, assert_rejects
from tests.codecs.variants import build
from tests.one_by_one import decode_one

HEADER = struct.Struct("<B3xIdQ")


def fields(payload: torch.Tensor) -> tuple[int, int, float, int]:
    return HEADER.unpack(bytes(payload[:24].tolist()))


def changed(payload: torch.Tensor, **what: float) -> torch.Tensor:
    """Return a copy with some of the header's fields set."""
    names = ("mode", "num_outliers", "step", "body_nbytes")
    values = dict(zip(names, fields(payload), strict=True)) | what
    result = payload.clone()
    result[:24] = torch.frombuffer(bytearray(HEADER.pack(*values.values())), dtype=torch.uint8)
    return result


@pytest.fixture
def coded() -> tuple[torch.Tensor, torch.Tensor]:
    """A coded payload with two outliers, and its tensor."""
    x = torch.linspace(0, 1, 500)
    x[7], x[400] = float("nan"), 1e20
    (payload,) = build("flat", Bound.absolute(0.01)).pack(x).payloads
    assert fields(payload)[:2] == (layout.CODED, 2)
    return payload, x


def test_outliers_stand_behind_the_body(coded):
    payload, x = coded
    start = 24 + fields(payload)[3]
    positions = payload[start : start + 8].view(torch.int32)
    assert positions.tolist() == [7, 400]
    assert_bits_equal(payload[start + 8 : start + 16].view(torch.float32), x[[7, 400]])
    assert payload.numel() == start + 16


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_a_constant_is_one_header(dtype):
    x = torch.full((1000,), -2.5, dtype=dtype)
    (payload,) = build("flat", Bound.relative(1e-3)).pack(x).payloads
    assert fields(payload) == (layout.CONSTANT, 0, -2.5, 0)
    assert payload.numel() == 24


def test_what_would_not_get_smaller_is_stored_exactly():
    x = torch.randn(500)
    (payload,) = build("flat", Bound.absolute(0.0)).pack(x).payloads
    assert fields(payload) == (layout.EXACT, 0, 0.0, 2000)
    assert_bits_equal(payload[24:].view(torch.float32), x)


@pytest.mark.parametrize(
    "what",
    [
        {"mode": 3},
        {"mode": 255},
        {"num_outliers": 3},
        {"num_outliers": 501},
        {"num_outliers": 2**32 - 1},
        {"body_nbytes": 2**64 - 8},
        {"body_nbytes": 2**63},
        {"body_nbytes": 1},
        {"body_nbytes": 0},
        {"step": float("nan")},
        {"step": float("inf")},
        {"step": 0.0},
        {"step": -1.0},
        {"step": 0.1},
        {"step": 1e-320},
        {"step": 1e300},
    ],
    ids=str,
)
def test_impossible_headers_are_refused(coded, what):
    payload, x = coded
    codec = build("flat", Bound.absolute(0.01))
    wrong = changed(payload, **what)
    assert_rejects(lambda: decode_one(codec, wrong, torch.zeros_like(x)), CorruptDataError)


def test_outliers_outside_or_out_of_order_are_refused(coded):
    payload, x = coded
    codec = build("flat", Bound.absolute(0.01))
    start = 24 + fields(payload)[3]
    for positions in ([7, 500], [7, -1], [400, 7], [7, 7], [-(2**31), 7]):
        wrong = payload.clone()
        wrong[start : start + 8] = torch.tensor(positions, dtype=torch.int32).view(torch.uint8)
        assert_rejects(
            lambda wrong=wrong: decode_one(codec, wrong, torch.zeros_like(x)), CorruptDataError
        )


def test_bytes_left_over_are_refused_but_padding_is_not(coded):
    payload, x = coded
    codec = build("flat", Bound.absolute(0.01))
    padding = torch.zeros(40, dtype=torch.uint8)
    out = torch.zeros_like(x)
    decode_one(codec, torch.cat([payload, padding]), out)
    assert_bits_equal(out, codec.unpack(codec.pack(x)))
    padding[-1] = 1
    longer = torch.cat([payload, padding])
    assert_rejects(lambda: decode_one(codec, longer, out), CorruptDataError)
