from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tersor.bench.embeddings.planning.planner import EMBEDDINGS_PLANNER
from tersor.bench.planning.tables import plan_cells, short_reason
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
    Transport,
    advise,
    parse_sweep,
    turns,
)
from tests.bench.embeddings.planning.made import FAST, GBIT, SMALL, model, profile

MODEL = model(FAST, SMALL, compute=Line(1e-3))


def test_the_best_changes_from_1_to_400_gbit_and_the_reason_is_reported():
    slow = advise(MODEL.at_bandwidth(1 * GBIT, 8), 8)
    fast = advise(MODEL.at_bandwidth(400 * GBIT, 8), 8)
    assert (slow.best.name, fast.best.name) == ("small", "fast")
    assert slow.reason.startswith("8 ranks at 1gbit: use small; it saves 13.3 ms of sending")
    assert "costs 0.1 ms of coding" in slow.reason
    assert slow.step_speedup > fast.step_speedup > 1


def test_at_a_turn_both_take_as_long_and_between_turns_nothing_changes():
    found = turns(MODEL, 8, 1 * GBIT, 4000 * GBIT)
    assert [(turn.before, turn.after) for turn in found] == [("small", "fast"), ("fast", "float32")]
    for turn in found:
        there = MODEL.at_bandwidth(turn.bits_per_s, 8)
        left, right = (there.predict(name, 8).step_s for name in (turn.before, turn.after))
        assert left == pytest.approx(right, rel=1e-9)
        assert f"on {turn.after} beats {turn.before}" in turn.reason
    ends = [1 * GBIT, *(turn.bits_per_s for turn in found), 4000 * GBIT]
    names = ["small", "fast", "float32"]
    for low, high, name in zip(ends, ends[1:], names, strict=False):
        middle = (low * high) ** 0.5
        assert advise(MODEL.at_bandwidth(middle, 8), 8).best.name == name
    assert found[1].bits_per_s == pytest.approx(MODEL.break_even("fast", 8), rel=1e-6)


def test_where_nothing_pays_it_is_said_until_where_it_would():
    advice = advise(MODEL.at_bandwidth(4000 * GBIT, 8), 8)
    assert advice.best.name == "float32"
    assert "use float32" in advice.reason
    assert "pays only below" in advice.reason
    hopeless = model(profile("worse", 1.0, Line(1e-6), Line()))
    assert "never pays" in advise(hopeless, 8).reason
    assert "nothing else" in advise(model(), 8).reason


def test_the_best_of_those_that_keep_a_bound_is_named_next_to_one_that_does_not():
    crude = profile("crude", 30.0, Line(), Line(), keeps_bound=None)
    made = model(FAST, SMALL, crude)
    advice = advise(made, 8)
    assert advice.best.name == "crude"
    assert {line[1]: line[-1] for line in plan_cells(EMBEDDINGS_PLANNER, made, 8)} == {
        "float32": "", "fast": "", "small": "", "crude": "best, promises no bound",
    }  # fmt: skip
    assert advice.best_bounded.name == "small"
    assert "of those that keep a bound small is best" in advice.reason
    assert short_reason(advice).endswith(
        f"with a bound: small, {advice.best_bounded.step_s * 1e3:.3g} ms"
    )


def test_what_broke_its_bound_is_shown_but_never_advised():
    wrong = profile("wrong", 30.0, Line(), Line(), keeps_bound=False)
    made = model(FAST, SMALL, wrong)
    advice = advise(made, 8)
    assert (advice.best.name, advice.best_bounded) == ("small", None)
    assert "wrong" not in advice.reason
    cells = {line[1]: line[-1] for line in plan_cells(EMBEDDINGS_PLANNER, made, 8)}
    assert cells == {"float32": "", "fast": "", "small": "best", "wrong": "broke its bound"}
    assert all("wrong" not in turn.reason for turn in turns(made, 8, GBIT, 4000 * GBIT))
    assert "nothing else" in advise(model(wrong), 8).reason


def test_a_gain_below_what_the_model_can_tell_is_reported_as_such():
    advice = advise(model(FAST, compute=Line(1.0)), 8)
    assert advice.best.name == "fast"
    assert "too small for this model" in advice.reason


