"""One model with one batch, and steps of it that are all the same."""

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
"""Computes the outputs of a batch, given as the model takes it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on its device, in training mode, and a batch.

    Attributes:
        name: of the model.
        model: its parameters have gradients.
        batch: the arguments of the model.
        given: tensors of the batch, which are held in any case.
        loss: of the outputs; computed outside of what compresses.
        blocks: parts that are recomputed one by one where activations are.
        dtype: that the model computes in.
        seed: of every random number of a step, such as those of dropout.
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
        """Of the model."""
        return self.given[0].device

    def forward(self, forward: Forward) -> torch.Tensor:
        """Return the loss; its graph holds what backward needs."""
        torch.manual_seed(self.seed)
        with self._computing():
            outputs = forward(*self.batch)
        return self.loss(outputs.float())

    def step(self, forward: Forward) -> None:
        """Compute the gradient of the batch, in memory that gradients have already."""
        self.clear_gradients()
        self.forward(forward).backward()

    def gradients(self, forward: Forward) -> list[torch.Tensor]:
        """Return the gradient of each parameter that has one, as copies."""
        self.step(forward)
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]

    def clear_gradients(self) -> None:
        """Set gradients to zero; they stay where they are, so that no step has to make them."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _computing(self) -> AbstractContextManager[object]:
        dtype = _DTYPES[self.dtype]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


@contextmanager
def deterministic() -> Iterator[None]:
    """Let torch choose algorithms that give the same bits each time, where it has them."""
    was_on = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            # whether bits repeat is seen from the bits
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=was_warning)
