"""Costs are found again in rows made from known ones, and predictions are checked honestly."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from msgspec import structs

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.row_file import read_rows
from tersor.bench.core.timing import Percentiles
from tersor.bench.embeddings.planning.check import check
from tersor.bench.embeddings.planning.fit import fit_exchanges, fit_rows
from tersor.bench.embeddings.planning.planner import EMBEDDINGS_PLANNER
from tersor.bench.embeddings.planning.trace import computing_s
from tersor.bench.planning.blocks import check_block, plan_block, sweep_block
from tersor.bench.planning.check import LEAST_HITS, check_cells
from tersor.bench.planning.tables import (
    bandwidth_figure,
    break_evens,
    plan_row,
    ranks_figure,
)
from tersor.errors import SpecError
from tersor.planning import advise, parse_bandwidth
from tests.arch.source_files import REPOSITORY
from tests.bench.core.test_rows import make_row
from tests.bench.plots.reading import lines

SAMPLE_NBYTES = 6656
RATIOS = {
    "float32": {64: 1.0, 256: 1.0, 1024: 1.0},
    "half": {64: 2.0, 256: 2.0, 1024: 2.0},
    "rows": {64: 10.0, 256: 15.0, 1024: 22.5},
}
ENCODE = {"float32": (5e-4, 1e-10), "half": (4e-4, 2e-10), "rows": (1e-3, 8e-10)}
COMPUTE_S, SAMPLE_S, DENSE_NBYTES = 0.02, 1e-4, 3e6
SIZES_S, PAYLOAD_S, HOST_S, SLOWDOWN, REST_S = 4e-3, 2e-3, 5e-10, 1.6, 1e-3


def exchange_row(
    codec, link, per_rank, direction="forward", *, ranks=4, noise=1.0, slowdown=SLOWDOWN,
    sizes_s=SIZES_S, unready_s=0.0, per_node=1, said_per_node=None,
):  # fmt: skip
    """Return a row that took exactly what the formula says; ``noise`` is a factor of the whole."""
    bits, nbytes = parse_bandwidth(link), per_rank * SAMPLE_NBYTES
    sent = nbytes / RATIOS[codec][per_rank] * (ranks - 1) / ranks
    fixed, each = ENCODE[codec]
    encode_s = fixed + each * nbytes
    # of the parts for all ranks, those for other nodes leave over a link that per_node ranks share
    leaving = per_node * (ranks - per_node) / (ranks - 1)
    payload_s = PAYLOAD_S + unready_s + sent * (HOST_S + leaving * slowdown * 8 / bits)
    whole_s = (2 * encode_s + sizes_s + payload_s + REST_S) * noise
    ring_s = 2 * (ranks - 1) / ranks * 8 * DENSE_NBYTES / bits
    step_s = COMPUTE_S + SAMPLE_S * per_rank + 2 * whole_s + ring_s
    times = {
        name: Percentiles.of([seconds])
        for name, seconds in (
            ("sizes_s", sizes_s), ("payload_s", payload_s), ("exchange_s", whole_s),
            ("step_s", step_s),
        )
    }  # fmt: skip
    exchange = ExchangeTimes(
        direction=direction, network="namespaces", link=link, num_ranks=ranks,
        ranks_per_node=said_per_node or per_node,
        batch=per_rank * ranks, **times,
    )  # fmt: skip
    original = nbytes * ranks
    return make_row(
        suite="embeddings", codec=codec, input="dlrm", exchange=exchange,
        num_values=original // 4, original_nbytes=original,
        encoded_nbytes=round(original / RATIOS[codec][per_rank]),
        encode_s=Percentiles.of([encode_s]), decode_s=Percentiles.of([encode_s]),
        worst_error=0.0 if codec == "float32" else 0.1,
        error_bound=0.5 if codec == "rows" else None, group=f"{direction}, {link}",
    )  # fmt: skip


def every_row(**changes):
    return [
        exchange_row(codec, link, per_rank, direction, **changes)
        for link in ("100mbit", "1gbit", "10gbit")
        for per_rank in (64, 256, 1024)
        for codec in RATIOS
        for direction in ("forward", "backward")
    ]


ROWS = every_row()


def planned(fit, **values):
    return fit.model({"latency": "0us", **values})


def test_known_costs_are_found_again():
    fit = fit_exchanges(ROWS)
    assert fit.transport.efficiency == pytest.approx(1 / SLOWDOWN, rel=1e-4)
    assert fit.transport.payload_s == pytest.approx(PAYLOAD_S, rel=1e-3)
    assert fit.transport.host_s_per_byte == pytest.approx(HOST_S, rel=1e-2)
    assert fit.transport.sizes_s == SIZES_S
    assert fit.transport.unready_s == 0.0
    assert fit.transport.rest["forward"].at(0) == pytest.approx(REST_S, rel=1e-3)
    assert fit.compute is not None
    assert fit.compute.fixed_s == pytest.approx(COMPUTE_S, rel=1e-3)
    assert fit.compute.each_s == pytest.approx(SAMPLE_S, rel=1e-3)
    assert fit.allreduce_nbytes == pytest.approx(DENSE_NBYTES, rel=1e-3)
    assert fit.sample_nbytes == SAMPLE_NBYTES
    rows = fit.profiles["rows"]
    assert (rows.forward.encode.fixed_s, rows.forward.encode.each_s) == (
        pytest.approx(1e-3), pytest.approx(8e-10),
    )  # fmt: skip
    assert rows.forward.ratio.at(128) == pytest.approx(150**0.5, rel=1e-3)
    assert {p.name for p in fit.profiles.values() if p.keeps_bound} == {"float32", "rows"}


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_ranks_of_a_node_share_the_link_that_costs_are_fitted_to(per_node):
    rows = every_row(ranks=8, per_node=per_node)
    found = fit_exchanges(rows).transport
    assert found.efficiency == pytest.approx(1 / SLOWDOWN, rel=1e-4)
    assert found.host_s_per_byte == pytest.approx(HOST_S, rel=1e-2)
    assert found.payload_s == pytest.approx(PAYLOAD_S, rel=1e-3)
    errors = [point.error for point in check(rows).points]
    assert max(map(abs, errors)) < 1e-3
    # taken for ranks with links of their own, they would reach more than their links have
    alone = every_row(ranks=8, per_node=per_node, said_per_node=1)
    wrong = fit_exchanges(alone).transport.efficiency
    assert (wrong == pytest.approx(found.efficiency, rel=1e-4)) is (per_node == 1)


def test_a_direction_whose_sizes_were_known_to_all_has_no_exchange_of_them():
    forward = [row for row in ROWS if row.exchange.direction == "forward"]
    known = every_row(sizes_s=0.0, unready_s=3e-3)
    backward = [row for row in known if row.exchange.direction == "backward"]
    fit = fit_exchanges([*forward, *backward])
    assert fit.transport.sizes_s == SIZES_S
    assert fit.transport.unready_s == pytest.approx(3e-3, rel=1e-3)
    assert fit.transport.payload_s == pytest.approx(PAYLOAD_S, rel=1e-3)
    for profile in fit.profiles.values():
        assert (profile.forward.has_sizes, profile.backward.has_sizes) == (True, False)
    assert fit_exchanges(every_row(sizes_s=0.0)).transport.sizes_s == 0.0
    for row in backward:
        assert type(row).from_config(row.to_config()) == row


def test_a_row_that_was_measured_again_counts_once_and_the_last_one_does():
    fit = fit_rows(ROWS)
    twice = fit_rows([*every_row(noise=3.0), *ROWS])
    assert twice.source.startswith(fit.source)
    assert "the last one counts" in twice.source.removeprefix(fit.source)
    assert replace(twice, source=fit.source) == fit
    assert check([*every_row(noise=3.0), *ROWS]).points == check(ROWS).points


def test_a_broken_bound_is_not_kept():
    broken = [structs.replace(r, worst_error=0.6) if r.codec == "rows" else r for r in ROWS]
    bounded = {p.name for p in fit_exchanges(broken).profiles.values() if p.keeps_bound}
    assert bounded == {"float32"}


def test_costs_in_addition_to_a_link_at_full_speed_are_fitted_to_what_it_leaves():
    rows = every_row(slowdown=0.5)
    found = fit_exchanges(rows).transport
    assert found.efficiency == 1.0

    def miss(payload_s: float, host_s_per_byte: float) -> float:
        errors = []
        for row in rows:
            sent, measured_s = row.encoded_nbytes * 3 / 16, row.exchange.payload_s.p50
            link_s = 8 * sent / parse_bandwidth(row.exchange.link)
            errors.append((payload_s + host_s_per_byte * sent + link_s) / measured_s - 1)
        return sum(error**2 for error in errors)

    least = miss(found.payload_s, found.host_s_per_byte)
    assert least < 0.99 * miss(PAYLOAD_S, HOST_S)
    assert least <= min(miss(found.payload_s * f, found.host_s_per_byte) for f in (0.98, 1.02))


def test_what_is_for_other_rows_is_refused():
    for option in ({"bound": 0.03}, {"backward": "group8"}):
        with pytest.raises(SpecError, match="for rows of codecs"):
            fit_rows(ROWS, **option)
    codecs = [make_row(suite="kernels", input="embeddings", device="cuda")]
    with pytest.raises(SpecError, match="--input is for rows of exchanges"):
        fit_rows(codecs, model="dlrm")


@pytest.mark.parametrize(
    ("block", "options", "words"),
    [
        (plan_block, {"ranks": "4, x,eight"}, "numbers separated by commas, not '4, x,eight'"),
        (sweep_block, {"ranks": "1"}, "from 2"),
        (plan_block, {}, "ranks=N"),
        (plan_block, {"ranks": "4", "sweep": "1gbit..2gbit"}, "not 'sweep'"),
        (sweep_block, {"ranks": "4", "moon": "1"}, "not 'moon'"),
        (
            plan_block,
            {"ranks": "4", "bound": "abc"},
            "bound= is a number between 0 and 1, not 'abc'",
        ),
        (plan_block, {"ranks": "4", "bound": "NaN"}, "not 'NaN'"),
        (sweep_block, {"ranks": "4", "input": "moon"}, "no row is of 'moon'; these are of dlrm"),
        (plan_block, {"ranks": "4", "bound": "true"}, "not 'true'"),
        (check_block, {"ranks": "4"}, "takes hold_out, not 'ranks'"),
    ],
)
def test_a_block_refuses_what_it_does_not_understand(block, options, words):
    with pytest.raises(SpecError, match=words):
        block(EMBEDDINGS_PLANNER, ROWS, options)


def test_a_block_takes_the_rows_of_one_input():
    others = [
        structs.replace(row, input="other", encoded_nbytes=row.original_nbytes) for row in ROWS
    ]
    options = {"ranks": "4", "compute_ms": "1"}
    of_both = sweep_block(EMBEDDINGS_PLANNER, [*ROWS, *others], {**options, "input": "dlrm"})
    assert of_both == sweep_block(EMBEDDINGS_PLANNER, ROWS, options)


def test_what_was_described_goes_before_what_was_fitted():
    fit = fit_exchanges(ROWS)
    model = planned(fit, compute_ms=7.0, allreduce_mbytes=0, sample_nbytes=100, efficiency=0.25)
    assert model.compute.at(1e9) == 7e-3
    assert model.allreduce_nbytes == 0
    assert model.sample_nbytes == 100
    half = planned(fit, efficiency=0.5)
    payloads = [m.predict("float32", 4).payload_s for m in (half, planned(fit, efficiency=1.0))]
    assert payloads[0] > payloads[1]


def test_the_recommendation_changes_from_1_to_400_gbit():
    fit = fit_exchanges(ROWS)
    slow, fast = (advise(planned(fit, inter=f"{n}gbit", batch_per_rank=1024), 64) for n in (1, 400))
    assert (slow.best.name, fast.best.name) == ("rows", "half")
    assert "saves" in slow.reason


def test_a_codec_chosen_for_the_link_is_left_out():
    rows = [*ROWS, structs.replace(ROWS[-1], codec="auto")]
    assert set(fit_exchanges(rows).profiles) == set(RATIOS)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no exchange on a throttled link"),
        ([make_row()], "no exchange on a throttled link"),
        ([*ROWS, structs.replace(ROWS[0], input="other")], "several models"),
        ([row for row in ROWS if "back" not in row.group], "no backward direction"),
        (
            [row for row in ROWS if row.group != "backward, 100mbit"],
            "100mbit at a batch of .* has one direction of its exchange",
        ),
    ],
)
def test_rows_that_tell_nothing_are_refused(rows, words):
    with pytest.raises(SpecError, match=words):
        fit_exchanges(rows)


@pytest.mark.parametrize("hold_out", ["link", "batch"])
def test_rows_of_the_formula_are_predicted_from_the_others(hold_out):
    found = check(ROWS, hold_out)
    assert len(found.points) == 81
    # beyond the largest slice a ratio is held to be no better, which is not true of these rows
    exact = [p for p in found.points if p.codec != "rows"]
    assert max(abs(point.error) for point in exact) < 1e-3
    assert found.passed
    assert f"each {hold_out} from the rows of the other" in found.sentence
    assert len(found.constants()) == 3


def test_a_held_out_link_has_no_say_in_its_own_prediction():
    wrong = [row for row in ROWS if row.exchange.link != "1gbit"]
    wrong += [row for row in every_row(noise=3.0) if row.exchange.link == "1gbit"]
    before = {p for p in check(ROWS).points if p.link == "1gbit"}
    after = [p for p in check(wrong).points if p.link == "1gbit"]
    assert {p.predicted_s for p in before} == {p.predicted_s for p in after}
    assert not any(p.is_hit for p in after if p.what == "forward")


def test_a_check_fails_where_most_points_are_missed_or_there_are_too_few():
    links = {"100mbit": 1.0, "1gbit": 3.0, "10gbit": 9.0}
    noisy = [row for link, f in links.items() for row in every_row(noise=f) if link in row.group]
    assert not check(noisy).passed
    few = [row for row in ROWS if row.codec == "float32" and row.exchange.batch == 256]
    found = check(few)
    assert found.num_hits == len(found.points) == 9 < LEAST_HITS
    assert not found.passed


def test_a_check_needs_something_to_hold_out():
    with pytest.raises(SpecError, match="at least two"):
        check([row for row in ROWS if row.exchange.link == "1gbit"])
    with pytest.raises(SpecError, match="link or batch"):
        check(ROWS, "moon")


def test_errors_are_shown_as_they_are():
    missed = every_row(noise=2.0)
    cells = check_cells(
        replace(p, predicted_s=p.measured_s * f)
        for p, f in zip(check(missed).points, (1.2, 1.21), strict=False)
    )
    assert [line[-1] for line in cells] == ["+20%", "+21% !"]


def test_a_prediction_as_json_says_what_it_is_made_of():
    model = planned(fit_exchanges(ROWS), inter="10gbit")
    advice = advise(model, 8)
    line = json.loads(
        json.dumps(plan_row(EMBEDDINGS_PLANNER, model, advice.best, advice, {}), allow_nan=False)
    )
    assert line["step_s"] == pytest.approx(
        line["compute_s"] + line["exchange_s"] - line["hidden_s"] + line["allreduce_s"]
    )
    parts = ("encode_s", "sizes_s", "payload_s", "decode_s", "rest_s")
    assert line["forward"]["total_s"] == pytest.approx(sum(line["forward"][p] for p in parts))
    assert line["is_best"]
    assert line["reason"] == advice.reason
    rows = plan_row(
        EMBEDDINGS_PLANNER, model, model.predict("rows", 8), advice, break_evens(model, 8)
    )
    assert (rows["is_best"], rows["reason"], rows["is_extrapolated"]) == (False, None, True)


def test_figures_have_a_line_per_codec():
    model = planned(fit_exchanges(ROWS))
    for figure in (ranks_figure(model, (2, 8, 64)), bandwidth_figure(model, 8, (1e9, 1e10, 4e11))):
        assert set(lines(ET.fromstring(figure))) == {"half", "rows"}


def test_computing_is_what_a_training_does_besides_exchanges(tmp_path):
    seconds = {"encode": 0.25, "sizes": 0.25, "payload": 0.25, "decode": 0.25}
    lines = [
        {"kind": "train", "step": 10, "step_s": 0.5, "loss": 1.0},
        {"kind": "eval", "step": 10, "auc": 0.5},
        {"kind": "train", "step": 20, "step_s": 0.3, "loss": 1.0},
        {"kind": "exchange", "step": 20, "num_exchanges": 20,
         "forward": {"seconds": seconds}, "backward": {"seconds": seconds}},
    ]  # fmt: skip
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert computing_s(path) == pytest.approx((10 * 0.5 + 10 * 0.3 - 2.0) / 20)
    longer = {**lines[-1], "forward": {"seconds": {"payload": 7.5}}}
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:-1], longer]))
    with pytest.raises(SpecError, match=r"take longer than its steps \(8\.5 s of 8 s\)"):
        computing_s(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    with pytest.raises(SpecError, match="--log-every"):
        computing_s(path)
    for line in ({}, {**lines[-1], "backward": {}}, {**lines[-1], "forward": {"seconds": [1.0]}}):
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(SpecError, match="line 1 of"):
            computing_s(path)


@pytest.mark.parametrize(
    ("numbers", "words"), [([0], "step 0 after 0"), ([10, 30, 20], "step 20 after 30")]
)
def test_steps_of_a_training_must_grow(tmp_path, numbers, words):
    path, none = tmp_path / "log.jsonl", {"seconds": {}}
    lines = [{"kind": "train", "step": step, "step_s": 0.5} for step in numbers]
    lines.append(
        {"kind": "exchange", "num_exchanges": numbers[-1], "forward": none, "backward": none}
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SpecError, match=words):
        computing_s(path)


def test_the_committed_measurements_are_predicted_within_a_fifth_at_12_points_and_more():
    rows = read_rows(REPOSITORY / "results" / "2026-11-embeddings-network.jsonl")
    for hold_out in ("link", "batch"):
        found = check(rows, hold_out)
        assert found.num_hits >= LEAST_HITS
        assert found.passed, found.sentence


def test_break_evens_are_the_same_at_every_bandwidth():
    model = planned(fit_exchanges(ROWS), inter="10gbit")
    found = break_evens(model, 8)
    assert found == break_evens(model.at_bandwidth(1e9, 8), 8)
    assert found["rows"] == model.break_even("rows", 8)
    assert model.baseline not in found
