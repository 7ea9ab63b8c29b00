"""The ``accuracy`` suite: pairs of trainings that differ in nothing but compression."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tersor.bench.core import machine
from tersor.errors import SpecError
from tersor.sites.embeddings import AdaptiveBounds, Decay
from tersor.workloads.data.clicks import ClickSource
from tersor.workloads.dlrm.comparison import Outcome, compare, sample_classes
from tersor.workloads.dlrm.config import DlrmConfig, uncompressed
from tersor.workloads.ranks import run_local_ranks

PLAIN, SMALL = "uncompressed", "compressed"
_T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
    2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """One seed, trained without and with compression; the latter as ``config`` says."""

    seed: int
    config: DlrmConfig
    plain: Outcome
    small: Outcome

    @property
    def auc_change(self) -> float:
        """AUC with compression minus AUC without."""
        return self.small.metrics["auc"] - self.plain.metrics["auc"]

    @property
    def logloss_change(self) -> float:
        """Logloss with compression minus logloss without."""
        return self.small.metrics["logloss"] - self.plain.metrics["logloss"]

    def to_config(self, source: ClickSource, ranks: int) -> dict[str, Any]:
        """Return the pair as one JSON line, with what it takes to repeat it."""
        return {
            "suite": "accuracy",
            "seed": self.seed,
            "source": source.name,
            "ranks": ranks,
            "config": self.config.to_config(),
            **{
                name: {
                    "metrics": one.metrics,
                    "curve": [
                        [line["step"], line["auc"], line["logloss"]]
                        for line in one.lines
                        if line["kind"] == "eval"
                    ],
                    "forward_ratio": one.volume("forward").ratio,
                    "backward_ratio": one.volume("backward").ratio,
                    "tables": {
                        str(table): [volume.original_nbytes, volume.encoded_nbytes]
                        for table, volume in one.tables.items()
                    },
                }
                for name, one in ((PLAIN, self.plain), (SMALL, self.small))
            },
            **machine.origin(torch.device("cpu")),
        }


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of paired differences and the half-width of its 95 % interval."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> Interval:
        """Judge differences by Student's t; one alone has an infinite interval."""
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
        """Whether no difference at all lies within the interval."""
        return abs(self.mean) <= self.half_width


def run_accuracy(
    config: DlrmConfig,
    sources: Callable[[int], ClickSource],
    seeds: Sequence[int],
    *,
    ranks: int,
    num_evals: int = 8,
    progress: Progress | None = None,
) -> Iterator[Pair]:
    """Train every seed twice on real ranks of this machine; yield each pair when it is done.

    Args:
        config: of the compressed run; its bounds' classes are found anew for each seed.
        sources: gives the click log of a seed.
        seeds: of weights, and of logs that have one.
        ranks: processes that train together.
        num_evals: points of the curves.
        progress: is told the step among all steps of a pair, and a word.
    """
    for seed in seeds:
        source = sources(seed)
        seeded = replace(config, seed=seed)
        classes = sample_classes(seeded, source, config.bounds.bounds)
        decay: Decay = config.bounds.decay
        bounds = AdaptiveBounds.from_classes(classes, bounds=config.bounds.bounds, decay=decay)
        seeded = replace(seeded, bounds=bounds)
        outcomes: dict[str, Outcome] = {}

        def receive(rank: int, message: Any, seed: int = seed, found: Any = outcomes) -> None:
            del rank
            if isinstance(message, Outcome):
                found[message.name] = message
            elif progress is not None:
                name, step, total, word = message
                progress(step + total * (name == SMALL), 2 * total, f"seed {seed}, {name}, {word}")

        options = {
            "configs": {PLAIN: uncompressed(seeded), SMALL: seeded},
            "source": source,
            "eval_every": max(1, config.steps // num_evals),
        }
        run_local_ranks(compare, ranks, options, receive)
        yield Pair(seed, seeded, outcomes[PLAIN], outcomes[SMALL])
