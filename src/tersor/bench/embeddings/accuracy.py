"""The ``accuracy`` suite: pairs of training runs that differ only in compression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tersor.bench.core import machine
from tersor.sites.embeddings import AdaptiveBounds
from tersor.workloads.data.clicks import ClickSource
from tersor.workloads.dlrm import DlrmConfig, DlrmRun
from tersor.workloads.dlrm.comparison import DlrmOutcome, sample_classes
from tersor.workloads.dlrm.config import uncompressed
from tersor.workloads.training.comparison import MakeRun, train_pairs
from tersor.workloads.training.judgement import Pair
from tersor.workloads.training.loop import Progress

PLAIN, SMALL = "uncompressed", "compressed"


def run_accuracy(
    config: DlrmConfig,
    sources: Callable[[int], ClickSource],
    seeds: Sequence[int],
    *,
    ranks: int,
    num_evals: int = 8,
    progress: Progress | None = None,
) -> Iterator[Pair[DlrmOutcome]]:
    """Train every seed twice on real ranks of this machine, and yield each pair when it is done.

    Args:
        config: config of the compressed run; the bounds' classes are determined for each seed.
        sources: returns the click log of a seed.
        seeds: seeds of the weights, and of click logs that take one.
        ranks: processes that train together.
        num_evals: points of the curves.
        progress: called with the step, the total steps of a pair, and a word.
    """

    def settings(seed: int) -> Mapping[str, MakeRun]:
        source, seeded = sources(seed), replace(config, seed=seed)
        given = config.bounds
        classes = sample_classes(seeded, source, given.bounds)
        found = AdaptiveBounds.from_classes(classes, bounds=given.bounds, decay=given.decay)
        seeded = replace(seeded, bounds=found)
        return {
            PLAIN: partial(DlrmRun, uncompressed(seeded), source),
            SMALL: partial(DlrmRun, seeded, source),
        }

    every = max(1, config.steps // num_evals)
    return train_pairs(settings, seeds, ranks=ranks, eval_every=every, progress=progress)


def pair_row(pair: Pair[DlrmOutcome]) -> dict[str, Any]:
    """Return the JSON-ready row of a pair, including what is needed to reproduce it."""
    return {
        "suite": "accuracy",
        "seed": pair.seed,
        "source": pair.second.data_name,
        "ranks": pair.second.ranks,
        "config": pair.second.config,
        **{
            one.name: {
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
            for one in (pair.first, pair.second)
        },
        **machine.origin(torch.device("cpu")),
    }
