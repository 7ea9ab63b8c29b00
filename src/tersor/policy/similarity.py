"""How alike two gradients are: of the exact tensors, and of tensors that were saved with an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tersor.errors import SpecError


class Similarity(NamedTuple):
    """Of the gradients of several weights, G exact and H with an error.

    Attributes:
        score: mean over weights of ``max(0, 2<G,H> / (|G|^2 + |H|^2))``: 1 for equal gradients, less for
            noise, for bias and for another length.
        weighted: the same mean, each weight counted by its bytes; below ``score`` where the gradients of large weights
            are the worse ones. Equal to ``score`` where it was predicted, without knowing sizes.
        lowest: of a single weight.
        cosine: mean of the cosines, which do not see a wrong length.
    """

    score: float
    weighted: float
    lowest: float
    cosine: float


def gradient_similarity(exact: Sequence[torch.Tensor], lossy: Sequence[torch.Tensor]) -> Similarity:
    """Compare gradients weight by weight; two of zeros are equal, one that is not finite scores 0.

    Raises:
        SpecError: there is nothing to compare, or the lists do not fit each other.

    Example:
        >>> g = torch.tensor([3.0, 4.0])
        >>> gradient_similarity([g], [2 * g]).score, gradient_similarity([g], [2 * g]).cosine
        (0.8, 1.0)
    """
    if not exact or [x.shape for x in exact] != [x.shape for x in lossy]:
        raise SpecError(
            "two lists of gradients of the same weights are compared, at least one each"
        )
    # one row of sums per weight, read from the device at once
    sums = torch.stack([_sums(g, h) for g, h in zip(exact, lossy, strict=True)]).tolist()
    pairs = [_indices(*row) for row in sums]
    scores, cosines = zip(*pairs, strict=True)
    nbytes = [g.nbytes for g in exact]
    weighted = sum(map(float.__mul__, scores, map(float, nbytes))) / max(1, sum(nbytes))
    mean = 1 / len(scores)
    return Similarity(sum(scores) * mean, weighted, min(scores), sum(cosines) * mean)


def _sums(g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return <g,h>, |g|^2 and |h|^2; float64, because squares of small gradients underflow in float32."""
    a, b = g.detach().reshape(-1).double(), h.detach().reshape(-1).double()
    return torch.stack([a @ b, a @ a, b @ b])


def _indices(product: float, g2: float, h2: float) -> tuple[float, float]:
    """Return score and cosine of one weight."""
    if not all(map(math.isfinite, (product, g2, h2))):
        return 0.0, 0.0
    if g2 == 0.0 and h2 == 0.0:
        return 1.0, 1.0
    cosine = product / math.sqrt(g2 * h2) if g2 and h2 else 0.0
    return max(0.0, 2 * product / (g2 + h2)), cosine


def predicted_similarity(noise_ratios: Sequence[float]) -> Similarity:
    """Return what independent noise makes of gradients, without knowing the exact ones.

    With noise of energy ``rho |G|^2`` the score of a weight is ``1 / (1 + rho / 2)`` and its cosine
    ``(1 + rho) ** -0.5``. The error of a saved input of a linear or convolutional layer gives
    ``rho = fan_in * mse * |dY|^2 / |dW|^2``. What earlier layers' errors add on the way to ``dY``, and bias, it
    does not see.

    Args:
        noise_ratios: rho of each weight; one that is not finite scores 0.

    Raises:
        SpecError: there are none.

    Example:
        >>> predicted_similarity([0.0, 2.0]).score
        0.75
    """
    if not noise_ratios:
        raise SpecError("a prediction needs the noise of at least one weight")
    usable = [rho if math.isfinite(rho) and rho >= 0 else math.inf for rho in noise_ratios]
    scores = [1 / (1 + rho / 2) for rho in usable]
    mean = 1 / len(scores)
    cosine = sum((1 + rho) ** -0.5 for rho in usable) * mean
    return Similarity(sum(scores) * mean, sum(scores) * mean, min(scores), cosine)
