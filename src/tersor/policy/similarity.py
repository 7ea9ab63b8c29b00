"""Similarity between exact gradients and those computed from lossily saved tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tersor.errors import SpecError


class Similarity(NamedTuple):
    """Similarity of the gradients of several weights: G exact, H with an error.

    Attributes:
        score: mean over weights of ``max(0, 2<G,H> / (|G|^2 + |H|^2))``: 1 for equal gradients, lowered by
            noise, bias and a different norm.
        weighted: the same mean, weighted by the bytes of each weight; below ``score`` if the gradients of large weights are
            worse. Equal to ``score`` if it was predicted, without knowing sizes.
        lowest: lowest score of a single weight.
        cosine: mean cosine, which is insensitive to the norm.
    """

    score: float
    weighted: float
    lowest: float
    cosine: float


def gradient_similarity(exact: Sequence[torch.Tensor], lossy: Sequence[torch.Tensor]) -> Similarity:
    """Compare gradients weight by weight; two zero gradients are equal, and non-finite ones score 0.

    Gradients may be sparse, and those of complex weights count as vectors of real and imaginary parts.

    Raises:
        SpecError: the lists are empty, or differ in length or shapes.

    Example:
        >>> g = torch.tensor([3.0, 4.0])
        >>> gradient_similarity([g], [2 * g]).score, gradient_similarity([g], [2 * g]).cosine
        (0.8, 1.0)
    """
    if not exact or [x.shape for x in exact] != [x.shape for x in lossy]:
        raise SpecError(
            "two lists of gradients of the same weights are compared, at least one each"
        )
    # one row of sums per weight, read from the device in one transfer
    sums = torch.stack([_sums(g, h) for g, h in zip(exact, lossy, strict=True)]).tolist()
    pairs = [_indices(*row) for row in sums]
    scores, cosines = zip(*pairs, strict=True)
    nbytes = [g.numel() * g.element_size() for g in exact]
    weighted = sum(map(float.__mul__, scores, map(float, nbytes))) / max(1, sum(nbytes))
    mean = 1 / len(scores)
    return Similarity(sum(scores) * mean, weighted, min(scores), sum(cosines) * mean)


def _sums(g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return <g,h>, |g|^2 and |h|^2 in float64: squares of small gradients underflow in float32."""
    if g.layout is h.layout is torch.sparse_coo and g.sparse_dim() == h.sparse_dim():
        g, h = _values_of_both(g.detach().coalesce(), h.detach().coalesce())
    a, b = _real_vector(g.detach()), _real_vector(h.detach())
    return torch.stack([a @ b, a @ a, b @ b])


def _values_of_both(g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the values of two coalesced tensors at all places that either has; a dense table may be too large."""
    x, y = g.values(), h.values()
    padded = [torch.stack([x, torch.zeros_like(x)], -1), torch.stack([torch.zeros_like(y), y], -1)]
    places = torch.cat([g.indices(), h.indices()], 1)
    both = torch.sparse_coo_tensor(places, torch.cat(padded), (*g.shape, 2), check_invariants=False)
    return both.coalesce().values().unbind(-1)


def _real_vector(values: torch.Tensor) -> torch.Tensor:
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.reshape(-1).double()


def _indices(product: float, g2: float, h2: float) -> tuple[float, float]:
    """Return the score and the cosine of one weight."""
    if not all(map(math.isfinite, (product, g2, h2))):
        return 0.0, 0.0
    if g2 == 0.0 and h2 == 0.0:
        return 1.0, 1.0
    cosine = product / math.sqrt(g2 * h2) if g2 and h2 else 0.0
    return max(0.0, 2 * product / (g2 + h2)), cosine


def predicted_similarity(noise_ratios: Sequence[float]) -> Similarity:
    """Predict the similarity under independent noise, without the exact gradients.

    With noise of energy ``rho |G|^2`` the score of a weight is ``1 / (1 + rho / 2)`` and its cosine
    ``(1 + rho) ** -0.5``. An error in the saved input of a linear or convolutional layer gives
    ``rho = fan_in * mse * |dY|^2 / |dW|^2``. The prediction ignores bias, and the errors that other layers
    add to ``dY``.

    Args:
        noise_ratios: rho of each weight; one that is negative or not finite scores 0.

    Raises:
        SpecError: ``noise_ratios`` is empty.

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
