"""Statistical comparison of two settings by pairs of trainings with common seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from tersor.errors import SpecError

_T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
    2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run, over all ranks.

    Attributes:
        name: of the run.
        metrics: of the final evaluation, by name.
        lines: of its log.
        steps: number of steps.
        config: JSON form of its configuration.
        data_name: name of its data.
        ranks: number of ranks that trained together.
    """

    name: str
    metrics: dict[str, float]
    lines: list[dict[str, Any]]
    steps: int
    config: dict[str, Any] = field(default_factory=dict, kw_only=True)
    data_name: str = field(default="", kw_only=True)
    ranks: int = field(default=1, kw_only=True)


OutcomeT = TypeVar("OutcomeT", bound=Outcome)


@dataclass(frozen=True, slots=True)
class Pair(Generic[OutcomeT]):
    """One seed, trained with two settings; the first is the baseline."""

    seed: int
    first: OutcomeT
    second: OutcomeT

    def change(self, metric: str) -> float:
        """Return a metric of the second training minus that of the first.

        Raises:
            SpecError: a training has no such metric.
        """
        for one in (self.first, self.second):
            if metric not in one.metrics:
                raise SpecError(
                    f"the training {one.name!r} has no metric {metric!r}; choose one of "
                    f"{', '.join(one.metrics)}"
                )
        return self.second.metrics[metric] - self.first.metrics[metric]


@dataclass(frozen=True, slots=True)
class Metric:
    """A quality number of a training, and its direction."""

    name: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of paired differences and the half-width of its 95 % interval."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> Interval:
        """Compute the interval by Student's t; that of a single difference is infinite."""
        count = len(differences)
        if count == 0:
            raise SpecError("an interval needs at least one difference")
        mean = sum(differences) / count
        if count == 1:
            return cls(mean, math.inf)
        variance = sum((value - mean) ** 2 for value in differences) / (count - 1)
        quantile = _T_95[min(count - 1, len(_T_95)) - 1]
        return cls(mean, quantile * math.sqrt(variance / count))

    @property
    def holds_zero(self) -> bool:
        """True if the interval contains zero, so that no difference is shown."""
        return abs(self.mean) <= self.half_width


@dataclass(frozen=True, slots=True)
class Judgement:
    """The change of a metric from the first setting to the second."""

    metric: Metric
    change: Interval

    @classmethod
    def of(cls, metric: Metric, pairs: Sequence[Pair[Any]]) -> Judgement:
        """Evaluate the change of a metric over pairs of trainings.

        Raises:
            SpecError: there are no pairs, or a training has no such metric.

        Example:
            >>> runs = [
            ...     Outcome("run", {"psnr": value}, [], 1) for value in (30.0, 30.4, 30.1, 30.6)
            ... ]
            >>> pairs = [Pair(0, runs[0], runs[1]), Pair(1, runs[2], runs[3])]
            >>> found = Judgement.of(Metric("psnr", higher_is_better=True), pairs)
            >>> round(found.change.mean, 2), round(found.change.half_width, 2), found.verdict
            (0.45, 0.64, 'no difference')
        """
        return cls(metric, Interval.of([pair.change(metric.name) for pair in pairs]))

    @property
    def verdict(self) -> Literal["better", "worse", "no difference", "unknown"]:
        """Conclusion from the interval; unknown if a metric is NaN."""
        if math.isnan(self.change.mean):
            return "unknown"
        if self.change.holds_zero:
            return "no difference"
        return "better" if (self.change.mean > 0) == self.metric.higher_is_better else "worse"
