"""A real DistributedModelParallel model of sequences of rows on two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tersor import Bound
from tersor.sites.embeddings import AdaptiveBounds, Decay
from tests.checks import assert_bits_equal, assert_within_bound
from tests.sites.ranks import returned, run_ranks
from tests.torchrec.tables import Table, samples_of

BATCHES = (5, 9)
MODELS = {
    "tables": (Table(0, 8, (0,)), Table(1, 8, (1,)), Table(2, 8, (0,), num_features=2)),
    "one owner": (Table(0, 8, (1,)), Table(1, 8, (1,))),
    "rows": (Table(0, 8, ()), Table(1, 8, ())),
}


def looked_up(
    rank: int, tables: tuple[Table, ...], every: list[dict[str, Any] | None]
) -> list[dict[str, Any]]:
    from tests.torchrec import models

    results = []
    for options in every:
        sharded = models.make(tables, options, is_pooled=False)
        samples = samples_of(tables, rank, BATCHES[rank])
        out = sharded.model(models.as_features(samples))
        rows = {name: jagged.values() for name, jagged in out.items()}
        sum((x * (rank + 1.5)).sin().sum() for x in rows.values()).backward()
        results.append(
            {
                "rows": {name: x.detach() for name, x in rows.items()},
                "weights": {
                    name: weight.detach().clone()
                    for name, weight in sharded.model.named_parameters()
                    if weight.numel()
                },
                "stats": sharded.codecs.stats.to_dict() if sharded.codecs else None,
            }
        )
        if sharded.codecs:
            sharded.codecs.close()
    return results


@pytest.mark.parametrize("name", MODELS)
def test_the_identity_codec_is_the_plain_model(name):
    raw = {"codec": "raw", "backward": "raw"}
    every = [None, raw, raw | {"backward": "none"}]
    results = returned(run_ranks(looked_up, 2, MODELS[name], every))
    assert all(any(plain[part] for plain, *_ in results) for part in ("rows", "weights"))
    for plain, *found in results:
        for one in found:
            for part in ("rows", "weights"):
                assert plain[part].keys() == one[part].keys()
                for key, expected in plain[part].items():
                    assert_bits_equal(expected, one[part][key])


@pytest.mark.parametrize("name", MODELS)
def test_sequences_keep_the_tightest_bound_of_their_tables(name):
    policy = AdaptiveBounds(tight={0}, loose={1}, decay=Decay.off())
    every = [None, {"bounds": policy, "backward": "half"}]
    tables = MODELS[name]
    changed = False
    for plain, found in returned(run_ranks(looked_up, 2, tables, every)):
        for owners in {table.owners for table in tables}:
            # what one rank sends to another has one range and one bound
            together = [table for table in tables if table.owners == owners]
            bound = min(policy.bound(table.number, 0).value for table in together)
            features = [feature for table in together for feature in table.features]
            x, y = (torch.cat([one["rows"][name] for name in features]) for one in (plain, found))
            assert_within_bound(x, y, Bound.relative(bound))
            changed |= not torch.equal(x, y)
        assert found["stats"]["backward"]["ratio"] == 2.0
    assert changed
