"""The codecs as TorchRec's planner, sharders and modules take them."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tersor import Bound, create
from tersor.errors import SpecError
from tersor.sites.embeddings import AdaptiveBounds, Decay
from tersor.sites.embeddings.torchrec import torchrec_codecs
from tests.checks import assert_bits_equal
from tests.sites.ranks import returned, run_ranks
from tests.torchrec.tables import Table, samples_of

TABLES = (Table(0, 8, (0,)), Table(1, 16, (1,)), Table(2, 8, (0,)))


def planned(rank: int, backward: str) -> dict[str, Any]:
    """Let TorchRec's planner place the tables of two collections that share one sharder."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import (
        EmbeddingShardingPlanner,
        ParameterConstraints,
        Topology,
    )

    from tests.torchrec import models

    other = [Table(t.number + 3, t.width, ()) for t in reversed(TABLES)]
    names = [table.name for table in (*TABLES, *other)]
    codecs = torchrec_codecs(names, bounds=0.03, backward=backward)
    sharders = [EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)]
    module = torch.nn.ModuleDict(
        {"first": models.collection(TABLES), "second": models.collection(other)}
    )
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=2, compute_device="cpu"),
        constraints={name: ParameterConstraints(sharding_types=["table_wise"]) for name in names},
    )
    plan = planner.collective_plan(module, sharders, dist.group.WORLD)
    model = DistributedModelParallel(module, device=models.CPU, plan=plan, sharders=sharders)
    codecs.attach(model)
    for name, tables in (("first", TABLES), ("second", other)):
        rows = model.module[name](models.as_features(samples_of(tables, rank, 6)))
        rows.values().sum().backward()
    stats = codecs.stats.to_dict()
    codecs.close()
    return stats


@pytest.mark.parametrize("backward", ["none", "half"])
def test_the_planner_takes_the_codecs_and_two_collections_share_them(backward):
    found = returned(run_ranks(planned, 2, backward))
    tables = [int(table) for stats in found for table in stats["tables"]]
    assert sorted(tables) == list(range(6))
    assert all(stats["num_exchanges"] == 2 for stats in found)
    assert sum(stats["backward"]["original_nbytes"] for stats in found) == 4 * 12 * 2 * 32


def lifetime(rank: int) -> dict[str, Any]:
    from tests.torchrec import models

    policy = AdaptiveBounds(decay=Decay("constant", 8.0, 10))
    sharded = models.make(TABLES, {"bounds": policy, "backward": "half"})
    codecs, features = sharded.codecs, models.as_features(samples_of(TABLES, rank, 64))
    results = {"first": sharded.model(features).values().detach()}
    results["seen"] = codecs.reset_stats().num_exchanges, codecs.stats.num_exchanges
    codecs.iteration = 10
    results["settled"] = sharded.model(features).values().detach()
    results["iteration"] = codecs.iteration
    codecs.attach(sharded.model)
    results["again"] = sharded.model(features).values().detach(), codecs.iteration
    results["plain"] = models.make(TABLES, None).model(features).values().detach()
    codecs.close()
    return results


def test_statistics_start_anew_and_decay_goes_on_from_an_iteration():
    for found in returned(run_ranks(lifetime, 2)):
        assert found["seen"] == (1, 0)
        assert found["iteration"] == 11
        early, late = (
            float((found[name] - found["plain"]).abs().max()) for name in ("first", "settled")
        )
        assert 0 < late < early / 2


def test_codecs_that_are_attached_again_begin_anew():
    for found in returned(run_ranks(lifetime, 2)):
        rows, iteration = found["again"]
        assert_bits_equal(rows, found["first"])
        assert iteration == 1


def alone(rank: int) -> torch.Tensor:
    from tests.torchrec import models

    tables = [Table(t.number, t.width, (0,)) for t in TABLES]
    sharded = models.make(tables, {"bounds": 0.03})
    return sharded.model(models.as_features(samples_of(tables, rank, 6))).values().detach()


def test_one_rank_exchanges_nothing():
    (rows,) = returned(run_ranks(alone, 1))
    assert tuple(rows.shape) == (6, 32)


def test_a_bound_that_would_be_replaced_is_refused():
    codec = create("flat", bound=Bound.absolute(1e-4))
    with pytest.raises(SpecError, match=r"give bounds=Bound\.absolute\(0\.0001\) to keep it"):
        torchrec_codecs(["a"], codec=codec)


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(SpecError, match="names of their own"):
        torchrec_codecs(["a", "a"])


def saved_and_loaded(rank: int) -> dict[str, Any]:
    """Train two steps with measured codecs, and go on in a second model from the saved state."""
    from tests.torchrec import models

    options = {"bounds": AdaptiveBounds(decay=Decay("linear", 2.0, 9)), "codec": "auto"}
    features = models.as_features(samples_of(TABLES, rank, 64))
    first = models.make(TABLES, options)
    for _ in range(2):
        first.model(features)
    state = json.loads(json.dumps(first.codecs.state_dict()))
    second = models.make(TABLES, options)
    second.codecs.load_state_dict(state)
    with pytest.raises(SpecError, match="no saved state of the codecs"):
        second.codecs.load_state_dict({"collectives": []})
    found = {"states": (state, second.codecs.state_dict()), "iteration": second.codecs.iteration}
    for one in (first, second):
        one.codecs.close()
    return found


def test_codecs_go_on_from_their_saved_state():
    for found in returned(run_ranks(saved_and_loaded, 2)):
        before, after = found["states"]
        assert before == after
        assert found["iteration"] == 2
        assert any(one["choices"] for one in before["collectives"])


def given_in_gigabytes(rank: int) -> tuple[float, list[str]]:
    """Return the bandwidth in gigabits, and what this line was warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        codecs = torchrec_codecs(["a"], codec="auto", bandwidth_gbps=2.5)
    return codecs._plan.bandwidth_gbit_s, [
        str(one.message) for one in warned if one.filename == __file__
    ]


def test_a_bandwidth_in_gigabytes_is_converted_with_a_warning():
    # in a process of its own: torchrec warns when it is imported
    [(gbit_s, [words])] = returned(run_ranks(given_in_gigabytes, 1))
    assert gbit_s == 20.0
    assert "give bandwidth_gbit_s=20," in words
