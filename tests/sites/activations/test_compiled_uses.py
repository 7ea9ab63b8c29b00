"""Inside compiled code, a tensor has an error only if everything that uses it in backward tolerates one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional

from tersor.policy import gradient_similarity
from tersor.sites import activations
from tersor.sites.activations import compiled_graphs

_KINDS = ("saved as traced", "recomputed", "decomposed")
_LENGTH = 64


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiler(kind: str, encoded: list[str] | None = None) -> object:
    """Return a backend with the graphs of aot_eager or inductor, which runs them and notes what is encoded."""

    def compiler(graph, _):
        for node in graph.graph.nodes:
            if encoded is not None and "tersor.encode" in str(node.target):
                encoded.append(str(node.args[0]))
        return make_boxed_func(graph.forward)

    options: dict[str, object] = {}
    if kind != "saved as traced":
        options["partition_fn"] = min_cut_rematerialization_partition
    if kind == "decomposed":
        options["decompositions"] = select_decomp_table()
    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, **options)


def _encoded(
    kind: str, function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]
) -> list[str]:
    """Return what is encoded of a compiled function of tensors of these shapes, which need gradients."""
    encoded: list[str] = []

    def forward(*tensors: torch.Tensor) -> torch.Tensor:
        # outputs exist anyway and are never encoded
        return 2 * function(*tensors)

    compiled = torch.compile(forward, fullgraph=True, backend=_compiler(kind, encoded))
    with activations.compiled("group4"):
        out = compiled(*(torch.randn(shape, requires_grad=True) for shape in shapes))
    out.sum().backward()
    return encoded


_EXACT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "exp": lambda x, w: (x @ w).exp(),
    "expm1": lambda x, w: (x @ w).expm1(),
    "root": lambda x, w: (x @ w).sqrt(),
    "inverse root": lambda x, w: (x @ w).rsqrt(),
    "reciprocal": lambda x, w: (x @ w).reciprocal(),
    "logarithm": lambda x, w: (x @ w).log(),
    "negative power": lambda x, w: (x @ w) ** -2,
    "square": lambda x, w: (x @ w).square(),
    "quotient": lambda x, w: (x @ w) / (w @ x),
    "length": lambda x, w: (x @ w) / (x @ w).norm(dim=-1, keepdim=True),
    "softmax": lambda x, w: (x @ w).softmax(-1),
    "log-softmax": lambda x, w: (x @ w).log_softmax(-1),
    "unknown": lambda x, w: (x @ w).sin(),
    "divisor behind a cast": lambda x, w: x / (x @ w).double(),
    "computed weight": lambda x, w: functional.linear(x, w @ w.t()),
    "computed weight of a convolution": lambda x, w: functional.conv1d(x[None], (w @ w)[..., None]),
    "constant": lambda x, w: (x @ w) * torch.arange(4096.0).sin().view(64, 64),
    "hardtanh": lambda x, w: functional.hardtanh(x @ w),
    "relu6": lambda x, w: functional.relu6(x @ w),
    "threshold": lambda x, w: functional.threshold(x @ w, 0.3, 0.0),
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", _EXACT)
def test_what_turns_a_small_error_into_a_large_one_is_exact(kind, name) -> None:
    assert _encoded(kind, _EXACT[name], (64, 64), (64, 64)) == []


_LOSSY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, w: (x @ w) * (w @ x),
    "matrix product": lambda x, w: functional.linear(x @ w, w),
    "batched": lambda x, w: torch.bmm((x @ w)[None], w[None]),
    "convolution": lambda x, w: functional.conv1d((x @ w)[None], w[..., None]),
    "attention": lambda x, w: functional.scaled_dot_product_attention(
        *(3 * [(x @ w).view(1, 4, 64, 16)])
    ),
    "layer norm": lambda x, w: functional.layer_norm(x @ w, (64,)),
    "group norm": lambda x, w: functional.group_norm((x @ w).view(4, 16, 64), 4),
    "batch norm": lambda x, w: functional.batch_norm(x @ w, None, None, training=True),
    "rms norm": lambda x, w: functional.rms_norm(x @ w, (64,)),
    **{
        name: lambda x, w, name=name: getattr(functional, name)(x @ w)
        for name in (
            "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "hardswish", "tanh", "sigmoid",
            "glu",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", _LOSSY)
def test_what_keeps_an_error_small_is_lossy(kind, name) -> None:
    assert len(_encoded(kind, _LOSSY[name], (64, 64), (64, 64))) > 0


@pytest.mark.parametrize("kind", _KINDS[1:])
def test_a_value_recomputed_into_a_divisor_is_exact(kind) -> None:
    def divide(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x / (functional.silu(x @ w) * 2 + 1)

    assert _encoded(kind, divide, (64, 64), (64, 64)) == []


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("times", [1, 16])
def test_a_factor_much_smaller_than_the_product_is_exact(kind, times) -> None:
    def scale(x: torch.Tensor, w: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
        return (x @ w) * large

    assert len(_encoded(kind, scale, (64, 64), (64, 64), (times, 64, 64))) == (times == 1)


def test_a_constant_computed_from_an_input_is_exact() -> None:
    torch.manual_seed(0)
    layer, frozen = nn.Linear(64, 64), torch.randn(1, 64, 64)

    def forward(x: torch.Tensor, frozen: torch.Tensor) -> torch.Tensor:
        return 2 * torch.bmm(layer(x)[None], frozen * 2)

    def gradient(function: Callable[..., torch.Tensor]) -> torch.Tensor:
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
        with activations.compiled("group4"):
            out = function(x, frozen)
        return torch.autograd.grad(out.sum(), x)[0]

    torch.testing.assert_close(
        gradient(torch.compile(forward, backend="aot_eager")), gradient(forward)
    )


def test_a_torch_that_hides_its_graphs_gets_exact_tensors_and_a_warning(
    monkeypatch, caplog
) -> None:
    monkeypatch.setattr(compiled_graphs, "_hook_context", lambda: None)
    monkeypatch.setattr(compiled_graphs, "_warned", set())
    with caplog.at_level("WARNING", logger="tersor"):
        assert _encoded(_KINDS[0], _LOSSY["product"], (64, 64), (64, 64)) == []
    assert sum("does not show its graphs" in line for line in caplog.messages) == 1


class _Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) / (self.b(x).square() + 1e-3).sqrt()


class _Log(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(functional.softplus(self.a(x)))


class _Norm(nn.Module):
    """Statistics of 64 samples and 32 groups have two dimensions and 8 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 3, bias=False), nn.GroupNorm(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = torch.logspace(-3, 1, 64).view(8, 8).t().reshape(-1, 1, 1, 1)
        return self.norm(self.conv(x[:64, :48].reshape(64, 3, 4, 4) * scales))


class _Attention(nn.Module):
    """Attention with a mask that is computed in the forward pass and, with a bias, needs a gradient."""

    def __init__(self, masked: float, *, has_bias: bool) -> None:
        super().__init__()
        self.qkv, self.masked = nn.Linear(64, 192), masked
        self.bias = nn.Parameter(2 * torch.randn(4, _LENGTH, _LENGTH)) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(-1, _LENGTH, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mask = torch.full((_LENGTH, _LENGTH), self.masked).triu(1)
        if self.bias is not None:
            mask = mask + self.bias
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class _Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(x, src_mask=mask)


def _score(model: nn.Module, x: torch.Tensor, kind: str) -> float:
    """Return how similar gradients of the compiled model are to exact ones; 0 if they are not finite."""
    weight = torch.randn_like(model(x))
    parameters = list(model.parameters())
    exact = torch.autograd.grad((model(x) * weight).sum(), parameters)
    compiled = torch.compile(model, backend=_compiler(kind))
    with activations.compiled("group4"):
        out = compiled(x)
    found = torch.autograd.grad((out * weight).sum(), parameters)
    is_finite = all(one.isfinite().all() for one in found)
    return gradient_similarity(exact, found).score if is_finite else 0.0


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("make", [_Ratio, _Log, _Norm])
def test_divisors_and_statistics_are_exact(kind, make) -> None:
    assert _score(make(), 3 * torch.randn(128, 64), kind) > 0.9


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("masked", [-math.inf, -1e4])
@pytest.mark.parametrize("has_bias", [False, True])
def test_masks_and_biases_of_attention_are_exact(kind, masked, has_bias) -> None:
    model = _Attention(masked, has_bias=has_bias)
    assert _score(model, torch.randn(2, _LENGTH, 64), kind) > 0.9


@pytest.mark.parametrize("kind", _KINDS)
def test_a_causal_layer_has_similar_gradients(kind) -> None:
    assert _score(_Causal(), torch.randn(2, _LENGTH, 64), kind) > 0.9
