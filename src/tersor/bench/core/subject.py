"""An input at one bound, and what is known about it before any candidate runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from tersor.bench.core import codes as quantized
from tersor.bench.core.inputs import BenchInput
from tersor.kernels.quantize import finite_range
from tersor.types import Bound

_MIN_CACHES: Final = 3
_MAX_COPIES: Final = 8


@dataclass(frozen=True, slots=True)
class Copy:
    """One place in memory where the input lies: what a call reads, and where it decodes to.

    Attributes:
        slices: float32, coded one by one.
        outs: memory of the same shapes to decode into, shared by all candidates.
        codes: the quantized slices, flat; empty where there is no bound.
    """

    slices: Sequence[torch.Tensor]
    outs: Sequence[torch.Tensor]
    codes: Sequence[torch.Tensor]

    def clone(self) -> Copy:
        """Return the same values elsewhere."""
        return Copy(*([x.clone() for x in xs] for xs in (self.slices, self.outs, self.codes)))

    def joined(self, other: Copy) -> Copy:
        """Return one list of both, without copying a value."""
        return Copy(
            [*self.slices, *other.slices],
            [*self.outs, *other.outs],
            [*self.codes, *other.codes],
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """What all candidates of one group are measured on.

    Attributes:
        name: of the input.
        copies: the same values at several places, so that what is timed in turn is larger than the
            device's cache; one on the CPU.
        relative_bound: None for candidates that take no bound.
        error_bounds: the absolute bound of every slice; 0 where there is no bound.
        entropy_bits: order-0 entropy of the codes in bits per value, every slice with its own
            histogram; None where there is no bound.
        distinct_rows: mean share of distinct rows per slice; None for a single large tensor.
    """

    name: str
    copies: Sequence[Copy]
    relative_bound: float | None
    error_bounds: Sequence[float]
    entropy_bits: float | None
    distinct_rows: float | None

    @classmethod
    def of(cls, made: BenchInput, relative_bound: float | None) -> Subject:
        """Resolve the bound for every slice and quantize it, on the device of the input."""
        error_bounds = [0.0] * len(made.slices)
        codes: list[torch.Tensor] = []
        if relative_bound is not None:
            bound = Bound.relative(relative_bound)
            error_bounds = [bound.resolve(*finite_range(x).tolist()) for x in made.slices]
            pairs = zip(made.slices, error_bounds, strict=True)
            codes = [quantized.quantize(x, error_bound).values for x, error_bound in pairs]
        entropy_nbits = sum(quantized.entropy_nbits(one) for one in codes)
        first = Copy(made.slices, [torch.zeros_like(x) for x in made.slices], codes)
        num_copies = copies_needed(made.nbytes, cache_nbytes(made.slices[0].device))
        return cls(
            name=made.name,
            copies=[first, *(first.clone() for _ in range(num_copies - 1))],
            relative_bound=relative_bound,
            error_bounds=error_bounds,
            entropy_bits=entropy_nbits / made.num_values if codes else None,
            distinct_rows=_distinct_rows(made) if len(made.slices) > 1 else None,
        )

    @property
    def slices(self) -> Sequence[torch.Tensor]:
        """The slices of the first copy."""
        return self.copies[0].slices

    @property
    def codes(self) -> Sequence[torch.Tensor]:
        """The codes of the first copy."""
        return self.copies[0].codes

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of all slices."""
        return sum(x.nbytes for x in self.slices)


def copies_needed(nbytes: int, cache_nbytes: int) -> int:
    """Return how many copies of an input fill the cache three times over; at most 8.

    Example:
        >>> [copies_needed(mib * 2**20, 60 * 10**6) for mib in (64, 1024)], copies_needed(1, 0)
        ([3, 1], 1)
    """
    return max(1, min(_MAX_COPIES, math.ceil(_MIN_CACHES * cache_nbytes / nbytes)))


def cache_nbytes(device: torch.device) -> int:
    """Return the size of the device's cache; 0 on the CPU, where inputs lie in memory once."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _distinct_rows(made: BenchInput) -> float:
    shares = [_num_distinct(x) / len(x) for x in made.slices]
    return float(np.mean(shares))


def _num_distinct(rows: torch.Tensor) -> int:
    if rows.device.type == "cpu":
        return len(np.unique(rows.numpy(), axis=0))
    return len(torch.unique(rows.view(torch.int32), dim=0))
