"""How long a training step takes on a cluster: computing, and a list of transfers.

With the phases that ``transfers`` predicts::

    step   = compute + (the way's own transfers) - hidden + (transfers that all ways share)
    hidden = min(sum of overlap * payload, compute)

Nothing else is assumed: no congestion beyond the efficiency of links, no ranks that are slower than
others. A site describes its steps in a subclass of ``StepModel``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from tersor.errors import SpecError
from tersor.planning.cluster import Cluster
from tersor.planning.transfers import Phases, Transfer

BASELINE: Final = "float32"
_LEAST_BITS, _MOST_BITS = 1e3, 1e16
"""Where break-even is looked for: beyond is never, or always."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank does in a step.

    Attributes:
        transfers: those that differ between ways, by their codec at least.
        shared: those that are the same in all ways.
        compute_s: computing.
    """

    transfers: tuple[Transfer, ...]
    shared: tuple[Transfer, ...] = ()
    compute_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse transfers that cannot be told apart."""
        names = [one.name for one in (*self.transfers, *self.shared)]
        if len(set(names)) != len(names):
            raise SpecError(f"the transfers of a step need names of their own: {', '.join(names)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One way to take a step at one number of ranks.

    Attributes:
        name: of the way.
        num_ranks: that take part.
        phases: of the way's own transfers, by name.
        compute_s: computing.
        hidden_s: of payloads that travel while ranks compute.
        shared_s: of transfers that are the same in all ways.
    """

    name: str
    num_ranks: int
    phases: Mapping[str, Phases]
    compute_s: float
    hidden_s: float
    shared_s: float

    @property
    def transfers_s(self) -> float:
        """Seconds of the way's own transfers."""
        return sum(one.total_s for one in self.phases.values())

    @property
    def payload_s(self) -> float:
        """Seconds that their payloads travel."""
        return sum(one.payload_s for one in self.phases.values())

    @property
    def coding_s(self) -> float:
        """Seconds of them but for payloads on their way."""
        return sum(one.coding_s for one in self.phases.values())

    @property
    def sizes_s(self) -> float:
        """Seconds of agreeing on sizes, a part of coding."""
        return sum(one.sizes_s for one in self.phases.values())

    @property
    def step_s(self) -> float:
        """Seconds of a training step."""
        return self.compute_s + self.transfers_s - self.hidden_s + self.shared_s

    @property
    def is_beyond(self) -> bool:
        """Whether a ratio is a guess beyond what was measured."""
        return any(one.is_beyond for one in self.phases.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel(ABC):
    """Several ways to take the same step on a cluster, which differ in how they encode.

    Attributes:
        cluster: that is planned for.
        baseline: name of the way that all are compared with.
    """

    cluster: Cluster
    baseline: str = BASELINE

    @property
    @abstractmethod
    def ways(self) -> Mapping[str, bool | None]:
        """Names of the ways, and whether values come back exactly or within a promised bound.

        None where no bound is promised; False where one was broken.
        """

    @abstractmethod
    def step(self, name: str, num_ranks: int) -> Step:
        """Return the step of one way."""

    def at_bandwidth(self, bits_per_s: float, num_ranks: int) -> Self:
        """Return the model with another bandwidth; see ``Cluster.with_bandwidth``."""
        return replace(self, cluster=self.cluster.with_bandwidth(bits_per_s, num_ranks))

    def predict(self, name: str, num_ranks: int) -> Prediction:
        """Return what one way takes; the formula stands at the top of this module.

        Raises:
            SpecError: fewer than 2 ranks, or a step that so many cannot take.
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
        """Return all ways, the baseline first."""
        names = sorted(self.ways, key=lambda name: name != self.baseline)
        return [self.predict(name, num_ranks) for name in names]

    def eligible(self, num_ranks: int) -> list[Prediction]:
        """Return those that broke no bound: what may be advised."""
        ways = self.ways
        return [one for one in self.predictions(num_ranks) if ways[one.name] is not False]

    def break_even(self, name: str, num_ranks: int) -> float | None:
        """Return the bits per second at which a step takes as long as the baseline's.

        Above it the codec does not pay: 0 where it never does. None where it always does.
        """

        def loss_s(bits_per_s: float) -> float:
            model = self.at_bandwidth(bits_per_s, num_ranks)
            base_s = model.predict(self.baseline, num_ranks).step_s
            return model.predict(name, num_ranks).step_s - base_s

        low, high = _LEAST_BITS, _MOST_BITS
        if loss_s(low) >= 0:
            return 0.0
        if loss_s(high) <= 0:
            return None
        # what a codec saves grows with the time that bytes take, so there is one place
        while high / low > 1 + 1e-12:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if loss_s(middle) < 0 else (low, middle)
        return low
