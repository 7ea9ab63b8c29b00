"""Model steps that exchange look-ups and gradients: two all-to-alls and a dense all-reduce.

With R ranks, a rank encodes and decodes ``sample_nbytes * batch / R`` bytes in each direction. It sends
``batch / R`` rows of a table to each rank, which is the slice size on which ratios depend. The model
distributes bytes evenly over ranks; uneven tables are part of the measured efficiency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tersor.bench.embeddings.planning.description import Workload
from tersor.errors import SpecError
from tersor.planning import (
    Cluster,
    CodecCosts,
    Collective,
    Line,
    Step,
    StepModel,
    Transfer,
    Transport,
)

_FAR: Final = 4.0
DENSE = "dense gradients"
"""Name of the transfer that is the same for all profiles."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of one exchange method.

    Attributes:
        name: name of the method.
        forward: costs for looked-up rows.
        backward: costs for gradients.
        keeps_bound: whether decoded rows are exact or within the promised bound; None if none is
            promised.
    """

    name: str
    forward: CodecCosts
    backward: CodecCosts
    keeps_bound: bool | None = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(StepModel):
    """Everything that a prediction needs.

    Attributes:
        profiles: the exchange methods by name, including the baseline.
        transport: costs of the measured machine.
        workload: the training step to plan for.
        sample_nbytes: bytes of the rows that one sample looks up.
        compute: seconds of a rank's computing by its samples.
        allreduce_nbytes: bytes of the dense gradients.
    """

    profiles: Mapping[str, Profile]
    transport: Transport
    workload: Workload
    sample_nbytes: float
    compute: Line = field(default_factory=Line)
    allreduce_nbytes: float = 0.0

    def __post_init__(self) -> None:
        """Reject a model without a baseline."""
        if self.baseline not in self.profiles:
            raise SpecError(f"rows of {self.baseline} are needed: everything is compared with it")

    @property
    def methods(self) -> Mapping[str, bool | None]:
        """See ``StepModel.methods``."""
        return {name: one.keeps_bound for name, one in self.profiles.items()}

    @property
    def efficiency(self) -> float:
        """Share of a link that an all-to-all reaches: the workload's if given, else the measured."""
        return self.workload.efficiency or self.transport.efficiency

    def step(self, name: str, num_ranks: int) -> Step:
        """See ``StepModel.step``.

        Raises:
            SpecError: there are more ranks than samples in the batch.
        """
        profile, rows = self.profiles[name], self.workload.rows_per_slice(num_ranks)
        exchanges = (
            Transfer(
                name=direction,
                collective=Collective.ALL_TO_ALL,
                nbytes=rows * self.sample_nbytes,
                costs=costs,
                slice_rows=rows,
                overlap=self.workload.overlap,
                transport=replace(self.transport, efficiency=self.efficiency),
            )
            for direction, costs in (("forward", profile.forward), ("backward", profile.backward))
        )
        dense = Transfer(name=DENSE, collective=Collective.ALL_REDUCE, nbytes=self.allreduce_nbytes)
        return Step(
            transfers=tuple(exchanges),
            shared=(dense,) if self.allreduce_nbytes else (),
            compute_s=self.compute.at(rows),
        )


def _sizes(nbytes: Iterable[float]) -> list[str]:
    """Format sizes in MB without duplicates."""
    return list(dict.fromkeys(f"{one / 1e6:.3g} MB" for one in nbytes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Costs fitted to rows, to be combined with a description of a cluster.

    Attributes:
        profiles: costs of every exchange method, by name.
        sample_nbytes: bytes of the rows that one sample looks up.
        source: a sentence on what was fitted to which rows.
        measured_nbytes: the fewest and the most original bytes that a rank coded in one exchange.
        transport: costs of the machine.
        compute: seconds of a rank's computing by its samples; None if no steps were measured.
        allreduce_nbytes: effective bytes of the dense gradients on a link; None if no steps were
            measured.
    """

    profiles: dict[str, Profile]
    sample_nbytes: float
    source: str
    measured_nbytes: tuple[float, float]
    transport: Transport = field(default_factory=Transport)
    compute: Line | None = None
    allreduce_nbytes: float | None = None

    @property
    def measured_rows(self) -> tuple[float, float]:
        """The fewest and the most rows per slice between which ratios are not extrapolated."""
        points = [
            rows
            for one in self.profiles.values()
            for costs in (one.forward, one.backward)
            if not costs.ratio.is_flat
            for rows, _ in costs.ratio.points
        ]
        return min(points, default=0.0), max(points, default=0.0)

    def notes(self, model: Model, ranks: Sequence[int]) -> list[str]:
        """Return caveats about a plan: which values are extrapolated, and which are missing."""
        guessed = None
        if any(found.is_extrapolated for number in ranks for found in model.predictions(number)):
            sizes = " to ".join(dict.fromkeys(f"{rows:,.0f}" for rows in self.measured_rows))
            guessed = f"ratios with ~ are guesses: slices of {sizes} rows were measured"
        found = (self.beyond(model, ranks), guessed, self.missing(model.workload))
        return [words for words in found if words is not None]

    def beyond(self, model: Model, ranks: Sequence[int]) -> str | None:
        """Return a warning if coding times are extrapolated far beyond the measurements, else None."""
        low, high = self.measured_nbytes
        planned = [model.workload.rows_per_slice(n) * model.sample_nbytes for n in ranks]
        if low / _FAR <= min(planned) and max(planned) <= high * _FAR:
            return None
        said = [" to ".join(_sizes(pair)) for pair in ((min(planned), max(planned)), (low, high))]
        return f"coding times are guesses: a rank codes {said[0]} here, and {said[1]} were measured"

    def missing(self, workload: Workload) -> str | None:
        """Return which parts of a step neither the rows nor the workload provide; None if none."""
        known = {
            "computing (--compute-ms)": (self.compute, workload.compute_s),
            "the all-reduce (--allreduce-mbytes)": (
                self.allreduce_nbytes, workload.allreduce_nbytes,
            ),
        }  # fmt: skip
        parts = [part for part, values in known.items() if values == (None, None)]
        return (
            f"steps are without {' and '.join(parts)}: the rows do not tell it" if parts else None
        )

    def model(self, described: Mapping[str, Any]) -> Model:
        """Return the model of a cluster; described values take precedence over fitted ones.

        Args:
            described: values of a file or of options, with keys from ``description.KEYS``.

        Raises:
            SpecError: a key is unknown, or a value is invalid.
        """
        workload = Workload.parse(described)
        compute = Line() if self.compute is None else self.compute
        nbytes = workload.allreduce_nbytes
        return Model(
            profiles=self.profiles,
            transport=self.transport,
            cluster=Cluster.parse(described),
            workload=workload,
            sample_nbytes=workload.sample_nbytes or self.sample_nbytes,
            compute=compute if workload.compute_s is None else Line(workload.compute_s),
            allreduce_nbytes=(self.allreduce_nbytes or 0.0) if nbytes is None else nbytes,
        )
