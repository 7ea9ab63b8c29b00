"""The look-ups of a table or of a step, sliced and quantized, on which encoders are measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from tersor.bench.core import codes as quantized
from tersor.bench.core.subject import Copy, Subject, cache_nbytes, copies_needed
from tersor.bench.embeddings.lookups.inputs import Cut, LookUp
from tersor.errors import SpecError
from tersor.kernels.quantize import finite_range
from tersor.kernels.rows.dedup import unique_rows
from tersor.raw_bytes import as_bytes
from tersor.sites.embeddings import AdaptiveBounds
from tersor.types import Bound

_CONSTANT_SHARE: Final = 2.0**-7


@dataclass(frozen=True, slots=True)
class LookupSubject:
    """Look-ups, with the facts about them that do not depend on an encoder.

    Attributes:
        table: number of the table; None for all tables of one step.
        subject: the slices and their codes.
        relative_bounds: the relative bound of each slice.
        num_iterations: look-ups of the table that were sliced.
        num_distinct: distinct rows, counted per slice and summed.
        num_distinct_codes: distinct rows after quantizing, counted likewise.
    """

    table: int | None
    subject: Subject
    relative_bounds: Sequence[float]
    num_iterations: int
    num_distinct: int
    num_distinct_codes: int

    @property
    def widths(self) -> list[int]:
        """Values per row of each slice."""
        return [x.shape[1] for x in self.subject.slices]

    @property
    def num_rows(self) -> int:
        """Rows of all slices."""
        return sum(len(x) for x in self.subject.slices)

    @property
    def num_values(self) -> int:
        """Values of all slices."""
        return sum(x.numel() for x in self.subject.slices)

    def bound_config(self, policy: AdaptiveBounds) -> dict[str, Any]:
        """Return the table's final bound for the spec of a row, and the decay if any slice needs it.

        For all tables of a step, the result is a list of bounds, one per slice.
        """
        if self.table is None:
            return {"bounds": [Bound.relative(one).to_config() for one in self.relative_bounds]}
        final = policy.bounds.of(policy.table_class(self.table))
        config: dict[str, Any] = {"bound": Bound.relative(final).to_config()}
        if any(bound != final for bound in self.relative_bounds):
            config["decay"] = asdict(policy.decay)
        return config


def table_subject(
    table: int,
    look_ups: Sequence[LookUp],
    cut: Cut,
    policy: AdaptiveBounds,
    code_dtype: torch.dtype | None,
    device: torch.device,
) -> LookupSubject:
    """Slice one table's look-ups, and bound and quantize every slice on a device.

    Raises:
        SpecError: a look-up is smaller than a batch, or a code does not fit ``code_dtype``.
    """
    slices, bounds = [], []
    for one in look_ups:
        found = [x.to(device) for x in cut.slices(one.rows)]
        slices += found
        bounds += [policy.bound(table, one.iteration).value] * len(found)
    error_bounds = [_error_bound(x, bound) for x, bound in zip(slices, bounds, strict=True)]
    codes = []
    try:
        for x, error_bound in zip(slices, error_bounds, strict=True):
            codes.append(quantized.quantize(x, error_bound, code_dtype).values)
    except SpecError as error:
        raise SpecError(f"table {table}: {error}") from error
    num_values = sum(x.numel() for x in slices)
    num_distinct = sum(_num_distinct(x) for x in slices)
    subject = Subject(
        name=f"table {table}",
        copies=_copies(Copy(slices, [torch.zeros_like(x) for x in slices], codes)),
        relative_bound=policy.bounds.of(policy.table_class(table)),
        error_bounds=error_bounds,
        entropy_bits=sum(quantized.entropy_nbits(one) for one in codes) / num_values,
        distinct_rows=num_distinct / sum(len(x) for x in slices),
    )
    num_distinct_codes = sum(
        _num_distinct(one.view(x.shape)) for one, x in zip(codes, slices, strict=True)
    )
    return LookupSubject(table, subject, bounds, len(look_ups), num_distinct, num_distinct_codes)


def step_subject(tables: Iterable[LookupSubject]) -> LookupSubject:
    """Join the slices of one step's tables into one list, as an exchange on a GPU encodes them."""
    first = Copy([], [], [])
    error_bounds: list[float] = []
    relative_bounds: list[float] = []
    num_distinct = num_distinct_codes = 0
    code_nbits = 0.0
    for one in tables:
        # take only the first copy: a table's copies are as many as fill the cache for it alone
        first = first.joined(one.subject.copies[0])
        error_bounds += one.subject.error_bounds
        relative_bounds += one.relative_bounds
        num_distinct += one.num_distinct
        num_distinct_codes += one.num_distinct_codes
        code_nbits += (one.subject.entropy_bits or 0.0) * one.num_values
    subject = Subject(
        name="all tables of a step",
        copies=_copies(first),
        relative_bound=None,
        error_bounds=error_bounds,
        entropy_bits=code_nbits / sum(x.numel() for x in first.slices),
        distinct_rows=num_distinct / sum(len(x) for x in first.slices),
    )
    return LookupSubject(None, subject, relative_bounds, 1, num_distinct, num_distinct_codes)


def _copies(first: Copy) -> list[Copy]:
    """Return as many copies as ``copies_needed`` for the device's cache."""
    nbytes = sum(x.nbytes for x in first.slices)
    num_copies = copies_needed(nbytes, cache_nbytes(first.slices[0].device))
    return [first, *(first.clone() for _ in range(num_copies - 1))]


def _error_bound(x: torch.Tensor, relative_bound: float) -> float:
    """Return the absolute bound of a slice.

    A slice of equal values has a range of 0, and only our encoders accept 0 as a bound. Peers get a 128th
    of the value instead, or 1 if the values are zero.
    """
    low, high = finite_range(x).tolist()
    bound = Bound.relative(relative_bound).resolve(low, high)
    return bound if bound > 0 else (abs(low) * _CONSTANT_SHARE or 1.0)


def _num_distinct(rows: torch.Tensor) -> int:
    row_nbytes = rows.shape[1] * rows.element_size()
    _, first = unique_rows(as_bytes(rows.contiguous()).view(len(rows), row_nbytes))
    return int(first.numel())
