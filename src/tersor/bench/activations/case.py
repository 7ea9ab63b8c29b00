"""One model with one batch, whose training step can be repeated exactly."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

_DTYPES: Final = {"fp32": None, "bf16": torch.bfloat16}

Forward = Callable[..., torch.Tensor]
"""Computes the model's outputs from the arguments of the model."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on its device, in training mode, and a batch.

    Attributes:
        name: name of the model.
        model: the model; its parameters have gradients.
        batch: the arguments of the model.
        given: tensors of the batch, which stay in memory anyway.
        loss: computes the loss from the outputs; it runs outside of any compression.
        blocks: the parts that recomputation checkpoints one by one.
        dtype: dtype that the model computes in.
        seed: seed of all random numbers of a step, such as those of dropout.
    """

    name: str
    model: nn.Module
    batch: tuple[Any, ...]
    given: tuple[torch.Tensor, ...]
    loss: Callable[[torch.Tensor], torch.Tensor]
    blocks: Sequence[nn.Module]
    dtype: str = "fp32"
    seed: int = 0

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.given[0].device

    def forward(self, forward: Forward) -> torch.Tensor:
        """Return the loss, whose graph holds what backward needs."""
        torch.manual_seed(self.seed)
        with self._computing():
            outputs = forward(*self.batch)
        return self.loss(outputs.float())

    def step(self, forward: Forward) -> None:
        """Compute the gradients of the batch into existing gradient tensors."""
        self.clear_gradients()
        self.forward(forward).backward()

    def gradients(self, forward: Forward) -> list[torch.Tensor]:
        """Return the gradient of each parameter that has one, as copies."""
        self.step(forward)
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]

    def clear_gradients(self) -> None:
        """Zero the gradients in place, so that no step has to allocate them."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _computing(self) -> AbstractContextManager[object]:
        dtype = _DTYPES[self.dtype]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


@contextmanager
def deterministic() -> Iterator[None]:
    """Make torch use deterministic algorithms inside the block where it has them."""
    was_on = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            # callers compare the bits, so a warning about them adds nothing
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=was_warning)
