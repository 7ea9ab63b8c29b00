"""Frames and lists that are coded as the last ones of their form were, with kernels that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tersor import (
    Bound,
    CorruptDataError,
    TensorInfo,
    begin_decode_batch,
    create,
    decode_batch,
    encode_batch,
)
from tersor.container import calls
from tersor.kernels.batch.encoded_list import Undecoded
from tersor.kernels.runtime.op import use_backend
from tests.checks import assert_bits_equal
from tests.triton_device import DEVICE, INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU test_graph_replay sees it")
CODECS = [create("flat", bound=Bound.absolute(0.01))] * 2


class Again:
    """Says that all is decoded, or what it is told; remembers the addresses."""

    def __init__(self, states: list[int] | None) -> None:
        self.states = states
        self.seen: list[Any] = []

    def begin(self, *addresses: tuple[int, ...]) -> torch.Tensor | None:
        self.seen.append(addresses)
        return None if self.states is None else torch.tensor(self.states, dtype=torch.int32)

    def wait(self, *given: Any) -> Any:
        *addresses, meanwhile = given
        self.seen.append(tuple(addresses))
        return None if self.states is None else (self.states, meanwhile())


class List:
    """An encoded list, outputs for it, and what its last decoding left."""

    def __init__(self, states: list[int] | None, decode: Callable[..., None] | None = None) -> None:
        self.xs = [torch.randn(40, device=DEVICE), torch.randn(3, 8, device=DEVICE)]
        self.infos = [TensorInfo.of(x) for x in self.xs]
        self.out = [torch.zeros_like(x) for x in self.xs]
        self.batch, self.again = encode_batch(self.xs, CODECS), Again(states)
        sizes, device = self.batch.sizes, self.batch.buffer.device
        form = calls.form_to_decode(self.infos, CODECS, self.out, len(sizes), device)
        form.undecoded = Undecoded(sizes, decode or self._not_called, self.again)

    def _not_called(self, out: torch.Tensor, payload: torch.Tensor) -> None:
        raise AssertionError("all is decoded")

    @property
    def addresses(self) -> Any:
        buffer, sizes = self.batch.buffer, self.batch.sizes
        places = (buffer.data_ptr(), sizes.data_ptr(), buffer.numel())
        return tuple(x.data_ptr() for x in self.out), places


@pytest.fixture(autouse=True)
def _gpu_kernels() -> Any:
    with use_backend("gpu"):
        yield


def test_a_frame_is_decoded_as_the_last_one_of_its_form():
    one = List([0, 0, 0])
    decoded = decode_batch(one.batch, one.infos, CODECS, one.out)
    assert all(y is x for y, x in zip(decoded, one.out, strict=True))
    begun = begin_decode_batch(one.batch, list(one.infos), CODECS, one.out)
    assert all(y is x for y, x in zip(begun.check(), one.out, strict=True))
    assert one.again.seen == [one.addresses] * 2
    assert not any(y.any() for y in decoded), "nobody else has decoded it"


def test_impossible_sizes_are_refused():
    one = List([1, 0, 0])
    with pytest.raises(CorruptDataError, match="sizes of a batch are impossible"):
        decode_batch(one.batch, one.infos, CODECS, one.out)
    with pytest.raises(CorruptDataError, match="sizes of a batch are impossible"):
        begin_decode_batch(one.batch, one.infos, CODECS, one.out).check()


def test_what_is_left_is_decoded_from_its_payload_into_its_tensor():
    left: list[Any] = []
    one = List([0, 0, 2], lambda out, payload: left.append((out, payload)))
    decode_batch(one.batch, one.infos, CODECS, one.out)
    begin_decode_batch(one.batch, one.infos, CODECS, one.out).check()
    assert len(left) == 2
    for out, payload in left:
        assert out is one.out[1]
        assert_bits_equal(payload, one.batch.payloads()[1])


def test_what_cannot_be_repeated_is_decoded_as_ever():
    one = List(None)
    decoded = decode_batch(one.batch, one.infos, CODECS, one.out)
    assert one.again.seen == [one.addresses]
    for x, y in zip(one.xs, decoded, strict=True):
        assert (x - y).abs().max() <= 0.01


def test_outputs_of_another_form_are_not_decoded_as_the_last_ones():
    one = List([0, 0, 0])
    strided = torch.zeros(80, device=DEVICE)[::2]
    decoded = decode_batch(one.batch, one.infos, CODECS, [strided, one.out[1]])
    assert not one.again.seen
    assert decoded[0] is strided
    assert (strided - one.xs[0]).abs().max() <= 0.01


def test_a_list_is_encoded_as_the_last_one_of_its_form():
    xs = [torch.randn(40, device=DEVICE), torch.randn(3, 8, device=DEVICE)]
    made, seen = encode_batch(xs, CODECS), []
    form = calls.form_to_encode(xs, CODECS)
    encoded = made._parts[0].encoded

    def again(tensors: Any) -> Any:
        seen.append(tensors)
        return encoded if len(seen) == 1 else None

    others = [x + 1 for x in xs]
    form.encode_again = again
    assert encode_batch(others, CODECS).buffer is made.buffer
    assert seen == [others]
    # what is repeated says whether it can be again; this one did not
    assert form.encode_again is None
    form.encode_again = again
    assert not torch.equal(encode_batch(others, CODECS).buffer[:24], made.buffer[:24])
    form.encode_again = again
    encode_batch([others[1], others[0]], CODECS)
    assert len(seen) == 2
