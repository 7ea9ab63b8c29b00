"""Backward decodes several tensors of a window at once, and asks for them in any order."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from tersor import create, use_backend
from tersor.codecs.group import Group4
from tersor.sites import activations
from tersor.sites.activations import decoding
from tersor.sites.activations.decoding import Decoder
from tests.sites.activations.models import all_equal, gradients

CODEC = create("group4")


@pytest.fixture(autouse=True)
def gpu():
    with use_backend("gpu"):
        yield


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    found: list[int] = []
    decode = Group4.decode
    monkeypatch.setattr(
        Group4,
        "decode",
        lambda self, encoded, outs: found.append(len(outs)) or decode(self, encoded, outs),
    )
    return found


def _chain(num_layers: int) -> nn.Sequential:
    # every output of tanh is saved by tanh and by the next layer
    return nn.Sequential(
        *[layer for _ in range(num_layers) for layer in (nn.Linear(32, 32), nn.Tanh())]
    )


def _saved(model: nn.Module, x: torch.Tensor, window_nbytes: int) -> torch.Tensor:
    with activations.compressed(CODEC, window_nbytes=window_nbytes):
        return model(x)


def test_the_tensors_of_a_window_are_decoded_in_one_call(lengths) -> None:
    model, x = _chain(6), torch.randn(64, 32)
    # three tensors of 8 KiB a window
    _saved(model, x, 3 * 8192).sum().backward()
    assert lengths == [3, 3]


def test_a_tensor_as_large_as_the_window_is_decoded_alone(lengths) -> None:
    model, x = _chain(3), torch.randn(64, 32)
    _saved(model, x, 8192).sum().backward()
    assert lengths == [1, 1, 1]


@pytest.mark.parametrize("window_nbytes", [1, 3 * 8192, 1 << 20])
def test_gradients_are_those_of_tensors_decoded_alone(window_nbytes, monkeypatch) -> None:
    model, x = _chain(6), torch.randn(64, 32)
    compression = activations.compressed(CODEC, window_nbytes=window_nbytes)
    together = gradients(model, model, x, compression)
    monkeypatch.setattr(Decoder, "_before", lambda self, form: {})
    assert all_equal(together, gradients(model, model, x, compression))


def test_backward_may_leave_tensors_out_and_ask_for_them_later(lengths) -> None:
    model, x = _chain(6), torch.randn(64, 32)
    expected = gradients(model, model, x, activations.compressed(CODEC, window_nbytes=1))
    lengths.clear()
    torch.manual_seed(1)
    with activations.compressed(CODEC, window_nbytes=1 << 20):
        out = model(x)
    loss = out.square().mean()
    last = torch.autograd.grad(loss, [model[10].weight], retain_graph=True)
    # decoded ahead for layers that this pass did not reach
    assert lengths == [6]
    assert torch.equal(last[0], expected[-2])
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert all_equal(list(found), expected)


def test_two_windows_that_take_turns_are_both_decoded_ahead(lengths, monkeypatch) -> None:
    # what sigmoid saves no layer without the rule saves as well
    layers = [one for _ in range(4) for one in (nn.Linear(32, 32), nn.Sigmoid(), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(64, 32)
    compression = activations.wrap(
        model, {nn.Sigmoid: create("group4", group=64)}, codec=CODEC, window_nbytes=3 * 8192
    )
    model(x).sum().backward()
    assert compression.report().forms["group4"].num_tensors == 8
    assert sorted(lengths) == [1, 1, 3, 3]
    activations.unwrap(model)


def _held_nbytes() -> int:
    found = [one for one in gc.get_objects() if type(one) is decoding._Decoded]
    return sum(one.values.nbytes for one in found if one.values is not None)


def test_what_was_decoded_ahead_goes_with_the_graph() -> None:
    model, x = _chain(6), torch.randn(64, 32)
    gc.collect()
    gc.disable()
    try:
        out = _saved(model, x, 1 << 20)
        torch.autograd.grad(out.sum(), [model[10].weight], retain_graph=True)
        assert _held_nbytes() >= 4 * 8192
        # at once, without the collector
        del out
        assert _held_nbytes() == 0
    finally:
        gc.enable()


def test_what_was_used_is_let_go(lengths) -> None:
    model, x = _chain(6), torch.randn(64, 32)
    out = _saved(model, x, 1 << 20)
    # the graph stays, and with it all entries
    out.sum().backward(retain_graph=True)
    assert lengths == [6]
    # a tanh's output, which the next layer saved too, until another is asked for
    assert _held_nbytes() <= 8192


def test_without_memory_to_decode_ahead_a_tensor_is_decoded_alone(monkeypatch) -> None:
    def lacking(forms):
        if len(forms) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return together(forms)

    together = decoding.restored_together
    model, x = _chain(6), torch.randn(64, 32)
    compression = activations.compressed(CODEC, window_nbytes=1 << 20)
    expected = gradients(model, model, x, compression)
    monkeypatch.setattr(decoding, "restored_together", lacking)
    assert all_equal(expected, gradients(model, model, x, compression))


def test_a_change_in_place_of_what_was_decoded_ahead_is_noticed() -> None:
    model, x = _chain(6), torch.randn(64, 32)
    with activations.compressed(CODEC, window_nbytes=1 << 20):
        hidden = model[:4](x)
        out = model[4:](hidden)
    torch.autograd.grad(out.sum(), [model[10].weight], retain_graph=True)
    with torch.no_grad():
        hidden.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
