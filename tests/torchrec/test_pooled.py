"""A real DistributedModelParallel model of pooled tables on two ranks, with and without our codecs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tersor import Bound, create
from tersor.sites.embeddings import AdaptiveBounds, Decay
from tests.checks import assert_bits_equal, assert_within_bound
from tests.sites.ranks import returned, run_ranks
from tests.torchrec.tables import Table, samples_of

BATCHES = (6, 11)
# tables of different widths, more on one rank than on the other, one of them with two features
UNEVEN = (
    Table(0, 8, (0,)),
    Table(1, 16, (1,)),
    Table(2, 4, (0,), num_features=2),
    Table(3, 8, (0,)),
)
ONE_OWNER = (Table(0, 8, (1,)), Table(1, 12, (1,)))
COLUMNS = (Table(0, 16, (0, 1)), Table(1, 8, (1,)), Table(2, 16, (1, 0)))
# row-wise tables are added up on their way, and stay as they are
MIXED = (Table(0, 8, ()), Table(1, 16, (1,)), Table(2, 8, ()))
MODELS = {"uneven": UNEVEN, "one owner": ONE_OWNER, "columns": COLUMNS, "mixed": MIXED}


def gradient_of(feature: str, rows: torch.Tensor, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(map(ord, feature)) + rank)
    return torch.randn(rows.shape, generator=generator)


def looked_up(
    rank: int,
    tables: tuple[Table, ...],
    every: list[dict[str, Any] | None],
    batches: tuple[int, ...] = BATCHES,
) -> list[dict[str, Any]]:
    """Look up and go back with each of several codecs; return rows, gradients and statistics."""
    from tests.torchrec import models

    results = []
    for options in every:
        sharded = models.make(tables, options)
        for step in range(2):
            sharded.model.zero_grad()
            samples = samples_of(tables, rank, batches[rank], step=step)
            rows = sharded.model(models.as_features(samples)).to_dict()
            loss = sum((x * gradient_of(name, x, rank)).sum() for name, x in rows.items())
            loss.backward()
        results.append(
            {
                "rows": {name: x.detach() for name, x in rows.items()},
                "gradients": {
                    name: weight.grad
                    for name, weight in sharded.model.named_parameters()
                    if weight.grad is not None
                },
                "stats": sharded.codecs.stats.to_dict() if sharded.codecs else None,
            }
        )
        if sharded.codecs:
            sharded.codecs.close()
    return results


def feature_tables(tables: tuple[Table, ...]) -> dict[str, Table]:
    return {feature: table for table in tables for feature in table.features}


@pytest.mark.parametrize("name", MODELS)
def test_the_identity_codec_is_the_plain_model(name):
    raw = {"codec": "raw", "backward": "raw"}
    every = [None, raw, raw | {"backward": "none"}]
    # gloo adds up only batches of one size
    batches = (8, 8) if name == "mixed" else BATCHES
    results = returned(run_ranks(looked_up, 2, MODELS[name], every, batches))
    assert all(any(plain[part] for plain, *_ in results) for part in ("rows", "gradients"))
    for plain, *found in results:
        for one in found:
            for part in ("rows", "gradients"):
                assert plain[part].keys() == one[part].keys()
                for key, expected in plain[part].items():
                    assert_bits_equal(expected, one[part][key])
            assert one["stats"]["forward"]["ratio"] == 1.0 == one["stats"]["backward"]["ratio"]


POLICY = AdaptiveBounds(tight={"table0"}, loose={1}, decay=Decay("linear", 2.0, 4))


@pytest.mark.parametrize("name", ["uneven", "one owner", "columns"])
@pytest.mark.parametrize(
    ("bounds", "codec"),
    [(0.05, "rows"), (Bound.absolute(0.003), "flat"), (POLICY, "auto")],
    ids=["rows", "flat", "auto"],
)
def test_every_table_keeps_its_bound(name, bounds, codec):
    tables = MODELS[name]
    names = [f"table{table.number}" for table in tables]
    # so slow a network that "auto" does not leave small tables as they are
    options = {"bounds": bounds, "codec": codec, "backward": "none", "bandwidth_gbit_s": 8e-4}
    every = [None, options]
    changed = False
    for plain, found in returned(run_ranks(looked_up, 2, tables, every)):
        for feature, table in feature_tables(tables).items():
            # the parts of a table that different ranks own are bounded by their own range
            parts = max(1, len(table.owners))
            for x, y in zip(
                plain["rows"][feature].chunk(parts, 1),
                found["rows"][feature].chunk(parts, 1),
                strict=True,
            ):
                bound = (
                    bounds.numbered(names).bound(table.number, 1)
                    if isinstance(bounds, AdaptiveBounds)
                    else bounds if isinstance(bounds, Bound) else Bound.relative(bounds)
                )  # fmt: skip
                assert_within_bound(x, y, bound.resolve(float(x.min()), float(x.max())))
                changed |= not torch.equal(x, y)
        # the gradient passes straight through quantization
        for key, expected in plain["gradients"].items():
            assert_bits_equal(expected, found["gradients"][key])
    assert changed


def rows_seen(tables: tuple[Table, ...], number: int) -> torch.Tensor:
    """Return how often each row of a table is looked up by all ranks in the last step."""
    table = tables[number]
    count = torch.zeros(table.num_rows)
    for rank, batch in enumerate(BATCHES):
        samples = samples_of(tables, rank, batch, step=1)
        lengths = samples.lengths.view(-1, batch).sum(1).tolist()
        for key, values in zip(samples.keys, samples.values.split(lengths), strict=True):
            if key in table.features:
                count += torch.bincount(values, minlength=table.num_rows)
    return count


@pytest.mark.parametrize(
    ("backward", "share"),
    [
        # half of the distance of two neighbours, of the largest value
        ("half", 2**-11),
        # half a step of 1/127 of the largest value of a group
        ("group8", 1 / 254),
        (create("rows", bound=Bound.relative(0.01)), None),
    ],
    ids=["half", "group8", "bounded"],
)
def test_gradients_are_as_exact_as_their_codec(backward, share):
    every = [None, {"bounds": 0.03, "backward": backward}]
    results = returned(run_ranks(looked_up, 2, UNEVEN, every))
    gradients = [
        gradient_of(feature, torch.empty(batch, table.width), rank)
        for rank, batch in enumerate(BATCHES)
        for feature, table in feature_tables(UNEVEN).items()
    ]
    largest = max(float(x.abs().max()) for x in gradients)
    widest = max(float(x.max() - x.min()) for x in gradients)
    error = largest * share if share else 0.01 * widest
    for plain, found in results:
        for key, expected in plain["gradients"].items():
            number = int(key.split("table")[1].split(".")[0])
            seen = rows_seen(UNEVEN, number).unsqueeze(1)
            # a row's gradient is the sum of those of its look-ups; 2**-18 of it for adding up
            limit = seen * (error + largest * 2**-18)
            assert ((found["gradients"][key] - expected).abs() <= limit).all()
        assert found["stats"]["backward"]["ratio"] > 1.2


def test_statistics_count_what_each_rank_sends():
    every = [{"bounds": 0.05, "backward": "half"}]
    results = returned(run_ranks(looked_up, 2, UNEVEN, every))
    sent = {0: {0: 8, 2: 8, 3: 8}, 1: {1: 16}}
    for rank, (found,) in enumerate(results):
        stats = found["stats"]
        assert stats["num_exchanges"] == 2
        volumes = {int(table): volume for table, volume in stats["tables"].items()}
        original = {table: volume[0] for table, volume in volumes.items()}
        assert original == {
            table: 2 * 4 * sum(BATCHES) * width for table, width in sent[rank].items()
        }
        assert stats["forward"]["encoded_nbytes"] == sum(volume[1] for volume in volumes.values())
        assert stats["backward"]["original_nbytes"] == 2 * 4 * BATCHES[rank] * 40
        assert stats["backward"]["ratio"] == 2.0
        assert all(
            stats[direction]["seconds"]["encode"] > 0 for direction in ("forward", "backward")
        )
