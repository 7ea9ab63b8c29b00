"""One table's look-ups, cut and quantized: what all encoders of that table are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from tersor.bench import codes as quantized
from tersor.bench.lookups.inputs import Cut, LookUp
from tersor.bench.subject import Copy, Subject, cache_nbytes, copies_needed
from tersor.errors import SpecError
from tersor.kernels.dedup import unique_rows
from tersor.kernels.finite_range import finite_range
from tersor.policy import AdaptiveBounds, ClassBounds, Decay
from tersor.raw_bytes import as_bytes
from tersor.types import Bound

_CONSTANT_SHARE: Final = 2.0**-7


@dataclass(frozen=True, slots=True)
class TableSubject:
    """What is known of one table before any encoder runs.

    Attributes:
        table: its number.
        subject: the slices and their codes.
        relative_bounds: of each slice.
        width: values per row.
        num_iterations: look-ups that were cut.
        num_distinct: distinct rows of each slice, added up.
        num_distinct_codes: the same after quantizing.
        group: the table, the cut and the setting in words.
        setting: batch, bounds and decay in words, where they are not the defaults.
    """

    table: int
    subject: Subject
    relative_bounds: Sequence[float]
    width: int
    num_iterations: int
    num_distinct: int
    num_distinct_codes: int
    group: str
    setting: str

    @property
    def num_values(self) -> int:
        """Values of all slices."""
        return sum(x.numel() for x in self.subject.slices)

    def bound_config(self, policy: AdaptiveBounds) -> dict[str, Any]:
        """Return the table's final bound, and the decay where it plays a part."""
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
) -> TableSubject:
    """Cut one table's look-ups, bound every slice and quantize it, on a device.

    Raises:
        SpecError: a look-up makes no batch, or a code does not fit the dtype asked for.
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
    width = slices[0].shape[1]
    num_distinct = sum(_num_distinct(x) for x in slices)
    first = Copy(slices, [torch.zeros_like(x) for x in slices], codes)
    num_copies = copies_needed(4 * num_values, cache_nbytes(device))
    subject = Subject(
        name=f"table {table}",
        copies=[first, *(first.clone() for _ in range(num_copies - 1))],
        relative_bound=policy.bounds.of(policy.table_class(table)),
        error_bounds=error_bounds,
        entropy_bits=sum(quantized.entropy_nbits(one) for one in codes) / num_values,
        distinct_rows=num_distinct * width / num_values,
    )
    num_distinct_codes = sum(
        _num_distinct(one.view(x.shape)) for one, x in zip(codes, slices, strict=True)
    )
    setting = _setting(cut, policy)
    group = f"table {table}, {cut.num_ranks} ranks, slices of {len(slices[0])} rows"
    return TableSubject(
        table, subject, bounds, width, len(look_ups), num_distinct, num_distinct_codes,
        ", ".join(filter(None, (group, setting))), setting,
    )  # fmt: skip


def _setting(cut: Cut, policy: AdaptiveBounds) -> str:
    """Say in words what of batch, bounds and decay is not the default of a measurement."""
    words = []
    if cut.batch is not None:
        words.append(f"batches of {cut.batch}")
    bounds, decay = policy.bounds, policy.decay
    if bounds != ClassBounds():
        words.append(f"bounds {bounds.tight:.12g} {bounds.base:.12g} {bounds.loose:.12g}")
    if decay != Decay.off():
        words.append(f"{decay.shape} decay from {decay.magnitude:.12g} to iteration {decay.end}")
    return ", ".join(words)


def _error_bound(x: torch.Tensor, relative_bound: float) -> float:
    """Return the absolute bound of a slice.

    A slice of equal values has a range of 0, which only ours take as a bound. Peers are then given a
    128th of the value, and any bound for zeros.
    """
    low, high = finite_range(x).tolist()
    bound = Bound.relative(relative_bound).resolve(low, high)
    return bound if bound > 0 else (abs(low) * _CONSTANT_SHARE or 1.0)


def _num_distinct(rows: torch.Tensor) -> int:
    row_nbytes = rows.shape[1] * rows.element_size()
    _, first = unique_rows(as_bytes(rows.contiguous()).view(len(rows), row_nbytes))
    return int(first.numel())
