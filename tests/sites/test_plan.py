"""Which codec an exchange makes of a name on a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tersor import Bound, create
from tersor.codecs.costs import CodecCost, Costs, costs_on
from tersor.codecs.costs.shipped import H200
from tersor.errors import SpecError
from tersor.kernels.runtime.op import use_backend
from tersor.sites.embeddings.plan import (
    CANDIDATES,
    CodecPlan,
    as_policy,
    make_backward,
    make_codec,
    make_plan,
)
from tests.codecs.costs.planted import COSTS, plant

CUDA = torch.device("cuda", 0)


def plan_on(device: torch.device, codec: str = "auto") -> CodecPlan:
    return make_plan(codec, 0.03, ["a"], device, bandwidth_gbit_s=100.0, bandwidth_gbps=None)


def plan_by(costs: Costs | None) -> CodecPlan:
    """Return a plan as on CUDA, for rows on the CPU."""
    made = tuple(make_codec(name, CUDA) for name in CANDIDATES)
    return CodecPlan(made, as_policy(0.03, ["a", "b"]), bandwidth_gbit_s=100.0, costs=costs)


def lookups() -> torch.Tensor:
    return torch.randn(64, 32)[torch.arange(2048) % 64]


@pytest.mark.parametrize("device", [torch.device("cpu"), torch.device("cuda", 0)])
def test_an_exchange_makes_the_codec_that_a_name_means_on_the_device(device):
    for name in set(CANDIDATES) - {"huffman"}:
        bound = {} if name == "raw" else {"bound": Bound.relative(0.03)}
        assert make_codec(name, device) == create(name, device=device, **bound)


def test_huffman_gives_way_to_rans_on_cuda_alone():
    assert make_codec("huffman", torch.device("cuda")).codec_id == "ans"
    assert make_codec("huffman", torch.device("cpu")).codec_id == "huffman"


def test_a_codec_that_was_made_already_stays_as_it_is():
    given = create("rows", bound=Bound.relative(0.03))
    assert make_codec(given, torch.device("cuda")) is given


def test_a_bound_for_gradients_is_not_made_up():
    cpu = torch.device("cpu")
    with pytest.raises(SpecError, match="does not say within which error"):
        make_backward("ans", cpu)
    with pytest.raises(SpecError, match="cannot be sent with"):
        make_backward("auto", cpu)
    given = create("ans", bound=Bound.relative(0.01))
    assert make_backward(given, cpu) is given
    assert make_backward("group8", cpu) == create("group8")


def test_an_exchange_on_a_gpu_has_the_costs_that_auto_has_there(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gpu = plant(monkeypatch)
    assert plan_on(CUDA).costs == costs_on(CUDA) == COSTS
    assert gpu.num_measured == 1
    assert plan_on(torch.device("cpu")).costs is None
    with use_backend("reference"):
        # kernels of another backend have other costs
        assert plan_on(CUDA).costs is None
    # one codec is no choice
    assert plan_on(CUDA, "rows").costs is None
    assert gpu.num_measured == 1


def test_costs_differ_between_ranks_without_harm():
    """A rank chooses for its own tables; peers learn each chunk's codec from what comes with it."""
    assert "costs" not in plan_by(H200).terms()
    assert plan_by(H200).terms() == plan_by(None).terms()


def test_the_costs_of_the_gpu_choose_the_codec():
    quick, slow = CodecCost.of((0, 1000), (0, 1000)), CodecCost.of((1e5, 1000), (1e5, 1000))
    for fast in ("rows", "flat", "ans"):
        costs = replace(H200, codecs={**dict.fromkeys(H200.codecs, slow), fast: quick})
        plan = plan_by(costs)
        plan.remeasure_if_due([0], [lookups()], 0)
        assert plan.codec(0, 0).codec_id == fast


def test_tables_of_a_rank_share_the_fixed_cost_of_a_call():
    rows = lookups()
    # over 100 Gbit/s 256 KiB take 21 us: one table is not worth a call of 30 us, but its share
    call = CodecCost.of((15, 1e4), (15, 1e4))
    costs = replace(
        H200, codecs={**dict.fromkeys(H200.codecs, call), "raw": CodecCost.of((0, 1e4), (0, 1e4))}
    )
    alone, together = plan_by(costs), plan_by(costs)
    alone.remeasure_if_due([0], [rows], 0)
    together.remeasure_if_due([0, 1], [rows, rows], 0)
    assert alone.codec(0, 0).codec_id == "raw"
    assert together.codec(0, 0).codec_id == "rows"


def test_the_size_of_the_table_counts_and_not_that_of_the_sample():
    rows = lookups().repeat(8, 1)
    call = CodecCost.of((30, 1e4), (30, 1e4))
    costs = replace(
        H200, codecs={**dict.fromkeys(H200.codecs, call), "raw": CodecCost.of((0, 1e4), (0, 1e4))}
    )
    small, large = plan_by(costs), plan_by(costs)
    small.remeasure_if_due([0], [rows[:2048]], 0)
    large.remeasure_if_due([0], [rows], 0)
    assert (small.codec(0, 0).codec_id, large.codec(0, 0).codec_id) == ("raw", "rows")
