"""Gradients of one pass that leaves the model and the random number generators unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tersor.errors import SpecError


def gradients_of(
    model: nn.Module, forward_and_loss: Callable[[], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return gradients of a model's weights by name; one-dimensional parameters only if there are no others.

    They are the local gradients of this rank, not averaged over ranks, and complete also under ``fully_shard``.

    Raises:
        SpecError: no weight has a gradient, or the arguments are not a module and a function that returns one loss.
    """
    given: Any = model
    if not isinstance(given, nn.Module) or not callable(forward_and_loss):
        raise SpecError(
            "give the model, then a function without arguments that runs a forward pass and returns its loss"
        )
    named = {name: p for name, p in _differentiated(model).items() if p.requires_grad}
    weights = {name: p for name, p in named.items() if p.dim() > 1} or named
    # a comparison needs no gradients averaged over ranks
    no_sync: Any = getattr(model, "no_sync", nullcontext)
    with _unchanged(model), no_sync(), torch.enable_grad():
        loss = forward_and_loss()
        if getattr(loss, "requires_grad", False) and loss.numel() != 1:
            raise SpecError(
                f"forward_and_loss must return a loss of one value, not a tensor of shape {tuple(loss.shape)}"
            )
        if not getattr(loss, "requires_grad", False) or not weights:
            raise SpecError(
                "forward_and_loss must return the loss of a forward pass that records gradients of the model"
            )
        found: Any = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    pairs = zip(weights, found, strict=True)
    gradients = {name: gradient for name, gradient in pairs if gradient is not None}
    if not gradients:
        raise SpecError(
            "the loss does not depend on any weight of the model; give the model it is of"
        )
    return gradients


def _differentiated(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a forward pass uses, by name; under ``fully_shard`` the gathered ones."""
    found = dict(model.named_parameters())
    # named_modules yields outer modules first; they do not gather the parameters of inner ones
    for prefix, part in model.named_modules():
        sharded: Any = part
        if isinstance(sharded, FSDPModule):
            sharded.unshard()
            found |= dict(part.named_parameters(prefix))
            sharded.reshard()
    return found


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore buffers, such as running means, and random number generators on exit."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {x.device for x in model.parameters() if x.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices, key=str)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
