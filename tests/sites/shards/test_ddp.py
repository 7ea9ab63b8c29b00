"""Gradients of DistributedDataParallel, averaged by the hook on real ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tersor.sites import shards
from tests.sites.ranks import Failure, returned, run_ranks
from tests.sites.shards.fsdp_rank import Net, loss_of, message_of, train


def _model(state: shards.DdpState | None) -> DistributedDataParallel:
    torch.manual_seed(0)
    # small buckets, so that there are several, cut anew after the first backward
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.004)
    if state is not None:
        model.register_comm_hook(state, shards.ddp_hook)
    return model


def _gradient(model: torch.nn.Module, rank: int) -> torch.Tensor:
    loss_of(model, rank, 0).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _gradients(rank: int, options: dict[str, Any], ranks_per_node: int) -> dict[str, Any]:
    state = shards.DdpState(None, shards.Gradients(**options), ranks_per_node)
    found = {"exact": _gradient(_model(None), rank), "ours": _gradient(_model(state), rank)}
    return {**found, "stats": state.stats.to_config()}


def test_the_mean_is_that_of_ddp_and_the_same_on_all_ranks():
    found = returned(run_ranks(_gradients, 4, {}, 2))
    exact, ours = found[0]["exact"], [one["ours"] for one in found]
    assert all(torch.equal(ours[0], one) for one in ours)
    error = (ours[0] - exact).norm() / exact.norm()
    # a step is a 7th of the largest of 128 values, about 3 deviations; rounding by chance loses at most
    # half of it (root mean square), which makes 0.21 in each of two hops
    assert 0 < error < 0.21 * 2**0.5 + 0.1
    levels = found[0]["stats"]["gradients"]["levels"]
    assert levels["across"]["encoded_nbytes"] > 0
    assert levels["all"]["encoded_nbytes"] == 0


def test_without_quantization_the_mean_is_exact_to_rounding():
    options = {"nbits": 32, "node_nbits": 32}
    for ranks_per_node in (1, 2):
        for one in returned(run_ranks(_gradients, 4, options, ranks_per_node)):
            torch.testing.assert_close(one["ours"], one["exact"])


def _trained(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    model = _model(shards.DdpState(None, shards.Gradients(**options), 2))
    losses = train(model, rank, 30)
    plain = train(_model(None), rank, 30)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"losses": losses, "plain": plain, "weights": weights}


def test_a_model_trains_and_replicas_stay_bit_identical():
    found = returned(run_ranks(_trained, 4, {"error_feedback": 0.8}))
    assert all(torch.equal(one["weights"], found[0]["weights"]) for one in found)
    ours, plain = (sum(sum(one[k][-5:]) for one in found) for k in ("losses", "plain"))
    first = sum(one["losses"][0] for one in found) * 5
    # it learns as the exact one does: within a tenth of what was learnt
    assert abs(ours - plain) < 0.1 * (first - plain)


def _resumed(rank: int) -> bool:
    def begun() -> tuple[shards.DdpState, torch.nn.Module, torch.optim.Optimizer]:
        state = shards.DdpState(None, shards.Gradients(error_feedback=0.8), 2)
        model = _model(state)
        return state, model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    state, model, optimizer = begun()
    train(model, rank, 2, optimizer=optimizer)
    x = torch.arange(100.0) + rank
    saved = state.state_dict()
    other = shards.DdpState(None, shards.Gradients(error_feedback=0.8), 2)
    other.load_state_dict(saved)
    numel = {k: one["numel"] for k, one in saved["buckets"].items()}
    assert len(numel) > 1
    for index, count in numel.items():
        pair = []
        for one in (state, other):
            values = torch.randn(count, generator=torch.Generator().manual_seed(index)) + x[0]
            one.mean(index, values, is_last=index == len(numel) - 1)
            pair.append(values)
        assert torch.equal(*pair)
    return True


def test_a_loaded_state_goes_on_with_the_same_seeds_and_lost_values():
    assert returned(run_ranks(_resumed, 4)) == [True] * 4


def _different(rank: int) -> None:
    shards.DdpState(None, shards.Gradients(seed=rank), 2)


def _uneven(rank: int) -> None:
    shards.DdpState(None, shards.Gradients(), 3)


def test_ranks_that_differ_or_nodes_that_are_uneven_are_refused():
    for found in run_ranks(_different, 2):
        assert isinstance(found, Failure)
        assert "give all ranks the same gradients" in found.message
    for found in run_ranks(_uneven, 4):
        assert "must divide the 4 ranks into equal nodes" in found.message


def _with_one_wrong(rank: int, wrong: float) -> torch.Tensor:
    """Rank 1 has one gradient that is not finite; return the averaged ones."""
    model = _model(shards.DdpState(None, shards.Gradients(), 2))

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        spoiled = gradient.clone()
        spoiled[3, 5] = wrong
        return spoiled

    if rank == 1:
        model.module.blocks[0].up.weight.register_hook(spoil)
    return _gradient(model, rank)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_reaches_the_mean_of_all_ranks(wrong):
    found = returned(run_ranks(_with_one_wrong, 4, wrong))
    spoiled = found[0].isnan()
    # of 32 values that are transformed together
    assert 1 <= spoiled.sum() <= 32
    for one in found:
        assert torch.equal(one.isnan(), spoiled)
        assert torch.equal(one[~spoiled], found[0][~spoiled])
        assert one[~spoiled].isfinite().all()
    names = [name for name, x in Net().named_parameters() for _ in range(x.numel())]
    hit = {name for name, is_spoiled in zip(names, spoiled, strict=True) if is_spoiled}
    assert "blocks.0.up.weight" in hit


def _closed(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("used", "unused"):
        state = shards.DdpState(None, shards.Gradients(), 2)
        if name == "used":
            state.mean(0, torch.ones(100), is_last=True)
        for _ in range(2):
            state.close()
        found[name] = message_of(lambda: state.mean(0, torch.ones(100), is_last=True))  # noqa: B023
        found[f"{name} groups"] = len(dist.distributed_c10d._world.pg_map)
    return found


def test_a_closed_state_has_left_its_groups_and_averages_nothing_more():
    sentence = "ExchangeError: this shards.DdpState was closed before; make a new one"
    for found in returned(run_ranks(_closed, 4)):
        assert found == {
            "used": sentence, "unused": sentence, "used groups": 1, "unused groups": 1
        }  # fmt: skip


def _loads_others(rank: int) -> list[str]:
    state = shards.DdpState()
    saved = state.state_dict()
    wrong: list[dict[str, Any]] = [{**saved, "version": 1}, {}, {"step": 3, "buckets": {}}]
    return [message_of(lambda one=one: state.load_state_dict(one)) for one in wrong]


def _loads_a_peer_s(rank: int) -> list[str]:
    state = shards.DdpState()
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state.state_dict())
    state.load_state_dict(states[rank])
    other = shards.DdpState(None, shards.Gradients(nbits=8))
    wrong = ((state, states[1 - rank]), (other, states[rank]))
    return [
        message_of(lambda one=one, saved=saved: one.load_state_dict(saved)) for one, saved in wrong
    ]


def test_a_state_of_another_rank_or_of_other_options_is_refused():
    for rank, (peer, options) in enumerate(returned(run_ranks(_loads_a_peer_s, 2))):
        assert f"its origin is rank {1 - rank} of 2" in peer
        assert "nbits=4" in options
        assert "nbits=8" in options


def test_a_state_of_another_version_is_refused():
    words = "SpecError: this is no state of shards.DdpState; give one of its state_dict()"
    assert returned(run_ranks(_loads_others, 1)) == [[words] * 3]
