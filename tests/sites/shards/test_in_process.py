"""Ranks in one process against real ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from tersor.errors import SpecError
from tersor.sites.shards import Gradients, LocalShards, Weights
from tests.sites.ranks import returned, run_ranks
from tests.sites.shards import fsdp_rank

NUM_STEPS = 12
CASES = {
    "whole": ({"weights": Weights(), "gradients": Gradients()}, None),
    "node in bf16": (
        {
            "weights": Weights(reference="node", rounding="stochastic"),
            "gradients": Gradients(error_feedback=0.8, reset_every=5),
        },
        torch.bfloat16,
    ),
}


def _step(model, rank, step, dtype):
    x, y = fsdp_rank.batch(rank, step)
    loss = (model(x.to(dtype)) - y.to(dtype)).square().mean()
    loss.backward()


def _real(rank, name):
    options, dtype = CASES[name]
    policy = None
    if dtype is not None:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model, _ = fsdp_rank.compressed(fsdp_rank.sharded(policy), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(NUM_STEPS):
        _step(model, rank, step, dtype or torch.float32)
        optimizer.step()
        optimizer.zero_grad()
    return fsdp_rank.gathered_weights(model), fsdp_rank.whole(model)


def _local(options, dtype):
    torch.manual_seed(0)
    model = fsdp_rank.Net()
    local = LocalShards(model, [*model.blocks, model], 2, 2, param_dtype=dtype, **options)
    return model, local, torch.optim.AdamW(local.parameters(), lr=1e-2)


def _take_steps(model, local, optimizer, dtype, steps):
    for step in steps:
        for rank in range(local.world_size):
            _step(model, rank, step, dtype or torch.float32)
            local.collect(rank)
        local.reduce()
        optimizer.step()
        local.gather()


def _weights(tensors):
    return torch.cat([x.detach().flatten().float() for x in tensors])


@pytest.fixture(autouse=True)
def _one_thread():
    # as real ranks have: products of matrices depend on it
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_gloo_ranks_bit_for_bit(name):
    used, own = returned(run_ranks(_real, 4, name))[0]
    options, dtype = CASES[name]
    model, local, optimizer = _local(options, dtype)
    _take_steps(model, local, optimizer, dtype, range(NUM_STEPS))
    assert torch.equal(_weights(model.parameters()), used)
    assert torch.equal(_weights(local.parameters()), own)


def test_without_compression_ranks_train_on_the_mean_gradient():
    model, local, optimizer = _local({}, None)
    _take_steps(model, local, optimizer, None, range(3))
    torch.manual_seed(0)
    alone = fsdp_rank.Net()
    reference = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    for step in range(3):
        batches = [fsdp_rank.batch(rank, step) for rank in range(4)]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        reference.zero_grad()
        (alone(x) - y).square().mean().backward()
        reference.step()
    assert torch.allclose(_weights(model.parameters()), _weights(alone.parameters()), atol=1e-5)


def test_a_state_continues_bit_for_bit():
    options, dtype = CASES["node in bf16"]
    model, local, optimizer = _local(options, dtype)
    _take_steps(model, local, optimizer, dtype, range(4))
    weights = [p.detach().clone() for p in local.parameters()]
    # an optimizer's state is its own memory
    saved = local.state_dict(), copy.deepcopy(optimizer.state_dict())
    _take_steps(model, local, optimizer, dtype, range(4, 7))
    resumed = _local(options, dtype)
    with torch.no_grad():
        for p, value in zip(resumed[1].parameters(), weights, strict=True):
            p.copy_(value)
    resumed[2].load_state_dict(saved[1])
    resumed[1].load_state_dict(saved[0])
    _take_steps(*resumed, dtype, range(4, 7))
    assert torch.equal(_weights(resumed[0].parameters()), _weights(model.parameters()))


def test_a_missing_rank_and_a_missing_unit_are_named():
    model, local, _ = _local({}, None)
    _step(model, 0, 0, torch.float32)
    local.collect(0)
    with pytest.raises(SpecError, match="1 of 4 ranks were collected"):
        local.reduce()
    with pytest.raises(SpecError, match="add the model itself"):
        LocalShards(model, list(model.blocks), 2, 2)


def test_a_unit_without_gradients_is_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].requires_grad_(False)
    local = LocalShards(model, [model[0], model], 2, 2, Weights(), Gradients())
    before = [p.detach().clone() for p in local.parameters()]
    # decays every weight that has a gradient, be it zero
    optimizer = torch.optim.AdamW(local.parameters(), lr=0.1, weight_decay=0.5)
    for rank in range(local.world_size):
        model(torch.ones(2, 4)).sum().backward()
        local.collect(rank)
    local.reduce()
    grads = [p.grad for p in local.parameters()]
    assert [grad is None for grad in grads] == [True, True, False, False]
    optimizer.step()
    local.gather()
    for after in (local.parameters(), list(model.parameters())):
        same = [torch.equal(x, y) for x, y in zip(before, after, strict=True)]
        assert same == [True, True, False, False]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 2), "num_nodes must be a whole number from 1 on, not 0"),
        ((2, 1.5), "ranks_per_node must be a whole number from 1 on, not 1.5"),
    ],
)
def test_numbers_of_ranks_are_checked(sizes, words):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(SpecError, match=words):
        LocalShards(model, [model], *sizes)


def test_a_rank_that_is_not_there_is_refused():
    model = torch.nn.Linear(2, 2)
    local = LocalShards(model, [model], 2, 2)
    with pytest.raises(SpecError, match="rank must be from 0 to 3, not 4"):
        local.collect(4)


def test_a_unit_that_no_rank_used_has_no_gradient_of_the_step_before():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    local = LocalShards(model, list(model), 1, 2)
    for used in (model, model[0]):
        for rank in range(2):
            used(torch.ones(1, 2)).sum().backward()
            local.collect(rank)
        local.reduce()
    assert [p.grad is None for p in local.parameters()] == [False, False, True, True]
