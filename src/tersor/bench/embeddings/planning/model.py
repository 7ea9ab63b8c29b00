"""Steps that exchange look-ups and gradients, as transfers: two all-to-alls and a dense all-reduce.

With R ranks a rank encodes, and decodes, ``sample_nbytes * batch / R`` bytes in each direction, and
``batch / R`` rows of a table go to one of them: the slice that a ratio depends on. Every rank has as many
tables as bytes say; that tables are uneven is part of the efficiency that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tersor.bench.embeddings.planning.description import Workload
from tersor.errors import SpecError
from tersor.planning import (
    CodecCosts,
    Collective,
    Line,
    Step,
    StepModel,
    Transfer,
    Transport,
)

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
