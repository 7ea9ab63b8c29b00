"""Steps of any transfers: here those of a sharded model, which no site describes yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from tersor.errors import SpecError
from tersor.planning import (
    UNCODED,
    Cluster,
    CodecCosts,
    Collective,
    Line,
    RatioCurve,
    Step,
    StepModel,
    Transfer,
    advise,
    hierarchical,
)

MB = 1e6
# half the bytes to decode as to encode, as above
FOUR_BIT = CodecCosts(Line(0.0, 1e-11), Line(0.0, 5e-12), RatioCurve.fixed(4.0), has_sizes=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharded(StepModel):
    """Weights gathered twice, gradients scattered within nodes and then between them."""

    nbytes: float = 64 * MB
    compute_s: float = 0.01
    overlap: float = 0.0

    @property
    def methods(self) -> Mapping[str, bool | None]:
        return {"4-bit": None, "bf16": True}

    def step(self, name: str, num_ranks: int) -> Step:
        costs = UNCODED if name == "bf16" else FOUR_BIT
        weights = [
            Transfer(
                name=f"weights, {direction}", collective=Collective.ALL_GATHER,
                nbytes=self.nbytes, costs=costs, overlap=self.overlap,
            )
            for direction in ("forward", "backward")
        ]  # fmt: skip
        gradients = hierarchical(
            "gradients", Collective.REDUCE_SCATTER, self.nbytes,
            self.cluster.local_ranks(num_ranks), within=costs, between=costs,
        )  # fmt: skip
        norm = Transfer(name="norm", collective=Collective.ALL_REDUCE, nbytes=1.6 * MB)
        return Step((*weights, *gradients), (norm,), self.compute_s)


MODEL = Sharded(
    cluster=Cluster(ranks_per_node=8, inter_bits_per_s=8e10, intra_bits_per_s=8e11),
    baseline="bf16",
)


def test_a_step_is_computing_and_all_its_transfers():
    found = MODEL.predict("bf16", 16)
    assert list(found.phases) == [
        "weights, forward", "weights, backward", "gradients, reduce-scatter within nodes",
        "gradients, reduce-scatter between nodes",
    ]  # fmt: skip
    # 15/16 of 64 MB at 10 MB/ms, twice; 7/8 of 64 MB at 100 and half of 8 MB for 8 places at 10
    assert found.payload_s == pytest.approx(2 * 6e-3 + 0.56e-3 + 3.2e-3)
    # 2 * 15/16 of 1.6 MB at 10 MB/ms
    assert found.shared_s == pytest.approx(0.3e-3)
    assert found.step_s == pytest.approx(0.01 + found.payload_s + 0.3e-3)
    assert found.coding_s == 0


def test_the_best_method_is_advised_with_any_baseline():
    coded = MODEL.predict("4-bit", 16)
    assert coded.payload_s == pytest.approx(MODEL.predict("bf16", 16).payload_s / 4)
    advice = advise(MODEL, 16)
    assert (advice.best.name, advice.baseline.name) == ("4-bit", "bf16")
    assert advice.best_bounded.name == "bf16"
    assert [one.name for one in MODEL.predictions(16)] == ["bf16", "4-bit"]
    bits = MODEL.break_even("4-bit", 16)
    there = MODEL.at_bandwidth(bits, 16)
    assert there.predict("4-bit", 16).step_s == pytest.approx(there.predict("bf16", 16).step_s)
    fast = MODEL.at_bandwidth(10 * bits, 16)
    assert "use bf16; payloads take" in advise(fast, 16).reason


def test_each_transfer_hides_its_own_share_and_no_more_than_is_computed():
    some = replace(MODEL, overlap=0.25).predict("bf16", 16)
    assert some.hidden_s == pytest.approx(0.25 * 12e-3)
    little = replace(MODEL, overlap=1.0, compute_s=1e-3).predict("bf16", 16)
    assert little.hidden_s == 1e-3


def test_transfers_of_one_name_and_one_rank_are_refused():
    one = Transfer(name="it", collective=Collective.ALL_GATHER, nbytes=1.0)
    with pytest.raises(SpecError, match="names of their own: it, it"):
        Step((one,), (one,))
    with pytest.raises(SpecError, match="2 ranks at least"):
        MODEL.predict("bf16", 1)
