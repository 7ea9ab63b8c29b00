"""Changes of weights that version counters miss, that come in the middle of a pass, or under inference."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from tersor.sites import shards
from tersor.sites.shards import Gradients, Weights
from tests.sites.ranks import returned, run_ranks
from tests.sites.shards.fsdp_rank import (
    Net,
    compressed,
    error_of,
    gathered_weights,
    loss_of,
    message_of,
    of_all,
    optimizer_of,
    run_all,
    sharded,
    train,
)


class DataSGD(torch.optim.Optimizer):
    """Writes through ``.data``, as many optimizers of other packages do: no version counter moves."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.to_local().data.add_(p.grad.to_local(), alpha=-0.1)


def written_through_data(rank: int) -> dict[str, Any]:
    model, compression = compressed()
    losses = train(model, rank, 4, optimizer=DataSGD(model.parameters()))
    error, steps = error_of(model), compression.stats.num_steps
    shards.restore(model)
    exact = sharded()
    expected = train(exact, rank, 4, optimizer=DataSGD(exact.parameters()))
    return {"losses": losses, "expected": expected, "error": error, "steps": steps}


def edited_in_a_pass(rank: int) -> dict[str, Any]:
    model, compression = compressed()
    train(model, rank, 2, optimizer=optimizer_of(model))
    gathered_weights(model)
    found = {}

    def edit(*_: Any) -> None:
        with torch.no_grad():
            model.blocks[1].up.weight.mul_(3)

    def announce(*_: Any) -> None:
        edit()
        compression.mark_edit()

    for name, change in (("announced", announce), ("refused", edit)):
        hook = model.blocks[0].register_forward_hook(change)
        before = compression.stats.num_full_gathers
        with torch.no_grad():
            found[name] = message_of(lambda: loss_of(model, rank, 0))
        hook.remove()
        found[f"{name}, sent in full"] = compression.stats.num_full_gathers - before
        if name == "announced":
            model.reshard()
            found["error"] = error_of(model)
    return found


def edited_before_backward(rank: int) -> float:
    model, _ = compressed()
    train(model, rank, 1, optimizer=optimizer_of(model))
    loss = loss_of(model, rank, 0)
    with torch.no_grad():
        model.blocks[1].up.weight.mul_(3)
    loss.backward()
    error = error_of(model)
    shards.restore(model)
    return error


def evaluated_in_inference_mode(rank: int) -> dict[str, Any]:
    model, compression = compressed()
    optimizer = optimizer_of(model)
    train(model, rank, 1, optimizer=optimizer)
    with torch.no_grad():
        model.inner.weight.mul_(2)
    with torch.inference_mode():
        loss_of(model, rank, 0)
    losses = train(model, rank, 2, first=1, optimizer=optimizer)
    found = {"losses": losses, "error": error_of(model), "steps": compression.stats.num_steps}
    shards.restore(model)
    return found


def two_optimizers(rank: int) -> int:
    model, compression = compressed()
    first = torch.optim.SGD(model.blocks.parameters(), lr=0.1)
    second = torch.optim.SGD([*model.inner.parameters(), *model.outer.parameters()], lr=0.1)
    for step in range(3):
        loss_of(model, rank, step).backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    shards.restore(model)
    return compression.stats.num_steps


def dropped(rank: int) -> bool:
    model, compression = compressed()
    train(model, rank, 1, optimizer=optimizer_of(model))
    alive = weakref.ref(model)
    del model, compression
    gc.collect()
    return alive() is None


def direct_in_backward(rank: int) -> list[bool]:
    """Gather all weights twice without a step between; then take one."""
    weights = Weights(differences=False, rounding="stochastic")
    model, _ = compressed(weights=weights, gradients=None)
    optimizer, found = optimizer_of(model), []
    for _ in range(2):
        gathered = [gathered_weights(model) for _ in range(2)]
        found.append(torch.equal(*gathered))
        before = gathered[-1]
        train(model, rank, 1, optimizer=optimizer)
        found.append(torch.equal(before, gathered_weights(model)))
    # backward computes with what forward gathered
    seen = []
    model.blocks[0].up.register_forward_pre_hook(
        lambda module, _: seen.append(module.weight.detach().clone())
    )
    model.blocks[0].up.register_full_backward_pre_hook(
        lambda module, _: seen.append(module.weight.detach().clone())
    )
    loss_of(model, rank, 0).backward()
    shards.restore(model)
    return [*found, torch.equal(*seen)]


def own_loop_through_data(rank: int) -> float:
    model, compression = compressed()
    loss_of(model, rank, 0).backward()
    for p in model.parameters():
        p.to_local().data.add_(p.grad.to_local(), alpha=-0.1)
    compression.mark_step()
    error = error_of(model)
    shards.restore(model)
    return error


OTHER_TYPES = [
    ({"weights": 4}, "weights must be Weights(...) or None, not 4"),
    ({"gradients": "4bit"}, "gradients must be Gradients(...) or None, not '4bit'"),
    ({"weights": Gradients()}, "weights must be Weights(...) or None, not Gradients("),
    ({"gradients": Weights()}, "gradients must be Gradients(...) or None, not Weights("),
    ({"error_every": -1}, "error_every must be a whole number from 0 on, not -1"),
    ({"error_every": 2.5}, "error_every must be a whole number from 0 on, not 2.5"),
]


