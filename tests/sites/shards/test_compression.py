"""What steps, edits, evaluations and resumed trainings of a model under FSDP2 send and leave."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)

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
    is_compressed,
    loss_of,
    of_all,
    optimizer_of,
    received,
    run_all,
    sharded,
    train,
    whole,
)

NODE = Weights(reference="node")


def sends(rank: int) -> dict[str, Any]:
    """Count what forward, backward, accumulation and skipped steps receive."""
    found = {}
    for name, weights in (("whole", Weights()), ("node", NODE)):
        model, compression = compressed(weights=weights)
        optimizer = optimizer_of(model)
        train(model, rank, 1, optimizer=optimizer)
        notes = [received(compression)]
        for step in range(3):
            is_last = step == 2
            model.set_requires_gradient_sync(is_last)
            loss = loss_of(model, rank, step)
            notes.append(received(compression))
            loss.backward()
            notes.append(received(compression))
        optimizer.zero_grad()
        # the step is skipped
        with torch.no_grad():
            loss_of(model, rank, 3)
        notes.append(received(compression))
        train(model, rank, 1, optimizer=optimizer)
        found[name] = notes
        found[f"{name} gradients"] = compression.stats.gradients.num_exchanges
        found[f"{name} steps"] = compression.stats.num_steps
        shards.restore(model)
    return found


def edited(rank: int) -> dict[str, Any]:
    found = {}
    for name, weights in (("whole", Weights()), ("node", NODE)):
        model, compression = compressed(weights=weights)
        optimizer = optimizer_of(model)
        train(model, rank, 2, optimizer=optimizer)
        gathered_weights(model)
        errors, full = [error_of(model)], [compression.stats.num_full_gathers]

        def note(
            model: Net = model,
            compression: shards.ShardCompression = compression,
            errors: list[float] = errors,
            full: list[int] = full,
        ) -> None:
            errors.append(error_of(model))
            full.append(compression.stats.num_full_gathers)

        # on one rank, one module
        if rank == 1:
            with torch.no_grad():
                model.blocks[1].up.weight.mul_(3)
        note()
        # on the local shard
        if rank == 2:
            with torch.no_grad():
                model.blocks[0].up.weight.to_local().add_(1)
        note()
        # before a step, of which a difference would be sent
        loss_of(model, rank, 2).backward()
        if rank == 1:
            with torch.no_grad():
                model.blocks[1].up.weight.mul_(3)
        optimizer.step()
        optimizer.zero_grad()
        note()
        # after a step, before the next forward
        train(model, rank, 1, optimizer=optimizer)
        with torch.no_grad():
            model.inner.weight.mul_(2)
        note()
        state = {name: torch.full_like(x, 0.1) for name, x in model.state_dict().items()}
        model.load_state_dict(state)
        note()
        set_model_state_dict(model, get_model_state_dict(sharded(seed=5)))
        note()
        found[name] = errors, full
        shards.restore(model)
    return found


def meets_nan(rank: int) -> dict[str, Any]:
    model, compression = compressed(gradients=Gradients(error_feedback=0.8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)

    def step(number: int) -> float:
        scaler.scale(loss_of(model, rank, number)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    # a NaN in the input of one rank
    def wrong_step(number: int, value: float) -> float:
        hook = None
        if rank == 1:
            hook = model.blocks[0].register_forward_pre_hook(
                lambda _, args: (args[0] * torch.full_like(args[0], value),)
            )
        norm = step(number)
        if hook is not None:
            hook.remove()
        return norm

    norms = [step(0)]
    before = whole(model)
    norms += [wrong_step(1, float("nan")), wrong_step(2, float("inf"))]
    after, scale = whole(model), scaler.get_scale()
    norms.append(step(3))
    found = {
        "norms": norms,
        "is kept": torch.equal(before, after),
        "scale": scale,
        "moves again": not torch.equal(after, whole(model)),
        "is finite": bool(whole(model).isfinite().all()),
        "weights": gathered_weights(model),
        "full gathers": compression.stats.num_full_gathers,
    }
    shards.restore(model)
    return found


def evaluates(rank: int) -> dict[str, Any]:
    """An evaluation between steps changes nothing of a training, and sees the weights of its time."""
    found = {}
    for name, weights in (("whole", Weights()), ("node", NODE)):
        results = []
        for has_evaluation in (False, True):
            model, _ = compressed(weights=weights)
            optimizer, seen = optimizer_of(model), []
            for step in range(3):
                train(model, rank, 1, step, optimizer)
                if has_evaluation:
                    with torch.no_grad():
                        seen = [loss_of(model, rank, 50).item() for _ in range(2)]
            results.append((gathered_weights(model), seen, loss_of(model, rank, 50).item()))
            shards.restore(model)
        found[name] = results
    return found


def is_restored(rank: int) -> dict[str, Any]:
    model, _ = compressed()
    optimizer = optimizer_of(model)
    train(model, rank, 2, optimizer=optimizer)
    shards.restore(model)
    weights = {name: p.full_tensor().clone() for name, p in model.named_parameters()}
    other = sharded(seed=3)
    set_model_state_dict(other, get_model_state_dict(model))
    losses = train(model, rank, 2, first=2, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    expected = train(other, rank, 2, first=2, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    group = model._get_fsdp_state()._fsdp_param_groups[0]
    found = {
        "losses": losses,
        "expected": expected,
        "same": torch.equal(whole(model), whole(other)),
        "comms": [type(group._all_gather_comm), type(group._reduce_scatter_comm)]
        == [DefaultAllGather, DefaultReduceScatter],
        "compressed": is_compressed(model),
        "moved": any(
            not torch.equal(p.full_tensor(), weights[name]) for name, p in model.named_parameters()
        ),
    }
    # and compressed again
    compression = shards.compress(model, ranks_per_node=2)
    train(model, rank, 1)
    found["steps"] = compression.stats.num_steps
    shards.restore(model)
    return found


def resumes(rank: int) -> dict[str, Any]:
    found = {}
    for name, weights, has_evaluation in (
        ("whole", Weights(rounding="stochastic"), False),
        ("node", NODE, True),
        ("whole, evaluated", Weights(), True),
    ):
        options = {"weights": weights, "gradients": Gradients(error_feedback=0.8)}
        model, compression = compressed(**options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, rank, 3, optimizer=optimizer)
        if has_evaluation:
            with torch.no_grad():
                loss_of(model, rank, 50)
        saved = {k: v.full_tensor().clone() for k, v in model.state_dict().items()}
        states = optimizer.state_dict(), compression.state_dict()
        moments = {
            k: {n: x.clone() if torch.is_tensor(x) else x for n, x in one.items()}
            for k, one in states[0]["state"].items()
        }
        losses = train(model, rank, 3, first=3, optimizer=optimizer)
        expected = whole(model), gathered_weights(model)
        shards.restore(model)

        model, compression = compressed(sharded(seed=9), **options)
        set_model_state_dict(model, saved, options=StateDictOptions(full_state_dict=True))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizer.load_state_dict({**states[0], "state": moments})
        compression.load_state_dict(states[1])
        resumed = train(model, rank, 3, first=3, optimizer=optimizer)
        found[name] = {
            "losses": (losses, resumed),
            "weights": torch.equal(whole(model), expected[0]),
            "gathered": torch.equal(gathered_weights(model), expected[1]),
            "full gathers": compression.stats.num_full_gathers,
        }
        shards.restore(model)
    return found


def on_ranks(rank: int) -> dict[str, Any]:
    return run_all(rank, [sends, edited, meets_nan, evaluates, is_restored, resumes])


@pytest.fixture(scope="module")
def four_ranks() -> list[dict[str, Any]]:
    return returned(run_ranks(on_ranks, 4))


def test_backward_accumulation_and_skipped_steps_send_nothing_across_nodes(four_ranks):
    for one in of_all(four_ranks, "sends"):
        notes = one["whole"]
        assert list(notes[0]) == ["all"]
        # the first forward after a step sends differences, across nodes and then within, and nothing else does
        assert list(notes[1]) == ["all", "node", "across"]
        assert notes[1]["all"] == notes[0]["all"]
        # a shard of the other node, and then both of the peer in this one
        assert notes[1]["node"] == 2 * notes[1]["across"]
        assert all(note == notes[1] for note in notes[2:])
        notes = one["node"]
        across = [note["across"] for note in notes]
        assert across[1] > across[0]
        assert set(across[2:]) == {across[1]}
        nodes = [note["node"] for note in notes]
        # each gather collects the node's weights; blocks are gathered again in backward
        assert all(later > earlier for earlier, later in pairwise(nodes))
        for name in ("whole", "node"):
            # of three micro-batches one is reduced
            assert one[f"{name} gradients"] == 3 * NUM_UNITS
            assert one[f"{name} steps"] == 2


@pytest.mark.parametrize("name", ["whole", "node"])
def test_edits_of_one_rank_are_noticed_by_all(four_ranks, name):
    found = [one[name] for one in of_all(four_ranks, "edited")]
    for errors, full in found:
        assert errors == found[0][0]
        assert errors[0] > 0
        counts = [later - earlier for earlier, later in pairwise(full)]
        # a module each; the next is edited before a step, the root after one; then all are loaded
        assert counts == [1, 1, 1, 1, NUM_UNITS, NUM_UNITS]
        # both edits were of single modules: others keep the error that rounding left
        assert all(error < 0.02 for error in errors[:5])
        assert errors[5:] == [0, 0]


def test_values_that_are_not_finite_skip_the_step_on_all_ranks(four_ranks):
    found = of_all(four_ranks, "meets_nan")
    assert_same_bits([one["weights"] for one in found])
    for one in found:
        finite = [torch.tensor(norm).isfinite().item() for norm in one["norms"]]
        assert finite == [True, False, False, True]
        assert one["is kept"]
        assert one["moves again"]
        assert one["is finite"]
        assert one["scale"] == 1.0
        assert one["full gathers"] == NUM_UNITS


@pytest.mark.parametrize("name", ["whole", "node"])
def test_an_evaluation_changes_nothing(four_ranks, name):
    for one in of_all(four_ranks, "evaluates"):
        without, evaluated = one[name]
        assert torch.equal(without[0], evaluated[0])
        assert evaluated[1] == [evaluated[2]] * 2


def test_restore_gives_back_the_collectives_of_fsdp(four_ranks):
    for one in of_all(four_ranks, "is_restored"):
        assert one["comms"]
        assert one["same"]
        assert one["moved"]
        assert not one["compressed"]
        assert one["losses"] == one["expected"]
        assert one["steps"] == 1


@pytest.mark.parametrize("name", ["whole", "node", "whole, evaluated"])
def test_a_resumed_training_goes_on_bit_for_bit(four_ranks, name):
    for one in of_all(four_ranks, "resumes"):
        losses, resumed = one[name]["losses"]
        assert resumed == losses
        assert one[name]["weights"]
        assert one[name]["gathered"]
        # no weights are sent but what the state has
        assert one[name]["full gathers"] == 0
