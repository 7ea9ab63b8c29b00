"""An input at one bound, with the facts about it that do not depend on a candidate."""

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
    """One copy of the input in memory, and the output buffers to decode it into.

    Attributes:
        slices: float32 tensors, encoded one by one.
        outs: output buffers of the same shapes, shared by all candidates.
        codes: the quantized slices, flat; empty if there is no bound.
    """

    slices: Sequence[torch.Tensor]
    outs: Sequence[torch.Tensor]
    codes: Sequence[torch.Tensor]

    def clone(self) -> Copy:
        """Return a copy of all tensors."""
        return Copy(*([x.clone() for x in xs] for xs in (self.slices, self.outs, self.codes)))

    def joined(self, other: Copy) -> Copy:
        """Return the concatenated lists of both, without copying any values."""
        return Copy(
            [*self.slices, *other.slices],
            [*self.outs, *other.outs],
            [*self.codes, *other.codes],
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """The data that all candidates of one group are measured on.

    Attributes:
        name: name of the input.
        copies: copies of the same values, used in turn so that together they exceed the device's
            cache; only one on the CPU.
        relative_bound: the relative bound; None for candidates that take no bound.
        error_bounds: the absolute bound of every slice; 0 if there is no bound.
        entropy_bits: order-0 entropy of the codes in bits per value, every slice with its own
            histogram; None if there is no bound.
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
        """Resolve the bound for every slice and quantize the slices, on the input's device."""
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
    """Return the number of copies of an input that fill the cache three times over, at most 8.

    Example:
        >>> [copies_needed(mib * 2**20, 60 * 10**6) for mib in (64, 1024)], copies_needed(1, 0)
        ([3, 1], 1)
    """
    return max(1, min(_MAX_COPIES, math.ceil(_MIN_CACHES * cache_nbytes / nbytes)))


def cache_nbytes(device: torch.device) -> int:
    """Return the size of the device's L2 cache; 0 on the CPU, where a single copy is used."""
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
