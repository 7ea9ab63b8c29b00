"""What coding costs is found in rows of codecs alone, of look-ups and of the suite ``kernels``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tersor.bench.core.timing import Percentiles
from tersor.bench.embeddings.planning import coding
from tersor.bench.embeddings.planning.coding import fit_kernels, fit_lookups
from tersor.bench.embeddings.planning.fit import fit_rows
from tersor.bench.embeddings.planning.planner import EMBEDDINGS_PLANNER
from tersor.bench.peers import COPIES, DEVICE_PEERS, PEERS
from tersor.bench.planning.tables import plan_cells
from tersor.errors import SpecError
from tersor.planning import CodecCosts, Line, RatioCurve
from tests.bench.core.test_rows import make_row
from tests.bench.embeddings.lookups.test_tables import measured
from tests.bench.embeddings.planning.test_planning import ROWS, SAMPLE_NBYTES, planned


def test_every_peer_that_copies_is_known_as_such():
    names = {name for name in (*PEERS, *DEVICE_PEERS) if "copy" in name or "memcpy" in name}
    assert names == COPIES


def test_rows_of_codecs_alone_tell_coding_and_nothing_else():
    big = {"suite": "kernels", "input": "embeddings", "device": "cuda"}
    rows = [
        make_row(**big, codec="flat", original_nbytes=10**8, encoded_nbytes=10**7,
                 encode_s=Percentiles.of([1e-3]), decode_s=Percentiles.of([5e-4])),
        make_row(**big, codec="group8", spec={}, original_nbytes=10**8, encoded_nbytes=25 * 10**6,
                 encode_s=Percentiles.of([2e-4]), decode_s=Percentiles.of([2e-4]), error_bound=None),
        make_row(**big, codec="codes", memcpy_s=None),
        make_row(**big | {"input": "gradients"}, codec="other"),
        *(make_row(**big, codec=name, peer=True) for name in COPIES),
    ]  # fmt: skip
    fit = fit_kernels(rows, backward="group8")
    assert set(fit.profiles) == {"float32", "flat", "group8"}
    flat = fit.profiles["flat"]
    assert flat.forward.encode.at(10**8) == pytest.approx(1e-3)
    assert flat.backward.ratio.at(100) == 4.0
    base = planned(fit, inter="8gbit", batch_per_rank=1000).predict("float32", 4)
    # nothing but bytes over bandwidth, both ways
    assert base.step_s == pytest.approx(2 * 1000 * SAMPLE_NBYTES * 0.75 / 1e9)
    with pytest.raises(SpecError, match="no row says"):
        fit_kernels(rows, backward="moon")
    with pytest.raises(SpecError, match="neither exchanges nor codecs"):
        fit_kernels([])
    with pytest.raises(SpecError, match="several devices"):
        fit_kernels([*rows, structs.replace(rows[0], device="cpu")])
    other = structs.replace(rows[0], spec={"bound": {"relative": 0.01}})
    with pytest.raises(SpecError, match=r"0\.01, 0\.03"):
        fit_kernels([*rows, other])
    assert set(fit_kernels([*rows, other], bound=0.01).profiles) == set(fit.profiles)
    with pytest.raises(SpecError, match=r"no row has the bound 0\.5; these rows have 0\.01, 0\.03"):
        fit_kernels([*rows, other], bound=0.5)


def test_what_no_exchange_can_do_is_not_planned_with():
    rows = [
        make_row(codec=codec, input="embeddings", encoded_nbytes=10**7, original_nbytes=10**8)
        for codec in ("rows-device", "rows-graph")
    ]
    assert set(fit_kernels(rows).profiles) == {"float32", "rows-device"}


def look_ups(*codecs, batch=2048, gbps=10.0, **changes):
    """Return rows of two tables of 1 MB, one step for 4 ranks, in addition to what was asked for."""
    setting = f"batches of {batch}, from iteration 5"
    rows = []
    for table, ratio in ((0, 10.0), (1, 40.0)):
        for name in codecs:
            row = measured(table, name, ratio, gbps=gbps, setting=setting)
            facts = structs.replace(row.lookups, num_rows=batch, num_slices=4)
            rows.append(structs.replace(row, lookups=facts, **changes))
    return rows


def test_look_ups_tell_what_coding_costs_on_all_tables_together():
    fit = fit_rows(look_ups("rows", "half"), backward="half")
    assert set(fit.profiles) == {"float32", "rows", "half"}
    rows = fit.profiles["rows"]
    assert rows.forward.encode.at(2e6) == pytest.approx(2e6 / 10e9)
    assert rows.forward.ratio.points == ((512.0, pytest.approx(16.0, rel=1e-4)),)
    # sizes of gradients that half makes are known to all
    assert rows.backward == replace(fit.profiles["half"].forward, has_sizes=False)
    by_data = fit_rows(look_ups("rows", "half"), backward="rows").profiles["half"]
    assert (by_data.forward.has_sizes, by_data.backward.has_sizes) == (True, True)
    assert fit.sample_nbytes == 2 * 16 * 4
    assert "2 tables of dump on cpu, batches of 2,048, gradients as half" in fit.source
    assert not fit.profiles["float32"].forward.has_sizes
    # gradients as they are have none either
    plain = fit_rows(look_ups("rows")).profiles["rows"]
    assert (plain.forward.has_sizes, plain.backward.has_sizes) == (True, False)


def test_a_codec_that_promises_no_bound_breaks_none_in_plans_from_look_ups_and_from_kernels():
    # its errors are ten times the bounds of the tables, which it was never given
    free = {"spec": {}, "worst_error": 10.0, "error_bound": None}
    crude = look_ups("crude", **free)
    beyond = [
        structs.replace(row, lookups=structs.replace(row.lookups, error_share=10.0))
        for row in crude
    ]
    broken = look_ups("wrong", worst_error=10.0)
    exact = look_ups("exact", **free | {"worst_error": 0.0})
    from_look_ups = fit_rows([*look_ups("rows"), *beyond, *broken, *exact])
    kernels = {"suite": "kernels", "input": "embeddings"}
    from_kernels = fit_rows([
        make_row(**kernels, codec="rows"),
        make_row(**kernels, codec="crude", **free),
        make_row(**kernels, codec="wrong", worst_error=10.0, error_bound=1.0),
        make_row(**kernels, codec="exact", **free | {"worst_error": 0.0}),
    ])  # fmt: skip
    for fit in (from_look_ups, from_kernels):
        model = planned(fit, batch_per_rank=1000)
        said = {line[1]: line[-1] for line in plan_cells(EMBEDDINGS_PLANNER, model, 4)}
        assert {name: words.removeprefix("best").strip(", ") for name, words in said.items()} == {
            "float32": "", "rows": "", "crude": "promises no bound", "wrong": "broke its bound",
            "exact": "",
        }  # fmt: skip


FIXED = ("half", "group8-device", "group4-graph", "group4-hadamard")
VARYING = ("rows-device", "ans-graph", "mx4")


@pytest.mark.parametrize("backward", [*FIXED, *VARYING])
def test_sizes_of_gradients_are_exchanged_unless_their_codec_fixes_them(backward):
    costs = CodecCosts(Line(), Line(), RatioCurve(((1.0, 2.0),)))
    found = coding._profiles({backward: costs}, {backward: None}, backward)
    assert found[backward].backward.has_sizes is (backward in VARYING)
    assert found[backward].forward.has_sizes


def test_several_batches_of_a_dump_tell_ratios_by_the_size_of_a_slice():
    rows = [*look_ups("rows"), *look_ups("rows", batch=8192, encoded_nbytes=12500)]
    fit = fit_lookups(rows)
    assert fit.profiles["rows"].forward.ratio.at(2048) == pytest.approx(80.0)
    assert fit.measured_rows == (512.0, 2048.0)


def test_a_cost_per_slice_is_that_of_a_ranks_own_slices():
    def coded(batch):
        nbytes = batch * 64
        # four slices of a table, 20 us each, and 2 GB/s
        seconds = Percentiles.of([4 * 20e-6 + nbytes / 2e9])
        return look_ups("rows", batch=batch, original_nbytes=nbytes, encode_s=seconds)

    line = fit_lookups([*coded(512), *coded(2048)]).profiles["rows"].forward.encode
    # a rank has one of four slices of both tables
    assert line.fixed_s == pytest.approx(2 * 20e-6)
    assert line.each_s == pytest.approx(1 / 2e9)


def test_what_flatters_or_is_not_known_is_in_the_source():
    assert "one size tell no fixed cost" in fit_lookups(look_ups("rows")).source
    several = [*look_ups("rows", "flat"), *look_ups("rows", batch=512)]
    source = fit_lookups(several).source
    assert "one size" not in source
    assert "flat left out, without a speed on every table and batch" in source
    repeated = fit_lookups(look_ups("rows", repeat=8)).source
    assert "rows REPEATED 8 times, which flatters copies" in repeated


def test_times_far_from_what_was_measured_are_reported_to_be_guesses():
    # 4 ranks that have 1 MB each of two tables: 500 kB for a rank
    fit = fit_lookups(look_ups("rows"))
    assert fit.measured_nbytes == (5e5, 5e5)
    near = fit.model({"batch_per_rank": 4000})
    assert fit.beyond(near, [8]) is None
    far = fit.model({"batch_per_rank": 100_000})
    words = "a rank codes 12.8 MB here, and 0.5 MB were measured"
    assert fit.beyond(far, [8]) == f"coding times are guesses: {words}"


def test_a_step_in_one_call_tells_what_coding_costs_on_a_gpu():
    step = measured(None, "rows", 16.0, gbps=400.0, setting="batches of 2048, from iteration 5")
    rows = [structs.replace(r, device="cuda") for r in [*look_ups("rows"), step]]
    assert fit_lookups(rows).profiles["rows"].forward.decode.at(2e6) == pytest.approx(5e-6)


def test_look_ups_that_tell_nothing_or_too_many_things_are_refused():
    rows = look_ups("rows", "flat")
    other = [structs.replace(row, input="other") for row in rows]
    with pytest.raises(SpecError, match=r"several dumps \(dump, other\)"):
        fit_rows([*rows, *other])
    assert set(fit_rows([*rows, *other], model="other").profiles) == {"float32", "rows", "flat"}
    with pytest.raises(SpecError, match="no row is of 'moon'; these are of dump"):
        fit_rows(rows, model="moon")
    with pytest.raises(SpecError, match="no row is of 'dump'; these are of dlrm"):
        fit_rows([*rows, *ROWS], model="dump")
    with pytest.raises(SpecError, match="differ in more than their batch"):
        fit_lookups([*rows, *(structs.replace(row, device="cuda") for row in rows)])
    both = [*rows, *(structs.replace(row, device="cuda") for row in rows)]
    assert "on cuda" in fit_rows(both, setting="cuda").source
    with pytest.raises(SpecError, match="of that setting"):
        fit_rows(both, setting="tpu")
    with pytest.raises(SpecError, match="--setting is for rows of look-ups"):
        fit_rows(ROWS, setting="cuda")
    with pytest.raises(SpecError, match="a bound per table"):
        fit_rows(rows, bound=0.03)
    with pytest.raises(SpecError, match="'group8'"):
        fit_lookups(rows, backward="group8")
    uneven = structs.replace(rows[0], lookups=structs.replace(rows[0].lookups, num_rows=7))
    with pytest.raises(SpecError, match="not looked up equally often"):
        fit_lookups([uneven, *rows[1:]])
    # flat is left out where a table misses it, and nothing is left without rows
    assert set(fit_lookups(rows[:3]).profiles) == {"float32", "rows"}
    with pytest.raises(SpecError, match="measured on every table"):
        fit_lookups(rows[1:3])
