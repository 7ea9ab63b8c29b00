"""All-gather of weights: replicas are the same bits, and what rounding lost comes later."""

from __future__ import annotations

import pytest
import torch

from tersor.sites.shards import Weights
from tersor.sites.shards.weights import Change
from tests.sites.shards.local import Gathers

REFERENCES = ("whole", "node")


def first_weights(num_ranks: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_ranks, size, generator=generator).to(dtype)


def updates(shape: torch.Size, num_steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [1e-3 * torch.randn(shape, generator=generator) for _ in range(num_steps)]


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"reference": "node"}, {"rounding": "stochastic"}])
@pytest.mark.parametrize(
    ("num_nodes", "per_node", "num_steps"), [(2, 2, 200), (3, 2, 20), (1, 4, 20), (4, 1, 20)]
)
def test_replicas_are_the_same_bits(dtype, options, num_nodes, per_node, num_steps):
    main = first_weights(num_nodes * per_node, 70)
    gather = Gathers(Weights(**options), num_nodes, per_node)
    assert torch.equal(gather(main.to(dtype), Change.EDIT)[-1], main.to(dtype))
    for update in updates(main.shape, num_steps):
        main += update
        found = gather(main.to(dtype))
        assert (found == found[0]).all()
    assert 0 < error_of(found[0], main) < 5e-3


@pytest.mark.parametrize(
    ("reference", "dtype"), [("whole", torch.float32), ("node", torch.bfloat16)]
)
def test_errors_do_not_accumulate(reference, dtype):
    main = first_weights(4, 33)
    gather = Gathers(Weights(reference=reference), 2, 2)
    gather(main.to(dtype), Change.EDIT)
    worst = [0.0, 0.0]
    for step, update in enumerate(updates(main.shape, 2000)):
        main += update
        error = error_of(gather(main.to(dtype))[0], main)
        worst[step >= 100] = max(worst[step >= 100], error)
    assert 0 < worst[1] <= 1.5 * worst[0]


def test_what_is_added_is_within_half_a_step_of_the_difference():
    main = first_weights(4, 300)
    gather = Gathers(Weights(group=128), 2, 2)
    before = gather(main, Change.EDIT)[0]
    for update in updates(main.shape, 20):
        main += update
        found = gather(main)[0]
        differences = torch.nn.functional.pad(main - before, (0, 84)).view(4, 3, 128)
        # and the addition rounds once: half a unit in the last place of numbers below 8
        step = differences.abs().amax(-1, keepdim=True).double() / 7
        bound = (0.5 * (1 + 2.0**-22) * step).expand(-1, -1, 128).reshape(4, -1)[:, :300] + 2.0**-22
        assert ((found.double() - main.double()).abs() <= bound).all()
        before = found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"reference": "node"}, {"differences": False}])
def test_memory_of_the_reference_gives_the_same_bits(dtype, options):
    main = first_weights(4, 50)
    apart, within = (Gathers(Weights(**options), 2, 2) for _ in range(2))
    changes = [Change.EDIT, Change.STEP, Change.NONE, Change.STEP, Change.EDIT, Change.NONE]
    for change, update in zip(changes, updates(main.shape, len(changes)), strict=True):
        main += update
        x = main.to(dtype)
        assert torch.equal(apart(x, change), within(x, change, is_aliased=True))


def test_the_whole_reference_is_gathered_without_a_copy():
    gather = Gathers(Weights(), 2, 2)
    memory = [gather.each[0].memory_for(40, torch.float32, torch.device("cpu")) for _ in range(2)]
    assert memory[0].data_ptr() == memory[1].data_ptr()
    assert memory[0].shape == (40,)
    apart = Gathers(Weights(reference="node"), 2, 2).each[0]
    memory = [apart.memory_for(40, torch.float32, torch.device("cpu")) for _ in range(2)]
    assert memory[0].data_ptr() != memory[1].data_ptr()


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("is_aliased", [True, False])
def test_only_steps_send_differences_and_only_edits_send_weights(reference, is_aliased):
    main = first_weights(4, 4096)
    gather = Gathers(Weights(reference=reference), 2, 2)
    level = {"whole": "all", "node": "across"}[reference]
    inside = [] if reference == "whole" else ["node"]
    # codes of a whole reference cross to the other node once, and are shared there

    def levels() -> list[str]:
        return [step.level for step in gather.steps[::4]]

    first = gather(main, Change.EDIT, is_aliased=is_aliased)
    assert levels() == [level, *inside]
    assert gather.steps[0].received.dtype == torch.float32
    main += 0.01
    # nothing is known of the change, so nothing changes
    assert torch.equal(gather(main, Change.NONE, is_aliased=is_aliased), first)
    assert levels() == inside
    gather(main, Change.STEP, is_aliased=is_aliased)
    assert levels() == ["across", "node"]
    sent = gather.steps[0]
    assert sent.received.dtype == torch.uint8
    assert 32 * sent.received.nbytes / sent.original_nbytes == 4.015625
    main *= -1
    assert torch.equal(gather(main, Change.EDIT, is_aliased=is_aliased)[3], main)


def test_the_first_gather_is_exact_whatever_is_said():
    main = first_weights(4, 50)
    for change in Change:
        assert torch.equal(Gathers(Weights(), 2, 2)(main, change)[1], main)


