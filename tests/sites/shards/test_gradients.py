"""Reduce-scatter of gradients: exact without coding, unbiased with it, and bits as promised."""

from __future__ import annotations

import math

import pytest
import torch

from tersor.sites.shards import Gradients
from tests.sites.shards.local import Scatters

EXACT = Gradients(node_nbits=32, nbits=32)
LAYOUTS = [(1, 4), (4, 1), (2, 2), (3, 2)]
layouts = pytest.mark.parametrize(("num_nodes", "per_node"), LAYOUTS)


def gradients(num_ranks: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_ranks, num_ranks, size, generator=generator)


def error_of(found: torch.Tensor, x: torch.Tensor) -> float:
    exact = x.double().sum(0)
    return float((found - exact).norm() / exact.norm())


@layouts
@pytest.mark.parametrize("size", [1, 7, 33, 300])
def test_hops_without_coding_are_a_plain_sum(num_nodes, per_node, size):
    x = gradients(num_nodes * per_node, size)
    found = Scatters(EXACT, num_nodes, per_node)(x)
    # each of at most num_ranks - 1 additions rounds a partial sum, which no sum of magnitudes exceeds
    bound = (len(x) - 1) * 2.0**-24 * x.double().abs().sum(0)
    assert ((found - x.double().sum(0)).abs() <= bound).all()


@layouts
@pytest.mark.parametrize("nbits", [4, 8, 16])
@pytest.mark.parametrize("size", [1, 31, 127, 300])
def test_small_and_odd_sizes_are_summed_in_few_bits(num_nodes, per_node, nbits, size):
    options = Gradients(node_nbits=nbits, nbits=nbits)
    x = gradients(num_nodes * per_node, size)
    found = Scatters(options, num_nodes, per_node)(x)
    assert found.isfinite().all()
    # a code is off by less than one step of its group, transformed or not, in each of two hops
    step = {4: 1 / 7, 8: 1 / 127, 16: 2.0**-8}[nbits]
    largest = 32**0.5 * x.abs().max() * len(x)
    assert float((found - x.double().sum(0)).abs().max()) < 2 * 32**0.5 * step * largest


@layouts
def test_bfloat16_is_summed_in_float32(num_nodes, per_node):
    x = gradients(num_nodes * per_node, 300).bfloat16()
    coded = Gradients(node_nbits=8, nbits=8)
    assert torch.equal(
        Scatters(coded, num_nodes, per_node)(x), Scatters(coded, num_nodes, per_node)(x.float())
    )
    one_level = Gradients(nbits=32, levels=1)
    found = Scatters(one_level, num_nodes, per_node)(x)
    bound = (len(x) - 1) * 2.0**-24 * x.double().abs().sum(0)
    assert ((found - x.double().sum(0)).abs() <= bound).all()
    rounded = Scatters(one_level, num_nodes, per_node)(x, torch.bfloat16)
    assert torch.equal(rounded, found.bfloat16())


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize(("num_nodes", "per_node"), [(2, 2), (4, 1)])
def test_sums_are_unbiased(num_nodes, per_node, hadamard):
    x = gradients(4, 96)
    scatter = Scatters(Gradients(hadamard=hadamard), num_nodes, per_node)
    num_steps = 600
    found = torch.stack([scatter(x) for _ in range(num_steps)]).double()
    exact = x.double().sum(0)
    spread = found.std(0) / math.sqrt(num_steps)
    assert spread.min() > 0
    z = (found.mean(0) - exact) / spread
    # 384 values: the largest of so many unit normals stays below 4.5 but once in 400 runs, the mean of
    # squares within 6 of its deviations of 1; the seed is fixed, so either holds for good
    assert z.abs().max() < 4.5
    assert abs(z.square().mean() - 1) < 6 * math.sqrt(2 / z.numel())


def sent_by(scatter: Scatters) -> list[bytes]:
    return [bytes(step.sent.numpy().tobytes()) for step in scatter.steps]


