"""Prediction of a step's score from the errors of its saved inputs, without a second pass.

An error of mean square mse in the saved input X adds noise of energy fan_in * mse * |dY|^2 to the gradient of a
weight, dW = dY^T X. All of these are available in an ordinary step: hooks see dY and dW in backward, and mse is
measured when X is encoded. The fan-in is the number of input values that each value of dY is multiplied by.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any, Final

import torch

from tersor.policy import Similarity, predicted_similarity
from tersor.sites.activations.entry import Entry


class NoiseEstimate:
    """Collects the relative noise of the weight gradients of one step.

    Attributes:
        missed: functions of the step whose saved errors the closed form misses.
    """

    def __init__(self) -> None:
        """Start without weights."""
        self.missed: set[str] = set()
        self._weights: dict[int, _Weight] = {}
        self._ratios: list[torch.Tensor] = []

    def watch(self, weight: torch.Tensor, out: torch.Tensor, entries: list[Entry]) -> None:
        """See ``Observer``; registers hooks on the gradients of the output and of the weight."""
        if not (weight.is_leaf and weight.requires_grad and out.requires_grad):
            return
        # by id, because tensors compare elementwise
        if id(weight) not in self._weights:
            self._weights[id(weight)] = _Weight(weight, self._ratios)
        self._weights[id(weight)].watch(out, list(entries))

    def miss(self, name: str) -> None:
        """See ``Observer``."""
        self.missed.add(name)

    def similarity(self) -> Similarity | None:
        """Return the predicted similarity of the step; None before its backward. Waits for a GPU."""
        if not self._ratios:
            return None
        return predicted_similarity(torch.stack(self._ratios).tolist())


class _Weight:
    """Collects the noise in the gradient of one weight over all its uses, until that gradient is computed."""

    def __init__(self, weight: torch.Tensor, ratios: list[torch.Tensor]) -> None:
        self._shape = weight.shape
        self._noise: list[torch.Tensor] = []
        self._ratios = ratios
        self._handle: Any = weight.register_hook(self._see_gradient)

    def watch(self, out: torch.Tensor, entries: list[Entry]) -> None:
        """Register a hook on the gradient of an output, whose input has these entries."""
        fan_in = _fan_in(self._shape, out)

        def see(gradient: torch.Tensor) -> None:
            found = [entry.mse for entry in entries if entry.mse is not None]
            entries.clear()
            if found:
                energy = gradient.detach().float().square().sum()
                self._noise.append(fan_in * energy * found[0])

        out.register_hook(see)

    def _see_gradient(self, gradient: torch.Tensor) -> None:
        self._handle.remove()
        if self._noise:
            energy = gradient.detach().float().square().sum()
            noise = torch.stack(self._noise).sum()
            # without noise even a gradient of zero is exact, such as that of a weight before one that starts at zero
            self._ratios.append(torch.where(noise == 0, noise, noise / energy))
            self._noise.clear()


_options_of: Final = attrgetter(
    "_saved_stride", "_saved_padding", "_saved_dilation", "_saved_output_padding"
)


def _fan_in(weight: torch.Size, out: torch.Tensor) -> float:
    """Return how many values of the input contribute to a value of the output, on average; padding is ignored.

    A transposed convolution, with a weight of (in, out / groups, *kernel), multiplies each of N * in * places(X) values
    of its input by out / groups * kernel values of dY. There are N * out * places(Y) of these, so the mean is
    in / groups * kernel * places(X) / places(Y), which for large maps is in / groups * kernel / stride.
    """
    node: Any = out.grad_fn
    if node is not None and not hasattr(node, "_saved_transposed") and len(weight) > 2:
        # that of an unbatched input is behind a squeeze
        node = node.next_functions[0][0]
    if not getattr(node, "_saved_transposed", False):
        return math.prod(weight[1:])
    num_out, *places = out.shape[1 - len(weight) :]
    in_places: list[int] = [
        (size + 2 * padding - dilation * (kernel - 1) - 1 - extra) // stride + 1
        for size, kernel, stride, padding, dilation, extra in zip(
            places, weight[2:], *_options_of(node), strict=True
        )
    ]
    return math.prod(weight) * math.prod(in_places) / (num_out * math.prod(places))
