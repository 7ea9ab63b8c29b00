from __future__ import annotations

import pytest
from msgspec import structs

from tersor.bench.core.lookup_facts import ALL_CLASSES, LookupFacts
from tersor.bench.core.row_file import RowFile
from tersor.bench.core.timing import Percentiles
from tersor.bench.embeddings.lookups.sums import places
from tersor.bench.embeddings.lookups.tables import (
    encoder_cells,
    encoder_columns,
    lookup_summary,
    table_cells,
    table_columns,
)
from tersor.bench.embeddings.report.lookups import lookup_sentence
from tersor.bench.page import filled
from tersor.bench.sites import evaluate_goals
from tests.bench.core.test_rows import make_row

LINKS = {"1gbit": 1.0, "400gbit": 400.0}
NBYTES = 10**6


def measured(
    table, codec, ratio, *, gbps=10.0, distinct=10, peer=False, share=0.5, setting="", **changes
):
    """Return a row of 1 MB, encoded and decoded at the same speed."""
    table_class = ALL_CLASSES if table is None else "base"
    facts = LookupFacts(
        table=table, table_class=table_class, num_rows=100, width=16, num_ranks=4, num_slices=4,
        num_iterations=1, num_distinct=distinct, num_distinct_codes=distinct, error_share=share,
        setting=setting,
    )  # fmt: skip
    seconds = Percentiles.of([NBYTES / gbps / 1e9])
    row = make_row(suite="lookups", codec=codec, input="dump", lookups=facts, peer=peer)
    values = {
        "original_nbytes": NBYTES, "encoded_nbytes": round(NBYTES / ratio), "encode_s": seconds,
        "decode_s": seconds, "memcpy_s": seconds, "spec": {"bound": {"relative": 0.03}},
        "group": f"table {table}", "repeat": 1, "sampled_fraction": 1.0, "worst_error": 0.5,
        "error_bound": 1.0,
    }  # fmt: skip
    return structs.replace(row, **(values | changes))


def table_of(table, *, rows=20.0, lz=8.0, huffman=10.0, **facts):
    return [
        measured(table, "rows", rows, gbps=1.0, **facts),
        measured(table, "lz4", lz, **facts),
        measured(table, "huffman", huffman, **facts),
    ]


def test_ratios_over_tables_are_volume_ratios():
    (place,) = places([measured(0, "rows", 100.0), measured(1, "rows", 10.0)])
    assert place.overall("rows").ratio == pytest.approx(2 / (1 / 100 + 1 / 10))


def test_sampled_times_count_for_all_slices():
    row = measured(0, "sz3", 10.0, gbps=7.0)
    sampled = structs.replace(row, sampled_fraction=1 / 7)
    (place,) = places([sampled])
    assert place.overall("sz3").encode_gbps == pytest.approx(1.0)


def test_speeds_timed_on_a_sample_are_marked():
    sampled = measured(0, "sz3", 10.0, gbps=7.0, peer=True, sampled_fraction=1 / 7)
    (place,) = places([sampled, measured(1, "rows", 10.0)])
    lines = {
        line[0]: dict(zip(encoder_columns(LINKS), line, strict=True))
        for line in encoder_cells(place, LINKS)
    }
    speeds = ("encode GB/s", "decode GB/s")
    assert [lines["sz3 (peer)"][name] for name in speeds] == ["~1.00", "~1.00"]
    assert [lines["rows"][name] for name in speeds] == ["10.00", "10.00"]
    assert lines["sz3 (peer)"]["ratio"] == "10.00"
    first, second = (
        dict(zip(table_columns(LINKS), cells, strict=True)) for cells in table_cells(place, LINKS)
    )
    assert (first["enc GB/s"], first["dec GB/s"]) == ("~1.00", "~1.00")
    assert (second["enc GB/s"], second["dec GB/s"]) == ("10.00", "10.00")


def test_a_sum_is_sampled_where_one_of_its_tables_is():
    rows = [measured(0, "zfp", 10.0, sampled_fraction=0.5), measured(1, "zfp", 10.0)]
    assert places(rows)[0].overall("zfp").is_sampled
    # the call of a whole step was timed on all of it
    (place,) = places([*rows, measured(None, "zfp", 10.0, gbps=30.0)])
    assert not place.overall("zfp").is_sampled


def test_a_bound_that_decays_is_shown_next_to_its_final_value():
    spec = {"bound": {"relative": 0.03}, "decay": {"shape": "step", "magnitude": 2.0, "end": 9}}
    rows = [measured(0, "half", 2.0, spec={}), measured(0, "rows", 5.0, spec=spec)]
    (place,) = places([*rows, measured(1, "rows", 5.0)])
    cells = [dict(zip(table_columns(LINKS), c, strict=True)) for c in table_cells(place, LINKS)]
    assert [line["bound"] for line in cells] == ["base 0.03, decaying", "base 0.03"]


