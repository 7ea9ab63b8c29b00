"""The score of a step that is trained anyway, from the errors of what it saved.

The gradient of a weight W, dW = dY^T X, gets from an error of mean square mse in the saved X a noise of energy
fan_in * mse * |dY|^2. All of it is at hand in backward, so that a score costs no second pass: dY and dW are seen
by hooks, and mse is measured when X is encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tersor.policy import Similarity, predicted_similarity
from tersor.sites.activations.entry import Entry


class NoiseEstimate:
    """Gathers what one step says about the noise of its weights' gradients."""

    def __init__(self) -> None:
        """Start without weights."""
        self._noise: WeakKeyDictionary[torch.Tensor, list[torch.Tensor]] = WeakKeyDictionary()
        self._ratios: list[torch.Tensor] = []

    def watch(self, weight: torch.Tensor, out: torch.Tensor, entries: list[Entry]) -> None:
        """See ``Observer``: wait for the gradients of an output and of its weight."""
        if not (weight.is_leaf and weight.requires_grad and out.requires_grad):
            return
        if weight not in self._noise:
            self._noise[weight] = []
            handle: list[Any] = []
            handle.append(weight.register_hook(self._weight_hook(weight, handle)))
        fan_in = weight[0].numel()
        # an object that lives as long as the entry would keep it alive
        out.register_hook(self._output_hook(weight, fan_in, list(entries)))

    def _output_hook(
        self, weight: torch.Tensor, fan_in: int, entries: list[Entry]
    ) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            found = [entry.mse for entry in entries if entry.mse is not None]
            entries.clear()
            if found and weight in self._noise:
                energy = gradient.detach().float().square().sum()
                self._noise[weight].append(fan_in * energy * found[0])

        return see

    def _weight_hook(
        self, weight: torch.Tensor, handle: list[Any]
    ) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            for one in handle:
                one.remove()
            noise = self._noise.pop(weight, [])
            if noise:
                energy = gradient.detach().float().square().sum()
                self._ratios.append(torch.stack(noise).sum() / energy)

        return see

    def similarity(self) -> Similarity | None:
        """Return the score of the step; None before its backward. Waits for a GPU."""
        if not self._ratios:
            return None
        return predicted_similarity(torch.stack(self._ratios).tolist())
