"""Constants, to which no gradient flows: what the user holds costs nothing, sparse features come back exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tersor.sites import activations
from tests.sites.activations.models import all_equal, gradients

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


def _mostly_zeros(*shape: int, share: float = 0.02) -> torch.Tensor:
    return torch.where(torch.rand(shape) < share, torch.rand(shape), 0.0)


def _forms(forward, model: nn.Module, x: torch.Tensor, **options) -> dict[str, int]:
    """Return the bytes held after a forward pass, by form."""
    compression = activations.compressed(**options)
    with compression:
        out = forward(x)
    report = compression.report()
    assert report.live_nbytes == report.held_nbytes
    out.sum().backward()
    return {form: tally.held_nbytes for form, tally in report.forms.items()}


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning")
@pytest.mark.parametrize("layout", ["matmul", "linear", "csr", "coo", "csc"])
def test_a_matrix_that_the_user_holds_costs_nothing(layout) -> None:
    matrix = _mostly_zeros(100, 100, share=0.5)
    if layout in ("csr", "coo", "csc"):
        matrix = matrix.to_sparse(layout=getattr(torch, f"sparse_{layout}"))
    layers = nn.Linear(32, 16), nn.Linear(16, 8)
    model = nn.Sequential(*layers)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            y = layer(x)
            x = functional.linear(y.T, matrix).T if layout == "linear" else matrix @ y
        return x

    x = torch.randn(100, 32)
    held = _forms(forward, model, x, step=1.0)
    others = {"parameters", "held by others", "rms", "exact: small"}
    assert held.keys() <= others
    compression = activations.compressed(step=1.0)
    with compression:
        out = forward(x)
    assert compression.report().original_nbytes < matrix.shape[0] ** 2 * 4
    out.sum().backward()


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_sparse_matrix_that_only_autograd_holds_is_counted_once_with_its_places(layout) -> None:
    dense, weight = _mostly_zeros(200, 200), nn.Parameter(torch.randn(200, 8))

    def forward(_: torch.Tensor) -> torch.Tensor:
        matrix = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"))
        return matrix @ weight + matrix @ (weight * 1)

    num = int(dense.count_nonzero())
    nbytes = {"csr": (201 + num) * 8 + num * 4, "coo": 2 * num * 8 + num * 4}[layout]
    held = _forms(forward, nn.Module(), dense, step=1.0)
    assert held["exact: layout"] == nbytes


def test_dropped_out_sparse_features_come_back_exactly_in_few_bytes() -> None:
    features, layer = _mostly_zeros(300, 500), nn.Linear(500, 16)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return layer(functional.dropout(x, 0.5))

    exact = gradients(forward, layer, features)
    compression = activations.compressed(step=1.0)
    assert all_equal(exact, gradients(forward, layer, features, compression))
    [(form, tally)] = [
        (form, tally) for form, tally in compression.report().forms.items() if form != "parameters"
    ]
    assert (form, tally.num_tensors) == ("sparse or two values", 1)
    assert tally.ratio > 20


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_dropped_out_features_with_few_zeros_are_lossy(share) -> None:
    features, layer = _mostly_zeros(300, 500, share=share), nn.Linear(500, 16)
    held = _forms(lambda x: layer(functional.dropout(x, 0.5)), layer, features, step=1.0)
    assert held.keys() == {"rms"}


def test_a_constant_factor_that_must_be_exact_becomes_small_where_it_is_sparse() -> None:
    weight, matrix = nn.Parameter(torch.randn(100, 8)), _mostly_zeros(100, 100)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return (matrix * x) @ (weight * 1)

    x = torch.tensor(2.0)
    model = nn.ParameterList([weight])
    compression = activations.compressed(step=1.0)
    assert all_equal(gradients(forward, model, x), gradients(forward, model, x, compression))
    assert compression.report().forms["sparse or two values"].ratio > 8


@pytest.mark.parametrize("form", ["every second", "columns", "channels", "indices"])
def test_a_slice_of_what_the_user_holds_costs_nothing(form) -> None:
    table, layer, conv = nn.Embedding(100, 8), nn.Linear(64, 16), nn.Conv2d(3, 8, 3)
    features, images = torch.randn(256, 128), torch.randn(8, 6, 32, 32)
    indices = torch.randint(0, 100, (256, 128))

    def forward(_: torch.Tensor) -> torch.Tensor:
        if form == "channels":
            return conv(images[:, :3])
        if form == "indices":
            return table(indices[:, ::2])
        return layer(features[:, ::2] if form == "every second" else features[:, :64])

    model = nn.ModuleList([table, layer, conv])
    compression = activations.compressed(step=1.0)
    exact = gradients(forward, model, features)
    assert all_equal(exact, gradients(forward, model, features, compression))
    assert compression.report().forms.keys() <= {"parameters", "held by others", "exact: small"}
    assert compression.report().forms["held by others"].num_tensors == 1


def test_a_slice_that_is_saved_twice_is_held_once() -> None:
    features, layers = torch.randn(256, 128), [nn.Linear(64, 16) for _ in range(2)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        part = (x * 1)[:, ::2]
        return layers[0](part) + layers[1](part)

    compression = activations.compressed(step=1.0)
    model = nn.ModuleList(layers)
    exact = gradients(forward, model, features)
    assert all_equal(exact, gradients(forward, model, features, compression))
    report = compression.report()
    assert (report.forms["exact: input"].num_tensors, report.num_duplicates) == (1, 1)


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_a_constant_that_only_autograd_holds_are_not_held_by_each_other(dim) -> None:
    features, layers = torch.randn(256, 256), [nn.Linear(256 // (1 + dim), 16) for _ in range(2)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        parts = (x * 1).chunk(2, dim)
        return sum(layer(part).sum() for layer, part in zip(layers, parts, strict=True))

    held = _forms(forward, nn.ModuleList(layers), features, step=1.0)
    assert "held by others" not in held


def test_a_slice_and_its_conjugate_are_told_apart() -> None:
    z = torch.randn(64, 64, dtype=torch.complex64)
    weight = nn.Parameter(torch.randn(64, 32, dtype=torch.complex64))
    model = nn.ParameterList([weight])

    def forward(z: torch.Tensor) -> torch.Tensor:
        part = z[:, ::2]
        return torch.view_as_real(part * weight + 2 * (part.conj() * weight))

    exact = gradients(forward, model, z)
    assert all_equal(exact, gradients(forward, model, z, activations.compressed("raw")))


@pytest.mark.parametrize("kind", ["dense", "slice", "csr", "integers"])
def test_what_the_user_holds_costs_nothing_where_backward_runs_inside(kind) -> None:
    table, layer = nn.Embedding(100, 8), nn.Linear(64, 16)
    features, indices = torch.randn(256, 128), torch.randint(0, 100, (64, 64))
    matrix = _mostly_zeros(256, 256).to_sparse_csr()
    forward = {
        "dense": lambda: layer(features.view(-1, 64)),
        "slice": lambda: layer(features[:, ::2]),
        "csr": lambda: matrix @ layer.weight.repeat(16, 1),
        "integers": lambda: table(indices),
    }[kind]
    compression = activations.compressed(step=1.0)
    with compression:
        forward().sum().backward()
    report = compression.report()
    assert report.forms["held by others"].num_tensors == 1
    assert report.held_nbytes < 4096
    assert report.live_nbytes == 0


def test_what_nobody_else_holds_was_held_where_backward_runs_inside() -> None:
    layer = nn.Linear(64, 16)
    compression = activations.compressed(step=1.0)
    with compression:
        layer(torch.randn(256, 64)).sum().backward()
    assert compression.report().held_nbytes == 256 * 64 * 4
