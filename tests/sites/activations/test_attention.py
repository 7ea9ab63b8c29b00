"""Attention under compression saves q, k and v alone, and agrees with itself in backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tersor import Bound
from tersor.policy import gradient_similarity
from tersor.sites import activations
from tersor.sites.activations.attention import recomputed_attention
from tests.sites.activations.models import Transformer, gradients, tokens

FORMS = {
    "plain": ((2, 4, 16, 8), (2, 4, 16, 8), {}),
    "causal": ((2, 4, 16, 8), (2, 4, 16, 8), {"is_causal": True}),
    "other lengths, scale": ((2, 4, 16, 8), (2, 4, 24, 8), {"scale": 0.3}),
    "groups of queries": ((2, 4, 16, 8), (2, 2, 16, 8), {"enable_gqa": True}),
    "dropout": ((2, 4, 16, 8), (2, 4, 16, 8), {"dropout_p": 0.5}),
}


def _mask(kind: str) -> torch.Tensor | None:
    if kind == "bool":
        return torch.rand(16, 16) > 0.2
    if kind == "float":
        return torch.randn(16, 16)
    return torch.randn(1, 4, 16, 16, requires_grad=True) if kind == "learned" else None


def _compared(query, key, mask=None, *, dtype=torch.float32, compiled=False, **options) -> None:
    """Assert that output, gradients and the generator afterwards are those of torch."""
    leaves = [torch.randn(s, dtype=dtype, requires_grad=True) for s in (query, key, key)]
    learned = [mask] if mask is not None and mask.requires_grad else []
    found = []
    torch._dynamo.reset()
    own = (
        torch.compile(recomputed_attention, fullgraph=True, backend="aot_eager")
        if compiled
        else recomputed_attention
    )
    for function in (functional.scaled_dot_product_attention, own):
        torch.manual_seed(5)
        out = function(*leaves, mask, **options)
        weight = torch.arange(out.numel(), dtype=dtype).view(out.shape).cos()
        grads = torch.autograd.grad((out * weight).sum(), [*leaves, *learned])
        found.append([out, *grads, torch.get_rng_state()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_output_and_gradients_are_those_of_torch(form, compiled) -> None:
    query, key, options = FORMS[form]
    _compared(query, key, compiled=compiled, **options)


@pytest.mark.parametrize("kind", ["bool", "float", "learned"])
@pytest.mark.parametrize("compiled", [False, True])
def test_masks_count_and_get_their_gradient(kind, compiled) -> None:
    _compared((2, 4, 16, 8), (2, 4, 16, 8), _mask(kind), compiled=compiled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype) -> None:
    _compared((2, 4, 16, 8), (2, 4, 16, 8), dtype=dtype)


def test_the_backend_of_the_forward_pass_is_taken_in_backward() -> None:
    leaves = [torch.randn(2, 4, 64, 32, requires_grad=True) for _ in range(3)]

    def gradient(function, *backends) -> torch.Tensor:
        with sdpa_kernel(list(backends)):
            out = function(*leaves, is_causal=True)
        return torch.cat(torch.autograd.grad(out.square().sum(), leaves))

    torchs = functional.scaled_dot_product_attention
    exact = gradient(torchs, SDPBackend.MATH)
    assert torch.equal(exact, gradient(recomputed_attention, SDPBackend.MATH))
    # else this would prove nothing: the fused backend rounds otherwise
    assert not torch.equal(exact, gradient(torchs, SDPBackend.FLASH_ATTENTION))


def test_only_q_k_and_v_are_saved() -> None:
    leaves = [torch.randn(8, 4, 64, 32, requires_grad=True) for _ in range(3)]
    compression = activations.compressed("raw")
    with compression:
        out = functional.scaled_dot_product_attention(*(x * 1 for x in leaves))
    report = compression.report()
    assert report.forms["raw"].original_nbytes == 3 * leaves[0].nbytes
    assert report.original_nbytes < 3.01 * leaves[0].nbytes
    out.sum().backward()


def test_without_gradients_attention_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr("tersor.sites.activations.region.recomputed_attention", None)
    q = torch.randn(2, 4, 16, 8)
    with activations.compressed("raw"):
        functional.scaled_dot_product_attention(q, q, q)


def _score(context: object) -> float:
    torch.manual_seed(0)
    model, x = Transformer(), tokens()
    with torch.no_grad():
        # scores of a trained model are far from equal
        for block in model.blocks:
            block.qkv.weight.mul_(6)
    exact = gradients(model, model, x)
    return gradient_similarity(exact, gradients(model, model, x, context)).score


def test_recomputing_mends_what_an_exact_log_sum_exp_breaks(monkeypatch) -> None:
    def compression() -> activations.Compression:
        return activations.compressed(bound=Bound.relative(0.1))

    mended = _score(compression())
    # the fault: torch's own attention, its log-sum-exp exact and q, k, v and output lossy
    monkeypatch.setattr(
        "tersor.sites.activations.region.recomputed_attention",
        functional.scaled_dot_product_attention,
    )
    broken = _score(compression())
    assert mended > 0.5
    assert 1 - mended < 0.7 * (1 - broken)