def test_every_rank_step_module_and_hop_rounds_in_its_own_way():
    # equal rows everywhere: what is sent would be equal too, if not for the seeds
    x = torch.linspace(-1, 1, 128).repeat(4, 4, 1)
    options = Gradients(hadamard=False, node_nbits=4)
    first, other = Scatters(options, 2, 2), Scatters(options, 2, 2, module=1)
    seen: list[bytes] = []
    for scatter in (first, first, other):
        scatter(x)
        seen += sent_by(scatter)
    another = Scatters(Gradients(hadamard=False, node_nbits=4, seed=1), 2, 2)
    another(x)
    seen += sent_by(another)
    # 4 ranks x 2 hops, 4 times
    assert len(seen) == 32
    assert len(set(seen)) == 32
    again = Scatters(options, 2, 2)
    again(x)
    assert sent_by(again) == seen[:8]


def test_hops_of_a_rank_have_seeds_of_their_own(monkeypatch):
    seeds = []
    from tersor.sites.shards import hop

    original = {
        name: getattr(hop, name) for name in ("group_quantize", "group_dequantize_sum_quantize")
    }

    def quantize(x, nbits, group, seed, *args):
        seeds.append(seed)
        return original["group_quantize"](x, nbits, group, seed, *args)

    def requantize(data, scales, nbits, group, to, seed, *args):
        seeds.append(seed)
        return original["group_dequantize_sum_quantize"](
            data, scales, nbits, group, to, seed, *args
        )

    monkeypatch.setattr(hop, "group_quantize", quantize)
    monkeypatch.setattr(hop, "group_dequantize_sum_quantize", requantize)
    scatters = [Scatters(Gradients(), 2, 2, module) for module in range(3)]
    for _ in range(5):
        for scatter in scatters:
            scatter(gradients(4, 64))
    assert len(seeds) == 5 * 3 * 4 * 2
    assert len(set(seeds)) == len(seeds)


@layouts
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_spoils_its_32_values(num_nodes, per_node, wrong):
    x = gradients(num_nodes * per_node, 300)
    clean = Scatters(Gradients(), num_nodes, per_node)(x)
    x[1, 2, 70] = wrong
    found = Scatters(Gradients(), num_nodes, per_node)(x)
    spoiled = found.isnan()
    assert spoiled[2, 70]
    assert spoiled.sum() <= 32
    assert spoiled[2, 64:96].sum() == spoiled.sum()
    assert found[~spoiled].isfinite().all()
    elsewhere = torch.ones(found.shape, dtype=torch.bool)
    elsewhere[2, :128] = False
    assert torch.equal(found[elsewhere], clean[elsewhere])
    plain = Scatters(Gradients(hadamard=False), num_nodes, per_node)(x)
    assert plain.isnan().nonzero().tolist() == [[2, 70]]
    for nbits in (16, 32):
        plain = Scatters(Gradients(nbits=nbits, node_nbits=nbits), num_nodes, per_node)(x)
        assert (~plain.isfinite()).nonzero().tolist() == [[2, 70]]


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_not_remembered(wrong, hadamard):
    x = gradients(4, 300)
    spoiled = x.clone()
    spoiled[1, 2, 70] = wrong
    scatter = Scatters(Gradients(error_feedback=0.8, hadamard=hadamard), 2, 2)
    assert scatter(x).isfinite().all()
    assert 1 <= scatter(spoiled).isnan().sum() <= 32
    assert scatter(x).isfinite().all()


def test_a_sum_that_overflows_is_not_finite():
    x = torch.full((4, 4, 64), 3e38)
    assert not Scatters(EXACT, 2, 2)(x).isfinite().any()


def drift(options: Gradients, num_steps: int) -> tuple[float, Scatters]:
    """Return how far the sum of results is from that of exact gradients, which hardly change."""
    scatter = Scatters(options, 2, 2)
    x, total, exact = gradients(4, 256), torch.zeros(4, 256), torch.zeros(4, 256)
    for step in range(num_steps):
        now = x + 0.1 * gradients(4, 256, step)
        total += scatter(now)
        exact += now.sum(0)
    return float((total - exact).norm() / exact.norm()), scatter


