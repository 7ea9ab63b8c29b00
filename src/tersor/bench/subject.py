"""An input at one bound, and what is known about it before any candidate runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tersor.bench import codes as quantized
from tersor.bench.inputs import BenchInput
from tersor.kernels.finite_range import finite_range
from tersor.types import Bound


@dataclass(frozen=True, slots=True)
class Subject:
    """What all candidates of one group are measured on.

    Attributes:
        name: of the input.
        slices: float32, coded one by one.
        outs: memory of the same shapes to decode into, shared by all candidates.
        relative_bound: None for candidates that take no bound.
        error_bounds: the absolute bound of every slice; 0 where there is no bound.
        codes: the quantized slices, flat; empty where there is no bound.
        entropy_bits: order-0 entropy of the codes in bits per value, every slice with its own
            histogram; None where there is no bound.
        distinct_rows: mean share of distinct rows per slice; None for a single large tensor.
    """

    name: str
    slices: Sequence[torch.Tensor]
    outs: Sequence[torch.Tensor]
    relative_bound: float | None
    error_bounds: Sequence[float]
    codes: Sequence[torch.Tensor]
    entropy_bits: float | None
    distinct_rows: float | None

    @classmethod
    def of(cls, made: BenchInput, relative_bound: float | None, device: torch.device) -> Subject:
        """Resolve the bound for every slice and quantize it."""
        error_bounds = [0.0] * len(made.slices)
        codes: list[torch.Tensor] = []
        if relative_bound is not None:
            bound = Bound.relative(relative_bound)
            error_bounds = [bound.resolve(*finite_range(x).tolist()) for x in made.slices]
            pairs = zip(made.slices, error_bounds, strict=True)
            codes = [quantized.quantize(x, error_bound).values for x, error_bound in pairs]
        slices = [x.to(device) for x in made.slices]
        entropy_nbits = sum(quantized.entropy_nbits(one) for one in codes)
        return cls(
            name=made.name,
            slices=slices,
            outs=[torch.zeros_like(x) for x in slices],
            relative_bound=relative_bound,
            error_bounds=error_bounds,
            codes=codes,
            entropy_bits=entropy_nbits / made.num_values if codes else None,
            distinct_rows=_distinct_rows(made) if len(slices) > 1 else None,
        )

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of all slices."""
        return sum(x.nbytes for x in self.slices)


def _distinct_rows(made: BenchInput) -> float:
    shares = [len(np.unique(x.numpy(), axis=0)) / len(x) for x in made.slices]
    return float(np.mean(shares))
