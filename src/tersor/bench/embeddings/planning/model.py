"""Steps that exchange look-ups and gradients, as transfers: two all-to-alls and a dense all-reduce.

With R ranks a rank encodes, and decodes, ``sample_nbytes * batch / R`` bytes in each direction, and
``batch / R`` rows of a table go to one of them: the slice that a ratio depends on. Every rank has as many
tables as bytes say; that tables are uneven is part of the efficiency that was measured.
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
"""The transfer that no way of exchanging look-ups changes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to exchange.

    Attributes:
        name: of it.
        forward: looked-up rows.
        backward: gradients.
        keeps_bound: whether rows come back exactly or within the bound that was promised; None where
            none is promised.
    """

    name: str
    forward: CodecCosts
    backward: CodecCosts
    keeps_bound: bool | None = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(StepModel):
    """Everything a prediction needs.

    Attributes:
        profiles: the ways to exchange by name, the baseline among them.
        transport: of the machine that was measured.
        workload: that is planned for.
        sample_nbytes: bytes of the rows that one sample looks up.
        compute: seconds of a rank's computing by its samples.
        allreduce_nbytes: of the dense gradients.
    """

    profiles: Mapping[str, Profile]
    transport: Transport
    workload: Workload
    sample_nbytes: float
    compute: Line = field(default_factory=Line)
    allreduce_nbytes: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a model without a baseline."""
        if self.baseline not in self.profiles:
            raise SpecError(f"rows of {self.baseline} are needed: everything is compared with it")

    @property
    def ways(self) -> Mapping[str, bool | None]:
        """See ``StepModel.ways``."""
        return {name: one.keeps_bound for name, one in self.profiles.items()}

    @property
    def efficiency(self) -> float:
        """Share of a link that an all-to-all reaches: as described, or else as measured."""
        return self.workload.efficiency or self.transport.efficiency

    def step(self, name: str, num_ranks: int) -> Step:
        """See ``StepModel.step``.

        Raises:
            SpecError: more ranks than the batch has samples.
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
    """Return sizes in MB, equal ones once."""
    return list(dict.fromkeys(f"{one / 1e6:.3g} MB" for one in nbytes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What rows say, ready to be joined with a description of a cluster.

    Attributes:
        profiles: of every way to exchange.
        sample_nbytes: bytes of the rows that one sample looks up.
        source: one sentence on what was fitted to what.
        measured_nbytes: fewest and most original bytes of a rank that were coded in one exchange.
        transport: of the machine.
        compute: seconds of a rank's computing by its samples; None where no steps were measured.
        allreduce_nbytes: of the dense gradients as they weigh on a link; None as well.
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
        """Rows per slice, fewest and most, between which ratios are no guesses."""
        points = [
            rows
            for one in self.profiles.values()
            for way in (one.forward, one.backward)
            if not way.ratio.is_flat
            for rows, _ in way.ratio.points
        ]
        return min(points, default=0.0), max(points, default=0.0)

    def notes(self, model: Model, ranks: Sequence[int]) -> list[str]:
        """Return what a reader must know of a plan: what is a guess, and what is missing."""
        guessed = None
        if any(found.is_beyond for number in ranks for found in model.predictions(number)):
            sizes = " to ".join(dict.fromkeys(f"{rows:,.0f}" for rows in self.measured_rows))
            guessed = f"ratios with ~ are guesses: slices of {sizes} rows were measured"
        found = (self.beyond(model, ranks), guessed, self.missing(model.workload))
        return [words for words in found if words is not None]

    def beyond(self, model: Model, ranks: Sequence[int]) -> str | None:
        """Say that coding times are guesses far from what was measured; None where they are not."""
        low, high = self.measured_nbytes
        planned = [model.workload.rows_per_slice(n) * model.sample_nbytes for n in ranks]
        if low / _FAR <= min(planned) and max(planned) <= high * _FAR:
            return None
        said = [" to ".join(_sizes(pair)) for pair in ((min(planned), max(planned)), (low, high))]
        return f"coding times are guesses: a rank codes {said[0]} here, and {said[1]} were measured"

    def missing(self, workload: Workload) -> str | None:
        """Say which parts of a step neither the rows nor a description tell; None where all are told."""
        said = {
            "computing (--compute-ms)": (self.compute, workload.compute_s),
            "the all-reduce (--allreduce-mbytes)": (
                self.allreduce_nbytes, workload.allreduce_nbytes,
            ),
        }  # fmt: skip
        parts = [part for part, told in said.items() if told == (None, None)]
        return (
            f"steps are without {' and '.join(parts)}: the rows do not tell it" if parts else None
        )

    def model(self, described: Mapping[str, Any]) -> Model:
        """Return the model of a cluster; a description takes precedence over what was fitted.

        Args:
            described: the values of a file or of options, with keys of ``description.KEYS``.

        Raises:
            SpecError: a key or a value that cannot be meant.
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