def test_eight_bits_err_less_and_take_8_bits():
    main = first_weights(4, 4096)
    errors = []
    for nbits in (4, 8):
        gather = Gathers(Weights(nbits=nbits), 2, 2)
        gather(main, Change.EDIT)
        errors.append(error_of(gather(main + updates(main.shape, 1)[0])[0], main))
        sent = gather.steps[0]
        assert 32 * sent.received.nbytes / sent.original_nbytes == nbits + 32 / 2048
    assert errors[1] < errors[0]


def descended(options: Weights, num_steps: int, *, target: float, has_main: bool) -> torch.Tensor:
    """Minimise (a - 7)^2 + (b - target)^2 from (7, 3) with gradients at the gathered weights.

    Returns:
        The gathered weights of the last two steps, [2, 2].
    """
    gather = Gathers(options, 1, 2)
    main = torch.tensor([[7.0, 3.0]]).repeat(2, 1)
    model, last = gather(main, Change.EDIT)[0], main
    for _ in range(num_steps):
        last = model
        main = (main if has_main else model) - 0.05 * 2 * (model - torch.tensor([7.0, target]))
        model = gather(main)[0]
    return torch.stack([last[0], model[0]])


def test_weights_in_few_bits_are_stuck_where_differences_converge():
    """The counter-example of the theory, |w|^2 from (1, -1), with 15 levels in place of 3.

    With a scale of max|w| / 7, the weights (7, 3) are levels. A step on the second one of less than half
    a level is rounded away, so that it stays at 3 for ever; the first one keeps the scale.
    """
    for differences in (True, False):
        options = Weights(differences=differences)
        found = descended(options, 300, target=0.0, has_main=False)
        assert found[1].tolist() == pytest.approx([7, 0 if differences else 3], abs=1e-6)


def test_weights_in_few_bits_stay_away_from_an_optimum_between_levels():
    for differences in (True, False):
        found = descended(Weights(differences=differences), 300, target=0.4, has_main=True)
        errors = (found[:, 1] - 0.4).abs()
        # the nearest level is 0
        assert errors.max() < 1e-6 if differences else errors.min() > 0.39


@pytest.mark.parametrize("options", [{}, {"reference": "node"}, {"rounding": "stochastic"}])
@pytest.mark.parametrize("is_aliased", [True, False])
@pytest.mark.parametrize("next_change", Change)
def test_a_loaded_state_goes_on_bit_for_bit(options, is_aliased, next_change):
    changes = [Change.EDIT, Change.STEP, Change.STEP, next_change, Change.STEP, Change.STEP]
    main, steps = first_weights(4, 50), []
    for update in updates(main.shape, len(changes)):
        main = main + update
        steps.append(main)
    gather = Gathers(Weights(**options), 2, 2)
    for main, change in zip(steps[:3], changes[:3], strict=True):
        gather(main, change, is_aliased=is_aliased)
    states = [one.state_dict() for one in gather.each]
    expected = [
        gather(main, change, is_aliased=is_aliased).clone()
        for main, change in zip(steps[3:], changes[3:], strict=True)
    ]
    # twice: neither going on nor a resumed training changes what was saved
    for _ in range(2):
        resumed = Gathers(Weights(**options), 2, 2)
        for one, state in zip(resumed.each, states, strict=True):
            one.load_state_dict(state)
        for main, change, theirs in zip(steps[3:], changes[3:], expected, strict=True):
            assert torch.equal(resumed(main, change, is_aliased=is_aliased), theirs)


def test_the_state_of_weights_never_gathered_is_loaded():
    gather, main = Gathers(Weights(), 2, 2), first_weights(4, 50)
    gather(main, Change.EDIT)
    for one, fresh in zip(gather.each, Gathers(Weights(), 2, 2).each, strict=True):
        one.load_state_dict(fresh.state_dict())
        assert one.is_new
    assert torch.equal(gather(2 * main, Change.STEP)[0], 2 * main)


def test_stochastic_rounding_differs_between_ranks_and_steps():
    main = first_weights(4, 1).repeat(1, 256)[:1].repeat(4, 1)
    gather = Gathers(Weights(rounding="stochastic"), 2, 2)
    gather(main, Change.EDIT)
    sent = set()
    for _ in range(3):
        ramp = torch.linspace(-1, 1, 256)
        for one in gather.each:
            one._own.copy_(main[0])
        gather(main + ramp, Change.STEP)
        coded = [step for step in gather.steps if step.level == "across"]
        sent |= {bytes(step.sent.numpy().tobytes()) for step in coded}
    assert len(sent) == 12


def test_the_error_of_what_was_sent_is_measured():
    main = first_weights(4, 300)
    gather = Gathers(Weights(), 2, 2)
    gather(main, Change.EDIT)
    main += updates(main.shape, 1)[0]
    for one in gather.each:
        one.errors = {}
    found = gather(main, is_aliased=True)
    for rank, one in enumerate(gather.each):
        assert float(one.errors["across"]) == pytest.approx(
            error_of(found[0][rank], main[rank]), rel=1e-3
        )


def test_direct_weights_are_rounded_alike_until_a_step():
    gather = Gathers(Weights(differences=False, rounding="stochastic"), 2, 2)
    main = first_weights(4, 70)
    forward, backward = gather(main), gather(main, Change.NONE)
    assert torch.equal(forward, backward)
    assert not torch.equal(gather(main), forward)
