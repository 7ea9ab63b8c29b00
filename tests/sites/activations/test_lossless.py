"""With a codec that loses nothing, gradients are those of training without compression, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from tersor import Bound
from tersor.sites import activations
from tests.sites.activations.models import (
    MultiHead,
    Transformer,
    all_equal,
    cnn,
    gradients,
    images,
    resnet,
    tokens,
)


def _model(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name == "cnn":
        return cnn(), images()
    if name == "cnn, channels last":
        return cnn().to(memory_format=torch.channels_last), images().contiguous(
            memory_format=torch.channels_last
        )
    if name == "resnet":
        return resnet(), images()
    if name == "transformer":
        return Transformer(), tokens()
    if name == "multi-head":
        return MultiHead(), torch.randn(4, 16, 32)
    return Transformer().double(), tokens()


NAMES = ("cnn", "cnn, channels last", "resnet", "transformer", "multi-head", "float64")


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_equal_bit_for_bit(name) -> None:
    model, x = _model(name)
    exact = gradients(model, model, x)
    compression = activations.compressed("raw")
    assert all_equal(exact, gradients(model, model, x, compression))
    forms = compression.report().forms
    assert forms["raw"].num_tensors > 2
    assert "exact: unknown function" not in forms


@pytest.mark.parametrize("name", NAMES)
def test_a_lossy_codec_changes_them(name) -> None:
    # otherwise the test above would prove nothing
    model, x = _model(name)
    exact = gradients(model, model, x)
    lossy = gradients(model, model, x, activations.compressed(bound=Bound.relative(0.05)))
    assert not all_equal(exact, lossy)


def test_under_autocast_gradients_are_equal_and_weights_are_not_encoded() -> None:
    model, x = Transformer(), tokens()

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    exact = gradients(forward, model, x)
    compression = activations.compressed("raw")
    assert all_equal(exact, gradients(forward, model, x, compression))
    copies = compression.report().forms["exact: cast weights"]
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert weights < copies.original_nbytes == copies.held_nbytes


@pytest.mark.parametrize("forward_is_cast", [False, True])
def test_backward_may_be_called_under_autocast(forward_is_cast) -> None:
    model, x = Transformer(), tokens()

    def found(context) -> list[torch.Tensor]:
        with context, torch.autocast("cpu", torch.bfloat16, enabled=forward_is_cast):
            out = model(x)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out.float().square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    assert all_equal(found(nullcontext()), found(activations.compressed("raw")))


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((3, 2), (1, 2), dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.AvgPool2d(3, 2),
        nn.AdaptiveAvgPool2d(3),
        nn.AdaptiveMaxPool2d(3),
        nn.MaxPool1d(3, 2),
        nn.MaxPool3d(2),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_last", [False, True])
def test_pooling_gives_equal_gradients_without_its_input(pool, is_last) -> None:
    conv = nn.Conv2d(3, 8, 3, padding=1)
    x = torch.randn(16, 3, 15, 17)
    if is_last:
        x = x.contiguous(memory_format=torch.channels_last)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = conv(x)
        y = y.flatten(2) if isinstance(pool, nn.MaxPool1d) else y
        y = y[:, :, None].expand(-1, -1, 4, -1, -1) * 1 if isinstance(pool, nn.MaxPool3d) else y
        found = pool(y)
        return found[0] if isinstance(found, tuple) else found

    exact = gradients(forward, conv, x)
    compression = activations.compressed("raw")
    assert all_equal(exact, gradients(forward, conv, x, compression))
    held = compression.report().forms
    # adaptive average pooling to few pixels is a mean, which saves nothing
    assert "pooling input" in held or isinstance(pool, nn.AdaptiveAvgPool2d)
    if isinstance(pool, (nn.MaxPool2d, nn.MaxPool3d)):
        assert held["pooling indices"].ratio > 10


def test_a_nan_in_a_window_gets_the_gradient_that_it_gets_without_compression() -> None:
    x = torch.randn(4, 8, 16, 16)
    x[0, 0, 3, 3] = torch.nan
    found = []
    for context in (torch.enable_grad(), activations.compressed("raw")):
        leaf = x.clone().requires_grad_()
        with context:
            y = functional.max_pool2d(leaf * 1, 2)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(0)))
        found.append(leaf.grad)
    assert torch.equal(*found)
    assert found[0][0, 0, 3, 3] != 0


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_training_goes_the_same_way(name) -> None:
    losses = []
    for context in (torch.enable_grad(), activations.compressed("raw")):
        torch.manual_seed(0)
        model, x = _model(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with context:
                out = model(x)
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == losses[1]
