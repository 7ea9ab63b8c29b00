"""The score of a step that is trained anyway, from the errors of what it saved.

The gradient of a weight W, dW = dY^T X, gets from an error of mean square mse in the saved X a noise of energy
fan_in * mse * |dY|^2. All of it is at hand in backward, so that a score costs no second pass: dY and dW are seen
by hooks, and mse is measured when X is encoded.
"""

from __future__ import annotations

from typing import Any

import torch

from tersor.policy import Similarity, predicted_similarity
from tersor.sites.activations.entry import Entry


class NoiseEstimate:
    """Gathers what one step says about the noise of its weights' gradients."""

    def __init__(self) -> None:
        """Start without weights."""
        self._weights: dict[int, _Weight] = {}
        self._ratios: list[torch.Tensor] = []

    def watch(self, weight: torch.Tensor, out: torch.Tensor, entries: list[Entry]) -> None:
        """See ``Observer``: wait for the gradients of an output and of its weight."""
        if not (weight.is_leaf and weight.requires_grad and out.requires_grad):
            return
        # tensors compare by their values
        if id(weight) not in self._weights:
            self._weights[id(weight)] = _Weight(weight, self._ratios)
        self._weights[id(weight)].watch(out, list(entries))

    def similarity(self) -> Similarity | None:
        """Return the score of the step; None before its backward. Waits for a GPU."""
        if not self._ratios:
            return None
        return predicted_similarity(torch.stack(self._ratios).tolist())


class _Weight:
    """Gathers the noise of one weight's gradient from all its uses, until the gradient comes."""

    def __init__(self, weight: torch.Tensor, ratios: list[torch.Tensor]) -> None:
        self._fan_in = weight[0].numel()
        self._noise: list[torch.Tensor] = []
        self._ratios = ratios
        self._handle: Any = weight.register_hook(self._see_gradient)

    def watch(self, out: torch.Tensor, entries: list[Entry]) -> None:
        """Wait for the gradient of an output made of an input with these entries."""

        def see(gradient: torch.Tensor) -> None:
            found = [entry.mse for entry in entries if entry.mse is not None]
            entries.clear()
            if found:
                energy = gradient.detach().float().square().sum()
                self._noise.append(self._fan_in * energy * found[0])

        out.register_hook(see)

    def _see_gradient(self, gradient: torch.Tensor) -> None:
        self._handle.remove()
        if self._noise:
            energy = gradient.detach().float().square().sum()
            self._ratios.append(torch.stack(self._noise).sum() / energy)
            self._noise.clear()