def test_one_rank_and_one_table_are_reported_in_the_singular():
    rows = table_of(0)
    alone = [structs.replace(r, lookups=structs.replace(r.lookups, num_ranks=1)) for r in rows]
    (place,) = places(alone)
    assert place.words == "dump, 1 rank, cpu"
    assert place.tables_words == "1 table"
    assert evaluate_goals(alone)[0].detail == "rows, 1 table"


def test_a_step_in_one_call_says_how_fast_every_table_is():
    # alone, a table is mostly launches: 1 GB/s, while two in one call have 30
    alone = [measured(table, "rows", ratio, gbps=1.0) for table, ratio in ((0, 10.0), (1, 40.0))]
    other = measured(0, "flat", 4.0, gbps=20.0)
    step = measured(None, "rows", 16.0, gbps=30.0, original_nbytes=2 * NBYTES)
    step = structs.replace(step, encode_s=Percentiles.of([2 * NBYTES / 30e9]))
    (place,) = places([*alone, other, step])
    assert list(place.tables) == [0, 1]
    total = place.overall("rows")
    assert (total.num_tables, total.ratio) == (2, pytest.approx(16.0))
    assert total.encode_gbps == pytest.approx(30.0)
    assert total.decode_gbps == pytest.approx(60.0)
    assert place.best(0, 40.0).codec == "rows"
    (without,) = places([*alone, other])
    assert without.best(0, 40.0).codec == "flat"
    cells = dict(
        zip(table_columns({"40gbit": 40.0}), table_cells(place, {"40gbit": 40.0})[1], strict=True)
    )
    assert (cells["enc GB/s"], cells["dec GB/s"]) == ("30.00", "60.00")


def test_an_encoder_without_a_step_is_not_compared_with_those_that_have_one():
    tables = [measured(0, "rows", 10.0, gbps=1.0), measured(0, "flat", 4.0, gbps=999.0)]
    (place,) = places([*tables, measured(None, "rows", 10.0, gbps=30.0)])
    assert place.best(0, 8.0).codec == "rows"
    flat = place.overall("flat")
    assert (flat.ratio, flat.has_speed) == (pytest.approx(4.0), False)
    line = dict(zip(encoder_columns(LINKS), encoder_cells(place, LINKS)[1], strict=True))
    assert (line["encoder"], line["encode GB/s"], line["x at 1gbit"]) == ("flat", "", "")


def test_missing_tables_are_reported_and_goals_of_several_batches_kept_apart():
    rows = table_of(0)
    some = [structs.replace(r, lookups=structs.replace(r.lookups, num_tables=3)) for r in rows]
    (place,) = places(some)
    assert place.words == "dump, 4 ranks, cpu, 1 of 3 tables"
    goals = evaluate_goals([*rows, *table_of(0, setting="batches of 32")])
    names = [goal.name for goal in goals if "ratio" in goal.name]
    assert [name.removeprefix("forward ratio 15 over all tables of ") for name in names] == [
        "dump, 4 ranks, cpu",
        "dump, 4 ranks, cpu, batches of 32",
    ]


def test_steps_without_their_tables_are_left_out():
    step = measured(None, "rows", 10.0)
    assert places([step]) == []
    assert lookup_summary([step], LINKS) == []
    assert lookup_sentence([step]) == "No tables of look-ups, but rows of whole steps: 1."


def test_the_best_encoder_changes_with_the_bandwidth():
    slow, fast = measured(0, "rows", 100.0, gbps=1.0), measured(0, "half", 2.0, gbps=400.0)
    (place,) = places([slow, fast])
    names = [
        getattr(place.best(0, gbit_s), "codec", None) for gbit_s in (0.08, 40.0, 400.0, 4000.0)
    ]
    assert names == ["rows", "half", "half", None]
    line = dict(zip(table_columns(LINKS), table_cells(place, LINKS)[0], strict=True))
    assert line["best at 1gbit"] == "rows 3.85"
    assert line["best at 400gbit"] == "half 1.33"


def test_what_breaks_the_bound_or_starts_from_codes_is_never_the_best():
    rows = [
        measured(0, "rows", 5.0),
        measured(0, "mx4", 50.0, share=1.5, error_bound=None),
        measured(0, "zfp", 50.0, peer=True, share=1.1, worst_error=1.1),
        measured(0, "zstd-huffman", 50.0, peer=True, memcpy_s=None),
    ]
    (place,) = places(rows)
    assert place.best(0, 0.008).codec == "rows"
    lines = {
        line[0]: dict(zip(encoder_columns(LINKS), line, strict=True))
        for line in encoder_cells(place, LINKS)
    }
    assert lines["zfp (peer)"]["error / bound"] == "1.100!"
    assert lines["mx4"]["error / bound"] == "1.500"
    assert lines["zstd-huffman (peer)"]["x at 1gbit"] == ""
    assert lines["rows"]["best on"] == "1"


