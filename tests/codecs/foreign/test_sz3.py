"""SZ3 in the loop keeps our promise."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("pysz")
from tersor import Bound
from tersor.codecs.foreign.sz3 import Sz3
from tersor.errors import CorruptDataError
from tersor.sites.embeddings import Exchange
from tests import data
from tests.checks import assert_rejects, assert_within_bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [Bound.relative(0.03), Bound.absolute(1e-3), Bound.absolute(0)])
@pytest.mark.parametrize(
    "name", ["relu_activations", "nan_and_inf", "constant", "odd_size", "empty", "wide_range"]
)
def test_every_finite_value_is_within_the_bound(name, bound, dtype):
    x, codec = data.make(name, dtype), Sz3(bound=bound)
    packed = codec.encode(x)
    assert_within_bound(x, codec.decode(packed), packed.error_bound)


def test_damaged_payloads_are_refused():
    codec = Sz3(bound=Bound.relative(0.03))
    x = torch.randn(64, 16)
    payload = codec.encode_tensor(x)
    cut = payload[: payload.numel() - 64].clone()
    assert_rejects(lambda: codec.decode_payload(cut, torch.empty_like(x)), CorruptDataError)


def test_an_exchange_takes_it():
    exchange = Exchange([0], 16, bounds=0.03, codec=Sz3(bound=Bound.relative(1.0)))
    [y] = exchange([torch.randn(256, 16)])
    assert y.shape == (256, 16)
    assert exchange.stats.forward.ratio > 2