def test_every_bandwidth_of_a_sweep_has_its_own_advice():
    advised = [advise(MODEL.at_bandwidth(b, 8), 8) for b in parse_sweep("1gbit..400gbit")]
    assert [advice.bits_per_s for advice in advised] == list(parse_sweep("1gbit..400gbit"))
    steps = [advice.best.step_s for advice in advised]
    assert steps == sorted(steps, reverse=True)


def test_latency_is_not_called_coding():
    slow = model(FAST, bits_per_s=GBIT, transport=Transport(sizes_s=1e-3))
    words = "2 ms of it to agree on sizes"
    assert f"of coding, {words}" in advise(slow, 8).reason
    assert short_reason(advise(slow, 8)).endswith(f"longer, {words}")
    assert short_reason(advise(slow.at_bandwidth(4000 * GBIT, 8), 8)).endswith(
        f"of coding, {words}"
    )
    assert "agree" not in advise(model(FAST), 8).reason
    assert "agree" not in short_reason(advise(model(FAST), 8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Summed(StepModel):
    """Gradients summed by a ring, or encoded and summed pairwise: other links limit each."""

    coding_s: float
    computes_s: float = 1e-3

    @property
    def methods(self) -> Mapping[str, bool | None]:
        return {"float32": True, "small": True}

    def step(self, name: str, num_ranks: int) -> Step:
        coded = CodecCosts(Line(self.coding_s), Line(), RatioCurve.fixed(8.0), has_sizes=False)
        costs = UNCODED if name == "float32" else coded
        return Step((
            Transfer(name="it", collective=Collective.REDUCE_SCATTER, nbytes=64e6, costs=costs),
        ), compute_s=1e-3 if name == "float32" else self.computes_s)  # fmt: skip


def test_computing_that_a_method_saves_is_told_apart_from_sending():
    cluster = Cluster(ranks_per_node=1, inter_bits_per_s=GBIT, intra_bits_per_s=GBIT)
    made = Summed(cluster=cluster, coding_s=0.4e-3)
    assert "computing" not in advise(made, 16).reason
    faster = Summed(cluster=cluster, coding_s=0.4e-3, computes_s=0.25e-3)
    assert "of sending and 0.75 ms of computing per step and costs" in advise(faster, 16).reason


def test_a_codec_that_pays_on_slow_and_on_fast_links_alone_is_reported_so():
    # ring: 60 MB on either link; pairwise, encoded: 3.5 MB within nodes and 32 MB between them
    cluster = Cluster(ranks_per_node=8, inter_bits_per_s=800 * GBIT, intra_bits_per_s=800 * GBIT)
    made = Summed(cluster=cluster, coding_s=0.4e-3)
    found = turns(made, 16, 1 * GBIT, 4000 * GBIT)
    assert [(turn.before, turn.after) for turn in found] == [
        ("small", "float32"), ("float32", "small"),
    ]  # fmt: skip
    # 480 Mbit / B = 0.4 ms + 256 Mbit / B, then 0.6 ms = 0.4 ms + 256 Mbit / B
    assert [turn.bits_per_s for turn in found] == pytest.approx([560 * GBIT, 1280 * GBIT])
    assert "codes 0.4 ms faster" in found[0].reason
    assert "it sends 0.4 ms faster, and codes 0.4 ms longer" in found[1].reason
    assert "it pays only below 560gbit and above 1.28tbit" in advise(made, 16).reason
    assert made.break_even("small", 16) == pytest.approx(560 * GBIT)


def test_a_codec_that_pays_on_fast_links_alone_never_pays_on_slow_ones():
    # a ratio of 8 makes up for what eight ranks of a node send; 16 of them send more than a ring does
    cluster = Cluster(ranks_per_node=16, inter_bits_per_s=GBIT, intra_bits_per_s=800 * GBIT)
    made = Summed(cluster=cluster, coding_s=0.1e-3)
    assert made.break_even("small", 64) == 0
    assert "it pays only above" in advise(made, 64).reason
    [turn] = turns(made, 64, 1 * GBIT, 4000 * GBIT)
    assert (turn.before, turn.after) == ("float32", "small")