def test_error_feedback_keeps_the_running_sum():
    options = {"nbits": 4, "node_nbits": 4}
    with_it, _ = drift(Gradients(error_feedback=1.0, **options), 60)
    loco, _ = drift(Gradients(error_feedback=0.8, **options), 60)
    without, _ = drift(Gradients(**options), 60)
    assert with_it < 0.5 * without
    assert loco < 0.5 * without


def test_what_was_lost_is_forgotten_in_time():
    x = gradients(4, 256)
    options = Gradients(error_feedback=0.8, reset_every=3)
    scatter = Scatters(options, 2, 2)
    results = [scatter(x) for _ in range(4)]
    for step in range(4):
        fresh = Scatters(options, 2, 2)
        for one in fresh.each:
            one.step = step
        # nothing is remembered at the beginning and after three steps
        assert torch.equal(fresh(x), results[step]) == (step in (0, 3))


@pytest.mark.parametrize("error_feedback", [0.0, 0.8])
def test_a_loaded_state_goes_on_bit_for_bit(error_feedback):
    options = Gradients(error_feedback=error_feedback)
    scatter = Scatters(options, 2, 2)
    for step in range(3):
        scatter(gradients(4, 200, step))
    states = [one.state_dict() for one in scatter.each]
    expected = [scatter(gradients(4, 200, step)) for step in range(3, 6)]
    # twice: what is loaded is not changed by going on
    for _ in range(2):
        resumed = Scatters(options, 2, 2)
        for one, state in zip(resumed.each, states, strict=True):
            one.load_state_dict(state)
        for step in range(3, 6):
            assert torch.equal(resumed(gradients(4, 200, step)), expected[step - 3])
    fresh = Scatters(options, 2, 2)
    assert not torch.equal(fresh(gradients(4, 200, 3)), expected[0])


def bits_of(scatter: Scatters) -> list[tuple[str, float]]:
    """Return the bits per value of each collective of the first rank, from the bytes it receives."""
    steps = scatter.steps[:: len(scatter.each)]
    return [(step.level, 32 * step.received.nbytes / step.original_nbytes) for step in steps]


def test_bits_per_value_are_as_promised():
    x = gradients(4, 1280)
    scatter = Scatters(Gradients(), 2, 2)
    scatter(x)
    assert bits_of(scatter) == [("node", 8.25), ("across", 4.25)]
    steps = scatter.steps[::4]
    # all of the gradient in the node, its half across nodes
    assert [step.received.nbytes for step in steps] == [4 * 1280 * 8.25 / 8, 2 * 1280 * 4.25 / 8]
    for options, layout, expected in (
        (Gradients(), (1, 4), [("all", 8.25)]),
        (Gradients(), (4, 1), [("all", 4.25)]),
        (Gradients(levels=1), (2, 2), [("all", 4.25)]),
        (Gradients(levels=1), (1, 4), [("all", 4.25)]),
        (Gradients(nbits=16, node_nbits=32), (2, 2), [("node", 32), ("across", 16)]),
    ):
        scatter = Scatters(options, *layout)
        scatter(x)
        assert bits_of(scatter) == expected


def test_one_level_is_one_hop_with_the_bits_across_nodes():
    x = gradients(4, 256)
    one_level = Scatters(Gradients(levels=1), 2, 2)(x)
    assert torch.equal(one_level, Scatters(Gradients(), 4, 1)(x))


def test_hadamard_spreads_outliers():
    x = gradients(4, 4096)
    # one in a thousand is fifty times as large
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 1e-3] *= 50
    errors = [
        error_of(Scatters(Gradients(**options), 2, 2)(x), x)
        for options in ({}, {"hadamard": False}, {"nbits": 8})
    ]
    assert errors[2] < 0.5 * errors[0] < errors[0] < 0.6 * errors[1]


def test_the_error_of_each_level_is_measured():
    x = gradients(4, 1024)
    scatter = Scatters(Gradients(), 2, 2)
    for one in scatter.each:
        one.errors = {}
    found = scatter(x)
    for one in scatter.each:
        assert 0.001 < one.errors["node"] < 0.02
        assert 0.05 < one.errors["across"] < 0.3
    # each rank's errors are independent, so that the sum's is no larger than that of one
    assert error_of(found, x) < 0.3
