"""Clamps pass the gradients that they pass without compression, at one bit per value."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from tersor.sites import activations
from tersor.sites.activations.clamping import Limits, PassedGradients

CLAMPS = {
    "relu6": functional.relu6,
    "relu6 in place": lambda x: functional.relu6(x, inplace=True),
    "hardtanh": functional.hardtanh,
    "hardtanh in place": lambda x: functional.hardtanh(x, -0.5, 2.0, inplace=True),
    "named": lambda x: functional.hardtanh(x, max_val=0.1, min_val=-0.1),
    "threshold": lambda x: functional.threshold(x, 0.1, 20.0),
    "threshold in place": lambda x: functional.threshold(x, 0.5, value=-3.0, inplace=True),
}
SIGNED = {
    "leaky relu": lambda x: functional.leaky_relu(x, 0.01),
    "prelu": lambda x: functional.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    "relu": functional.relu,
}


def gradients(function, x, context=None):
    """Return the gradients that a function passes back to ``x``, inside a context if one is given."""
    x = x.clone().requires_grad_()
    if context is None:
        out = function(x * 1.0)
    else:
        with context:
            out = function(x * 1.0)
    return torch.autograd.grad(out.sum(), x)[0]


@pytest.mark.parametrize("step", [1.0, 0.5])
@pytest.mark.parametrize("name", [*CLAMPS, *SIGNED])
def test_gradients_pass_where_they_pass_exactly(name, step, generator):
    function, x = {**CLAMPS, **SIGNED}[name], 2 * torch.randn(1 << 14, generator=generator)
    found = gradients(function, x, activations.compressed(step=step))
    assert torch.equal(found, gradients(function, x))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", SIGNED)
def test_signs_are_exact_whatever_else_saves_the_tensor(name, is_first, generator):
    x, weight = (torch.randn(size, size, generator=generator) for size in (128, 128))
    weight.requires_grad_()

    def gradient(context):
        inner = x.clone().requires_grad_()
        with context:
            h = inner * 1.0
            # the product saves it as well, for the gradient of the weight
            outs = (
                [SIGNED[name](h), h @ weight] if is_first else [h @ weight, SIGNED[name](h)][::-1]
            )
        return torch.autograd.grad(outs[0].sum(), inner)[0]

    assert torch.equal(gradient(activations.compressed(step=1.0)), gradient(nullcontext()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CLAMPS)
def test_limits_are_those_of_torch_in_every_dtype(name, dtype):
    # 0.1 is no number of any of these dtypes; next to it are numbers that another rounding would put on the other side
    near = torch.tensor([0.1, -0.1, 0.5, -0.5, 2.0, 6.0, 1.0, -1.0, 0.0], dtype=dtype)
    special = torch.tensor([math.nan, math.inf, -math.inf, 1e-40, -1e-40], dtype=dtype)
    around = [torch.nextafter(near, torch.full_like(near, end)) for end in (-9.0, 9.0)]
    x = torch.cat([near, *around, special]).repeat(300)
    found = gradients(CLAMPS[name], x, activations.compressed(step=1.0))
    assert torch.equal(found, gradients(CLAMPS[name], x))


LIMITS = [
    Limits(0.0, 6.0), Limits(-1e-8, 1e-8), Limits(-math.inf, math.inf), Limits(0.0, math.inf), Limits(0.5, None),
    Limits(2.0, 2.0), Limits(1e-9, 2e-9), Limits(1e4, 2e4), Limits(6e4, math.inf), Limits(-2e4, -1e4), Limits(1e6, 2e6), Limits(-2e6, -1e6), Limits(1e5, math.inf),
]  # fmt: skip


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_restored_values_pass_the_same_gradients(limits, dtype, generator):
    values = torch.randn(1000, generator=generator) * 10.0 ** torch.arange(1000).remainder(8)
    values = values.to(dtype)
    form = PassedGradients.of(values, limits)
    assert torch.equal(limits.passes(form.restored()), limits.passes(values))
    assert form.nbytes <= 1000 // 8 + 16


def test_a_network_of_relu6_holds_little_and_keeps_its_score(generator):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU6(inplace=True), nn.Conv2d(16, 16, 3), nn.ReLU6()
    )  # fmt: skip
    images = torch.randn(8, 3, 24, 24, generator=generator)
    compression = activations.compressed(step=0.5)

    def forward_and_loss():
        with compression:
            out = model(images)
        return out.square().mean()

    assert compression.probe(model, forward_and_loss).score > 0.97
    forward_and_loss()
    assert compression.report().ratio > 10


def test_a_tensor_that_a_clamp_and_a_layer_save_counts_once():
    def original(*functions):
        compression = activations.compressed(step=1.0)
        x = torch.randn(64, 256, requires_grad=True)
        with compression:
            h = x * 1.0
            outs = [function(h) for function in functions]
        assert len(outs) == len(functions)
        return compression.report().original_nbytes

    layer = nn.Linear(256, 8)
    assert original(functional.hardtanh) == 64 * 256 * 4
    assert original(functional.hardtanh, layer) == 64 * 256 * 4
    assert original(layer, functional.hardtanh, functional.relu6) == 64 * 256 * 4