def test_mx4_in_plain_torch_has_a_size_and_an_error_but_no_speed():
    rows = [measured(0, "rows", 5.0), measured(0, "mx4", 50.0, gbps=100.0, peer=True)]
    (place,) = places(rows)
    assert place.best(0, 0.008).codec == "rows"
    columns = encoder_columns(LINKS)
    line = dict(zip(columns, encoder_cells(place, LINKS)[1], strict=True))
    assert (line["encoder"], line["ratio"]) == ("mx4 (peer)", "50.00")
    assert line["error / bound"] == "0.500"
    speeds = ("encode GB/s", "decode GB/s", "pays up to", "x at 1gbit", "x at 400gbit", "best on")
    assert [line[name] for name in speeds] == [""] * 6
    (summary,) = lookup_summary(rows, LINKS)
    mx4 = summary["encoders"]["mx4 (peer)"]
    assert (mx4["encode_gbps"], mx4["decode_gbps"], mx4["speedup"]) == (None, None, None)


def test_runs_in_other_settings_are_kept_apart():
    rows = [measured(0, "rows", 5.0), measured(0, "flat", 50.0, setting="bounds 0.1 0.1 0.1")]
    default, loose = places(rows)
    assert default.best(0, 0.008).codec == "rows"
    assert default.words == "dump, 4 ranks, cpu"
    assert loose.words == "dump, 4 ranks, cpu, bounds 0.1 0.1 0.1"
    assert [one["setting"] for one in lookup_summary(rows, LINKS)] == ["", "bounds 0.1 0.1 0.1"]


def test_ours_and_a_peer_of_the_same_name_are_kept_apart():
    (place,) = places([measured(0, "lz4", 5.0), measured(0, "lz4", 6.0, peer=True)])
    assert place.encoders == ["lz4", "lz4 (peer)"]


def test_an_encoder_pays_up_to_where_its_speedup_is_one():
    total = places([measured(0, "rows", 10.0, gbps=3.0)])[0].overall("rows")
    assert total.speedup(total.pays_up_to_gbit_s) == pytest.approx(1.0)


def test_goals_are_the_volume_ratio_and_the_worst_table_that_repeats_rows():
    rows = [*table_of(0), *table_of(1, rows=30.0, lz=16.0), *table_of(2, rows=11.0, distinct=99)]
    unrepeated = table_of(3, rows=10.0, distinct=100)
    ratio, every, mostly = evaluate_goals([*rows, *unrepeated])
    assert ratio.measured == pytest.approx(4 / (1 / 20 + 1 / 30 + 1 / 11 + 1 / 10), rel=1e-4)
    # one repeated row of a hundred is enough to count
    assert (every.measured, every.met) == (pytest.approx(11 / 10, rel=1e-4), False)
    assert every.detail == "2 of 3 tables reach it; worst is table 2"
    assert (mostly.measured, mostly.met) == (pytest.approx(30 / 16, rel=1e-4), True)
    assert mostly.detail == "2 of 2 tables reach it; worst is table 1"
    missed = evaluate_goals(table_of(0, rows=14.0))
    assert [goal.met for goal in missed] == [False, False, False]


def test_the_better_of_ours_and_the_peers_is_plain():
    rows = [*table_of(0), measured(0, "lz4", 16.0, peer=True)]
    assert evaluate_goals(rows)[1].measured == pytest.approx(20 / 16, rel=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"repeat": 4},
        {"spec": {"bound": {"relative": 0.5}}},
        {"spec": {"bound": {"relative": 0.03}, "decay": {"shape": "step"}}},
    ],
)
def test_repeated_data_and_other_bounds_are_not_judged(change):
    rows = [structs.replace(row, **change) for row in table_of(0)]
    assert [goal.met for goal in evaluate_goals(rows)] == [None]


def test_ratios_are_shown_also_where_there_is_nothing_to_compare_them_with():
    (place,) = places([measured(0, "rows", 20.0), measured(0, "lz4", 8.0)])
    line = dict(zip(table_columns(LINKS), table_cells(place, LINKS)[0], strict=True))
    assert [line[name] for name in ("rows x", "LZ x", "Huff x", "gain")] == ["20.0", "8.0", "", ""]


def test_programs_get_the_same_numbers():
    (summary,) = lookup_summary(table_of(0), LINKS)
    assert summary["encoders"]["rows"]["ratio"] == pytest.approx(20.0)
    assert summary["best"]["400gbit"] == {"0": "float32"}
    assert summary["best_of_ours"]["400gbit"]["ratio"] == 1.0


def test_a_page_shows_encoders_and_tables(tmp_path):
    with RowFile(tmp_path / "results" / "rows.jsonl") as file:
        for row in table_of(0):
            file.append(row)
    page = "<!-- {}: results/rows.jsonl input=dump link=1gbit -->\n<!-- end -->\n"
    text = filled(page.format("lookups") + page.format("lookup-tables"), tmp_path)
    assert "| encoder | tables | ratio |" in text
    assert "| rows | 1 | 20.00 |" in text
    assert "| 0 | base 0.03 | 100 | 10 | 90% |" in text
