"""Group codecs with a base: differences encoded, and added to what is there."""

from __future__ import annotations

import pytest
import torch

from tersor.codecs import create
from tersor.errors import CorruptDataError, SpecError
from tersor.types import FLOAT_DTYPES

CODECS = [
    create("group4", group=128),
    create("group4", group=2048, seed=9),
    create("group8", group=64, hadamard=True),
    create("group4", group=10),
]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_base_changes_nothing_but_the_memory_needed(codec, dtype, generator):
    x = torch.randn(7, 301, generator=generator).to(dtype)
    base = (x + torch.randn(7, 301, generator=generator) * 0.01).to(dtype)
    before = base.clone()
    payload = codec.encode_difference(x, base)
    assert torch.equal(payload, codec.encode_tensor(x - base))
    assert torch.equal(base, before)
    wide = torch.empty(7, 301)
    codec.decode_payload(payload, wide)
    expected = before.add_(wide)
    assert codec.decode_add(payload, base) is base
    assert torch.equal(base, expected)


def test_what_a_step_loses_the_next_one_carries():
    """Ranks that apply the same payloads agree, and lack no more than the last payload did."""
    generator = torch.Generator().manual_seed(5)
    codec = create("group4", group=64)
    weights = torch.randn(640, generator=generator)
    copies = [weights.clone(), weights.clone()]
    for _ in range(20):
        weights += torch.randn(640, generator=generator) * 0.01
        lacking = (weights - copies[0]).abs().max()
        payload = codec.encode_difference(weights, copies[0])
        for copy in copies:
            codec.decode_add(payload, copy)
        # half of one of seven levels, and far less for the roundings to float32
        assert (weights - copies[0]).abs().max() <= lacking / 13.9
    assert torch.equal(*copies)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_layouts_and_empty_tensors_are_taken(dtype):
    codec = create("group4", group=32)
    x, base = torch.arange(60.0).view(6, 10).to(dtype).T, torch.ones(10, 6, dtype=dtype)
    assert torch.equal(codec.encode_difference(x, base), codec.encode_tensor((x - 1).contiguous()))
    nothing = torch.zeros(0, 5, dtype=dtype)
    payload = codec.encode_difference(nothing, nothing)
    assert payload.numel() == 0
    assert codec.decode_add(payload, nothing).shape == (0, 5)


@pytest.mark.parametrize(
    "base",
    [torch.zeros(64, dtype=torch.float64), torch.zeros(63), torch.zeros(8, 8)],
    ids=["dtype", "size", "shape"],
)
def test_a_base_unlike_the_tensor_is_refused(base):
    with pytest.raises(SpecError, match="base must be"):
        create("group4").encode_difference(torch.zeros(64), base)


def test_what_cannot_be_written_in_place_is_refused():
    codec = create("group8", group=32)
    payload = codec.encode_tensor(torch.zeros(64))
    with pytest.raises(SpecError, match="contiguous"):
        codec.decode_add(payload, torch.zeros(8, 8).T)
    with pytest.raises(SpecError, match="gradient"):
        codec.decode_add(payload, torch.zeros(64, requires_grad=True))
    with pytest.raises(SpecError, match="cannot encode"):
        codec.decode_add(payload, torch.zeros(64, dtype=torch.int32))
    base = torch.ones(64)
    with pytest.raises(CorruptDataError, match="payload bytes expected"):
        codec.decode_add(payload[:-1], base)
    assert torch.equal(base, torch.ones(64))
