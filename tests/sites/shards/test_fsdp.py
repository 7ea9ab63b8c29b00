"""A model under FSDP2 on four ranks: trains as without compression, and replicas are the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy

from tersor.sites import shards
from tersor.sites.shards import Gradients, Weights
from tests.sites.ranks import returned, run_ranks
from tests.sites.shards.fsdp_rank import (
    NUM_UNITS,
    Net,
    assert_same_bits,
    compressed,
    error_of,
    gathered_weights,
    loss_of,
    of_all,
    run_all,
    sharded,
    train,
    whole,
)

NODE = Weights(reference="node")
FINE = {"weights": Weights(nbits=8), "gradients": Gradients(nbits=32, node_nbits=32)}


def trains(rank: int) -> dict[str, Any]:
    exact = sharded()
    found: dict[str, Any] = {"exact": train(exact, rank, 10)}
    for name, options in (("whole", {}), ("node", {"weights": NODE})):
        model, compression = compressed(**options)
        found[name] = train(model, rank, 10)
        found[f"{name} weights"] = gathered_weights(model)
        found[f"{name} error"] = error_of(model)
        found[f"{name} full gathers"] = compression.stats.num_full_gathers
        shards.restore(model)
    return found


def gradient_of(model: Net, rank: int) -> torch.Tensor:
    """Return the reduced gradient of one batch, of all ranks."""
    loss_of(model, rank, 99).backward()
    found = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    model.zero_grad()
    return found


def trains_one_of_both(rank: int) -> dict[str, Any]:
    """Exact gradients and differences of 8 bits follow the exact training closely; so does each alone."""
    exact = sharded()
    found: dict[str, Any] = {"exact gradient": gradient_of(exact, rank)}
    train(exact, rank, 4)
    found["exact"] = whole(exact)
    for name, options in (
        ("both", FINE),
        ("weights", {**FINE, "gradients": None}),
        ("gradients", {**FINE, "weights": None}),
    ):
        model, _ = compressed(**options)
        found[f"{name} gradient"] = gradient_of(model, rank)
        train(model, rank, 4)
        found[name] = whole(model)
        shards.restore(model)
    return found


def ties(model: Net) -> None:
    # of one sharded module, as FSDP asks for
    model.inner = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 24))
    model.inner[2].weight = model.inner[1].weight


def freezes(model: Net) -> None:
    model.blocks[0].requires_grad_(False)
    model.blocks[1].up.requires_grad_(False)


def wraps(model: Net) -> None:
    for k, block in enumerate(model.blocks):
        model.blocks[k] = checkpoint_wrapper(block)


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
BF16_ALL = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def trains_kinds_of_models(rank: int) -> dict[str, Any]:
    found = {}
    for name, sharding, options in (
        ("frozen", {"prepare": freezes}, {}),
        ("tied", {"prepare": ties}, {"weights": NODE}),
        ("bf16", {"policy": BF16}, {"weights": NODE}),
        ("bf16 all", {"policy": BF16_ALL}, {}),
        ("stays gathered in forward", {"reshard_after_forward": False}, {}),
        ("checkpointed", {"prepare": wraps}, {"weights": NODE}),
    ):
        model = sharded(**sharding)
        before = whole(model)
        model, compression = compressed(model, **options)
        losses = train(model, rank, 3)
        after = whole(model)
        exact = sharded(**sharding)
        found[name] = {
            "losses": losses,
            "exact losses": train(exact, rank, 3),
            "weights": gathered_weights(model),
            "error": error_of(model),
            "moved": (after != before).sum().item(),
            "full gathers": compression.stats.num_full_gathers,
        }
        shards.restore(model)
    return found


def is_compiled(rank: int) -> dict[str, Any]:
    model, compression = compressed(weights=NODE)
    eager = train(model, rank, 2)
    shards.restore(model)
    model, compression = compressed(weights=NODE)
    losses = train(torch.compile(model, backend="aot_eager"), rank, 2)
    found = {
        "eager": eager,
        "losses": losses,
        "weights": gathered_weights(model),
        "steps": compression.stats.num_steps,
    }
    shards.restore(model)
    return found


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def on_ranks(rank: int) -> dict[str, Any]:
    return run_all(rank, [trains, trains_one_of_both, trains_kinds_of_models, is_compiled])


@pytest.fixture(scope="module")
def four_ranks() -> list[dict[str, Any]]:
    return returned(run_ranks(on_ranks, 4))


def test_a_model_trains_as_without_compression(four_ranks):
    found = of_all(four_ranks, "trains")
    exact = [mean([one["exact"][step] for one in found]) for step in range(10)]
    for name in ("whole", "node"):
        losses = [mean([one[name][step] for one in found]) for step in range(10)]
        # the first forward has the exact weights
        assert losses[0] == exact[0]
        assert losses[-1] != exact[-1]
        assert losses[-1] < 0.9 * losses[0]
        assert losses[-1] == pytest.approx(exact[-1], rel=0.1)


def test_replicas_are_the_same_bits(four_ranks):
    found = of_all(four_ranks, "trains")
    for name in ("whole", "node"):
        assert_same_bits([one[f"{name} weights"] for one in found])
        for one in found:
            assert 0 < one[f"{name} error"] < 0.02
            assert one[f"{name} full gathers"] == NUM_UNITS


def test_each_of_both_may_be_left_to_fsdp(four_ranks):
    for one in of_all(four_ranks, "trains_one_of_both"):
        for name in ("both", "weights", "gradients"):
            # a mean over ranks; AdamW alone would not see a factor
            torch.testing.assert_close(one[f"{name} gradient"], one["exact gradient"])
        exact = one["exact"]
        for name in ("both", "weights", "gradients"):
            assert float((one[name] - exact).norm() / exact.norm()) < 0.01
        # float32 sums in another order, if at all
        assert float((one["gradients"] - exact).norm() / exact.norm()) < 1e-4


@pytest.mark.parametrize(
    "name", ["frozen", "tied", "bf16", "bf16 all", "stays gathered in forward", "checkpointed"]
)
def test_kinds_of_models_train(four_ranks, name):
    found = [one[name] for one in of_all(four_ranks, "trains_kinds_of_models")]
    assert_same_bits([one["weights"] for one in found])
    for step in range(3):
        exact = mean([one["exact losses"][step] for one in found])
        assert mean([one["losses"][step] for one in found]) == pytest.approx(exact, rel=0.1)
    for one in found:
        assert one["full gathers"] == NUM_UNITS
        assert one["moved"] > 0
        assert 0 < one["error"] < 0.02


def test_compiled_models_train(four_ranks):
    found = of_all(four_ranks, "is_compiled")
    assert_same_bits([one["weights"] for one in found])
    for one in found:
        assert one["losses"] == pytest.approx(one["eager"], rel=1e-4)
        assert one["steps"] == 2
