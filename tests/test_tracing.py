"""Tensors without values of their own are refused in one sentence, wherever torch makes them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

import tersor
from tersor import SpecError, tracing

BOUND = tersor.Bound.relative(1e-3)
IN_GRAPHS = "GraphCodec encodes and decodes inside compiled code"


def encode(x: torch.Tensor) -> torch.Tensor:
    tersor.encode_batch([x], [tersor.create("group8")])
    return x


def compress(x: torch.Tensor) -> torch.Tensor:
    tersor.compress(x, BOUND)
    return x


@pytest.mark.parametrize("call", [encode, compress])
def test_a_fake_tensor_is_refused(call) -> None:
    with FakeTensorMode() as mode:
        fake = torch.zeros(1000, 16)
    with pytest.raises(
        SpecError, match=f"a fake tensor, of torch.compile, torch.export .*{IN_GRAPHS}"
    ):
        call(fake)
    with mode, pytest.raises(SpecError, match="a fake tensor"):
        call(fake)


@pytest.mark.parametrize("call", [encode, compress])
def test_a_tensor_with_values_is_refused_where_everything_made_is_fake(call) -> None:
    x = torch.randn(1000, 16)
    with FakeTensorMode(), pytest.raises(SpecError, match=f"leave it first .*{IN_GRAPHS}"):
        call(x)


@pytest.mark.parametrize("call", [encode, compress])
@pytest.mark.parametrize("transform", ["vmap", "grad", "functionalize"])
def test_a_tensor_inside_a_transform_is_refused(call, transform) -> None:
    x = torch.randn(100, 16)
    run = {
        "vmap": lambda: torch.vmap(call)(x),
        "grad": lambda: torch.func.grad(lambda y: call(y).sum())(x),
        "functionalize": lambda: torch.func.functionalize(call)(x),
    }[transform]
    with pytest.raises(
        SpecError, match=r"vmap, grad and other .* call tersor outside of the transform"
    ):
        run()


def test_a_list_that_was_encoded_before_is_refused_inside_a_transform() -> None:
    x, codecs = torch.randn(100, 16), [tersor.create("group8")]
    for _ in range(2):
        tersor.encode_batch([x[0]], codecs)
    with pytest.raises(SpecError, match="outside of the transform"):
        torch.vmap(lambda row: (tersor.encode_batch([row], codecs), row)[1])(x)


def test_errors_of_other_causes_stay_what_they_are(monkeypatch) -> None:
    def broken(*_given: object) -> None:
        raise RuntimeError("of another cause")

    codec = tersor.create("group8")
    monkeypatch.setattr(type(codec), "pack", broken)
    with pytest.raises(RuntimeError, match="of another cause"):
        tersor.compress(torch.randn(10), codec=codec)
    with pytest.raises(SpecError, match="outside of the transform"):
        torch.vmap(lambda x: (tersor.compress(x, codec=codec), x)[1])(torch.randn(3, 3))


def test_a_torch_without_these_private_functions_can_still_be_imported(monkeypatch) -> None:
    monkeypatch.delattr(torch._C._functorch, "maybe_current_level")
    asks = tracing._private_asks()
    assert asks[0](torch.ones(2)) is asks[1]() is asks[2]() is False


def test_a_gpu_without_memory_is_reported_as_such_inside_a_transform(monkeypatch) -> None:
    def without_memory(*_given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    codec, x = tersor.create("group8"), torch.randn(10)
    monkeypatch.setattr(type(codec), "pack", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        torch.func.grad(lambda y: (tersor.compress(x, codec=codec), y.sum())[1])(torch.ones(2))