def other_types(rank: int) -> list[str]:
    del rank
    model = sharded()
    return [message_of(lambda: shards.compress(model, **options)) for options, _ in OTHER_TYPES]  # noqa: B023


def states_of_others(rank: int) -> dict[str, str]:
    model, compression = compressed(sharded(), 1)
    train(model, rank, 2, optimizer=optimizer_of(model))
    states: list[Any] = [None, None]
    dist.all_gather_object(states, compression.state_dict())
    own, other = states[rank], states[1 - rank]
    part = {key: x for key, x in own.items() if not key.endswith(".own")}
    found = {
        "own": message_of(lambda: compression.load_state_dict(own)),
        "other rank": message_of(lambda: compression.load_state_dict(other)),
        "part": message_of(lambda: compression.load_state_dict(part)),
    }
    shards.restore(model)
    model, compression = compressed(sharded(), 1, weights=Weights(nbits=8))
    found["other options"] = message_of(lambda: compression.load_state_dict(own))
    shards.restore(model)
    return found


def odd_groups(rank: int) -> list[float]:
    errors = []
    for group in (2, 6, 34, 100):
        weights, gradients = Weights(group=group), Gradients(group=group, hadamard=False)
        model, _ = compressed(weights=weights, gradients=gradients)
        train(model, rank, 2, optimizer=optimizer_of(model))
        errors.append(error_of(model))
        shards.restore(model)
    return errors


def half_sharded(rank: int) -> list[str]:
    del rank
    model = Net()
    for block in model.blocks:
        fully_shard(block)
    with mock.patch.object(logging.getLogger("tersor"), "warning") as warning:
        shards.compress(model, ranks_per_node=2)
    shards.restore(model)
    return [call.args[0] % call.args[1:] for call in warning.call_args_list]


def on_ranks(rank: int) -> dict[str, Any]:
    functions = [
        written_through_data, edited_before_backward, evaluated_in_inference_mode, two_optimizers,
        direct_in_backward, own_loop_through_data, dropped, other_types, states_of_others, odd_groups, half_sharded, edited_in_a_pass,
    ]  # fmt: skip
    return run_all(rank, functions)


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return returned(run_ranks(on_ranks, 2))


def test_an_optimizer_that_writes_through_data_trains(two_ranks):
    for one in of_all(two_ranks, "written_through_data"):
        assert one["steps"] == 4
        assert one["losses"] == pytest.approx(one["expected"], rel=0.02)
        assert one["error"] < 0.02


def test_direct_weights_are_rounded_in_backward_as_in_forward(two_ranks):
    for found in of_all(two_ranks, "direct_in_backward"):
        assert found == [True, False, True, False, True]


def test_a_loop_of_ones_own_may_write_through_data(two_ranks):
    for error in of_all(two_ranks, "own_loop_through_data"):
        assert error < 0.02


def test_an_edit_in_the_middle_of_a_pass_is_announced_or_refused(two_ranks):
    for one in of_all(two_ranks, "edited_in_a_pass"):
        assert one["announced"] == "nothing was raised"
        assert one["announced, sent in full"] == 1
        assert one["error"] < 0.02
        assert one["refused"] == (
            "SpecError: the weights of blocks.1 were changed after the pass over the model had begun; "
            "change them before it, or call compression.mark_edit() on all ranks after the change"
        )


def test_an_edit_between_forward_and_backward_is_not_lost(two_ranks):
    for error in of_all(two_ranks, "edited_before_backward"):
        assert error < 0.02


def test_a_training_goes_on_after_an_evaluation_in_inference_mode(two_ranks):
    for one in of_all(two_ranks, "evaluated_in_inference_mode"):
        assert one["steps"] == 3
        assert one["error"] < 0.02


def test_two_optimizers_make_one_step(two_ranks):
    assert of_all(two_ranks, "two_optimizers") == [3, 3]


def test_a_model_that_is_dropped_is_freed(two_ranks):
    assert of_all(two_ranks, "dropped") == [True, True]


def test_arguments_of_other_types_are_refused(two_ranks):
    for found in of_all(two_ranks, "other_types"):
        for message, words in zip(found, [words for _, words in OTHER_TYPES], strict=True):
            assert message.startswith(f"SpecError: {words}")


def test_a_state_of_another_rank_or_of_other_options_is_refused(two_ranks):
    for rank, found in enumerate(of_all(two_ranks, "states_of_others")):
        assert found["own"] == "nothing was raised"
        assert f"its origin is rank {1 - rank} of 2" in found["other rank"]
        assert "nbits=8" in found["other options"]
        assert found["part"].startswith("SpecError: this state lacks the weights that ranks have")


def test_a_scale_may_serve_any_even_number_of_values(two_ranks):
    for errors in of_all(two_ranks, "odd_groups"):
        assert max(errors) < 0.02


def test_parameters_that_are_not_sharded_are_reported(two_ranks):
    for words in of_all(two_ranks, "half_sharded"):
        assert words == [
            (
                "4 parameters of this model are not sharded, the first is inner.weight: they are not "
                "compressed; call fully_shard on all modules before shards.compress"
            )
        ]
