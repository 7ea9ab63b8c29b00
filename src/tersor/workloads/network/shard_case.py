"""Measurements of one rank: interleaved steps of GPTs that differ in how ranks exchange."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch.distributed as dist

from tersor.comm import gathered
from tersor.workloads.data.text_opening import SYNTHETIC, open_text
from tersor.workloads.gpt import GptConfig
from tersor.workloads.models.gpt import GptShape
from tersor.workloads.network.counters import sent_nbytes
from tersor.workloads.network.shard_variants import (
    ExchangeVariant,
    VariantRun,
    counted_from_here,
    weights_of,
)

_WARM_STEPS: Final = 4
"""The first step gathers uncompressed weights, DDP rebuilds its buckets after it, PowerSGD compresses from the
third on, and each of these compiles kernels or opens connections."""


@dataclass(frozen=True, slots=True)
class ShardCase:
    """One measurement.

    Attributes:
        rounds: most rounds; in each, every run takes one timed step.
        max_s: time after which no further round begins; at least one is run.
    """

    rounds: int
    max_s: float


def measuring(**settings: Any) -> Callable[[ShardCase], dict[str, Any]]:
    """Create a ``ShardBench`` on a rank of ``RankProcesses``; return the function that answers cases."""
    return ShardBench(**settings).measure


class ShardBench:
    """Trainings of the same model that differ only in their exchange."""

    def __init__(
        self,
        *,
        shape: GptShape,
        batch: int,
        seed: int,
        ranks_per_node: int,
        variants: tuple[ExchangeVariant, ...],
    ) -> None:
        """Create all trainings, and take some steps with each; a collective call.

        Args:
            shape: of the model.
            batch: sequences of all ranks per step.
            seed: of weights and text.
            ranks_per_node: number of ranks that share a node.
            variants: the exchanges to compare.
        """
        config = GptConfig(shape=shape, batch=batch, steps=1000, seed=seed)
        source = open_text(SYNTHETIC, seed=seed)
        self.runs = [VariantRun(config, source, variant, ranks_per_node) for variant in variants]
        # all take the same steps, so their losses can be compared
        self._losses = [[run.step() for _ in range(_WARM_STEPS)] for run in self.runs]

    def measure(self, case: ShardCase) -> dict[str, Any]:
        """Take steps with all trainings; a collective call.

        Returns:
            Per training: the losses of this rank's first steps; the number of weights; the seconds of
            every step, and the bytes that interfaces sent in it; and, for separate steps with timed
            exchanges, seconds and bytes of weights and gradients, and seconds of coding.
        """
        found: list[dict[str, Any]] = [
            {"losses": losses, "num_weights": weights_of(run.model), "steps": [], "exchanges": []}
            for run, losses in zip(self.runs, self._losses, strict=True)
        ]
        gc.collect()
        begin = time.perf_counter()
        for number in range(case.rounds):
            seconds = max(gathered(time.perf_counter() - begin, None))
            if number and seconds > case.max_s:
                break
            for run, one in zip(self.runs, found, strict=True):
                one["steps"].append(_step(run))
                one["exchanges"].append(_exchanges(run))
        return {run.variant.name: one for run, one in zip(self.runs, found, strict=True)}


def _step(run: VariantRun) -> dict[str, Any]:
    """Take an ordinary training step; return its seconds, and the bytes that interfaces sent."""
    run.exchanged.clear(is_timed=False)
    before, begin = counted_from_here(), time.perf_counter()
    run.step()
    seconds = time.perf_counter() - begin
    dist.barrier()
    counts = {name: after - before.get(name, 0) for name, after in sent_nbytes().items()}
    return {"seconds": seconds, "nbytes": counts}


def _exchanges(run: VariantRun) -> dict[str, Any]:
    """Take a step whose exchanges start on all ranks together, one at a time; return their times."""
    run.exchanged.clear(is_timed=True)
    coding = run.coding_seconds()
    run.step()
    exchanged = run.exchanged
    return {
        "seconds": exchanged.seconds,
        "nbytes": exchanged.nbytes,
        "coding": run.coding_seconds() - coding,
    }
