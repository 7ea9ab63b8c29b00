"""Outputs of pointwise functions are computed again from the input that they saved."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from tersor import Bound, create
from tersor.sites import activations
from tersor.sites.activations.forms import PackedForm
from tests.sites.activations.models import all_equal, gradients

FUNCTIONS = {
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "hardswish": nn.Hardswish(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "layer_norm": nn.LayerNorm(64),
    "layer_norm-plain": nn.LayerNorm(64, elementwise_affine=False),
    "rms_norm": nn.RMSNorm(64),
}


def _mlp(function: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), function, nn.Linear(64, 32), nn.Tanh())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_output_takes_no_memory_and_gradients_are_those_of_exact_tensors(name) -> None:
    model, x = _mlp(FUNCTIONS[name]), torch.randn(64, 32)
    exact = gradients(model, model, x, None)
    compression = activations.compressed("raw")
    assert all_equal(gradients(model, model, x, compression), exact)
    tally = compression.report().forms["recomputed"]
    assert (tally.num_tensors, tally.original_nbytes, tally.held_nbytes) == (1, 64 * 64 * 4, 0)


@pytest.mark.parametrize("name", ["gelu", "layer_norm"])
def test_what_autocast_copies_for_the_next_layer_takes_no_memory_either(name) -> None:
    model, x = _mlp(FUNCTIONS[name]), torch.randn(2, 32, 32)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    exact = gradients(forward, model, x)
    compression = activations.compressed("raw")
    assert all_equal(gradients(forward, model, x, compression), exact)
    assert compression.report().forms["recomputed"].num_tensors == 1


def _gradient(function, weight: torch.Tensor, hidden: torch.Tensor, context) -> torch.Tensor:
    """Return the gradient of a weight behind a function; with all gradients 1 it shows what the weight's layer read."""
    with context or nullcontext():
        out = functional.linear(function(hidden), weight)
    (found,) = torch.autograd.grad(out.sum(), [weight])
    return found


BY_NAME = {
    "layer_norm": lambda h, w, b: torch.layer_norm(
        input=h, normalized_shape=(64,), weight=w, bias=b
    ),
    "rms_norm": lambda h, w, b: torch.rms_norm(input=h, normalized_shape=(64,), weight=w),
    "gelu": lambda h, w, b: functional.gelu(input=h),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_arguments_may_be_given_by_name(name) -> None:
    weight = torch.randn(8, 64, requires_grad=True)
    scale, shift = torch.rand(2, 64) + 0.5
    x = torch.randn(64, 64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return BY_NAME[name](x * 1.0, scale, shift)

    exact = _gradient(function, weight, x, None)
    compression = activations.compressed("raw")
    assert torch.equal(_gradient(function, weight, x, compression), exact)
    assert "recomputed" in compression.report().forms


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.softmax(-1)], ids=["leaf", "softmax"])
def test_another_tensor_that_a_norm_saves_is_not_taken_for_its_input(make) -> None:
    # its input stays exact, and what it makes of that on a CPU does not
    queries = (1e-3 * torch.randn(64, 64)).requires_grad_()
    weight = torch.randn(8, 64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(make(x), (64,), eps=1e-5)

    exact = _gradient(function, weight, queries, None)
    assert torch.equal(_gradient(function, weight, queries, activations.compressed("raw")), exact)


@pytest.mark.parametrize("name", ["gelu", "layer_norm"])
def test_a_promised_bound_holds_for_outputs_too(name) -> None:
    function = {"gelu": functional.gelu, "layer_norm": lambda h: functional.layer_norm(h, (64,))}
    # rows of small deviation, which a norm makes large
    hidden = torch.randn(512, 64) * torch.logspace(-3, 1, 512)[:, None]
    # gradients are the values that the linear layer read
    weight = torch.zeros(512, 64, requires_grad=True)
    with activations.compressed(bound=Bound.absolute(0.01)):
        read = function[name](hidden.requires_grad_() * 1.0)
        out = functional.linear(read, weight)
    (found,) = torch.autograd.grad(out, [weight], torch.eye(512))
    assert (found - read.detach()).abs().max() <= 0.01


def test_a_rule_for_the_function_says_nothing_of_the_layer_behind() -> None:
    hidden = torch.randn(512, 64)
    weight = torch.zeros(512, 64, requires_grad=True)
    compression = activations.compressed(step=0.2)
    with compression:
        with compression.rule(20.0):
            read = functional.gelu(hidden.requires_grad_() * 1.0)
        out = functional.linear(read, weight)
    assert "recomputed" not in compression.report().forms
    out.sum().backward()


@pytest.mark.parametrize("scale", [0.02, 20.0])
def test_a_predicted_score_knows_the_error_of_what_a_norm_makes(scale) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(3)]
    layers = nn.ModuleList(blocks)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in layers:
            x = x + scale * block(x)
        return x

    x = scale * torch.randn(512, 64)
    compression = activations.compressed(codec="rms", target_score=0.98, every=1)

    def loss() -> torch.Tensor:
        with compression:
            out = forward(x * layers[0][1].weight.mean().exp())
        return (out / scale).square().mean()

    loss().backward()
    measured = 1 - compression.probe(layers, loss).score
    # the probe steered by the first pass before it measured, and by its own result afterwards
    level = compression.report().similarity_level
    compression.load_state_dict({**compression.state_dict(), "level": level, "calibration": 1.0})
    loss().backward()
    predicted = 1 - compression._steering.predicted().score
    assert measured / 4 < predicted < 4 * measured


