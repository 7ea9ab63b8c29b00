"""Costs are found again in rows made from known ones, and predictions are checked honestly."""

from __future__ import annotations

import pytest
from msgspec import structs

from tersor.bench.planning.blocks import check_block
from tersor.bench.planning.check import LEAST_HITS, check_cells
from tersor.bench.shards.planning import fit as fitting
from tersor.bench.shards.planning.check import check
from tersor.bench.shards.planning.fit import fit_rows, fit_shards
from tersor.bench.shards.planning.flows import Flow
from tersor.bench.shards.planning.planner import SHARDS_PLANNER
from tersor.errors import SpecError
from tersor.planning import Collective, Transfer
from tests.bench.core.test_rows import make_row
from tests.bench.shards.planning.made import (
    BY_HAND,
    CODING_S,
    COMPUTE_S,
    HEADERS,
    LINKS,
    NEAR_S,
    PASS_S,
    POWERSGD_S,
    ROWS,
    SHAPE,
    SLOWDOWN,
    coded_by_hand,
    made_row,
    made_rows,
)


def test_known_costs_are_found_again():
    fit = fit_shards(ROWS)
    assert fit.shape == SHAPE
    ring, pairwise, near = (fit.transports[kind] for kind in ("ring", "pairwise", "near"))
    assert ring.efficiency == pytest.approx(1 / SLOWDOWN["ring"], rel=1e-3)
    assert pairwise.efficiency == pytest.approx(1 / SLOWDOWN["pairwise"], rel=1e-3)
    assert {one.payload_s for one in (ring, pairwise, near)} == {ring.payload_s}
    assert ring.payload_s == pytest.approx(PASS_S, rel=1e-3)
    assert near.host_s_per_byte == pytest.approx(NEAR_S, rel=1e-3)
    for name in BY_HAND:
        method = fit.methods[name]
        # interfaces count whole bytes
        assert method.counted["gradients", True] == pytest.approx(HEADERS, rel=1e-4)
        assert method.counted.get(("gradients", False), 1.0) == pytest.approx(1.0, rel=1e-4)
        assert method.counted.get(("weights", False), 1.0) == pytest.approx(1.0, rel=1e-4)
        assert method.coding_s_per_byte == pytest.approx(CODING_S if coded_by_hand(name) else 0.0)
        hidden_s = POWERSGD_S if name == "ddp-powersgd" else 0.0
        assert method.hidden_coding_s == pytest.approx(hidden_s, rel=1e-2)
        wrapper = name.partition("-")[0]
        compute_s = COMPUTE_S["bf16" if name == "fsdp-bf16" else wrapper]
        assert method.compute_s == pytest.approx(compute_s, rel=1e-3)
        assert method.overlap == pytest.approx(0.1 if wrapper == "ddp" else 0.0, abs=1e-3)


def test_rows_of_the_formula_are_predicted_from_other_links():
    found = check(ROWS)
    assert len(found.points) == 2 * len(ROWS)
    assert max(abs(point.error) for point in found.points) < 1e-3
    assert found.passed
    assert "27 of 27 exchanges and 27 of 27 steps" in found.sentence
    assert len(found.constants()) == len(LINKS)
    assert "ddp computes 150 ms, 10% of sending hidden" in found.constants()[0]


def test_two_links_are_enough_but_what_is_hidden_is_then_unknown():
    rows = made_rows(("100mbit", "1gbit"))
    found = check(rows)
    assert "hidden" not in " ".join(found.constants())
    exchanges = [abs(point.error) for point in found.points if point.what == "exchange"]
    assert max(exchanges) < 1e-3
    fsdp = [p for p in found.points if p.what == "step" and p.codec.startswith("fsdp")]
    assert max(abs(point.error) for point in fsdp) < 1e-3
    assert found.passed


@pytest.mark.parametrize("what", ["exchange", "step"])
def test_a_time_that_is_planted_wrong_is_reported_outside_the_tolerance(what):
    changes = {"noise": 2.0} if what == "exchange" else {"step_noise": 2.0}
    wrong = [
        made_row("fsdp-4-bit", "300mbit", **changes)
        if (row.codec, row.shards.link) == ("fsdp-4-bit", "300mbit")
        else row
        for row in ROWS
    ]
    missed = [p for p in check(wrong).points if not p.is_hit]
    # other links of that method are predicted from the wrong row, too
    assert {(p.codec, p.what) for p in missed} == {("fsdp-4-bit", what)}
    planted = [p for p in missed if p.link == "300mbit"]
    assert [cells[-1] for cells in check_cells(planted)] == ["-50% !"]


def test_a_held_out_link_has_no_say_in_its_own_prediction():
    wrong = [row for row in ROWS if row.shards.link != "1gbit"] + made_rows(("1gbit",), noise=3.0)
    before, after = ([p for p in check(rows).points if p.link == "1gbit"] for rows in (ROWS, wrong))
    assert [p.predicted_s for p in before] == [p.predicted_s for p in after]
    assert not any(p.is_hit for p in after if p.what == "exchange")


def test_a_check_fails_where_most_points_are_missed_or_there_are_too_few():
    factors = {"100mbit": 1.0, "300mbit": 3.0, "1gbit": 9.0}
    noisy = [row for link, f in factors.items() for row in made_rows((link,), noise=f)]
    assert not check(noisy).passed
    few = check([row for row in ROWS if row.codec == "fsdp-fp32"])
    assert few.num_hits == len(few.points) == 6 < LEAST_HITS
    assert not few.passed


