"""Predict how long a training step takes on a cluster from its compute time and its transfers.

Several methods of taking a step are compared; they differ in how they encode. With the phases that
``transfers`` predicts::

    step   = compute + (the method's own transfers) - hidden + (transfers that all methods share)
    hidden = min(sum of overlap * payload, compute)

The model has no congestion beyond the links' efficiency and no stragglers. A site describes its steps
in a subclass of ``StepModel``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Self

import numpy as np

from tersor.errors import SpecError
from tersor.planning.cluster import Cluster
from tersor.planning.transfers import Phases, Transfer

BASELINE: Final = "float32"
LEAST_BITS, MOST_BITS = 1e3, 1e16
"""Bounds of the break-even search in bits per second; beyond them a codec pays never or always."""
_Changes = list[tuple[float, str, str]]


@dataclass(frozen=True, slots=True)
class Step:
    """The work of a rank in one step.

    Attributes:
        transfers: transfers that differ between methods, at least in their codec.
        shared: transfers that are the same in all methods.
        compute_s: seconds of computing.
    """

    transfers: tuple[Transfer, ...]
    shared: tuple[Transfer, ...] = ()
    compute_s: float = 0.0

    def __post_init__(self) -> None:
        """Reject transfers that share a name."""
        names = [one.name for one in (*self.transfers, *self.shared)]
        if len(set(names)) != len(names):
            raise SpecError(f"the transfers of a step need names of their own: {', '.join(names)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The predicted times of one method of taking a step at one number of ranks.

    Attributes:
        name: the method's name.
        num_ranks: ranks that take part.
        phases: phases of the method's own transfers, by transfer name.
        compute_s: seconds of computing.
        hidden_s: seconds of payloads that overlap with computing.
        shared_s: seconds of transfers that are the same in all methods.
    """

    name: str
    num_ranks: int
    phases: Mapping[str, Phases]
    compute_s: float
    hidden_s: float
    shared_s: float

    @property
    def transfers_s(self) -> float:
        """Seconds of the method's own transfers."""
        return sum(one.total_s for one in self.phases.values())

    @property
    def payload_s(self) -> float:
        """Seconds of the payloads of the method's own transfers."""
        return sum(one.payload_s for one in self.phases.values())

    @property
    def coding_s(self) -> float:
        """Seconds of the method's own transfers, except their payloads."""
        return sum(one.coding_s for one in self.phases.values())

    @property
    def sizes_s(self) -> float:
        """Seconds of exchanging sizes, a part of ``coding_s``."""
        return sum(one.sizes_s for one in self.phases.values())

    @property
    def step_s(self) -> float:
        """Seconds of the whole training step."""
        return self.compute_s + self.transfers_s - self.hidden_s + self.shared_s

    @property
    def is_extrapolated(self) -> bool:
        """True if a ratio was extrapolated beyond the measurements."""
        return any(one.is_extrapolated for one in self.phases.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel(ABC):
    """Several methods of taking the same step on a cluster, which differ in how they encode.

    Attributes:
        cluster: the cluster to plan for.
        baseline: name of the method with which all others are compared.
    """

    cluster: Cluster
    baseline: str = BASELINE

    @property
    @abstractmethod
    def methods(self) -> Mapping[str, bool | None]:
        """Names of the methods, mapped to whether decoded values kept the promised error bound.

        True if they were exact or within the bound, False if they broke it, None if no bound is
        promised.
        """

    @abstractmethod
    def step(self, name: str, num_ranks: int) -> Step:
        """Return the step that the method ``name`` takes."""

    def at_bandwidth(self, bits_per_s: float, num_ranks: int) -> Self:
        """Return a copy of the model with another bandwidth; see ``Cluster.with_bandwidth``."""
        return replace(self, cluster=self.cluster.with_bandwidth(bits_per_s, num_ranks))

    def predict(self, name: str, num_ranks: int) -> Prediction:
        """Predict the times of one method; the module docstring has the formula.

        Raises:
            SpecError: there are fewer than 2 ranks, or this number of ranks cannot take the step.
        """
        if num_ranks < 2:
            raise SpecError(f"a collective has 2 ranks at least, not {num_ranks}")
        step = self.step(name, num_ranks)
        own, shared = (
            {one.name: one.phases(self.cluster, num_ranks) for one in transfers}
            for transfers in (step.transfers, step.shared)
        )
        every = zip((*step.transfers, *step.shared), (own | shared).values(), strict=True)
        hidden_s = sum(one.overlap * phases.payload_s for one, phases in every)
        return Prediction(
            name=name,
            num_ranks=num_ranks,
            phases=own,
            compute_s=step.compute_s,
            hidden_s=min(hidden_s, step.compute_s),
            shared_s=sum((one.total_s for one in shared.values()), 0.0),
        )

    def predictions(self, num_ranks: int) -> list[Prediction]:
        """Predict all methods, the baseline first."""
        names = sorted(self.methods, key=lambda name: name != self.baseline)
        return [self.predict(name, num_ranks) for name in names]

    def eligible(self, num_ranks: int) -> list[Prediction]:
        """Predict the methods that broke no bound, which are the ones to choose from."""
        methods = self.methods
        return [one for one in self.predictions(num_ranks) if methods[one.name] is not False]

    def changes(self, names: Sequence[str], num_ranks: int, low: float, high: float) -> _Changes:
        """Return the bandwidths at which the fastest of ``names`` changes.

        Each change is a bandwidth in bits per second and the fastest method below and above it; ties go
        to the first name. A method can be the fastest on several stretches, because the link that limits
        it changes. Only stretches narrower than a factor of 1.5 can be missed.
        """

        def fastest(bits_per_s: float) -> str:
            there = self.at_bandwidth(bits_per_s, num_ranks)
            return min(names, key=lambda name: there.predict(name, num_ranks).step_s)

        def narrowed(left: tuple[float, str], right: tuple[float, str]) -> _Changes:
            if left[1] == right[1]:
                return []
            if right[0] / left[0] <= 1 + 1e-12:
                return [(right[0], left[1], right[1])]
            bits_per_s = math.sqrt(left[0] * right[0])
            middle = bits_per_s, fastest(bits_per_s)
            return [*narrowed(left, middle), *narrowed(middle, right)]

        num_parts = math.ceil(math.log(high / low, 1.5))
        ends = [(bits, fastest(bits)) for bits in np.geomspace(low, high, num_parts + 1).tolist()]
        return [change for pair in pairwise(ends) for change in narrowed(*pair)]

    def break_even(self, name: str, num_ranks: int) -> float | None:
        """Return the bandwidth in bits per second up to which a step is shorter than the baseline's.

        The result is 0 if the codec does not pay on the slowest links, and None if it pays on all.
        """
        there = self.at_bandwidth(LEAST_BITS, num_ranks)
        plain, coded = (there.predict(one, num_ranks) for one in (self.baseline, name))
        if coded.step_s >= plain.step_s:
            return 0.0
        found = self.changes((self.baseline, name), num_ranks, LEAST_BITS, MOST_BITS)
        return found[0][0] if found else None