def test_weights_as_large_as_the_output_are_not_copied() -> None:
    model = nn.Sequential(nn.Linear(32, 4096), nn.LayerNorm(4096), nn.Linear(4096, 8))
    compression = activations.compressed(step=0.5)
    with compression:
        out = model(torch.randn(8, 32))
    assert "recomputed" not in compression.report().forms
    out.sum().backward()


def test_weights_are_those_of_the_forward_pass() -> None:
    found = []
    for context in (None, activations.compressed("raw")):
        torch.manual_seed(0)
        norm = nn.LayerNorm(64)
        model = nn.Sequential(nn.Linear(32, 64), norm, nn.Linear(64, 32))
        x = torch.randn(64, 32)
        with context or nullcontext():
            out = model(x)
        # as ``fully_shard`` frees weights; the layer behind the norm does not need them
        norm.weight.untyped_storage().resize_(0)
        found += torch.autograd.grad(out.sum(), [model[2].weight])
    assert torch.equal(*found)


def test_what_another_tensor_was_cast_to_is_not_recomputed() -> None:
    hidden, weight = torch.randn(64, 64, requires_grad=True), torch.randn(8, 64, requires_grad=True)

    def forward(x: torch.Tensor) -> torch.Tensor:
        normed = functional.layer_norm(x * 1.0, (64,))
        return functional.linear((normed * 2.0).bfloat16().float(), weight)

    forward(hidden).sum().backward()
    expected, weight.grad = weight.grad, None
    with activations.compressed("raw"):
        out = forward(hidden)
    out.sum().backward()
    assert torch.equal(weight.grad, expected)


def test_input_and_output_are_decoded_once(monkeypatch) -> None:
    decoded = []
    restored = PackedForm.restored
    monkeypatch.setattr(PackedForm, "restored", lambda self: decoded.append(self) or restored(self))
    model, x = _mlp(nn.GELU()), torch.randn(64, 32)
    gradients(model, model, x, activations.compressed(step=0.5))
    # the input of GELU, and the output of tanh
    assert len(decoded) == len({id(one) for one in decoded}) == 2


def test_the_gradient_is_that_of_the_decoded_input() -> None:
    codec = create("rms", step=1.0)
    x = torch.randn(256, 64)
    weight = torch.randn(8, 64, requires_grad=True)
    hidden = x.clone().requires_grad_() * 1.0
    with activations.compressed(codec):
        out = functional.linear(functional.gelu(hidden), weight)
    out.sum().backward()
    decoded = codec.unpack(codec.pack(x.flatten())).view(x.shape)
    expected = functional.gelu(decoded).sum(0).expand_as(weight)
    torch.testing.assert_close(weight.grad, expected)
    assert not torch.allclose(weight.grad, functional.gelu(x).sum(0).expand_as(weight))


def test_a_function_in_place_has_no_input_to_compute_from() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2, inplace=True), nn.Linear(64, 32))
    x = torch.randn(64, 32)
    exact = gradients(model, model, x, None)
    compression = activations.compressed("raw")
    assert all_equal(gradients(model, model, x, compression), exact)
    assert "recomputed" not in compression.report().forms


def test_an_output_changed_in_place_is_not_what_the_function_gives() -> None:
    weight, x = torch.randn(8, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(functional.gelu(x * 2).mul_(3.0), weight)

    forward(x).sum().backward()
    expected, weight.grad = weight.grad, None
    compression = activations.compressed("raw")
    with compression:
        out = forward(x)
    out.sum().backward()
    assert torch.equal(weight.grad, expected)
    assert "recomputed" not in compression.report().forms


def test_a_rule_for_the_layer_behind_counts() -> None:
    model, x = _mlp(nn.GELU()), torch.randn(64, 32)
    compression = activations.compressed(step=0.5)
    with compression:
        hidden = model[1](model[0](x))
        with compression.rule(0.5):
            out = model[2](hidden)
    assert "recomputed" not in compression.report().forms
    out.sum().backward()


def test_nothing_stays_when_backward_never_runs() -> None:
    compression = activations.compressed(step=0.5)
    model = _mlp(nn.GELU())
    with compression:
        for _ in range(3):
            out = model(torch.randn(64, 32))
        del out
        gc.collect()
        assert compression.report().live_nbytes == 0
