"""Which arguments of a function may be lossy: inputs, but neither weights nor masks of attention."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from tersor.policy import gradient_similarity
from tersor.sites import activations

LENGTH = 64


class BiasedAttention(nn.Module):
    """Attention with a learned bias and a causal mask, both in one float argument, as in T5 and Swin."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        self.qkv, self.masked = nn.Linear(64, 192), masked
        self.bias = nn.Parameter(2 * torch.randn(4, LENGTH, LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mixed values of four heads."""
        q, k, v = self.qkv(x).view(-1, LENGTH, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mask = torch.full((LENGTH, LENGTH), self.masked).triu(1) + self.bias
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("masked", [-math.inf, -1e4])
@pytest.mark.parametrize("codec", ["rms", "group4", "mask4"])
def test_a_learned_bias_of_attention_is_exact(masked, codec, generator):
    model, x = BiasedAttention(masked), torch.randn(2, LENGTH, 64, generator=generator)
    weight = torch.randn(2, 4, LENGTH, 16, generator=generator)

    def gradients(context):
        with context:
            out = model(x)
        return torch.autograd.grad((out * weight).sum(), list(model.parameters()))

    exact, found = gradients(nullcontext()), gradients(activations.compressed(codec))
    assert all(g.isfinite().all() for g in found)
    assert gradient_similarity(exact, found).score > 0.85


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_computed_or_frozen_weight_is_exact_under_autocast(is_frozen, generator):
    # as many rows as outputs: the cast of the weight has as many values as the input
    weight = torch.randn(64, 64, generator=generator)
    x = torch.randn(64, 64, generator=generator).requires_grad_()
    if not is_frozen:
        weight.requires_grad_()

    def gradient(context):
        with torch.autocast("cpu", torch.bfloat16), context:
            out = functional.linear(x * 1.0, weight if is_frozen else weight * 0.7)
        return torch.autograd.grad(out.float().sum(), x)[0]

    assert torch.equal(gradient(activations.compressed()), gradient(nullcontext()))


def test_the_input_is_lossy_under_autocast_whatever_its_layout(generator):
    x = torch.randn(64, 32, 48, generator=generator, requires_grad=True)
    compression = activations.compressed()
    with torch.autocast("cpu", torch.bfloat16), compression:
        # not contiguous, so that the product copies it as well
        out = functional.linear((x * 1.0).transpose(0, 1), torch.randn(8, 48, requires_grad=True))
    assert out.requires_grad
    assert "exact: linear" not in compression.report().forms
    assert compression.report().ratio > 4


def test_copies_of_weights_that_autocast_makes_count_as_held():
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(3)])
    compression = activations.compressed(codec="raw")
    x = torch.randn(16, 512, requires_grad=True)
    with compression, torch.autocast("cpu", torch.bfloat16):
        out = model(model(x * 1.0))
    assert out.requires_grad
    tally = compression.report().forms["exact: cast weights"]
    # each copy is made once, and saved in both passes
    assert tally.held_nbytes == tally.original_nbytes == 3 * 2 * 512 * 512


def test_weights_of_tensor_parallelism_are_parameters():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64))
        mesh = init_device_mesh("cpu", (1,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        compression = activations.compressed(codec="raw")
        x = torch.randn(4, 64, requires_grad=True)
        with compression:
            out = model(x * 1.0)
        assert out.requires_grad
        assert compression.report().held_nbytes < 4 * 64 * 1024
        out.sum().backward()
    finally:
        dist.destroy_process_group()


def test_average_pooling_of_one_dimension_saves_no_input():
    compression = activations.compressed(codec="raw")
    x = torch.randn(8, 16, 256, requires_grad=True)
    with compression:
        out = functional.avg_pool1d(x * 1.0, 2)
    assert out.requires_grad
    assert compression.report().held_nbytes == 0


def test_the_input_of_pooling_and_of_a_layer_counts_once_in_either_order():
    def original(*functions):
        compression = activations.compressed(step=1.0)
        x = torch.randn(8, 16, 64, requires_grad=True)
        with compression:
            h = x * 1.0
            outs = [function(h) for function in functions]
        assert len(outs) == len(functions)
        return compression.report().original_nbytes

    layer = nn.Conv1d(16, 4, 3)
    # indices of the pooling are not floats of the input
    pool = functional.avg_pool1d
    assert original(layer) == 8 * 16 * 64 * 4
    assert (
        original(lambda h: pool(h, 2), layer)
        == original(layer, lambda h: pool(h, 2))
        == 8 * 16 * 64 * 4
    )