def test_counters_tell_that_a_reduce_scatter_of_gloo_goes_round_twice(monkeypatch):
    def once_round(self, cluster, num_ranks):
        return leaving(self, cluster, num_ranks) / self.collective.num_passes

    leaving = Transfer.leaving_nbytes
    monkeypatch.setattr(Transfer, "leaving_nbytes", once_round)
    counted = fit_shards(ROWS).methods["fsdp-fp32"].counted["gradients", True]
    assert counted == pytest.approx(2 * HEADERS, rel=1e-4)


def test_counters_that_no_model_explains_are_reported():
    def doubled(row):
        part = row.shards.gradients
        more = structs.replace(part, link_nbytes=2 * part.link_nbytes)
        return structs.replace(row, shards=structs.replace(row.shards, gradients=more))

    rows = [doubled(row) if row.codec == "fsdp-4-bit" else row for row in ROWS]
    for given, is_reported in ((ROWS, False), (rows, True)):
        fit = fit_rows(given)
        notes = " ".join(fit.notes(fit.model({}), [4]))
        assert ("fsdp-4-bit: links carried 2.1 times the gradients" in notes) is is_reported


def test_coding_is_found_per_byte_that_the_hops_code(monkeypatch):
    monkeypatch.setattr(
        Collective, "coded_nbytes", lambda _self, nbytes, _ranks: ([nbytes], [nbytes])
    )
    method = fit_shards(ROWS).methods["fsdp-4-bit"]
    # both gathers counted as if a rank encoded all of them: 2 for 1, then 4 for 2
    assert method.coding_s_per_byte == pytest.approx(CODING_S * 21 / 24)


def test_a_row_that_was_measured_again_counts_once_and_the_last_one_does():
    fit, twice = fit_rows(ROWS), fit_rows([*made_rows(noise=3.0), *ROWS])
    assert "the last one counts" in twice.source.removeprefix(fit.source)
    assert twice.methods == fit.methods
    assert check([*made_rows(noise=3.0), *ROWS]).points == check(ROWS).points


def test_the_ways_of_one_wrapper_are_compared_with_its_float32():
    fsdp, ddp = fit_rows(ROWS), fit_rows(ROWS, wrapper="ddp")
    assert (fsdp.baseline, ddp.baseline) == ("fsdp-fp32", "ddp-fp32")
    assert {*fsdp.methods, *ddp.methods} == set(BY_HAND)
    assert "--wrapper ddp shows the methods of ddp" in fsdp.source
    replicas = [row for row in ROWS if row.shards.wrapper == "ddp"]
    assert fit_rows(replicas).baseline == "ddp-fp32"
    few = fit_rows(ROWS, codecs=["fsdp-4-bit"])
    assert list(few.methods) == ["fsdp-fp32", "fsdp-4-bit"]


@pytest.mark.parametrize(
    ("rows", "arguments", "words"),
    [
        ([make_row()], {}, "no step on a throttled link"),
        ([*ROWS, structs.replace(ROWS[0], input="gpt-10M")], {}, "choose one with --input"),
        (
            [*ROWS, structs.replace(ROWS[0], shards=structs.replace(ROWS[0].shards, tokens=99))],
            {},
            "several batches per rank",
        ),
        (
            [structs.replace(ROWS[0], spec={"bits": 4}), *ROWS[1:]],
            {},
            "rows of fsdp-fp32 do not say how it exchanges",
        ),
        (ROWS, {"model": "gpt-10M"}, "no row is of 'gpt-10M'; these are of gpt-2M"),
        (ROWS, {"wrapper": "zero"}, "the rows are of fsdp and ddp, not of 'zero'"),
        (ROWS, {"codecs": ["ddp-4-bit"]}, "but no 'ddp-4-bit'"),
    ],
)
def test_rows_that_tell_nothing_are_refused(rows, arguments, words):
    with pytest.raises(SpecError, match=words):
        fit_rows(rows, **arguments)


@pytest.mark.parametrize(
    ("rows", "hold_out", "words"),
    [
        (made_rows(("1gbit",)), "link", "at least two values of link"),
        ([*made_rows(("1gbit",)), made_row("fsdp-4-bit", "100mbit")], "link", "nothing predicts"),
        (ROWS, "batch", "a link is held out, not 'batch'"),
    ],
)
def test_a_check_that_cannot_be_made_is_refused(rows, hold_out, words):
    with pytest.raises(SpecError, match=words):
        check(rows, hold_out)


def test_a_page_shows_how_well_rows_are_predicted():
    block = check_block(SHARDS_PLANNER, ROWS, {})
    assert "| 100mbit | 4 | 18 | 18 | 0% |" in block
    assert "- without link 1gbit: rings reach 80% of a link and all-to-alls 50%" in block


def test_a_flow_is_far_unless_it_stays_in_its_node():
    assert {flow.name: flow.is_far for flow in _flows("fsdp-4-bit-node")} == {
        "weights, all-gather between nodes": True,
        "weights, all-gather within nodes": False,
        "gradients, all-to-all within nodes": False,
        "gradients, all-to-all between nodes": True,
    }


def _flows(name: str) -> list[Flow]:
    row = made_row(name, "1gbit")
    return fitting.flows(row.spec, SHAPE, fitting._cluster(row), 4, "gloo")
