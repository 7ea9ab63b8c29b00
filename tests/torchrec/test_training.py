"""Training with compressed exchanges goes as it does without."""

from __future__ import annotations

from typing import Any

import torch

from tersor.sites.embeddings import AdaptiveBounds, Decay
from tersor.sites.embeddings.torchrec import torchrec_codecs
from tests.sites.ranks import returned, run_ranks
from tests.torchrec.tables import Table, samples_of

TABLES = (
    Table(0, 8, (0,), num_rows=200),
    Table(1, 8, (1,), num_rows=20),
    Table(2, 16, (0,), num_rows=60),
)
BATCH, STEPS = 128, 60


def labels_of(samples: Any) -> torch.Tensor:
    """Return clicks that follow from the rows a sample looks up, and from nothing else."""
    lengths = samples.lengths.view(len(samples.keys), -1)
    values = samples.values.split(lengths.sum(1).tolist())
    score = torch.zeros(BATCH)
    for feature, (each, rows) in enumerate(zip(lengths, values, strict=True)):
        owners = torch.repeat_interleave(torch.arange(BATCH), each)
        score.index_add_(0, owners, torch.sin(rows * (1.7 + feature)))
    return (score > 0).float()


def losses(rank: int, every: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Train a small model with each of several codecs; return the loss of every step."""
    return [train(rank, options) for options in every]


def train(rank: int, options: dict[str, Any] | None) -> dict[str, Any]:
    from tests.torchrec import models

    codecs = None if options is None else torchrec_codecs(models.configs_of(TABLES), **options)
    model = torch.nn.Module()
    model.tables = models.collection(TABLES)
    model.top = torch.nn.Sequential(
        torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    model.forward = lambda features: model.top(model.tables(features).values()).squeeze(1)
    sharded = models.shard(model, "tables", TABLES, codecs, learning_rate=50.0)
    if codecs is not None:
        codecs.attach(sharded)
    dense = torch.optim.SGD([p for name, p in sharded.named_parameters() if "top" in name], lr=0.5)
    found = []
    for step in range(STEPS):
        samples = samples_of(TABLES, rank, BATCH, longest=1, step=step)
        dense.zero_grad()
        logits = sharded(models.as_features(samples))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels_of(samples))
        loss.backward()
        dense.step()
        found.append(loss.item())
    stats = None if codecs is None else codecs.stats.to_dict()
    if codecs is not None:
        codecs.close()
    return {"losses": found, "stats": stats}


def test_training_goes_as_without_compression():
    policy = AdaptiveBounds(tight={0}, loose={1}, decay=Decay("step", 2.0, STEPS // 5))
    every = [
        None,
        {"codec": "raw", "backward": "raw"},
        {"bounds": policy, "backward": "half"},
        {"bounds": policy, "backward": "group8"},
    ]
    for plain, raw, *lossy in returned(run_ranks(losses, 2, every)):
        assert raw["losses"] == plain["losses"]
        start, end = plain["losses"][0], sum(plain["losses"][-10:]) / 10
        assert end < start - 0.1
        for one in lossy:
            assert one["losses"] != plain["losses"]
            # a tenth of what training gained
            assert abs(sum(one["losses"][-10:]) / 10 - end) < 0.1 * (start - end)
            assert one["stats"]["forward"]["ratio"] > 4.0
