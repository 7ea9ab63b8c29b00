"""What cannot be compressed is refused in one sentence that says the way out, on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_common
from torch.distributed.tensor import Shard

from tersor.errors import SpecError
from tersor.sites import shards
from tersor.sites.shards import Gradients, Weights
from tests.sites.ranks import returned, run_ranks
from tests.sites.shards.fsdp_rank import (
    NUM_UNITS,
    Net,
    compressed,
    error_of,
    gradient_error,
    loss_of,
    message_of,
    of_all,
    optimizer_of,
    run_all,
    sharded,
    train,
)

HAS_SYMMETRIC_MEMORY = hasattr(_fsdp_collectives, "SymmMemAllGather")
"""False in torch 2.11."""
FINE = Gradients(nbits=8)
"""Gradients whose error is far below that of a wrong divide factor."""
MOST_ERROR = 0.05
"""Of such a gradient, relative. A step of 8 bits is 1 / 127 of a group's largest value, about 4 times the root
mean square; rounding errs by 1 / sqrt(12) of it, or 0.0091, in each of two hops. Averaged gradients partly
cancel, which makes the share larger; dividing by 4 in place of 3 errs by 0.25."""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nbits": 16}, "nbits of weights must be 4 or 8, not 16"),
        ({"group": 3}, "group must be an even number from 2 to 1048576, not 3"),
        ({"group": 2**21}, "group must be an even number from 2 to 1048576, not 2097152"),
        ({"group": 128.0}, "group must be an even number from 2 to 1048576, not 128.0"),
        ({"reference": "all"}, "reference must be one of whole, node, not 'all'"),
        ({"rounding": "up"}, "rounding must be one of nearest, stochastic, not 'up'"),
        ({"seed": None}, "seed must be a whole number"),
        (
            {"differences": False, "reference": "node"},
            "weights without differences have no reference; leave reference='whole'",
        ),
    ],
)
def test_bad_options_of_weights(options, sentence):
    with pytest.raises(SpecError) as error:
        Weights(**options)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nbits": 2}, "nbits must be 4, 8, 16 or 32, not 2"),
        ({"node_nbits": "8"}, "node_nbits must be 4, 8, 16 or 32, not '8'"),
        ({"group": 0}, "group must be an even number from 2 to 1048576, not 0"),
        ({"group": 48}, "with hadamard, group must be a multiple of 32, not 48"),
        ({"levels": 3}, "levels must be 1 or 2, not 3"),
        ({"error_feedback": 1.5}, "error_feedback must be from 0 to 1, not 1.5"),
        ({"error_feedback": float("nan")}, "error_feedback must be from 0 to 1, not nan"),
        ({"reset_every": 0}, "reset_every must be a positive number, not 0"),
        ({"seed": None}, "seed must be a whole number"),
    ],
)
def test_bad_options_of_gradients(options, sentence):
    with pytest.raises(SpecError) as error:
        Gradients(**options)
    assert str(error.value) == sentence


def test_a_process_alone_is_refused():
    with pytest.raises(SpecError) as error:
        shards.compress(nn.Linear(2, 2))
    assert str(error.value) == (
        "torch.distributed is not initialised; call init_process_group first"
    )


def mixes(model: Net) -> None:
    model.blocks[1].up.to(torch.bfloat16)


def of_models(rank: int) -> dict[str, Any]:
    found = {"not sharded": message_of(lambda: shards.compress(Net()))}
    found["not compressed"] = message_of(lambda: shards.restore(Net()))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "node"))
    found["hsdp"] = message_of(lambda: shards.compress(sharded(mesh=mesh)))
    both = mesh._flatten("both")
    flat = sharded(mesh=both)
    # one rank's model is another one: all others on its mesh must hear of it
    own = sharded(mesh=both, prepare=mixes) if rank == 1 else flat
    found["one rank"] = message_of(lambda: shards.compress(own, ranks_per_node=2))
    part = sharded(mesh=mesh["node"], prepare=mixes if rank == 1 else None)
    found["one rank of a part"] = message_of(
        lambda: shards.compress(part, gradients=FINE, ranks_per_node=1)
    )
    if rank >= 2:
        found["part"] = gradient_error(part, sharded(mesh=mesh["node"]), rank)
        shards.restore(part)
    model, _ = compressed(flat, gradients=FINE)
    found["flattened"] = gradient_error(model, sharded(mesh=both), rank)
    shards.restore(model)
    found["fewer ranks"] = message_of(lambda: shards.compress(sharded(reshard_after_forward=2)))
    found["dtypes"] = message_of(lambda: shards.compress(sharded(prepare=mixes)))
    # torch 2.11 has one mesh for all parameters of a module
    if hasattr(_fsdp_common, "ShardPlacementResult"):
        found["meshes"] = message_of(lambda: shards.compress(_on_two_meshes(mesh)))
    found["different ranks"] = message_of(lambda: shards.compress(_on_other_ranks(mesh)))
    return found


def _on_two_meshes(mesh: Any) -> Net:
    """Shard the biases of a model over the ranks of a node, the rest over all."""
    node = _fsdp_common.FSDPMeshInfo(mesh["node"], 0)

    def place(parameter: nn.Parameter) -> Any:
        if parameter.dim() > 1:
            return None
        return _fsdp_common.ShardPlacementResult(Shard(0), node)

    model = Net()
    fully_shard(model, mesh=mesh._flatten("both"), shard_placement_fn=place)
    return model


def _on_other_ranks(mesh: Any) -> Net:
    torch.manual_seed(0)
    model = Net()
    fully_shard(model.blocks[0], mesh=mesh["across"])
    fully_shard(model.blocks[1], mesh=mesh["node"])
    fully_shard(model, mesh=mesh["node"])
    return model


def of_collectives(rank: int) -> dict[str, Any]:
    found = {}
    model = sharded()
    group = model.blocks[1]._get_fsdp_state()._fsdp_param_groups[0]
    if HAS_SYMMETRIC_MEMORY:
        # as set_symm_mem_for_comm leaves it, which needs NCCL
        gather = _fsdp_collectives.SymmMemAllGather
        group._all_gather_comm = gather.__new__(gather)
        found["symmetric memory"] = message_of(lambda: shards.compress(model))
    other = sharded()
    other.blocks[0].set_allocate_memory_from_process_group_for_comm(True)
    found["memory of the group"] = message_of(lambda: shards.compress(other))
    model, _ = compressed()
    if HAS_SYMMETRIC_MEMORY:
        found["symmetric memory later"] = message_of(model.set_symm_mem_for_comm)
    found["twice"] = message_of(lambda: shards.compress(model))
    model.set_gradient_divide_factor(3.0)
    found["factor"] = message_of(lambda: loss_of(model, rank, 0).backward())
    shards.restore(model)
    model, _ = compressed(gradients=FINE)
    exact = sharded()
    for module in (*model.blocks, model, *exact.blocks, exact):
        module.set_gradient_divide_factor(3.0)
        module.set_force_sum_reduction_for_comms(True)
    found["sum"] = gradient_error(model, exact, rank)
    shards.restore(model)
    model, _ = compressed()
    optimizer = optimizer_of(model)
    model.set_reshard_after_backward(False)
    loss_of(model, rank, 0).backward()
    found["stays gathered"] = message_of(optimizer.step)
    shards.restore(model)
    return found


def of_arguments(rank: int) -> dict[str, str]:
    found = {}
    for name, options in (
        ("weights", {"weights": Weights(nbits=8 if rank == 2 else 4)}),
        ("gradients", {"gradients": Gradients(seed=rank // 3)}),
        ("one is None", {"gradients": None if rank == 0 else Gradients()}),
        ("ranks_per_node", {"ranks_per_node": 4 if rank == 3 else 2}),
    ):
        arguments = {"ranks_per_node": 2, **options}
        found[name] = message_of(
            lambda arguments=arguments: shards.compress(sharded(), **arguments)
        )
    found["three"] = message_of(lambda: shards.compress(sharded(), ranks_per_node=3))
    other = sharded(prepare=lambda model: model.blocks.append(nn.Linear(24, 24)) if rank else None)
    found["modules"] = message_of(lambda: shards.compress(other, ranks_per_node=2))
    return found


def of_states(rank: int) -> dict[str, Any]:
    model, compression = compressed(gradients=None)
    found = {
        "other state": message_of(lambda: compression.load_state_dict({"other": torch.zeros(1)})),
        "other modules": message_of(
            lambda: compression.load_state_dict(
                {**compression.state_dict(), "scatters.0.step": torch.zeros(1)}
            )
        ),
    }
    shards.restore(model)
    model, compression = compressed(weights=Weights(differences=False))
    train(model, rank, 2)
    found["full gathers without differences"] = compression.stats.num_full_gathers
    found["error without differences"] = error_of(model)
    shards.restore(model)
    # without an optimizer of torch, changes are edits unless they are said to be steps
    for says_so in (False, True):
        model, compression = compressed()
        for step in range(2):
            loss_of(model, rank, step).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
            if says_so:
                compression.mark_step()
        error_of(model)
        found[f"says so: {says_so}"] = compression.stats.num_full_gathers
        shards.restore(model)
    dist.barrier()
    return found


def on_ranks(rank: int) -> dict[str, Any]:
    return run_all(rank, [of_models, of_collectives, of_arguments, of_states])


@pytest.fixture(scope="module")
def four_ranks() -> list[dict[str, Any]]:
    return returned(run_ranks(on_ranks, 4))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("not sharded", "nothing of this model is sharded; call fully_shard(model) first"),
        ("not compressed", "this model is not compressed; call shards.compress(model) first"),
        (
            "hsdp",
            (
                "blocks.0 is sharded on a mesh of two dimensions, whose all-reduce FSDP does itself; give "
                "fully_shard a mesh of one dimension, mesh._flatten(), and pass "
                "ranks_per_node=N to shards.compress"
            ),
        ),
        (
            "fewer ranks",
            (
                "blocks.0 is resharded to fewer ranks after forward; give fully_shard "
                "reshard_after_forward=True or False, and pass Weights(reference='node') to "
                "shards.compress"
            ),
        ),
        (
            "dtypes",
            (
                "blocks.1 gathers parameters of several dtypes, bfloat16 and float32, as bytes; give "
                "fully_shard a MixedPrecisionPolicy with a param_dtype, or pass weights=None to "
                "shards.compress"
            ),
        ),
        (
            "meshes",
            (
                "blocks.0 has parameters on several meshes; give fully_shard modules whose parameters "
                "share one mesh"
            ),
        ),
        (
            "different ranks",
            "modules are sharded over different ranks; give fully_shard one mesh for all",
        ),
    ],
)
def test_models_that_cannot_be_compressed(four_ranks, name, sentence):
    for found in of_all(four_ranks, "of_models"):
        if name not in found:
            pytest.skip("this torch has one mesh for all parameters of a module")
        one = found[name].replace("the root module", "blocks.0")
        assert one == f"SpecError: {sentence}"


def test_all_ranks_hear_of_the_one_that_cannot(four_ranks):
    for name, peers in (("one rank", (0, 2, 3)), ("one rank of a part", (0,))):
        found = [one[name] for one in of_all(four_ranks, "of_models")]
        assert "gathers parameters of several dtypes" in found[1]
        for rank in peers:
            assert found[rank] == (
                "SpecError: rank 1 could not make its shards.compress(model); look at its error"
            )


def test_models_on_other_ranks_are_not_disturbed(four_ranks):
    for found in of_all(four_ranks, "of_models")[2:]:
        assert found["one rank of a part"] == "nothing was raised"
        assert 0 < found["part"] < MOST_ERROR


def test_a_flattened_mesh_is_compressed(four_ranks):
    for found in of_all(four_ranks, "of_models"):
        assert 0 < found["flattened"] < MOST_ERROR


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "symmetric memory",
            (
                "SpecError: blocks.1 has the collective SymmMemAllGather already; compress before "
                "set_symm_mem_for_comm, set_allocate_memory_from_process_group_for_comm or a custom "
                "collective, and without them"
            ),
        ),
        (
            "memory of the group",
            "SpecError: blocks.0 has the collective ProcessGroupAllocAllGather already; compress before",
        ),
        ("symmetric memory later", "AssertionError: "),
        (
            "twice",
            "SpecError: this model is compressed already; call shards.restore(model) first",
        ),
        ("factor", "SpecError: gradients can be summed or averaged, not reduced with "),
        (
            "stays gathered",
            (
                "SpecError: the weights of the root module stay gathered over an optimizer step, so that "
                "the next forward would use old ones; call model.set_reshard_after_backward(True) before "
                "the last backward of a step, and module.reshard() after an evaluation"
            ),
        ),
    ],
)
def test_collectives_that_cannot_be_compressed(four_ranks, name, words):
    if name.startswith("symmetric memory") and not HAS_SYMMETRIC_MEMORY:
        pytest.skip("this torch has no set_symm_mem_for_comm")
    for found in of_all(four_ranks, "of_collectives"):
        assert found[name].replace("blocks.0 stay", "the root module stay").startswith(words)


def test_a_divide_factor_works_as_the_refusal_says(four_ranks):
    for found in of_all(four_ranks, "of_collectives"):
        assert "call model.set_force_sum_reduction_for_comms(True)" in found["factor"]
        assert 0 < found["sum"] < MOST_ERROR


def test_ranks_with_different_arguments_are_refused_at_once(four_ranks):
    for found in of_all(four_ranks, "of_arguments"):
        for name in ("weights", "gradients", "ranks_per_node", "modules"):
            assert found[name].startswith("SpecError: rank 0 made its shards.compress(model) with ")
            assert found[name].endswith(f"give all ranks the same {name}")
        assert found["one is None"].startswith(
            "SpecError: rank 0 made its shards.compress(model) with gradients=None, rank 1 with "
        )
        assert found["three"] == (
            "SpecError: ranks_per_node must divide the 4 ranks into equal nodes, not be 3"
        )


def test_states_of_other_models_are_refused(four_ranks):
    for found in of_all(four_ranks, "of_states"):
        for name in ("other state", "other modules"):
            assert found[name].startswith(
                "SpecError: this state is of a model that was compressed in another way; load it "
                "into one that was compressed with the same arguments on as many ranks"
            )


def test_weights_without_differences_are_never_sent_as_they_are(four_ranks):
    for found in of_all(four_ranks, "of_states"):
        assert found["full gathers without differences"] == 0
        # half a step of 1 / 7 of the largest of 2,048 weights, where most are far smaller
        assert 0.1 < found["error without differences"] < 0.4


def test_a_loop_of_ones_own_may_say_that_it_stepped(four_ranks):
    for found in of_all(four_ranks, "of_states"):
        assert found["says so: False"] == 3 * NUM_UNITS
        assert found["says so: True"] == NUM_UNITS
