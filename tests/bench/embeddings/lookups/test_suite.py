from __future__ import annotations

import pytest
import torch

from tersor.bench import peers
from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.timing import clock_of
from tersor.bench.core.trial import time_trials
from tersor.bench.embeddings.lookups import suite as lookups
from tersor.bench.embeddings.lookups.candidates import LOOKUP_CODECS
from tersor.bench.embeddings.lookups.config import LookupsConfig
from tersor.bench.embeddings.lookups.inputs import (
    Cut,
    LookUp,
    SyntheticLookUps,
    checked_look_ups,
    named_tables,
)
from tersor.bench.embeddings.lookups.subject import table_subject
from tersor.bench.embeddings.lookups.suite import run_lookups
from tersor.bench.peers.mx4 import Mx4
from tersor.codecs import registry
from tersor.errors import SpecError, UnknownCodecError
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay
from tests.bench.embeddings.lookups.dumps import MadeLookUps
from tests.bench.planted import Exact, Idle, JustOver


@pytest.fixture(autouse=True)
def _planted_codecs(monkeypatch):
    for codec in (Exact, JustOver, Idle):
        monkeypatch.setitem(registry._codecs, codec.codec_id, codec)


def small(**changes):
    plan = {"codecs": ("rows",), "peers": (), "rounds": 1, "warmup": 0, "cut": Cut(num_ranks=2)}
    return LookupsConfig(**(plan | changes))


def test_every_encoder_and_peer_is_measured_on_every_table_within_its_bound():
    config = LookupsConfig.for_device("cpu").smoke()
    outcome = run_lookups(config, MadeLookUps())
    assert outcome.refusals == []
    present = [name for name in config.peers if not any(name in n for n in outcome.notes)]
    for table in (0, 1):
        rows = {(r.codec, r.peer): r for r in outcome.rows if r.lookups.table == table}
        assert {(name, name == "mx4") for name in LOOKUP_CODECS} <= set(rows)
        assert {(name, True) for name in present} <= set(rows)
        for row in rows.values():
            assert row.bound_held in (True, None)
            assert row.original_nbytes == 64 * 8 * 4
    assert "copy" not in " ".join(config.peers)


def test_a_slice_has_the_bound_of_its_table_and_iteration():
    decay = Decay("linear", 2.0, end=20)
    found = MadeLookUps().read(0)
    policy = AdaptiveBounds(loose=frozenset({0}), decay=decay)
    made = table_subject(0, found, Cut(num_ranks=2), policy, None, torch.device("cpu"))
    # dumped at iterations 0 and 10 of 20: twice and one and a half times the bound of a loose table
    assert made.relative_bounds == pytest.approx([0.1, 0.1, 0.075, 0.075])
    ranges = [float(x.max() - x.min()) for x in made.subject.slices]
    pairs = zip(made.relative_bounds, ranges, strict=True)
    assert made.subject.error_bounds == pytest.approx([bound * width for bound, width in pairs])


def test_a_row_says_its_final_bound_and_the_decay():
    classes = {"tight": frozenset({1}), "loose": frozenset({0})}
    rows = run_lookups(small(decay=Decay("linear", 2.0, end=20), **classes), MadeLookUps()).rows
    assert [row.relative_bound for row in rows] == [0.05, 0.01]
    assert rows[0].spec["decay"] == {"shape": "linear", "magnitude": 2.0, "end": 20}
    final = run_lookups(small(**classes), MadeLookUps()).rows
    assert "decay" not in final[0].spec
    assert rows[1].ratio > final[1].ratio


def test_a_row_says_what_was_asked_for():
    def settings(**changes):
        # half promises no bound, but is held against that of its table
        rows = run_lookups(small(codecs=("half",), **changes), MadeLookUps()).rows
        assert ResultRow.from_config(rows[0].to_config()) == rows[0]
        return {row.lookups.setting for row in rows}, frozenset(row.key for row in rows)

    default = settings()
    others = {
        "batches of 32": settings(cut=Cut(num_ranks=2, batch=32)),
        "bounds 0.02 0.03 0.1": settings(bounds=ClassBounds(0.02, 0.03, 0.1)),
        "linear decay from 2 to iteration 20": settings(decay=Decay("linear", 2.0, end=20)),
        "all tables base": settings(by_hand=True),
        "tight tables 0 1": settings(by_hand=True, tight=frozenset({1, 0})),
        "loose tables 1": settings(loose=frozenset({1})),
        "from iteration 10": settings(first_iteration=10),
    }
    assert default[0] == {""}
    for words, (found, keys) in others.items():
        assert found == {words}
        assert not keys & default[1]


def test_facts_without_a_setting_are_those_of_the_defaults():
    row = run_lookups(small(), MadeLookUps()).rows[0].to_config()
    config = row["lookups"]

    def read(**changes):
        return ResultRow.from_config({**row, "lookups": {**config, **changes}}).lookups

    assert config["num_tables"] == 2
    del config["setting"], config["num_tables"]
    assert read().setting == ""
    with pytest.raises(SpecError, match="lookups contains unknown field `colour`"):
        read(colour=1)
    assert read(table=None, table_class="all").table is None
    with pytest.raises(SpecError, match="table must be a whole number or null"):
        read(table="all")


def test_look_ups_are_cut_as_an_exchange_sends_them():
    (row, _) = run_lookups(small(cut=Cut(num_ranks=4, batch=32)), MadeLookUps()).rows
    assert (row.lookups.num_slices, row.lookups.num_rows, row.lookups.num_ranks) == (16, 128, 4)
    assert row.group == "table 0, 4 ranks, slices of 8 rows, batches of 32"
    sizes = [len(x) for x in Cut(num_ranks=3).slices(torch.zeros(10, 2))]
    assert sizes == [4, 3, 3]
    with pytest.raises(SpecError, match="no batch"):
        list(Cut(num_ranks=2, batch=11).slices(torch.zeros(10, 2)))


def test_all_tables_of_a_step_go_through_one_call_too():
    seen = []
    config = small(steps=True, codecs=("rows-device", "half"), peers=("lz4",), tight=frozenset({1}))
    outcome = run_lookups(
        config, MadeLookUps(), on_table=lambda done, count, label: seen.append((done, count, label))
    )
    *_, rows_device, half, lz4 = outcome.rows
    assert [row.lookups.table for row in (rows_device, half, lz4)] == [None] * 3
    assert seen[-2:] == [(2, 2, "all tables of a step"), (2, 2, "done")]
    # the last of two look-ups of both tables, each for two ranks
    facts = rows_device.lookups
    assert (facts.num_slices, facts.num_rows, facts.num_iterations) == (4, 128, 1)
    assert rows_device.group == "all tables of a step, 2 ranks, slices of 32 rows, tight tables 1"
    bounds = [0.03, 0.03, 0.01, 0.01]
    assert rows_device.spec["bounds"] == [{"relative": bound} for bound in bounds]
    assert "bounds" not in half.spec
    assert [row.bound_held for row in (rows_device, half, lz4)] == [True, None, True]
    alone = run_lookups(small(codecs=("half",), first_iteration=10), MadeLookUps()).rows
    assert half.encoded_nbytes == sum(row.encoded_nbytes for row in alone)
    assert ResultRow.from_config(rows_device.to_config()) == rows_device
    done = frozenset(row.key for row in outcome.rows)
    assert run_lookups(config, MadeLookUps(), done=done).rows == []


def test_a_step_is_one_batch_of_the_repeated_rows():
    cut = Cut(num_ranks=2, batch=32, repeat=3)
    row = run_lookups(small(steps=True, cut=cut), MadeLookUps()).rows[-1]
    assert (row.lookups.num_rows, row.lookups.num_slices) == (64, 4)
    assert torch.equal(Cut(num_ranks=2, repeat=2).first_batch(torch.ones(3, 2)), torch.ones(6, 2))


def test_a_step_that_breaks_a_bound_is_refused():
    outcome = run_lookups(small(steps=True, codecs=("test-just-over",)), MadeLookUps())
    assert outcome.rows == []
    assert "on all tables of a step is refused" in outcome.refusals[-1]


def test_a_step_is_timed_longer_by_a_clock_for_its_tensors(monkeypatch):
    rounds, leads = [], []

    def spy(trials, **options):
        rounds.append(options["rounds"])
        return time_trials(trials, **options)

    def clock_spy(device, *, has_many_tensors):
        leads.append(has_many_tensors)
        return clock_of(device, has_many_tensors=has_many_tensors)

    monkeypatch.setattr(lookups, "time_trials", spy)
    monkeypatch.setattr(lookups, "clock_of", clock_spy)
    run_lookups(small(steps=True, rounds=2), MadeLookUps(num_iterations=1))
    # two tables, and one step
    assert rounds == [2, 2, 6]
    assert leads == [False, False, True]


def test_tables_of_several_widths_make_one_step():
    look_ups = MadeLookUps(num_iterations=1)
    wide = torch.randn(64, 16, generator=torch.Generator().manual_seed(2))
    look_ups._found[1] = [LookUp(0, wide)]
    row = run_lookups(small(steps=True, codecs=("group8",)), look_ups).rows[-1]
    assert row.spec["group"] == [8, 16]
    assert row.lookups.width == 16
    assert row.num_values == 64 * 8 + 64 * 16


def test_steps_are_measured_on_a_gpu_unless_told_otherwise():
    assert LookupsConfig.for_device("cuda").steps
    assert not LookupsConfig.for_device("cpu").steps
    assert not LookupsConfig.for_device("cuda", steps=False).steps


def test_repeated_rows_are_counted_before_and_after_quantizing():
    first, second = run_lookups(small(cut=Cut(num_ranks=1)), MadeLookUps(num_iterations=1)).rows
    assert (first.lookups.num_distinct, second.lookups.num_distinct) == (4, 64)
    assert first.lookups.repeated_share == pytest.approx(60 / 64)
    assert first.distinct_rows == pytest.approx(4 / 64)
    close = torch.linspace(0, 1, 2)[:, None].repeat(8, 4) + torch.linspace(0, 1e-3, 16)[:, None]
    look_ups = MadeLookUps(num_iterations=1)
    look_ups._found = {0: [LookUp(0, close)], 1: [LookUp(0, close)]}
    row = run_lookups(small(cut=Cut(num_ranks=1)), look_ups).rows[0]
    assert (row.lookups.num_distinct, row.lookups.num_distinct_codes) == (16, 2)


def test_repeating_the_data_is_marked_in_every_row():
    once = run_lookups(small(), MadeLookUps()).rows
    rows = run_lookups(small(cut=Cut(num_ranks=2, repeat=4)), MadeLookUps()).rows
    assert {row.repeat for row in rows} == {4}
    assert all("repeated 4 times" in row.note for row in rows)
    assert not {row.key for row in rows} & {row.key for row in once}
    # copies flatter: that is why they are marked
    assert rows[1].ratio > once[1].ratio


def test_codes_that_do_not_fit_int8_are_refused_before_anything_is_measured():
    look_ups = MadeLookUps()
    far = look_ups._found[1][1].rows + 1000
    look_ups._found[1] = [look_ups._found[1][0], LookUp(10, far)]
    seen = []
    with pytest.raises(SpecError, match=r"table 1: codes reach \d+, more than the 127 of int8"):
        run_lookups(small(code_dtype="int8"), look_ups, on_row=seen.append)
    assert seen == []
    fits = run_lookups(small(code_dtype="int16", peers=("lz4",)), look_ups)
    assert [row.spec.get("code_dtype") for row in fits.rows] == [None, "int16"] * 2
    assert all(row.bound_held for row in fits.rows)


def test_wider_codes_cost_peers_that_only_see_bytes():
    pytest.importorskip("lz4")
    sizes = {}
    for dtype in ("int8", "int16"):
        config = small(code_dtype=dtype, codecs=(), peers=("lz4",))
        sizes[dtype] = run_lookups(config, MadeLookUps()).rows[1].encoded_nbytes
    assert sizes["int16"] > sizes["int8"]


@pytest.mark.parametrize("codec", [JustOver, Idle])
def test_no_row_is_made_for_a_codec_that_breaks_the_bound(codec):
    outcome = run_lookups(small(codecs=("test-exact", codec.codec_id)), MadeLookUps())
    assert {row.codec for row in outcome.rows} == {"test-exact"}
    assert len(outcome.refusals) == 2
    assert codec.codec_id in outcome.refusals[0]


def test_an_encoder_without_a_bound_is_held_against_the_tables_bound():
    rows = run_lookups(small(codecs=("half", "mx4")), MadeLookUps()).rows
    assert all(row.error_bound is None and "bound" not in row.spec for row in rows)
    half, mx4 = rows[2:]
    assert 0 < half.lookups.error_share < 1 < mx4.lookups.error_share


def test_values_that_an_encoder_cannot_hold_leave_it_out(tmp_path):
    """Half precision makes infinities of values beyond 65504, and no file holds an infinite error."""
    look_ups = MadeLookUps()
    look_ups._found[0] = [LookUp(1, torch.full((8, 8), 1e5) + torch.eye(8))]
    with RowFile(tmp_path / "rows.jsonl") as file:
        outcome = run_lookups(small(codecs=("rows", "half")), look_ups, on_row=file.append)
        assert {row.codec for row in file.rows if row.lookups.table == 0} == {"rows"}
        assert {row.codec for row in file.rows if row.lookups.table == 1} == {"rows", "half"}
    assert outcome.refusals == []
    assert any(note.startswith("half on table 0 is left out") for note in outcome.notes)


def test_equal_values_are_exact_with_ours_and_coded_by_all():
    look_ups = MadeLookUps(num_iterations=1)
    look_ups._found = {
        0: [LookUp(0, torch.zeros(8, 8))],
        1: [LookUp(0, torch.full((8, 8), -3.3))],
    }
    config = small(codecs=("rows", "lz4"), peers=("lz4", "zstd-huffman"), code_dtype="int8")
    outcome = run_lookups(config, look_ups)
    assert outcome.refusals == []
    assert all(row.bound_held in (True, None) for row in outcome.rows)
    assert {row.worst_error for row in outcome.rows if not row.peer} == {0.0}


def test_classes_are_given_by_hand_or_found():
    def classes(**changes):
        rows = run_lookups(small(**changes), MadeLookUps()).rows
        return [row.lookups.table_class for row in rows]

    assert classes() == ["tight", "tight"]
    assert classes(tight=frozenset({0})) == ["tight", "base"]
    assert classes(by_hand=True) == ["base", "base"]


@pytest.mark.parametrize(
    ("num_rows", "words"),
    [
        ({}, "the dumps do not say how large their tables are"),
        ({0: 4}, "the dumps do not say how large table 1 is"),
        ({1: 10**6, 7: 3}, "the dumps do not say how large table 0 is"),
    ],
)
def test_tables_of_unknown_size_are_named_once(num_rows, words):
    (note,) = run_lookups(small(), MadeLookUps(num_rows=num_rows)).notes
    assert note == (
        f"{words}, so that classes follow from the distinct rows alone there; name large tables with "
        "--tight-tables"
    )


def test_a_long_list_of_tables_of_unknown_size_is_cut():
    look_ups = MadeLookUps(num_iterations=1, num_rows={0: 4})
    look_ups._found = dict.fromkeys(range(20), look_ups._found[1])
    (note,) = run_lookups(small(), look_ups).notes
    assert note.startswith("the dumps do not say how large tables 1 to 19 are, so")
    assert named_tables(range(0, 20, 2)) == "tables 0, 2, 4, 6, 8, 10, ..."
    assert named_tables([5, 3]) == "tables 3, 5"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tight": {7}}, "classes name table 7, but made has tables 0, 1"),
        ({"loose": {1, 9, 5}}, "classes name tables 5, 9, but made has tables 0, 1"),
        ({"tight": {0}, "loose": {0}}, "table 0 is both tight and loose; leave it in one list"),
    ],
)
def test_tables_that_are_not_there_or_in_two_classes_are_refused(changes, words):
    asked = {name: frozenset(tables) for name, tables in changes.items()}
    with pytest.raises(SpecError) as caught:
        run_lookups(small(**asked), MadeLookUps())
    assert words in str(caught.value)


def test_a_table_beyond_a_smoke_run_may_be_named():
    look_ups = MadeLookUps(num_iterations=1)
    look_ups._found = dict.fromkeys(range(5), look_ups._found[1])
    outcome = run_lookups(small(tight=frozenset({4})).smoke(), look_ups)
    assert {row.lookups.table for row in outcome.rows} == {0, 1, 2}


def test_rows_that_make_no_whole_batch_are_one_note():
    outcome = run_lookups(small(cut=Cut(num_ranks=2, batch=30), steps=True), MadeLookUps())
    (note,) = outcome.notes
    assert note == (
        "batches of 30 leave out 16 of 256 rows, which make no whole batch; a --batch that divides "
        "every look-up counts all"
    )
    assert [row.lookups.num_rows for row in outcome.rows] == [120, 120, 60]
    assert run_lookups(small(cut=Cut(num_ranks=2, batch=32)), MadeLookUps()).notes == []
    # what is cut is what was repeated
    repeated = run_lookups(small(cut=Cut(num_ranks=2, batch=48, repeat=3)), MadeLookUps())
    assert repeated.notes == []


def test_early_look_ups_can_be_left_out():
    (row, _) = run_lookups(small(first_iteration=5), MadeLookUps()).rows
    assert (row.lookups.num_iterations, row.lookups.num_rows) == (1, 64)
    with pytest.raises(SpecError, match="at iteration 10, before 11"):
        run_lookups(small(first_iteration=11), MadeLookUps())


def test_a_missing_peer_is_one_note(monkeypatch):
    known = {**peers.PEERS, "absent": "tersor_no_such_package:Peer"}
    monkeypatch.setattr(peers, "PEERS", known)
    outcome = run_lookups(small(peers=("absent",)), MadeLookUps())
    assert [row.codec for row in outcome.rows] == ["rows", "rows"]
    assert len(outcome.notes) == 1
    assert "absent" in outcome.notes[0]


def test_an_interrupt_keeps_finished_tables_and_the_rest_is_resumed(tmp_path):
    def interrupt(index, count, label):
        if label == "table 1":
            raise KeyboardInterrupt

    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file, pytest.raises(KeyboardInterrupt):
        run_lookups(small(), MadeLookUps(), on_row=file.append, on_table=interrupt)
    assert [row.lookups.table for row in read_rows(path)] == [0]
    with RowFile(path, resume=True) as file:
        again = run_lookups(small(), MadeLookUps(), done=file.keys, on_row=file.append)
    assert [row.lookups.table for row in again.rows] == [1]


def test_other_data_of_the_same_name_are_measured_anew():
    done = frozenset(row.key for row in run_lookups(small(), MadeLookUps()).rows)
    assert run_lookups(small(), MadeLookUps(), done=done).rows == []
    other = MadeLookUps()
    other._found[0][0].rows[0, 0] += 1
    assert len(run_lookups(small(), other, done=done).rows) == 2


def test_progress_goes_from_none_to_all():
    seen = []
    run_lookups(small(), MadeLookUps(), on_table=lambda *step: seen.append(step))
    assert seen == [
        (0, 2, "reading the dumps"),
        (0, 2, "table 0"),
        (1, 2, "table 1"),
        (2, 2, "done"),
    ]


def test_the_facts_of_a_row_survive_json():
    (row, _) = run_lookups(small(), MadeLookUps()).rows
    again = ResultRow.from_config(row.to_config())
    assert again.lookups == row.lookups
    with pytest.raises(SpecError, match="lookups lacks the required field"):
        ResultRow.from_config({**row.to_config(), "lookups": {"table": 1}})


def test_a_batch_in_one_buffer_decodes_to_the_same():
    rows = run_lookups(small(codecs=("rows-ans", "rows-device")), MadeLookUps()).rows
    assert rows[0].worst_error == rows[1].worst_error
    assert rows[1].encoded_nbytes >= rows[0].encoded_nbytes


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "tpu"},
        {"code_dtype": "int4"},
        {"codecs": (), "peers": ()},
        {"rounds": 0},
    ],
)
def test_an_impossible_plan_is_refused(wrong):
    with pytest.raises(SpecError):
        small(**wrong)


@pytest.mark.parametrize("name", ["no-such", "auto"])
def test_a_name_that_is_no_encoder_is_refused_with_those_that_are(name):
    with pytest.raises(UnknownCodecError) as caught:
        run_lookups(small(codecs=("rows", name)), MadeLookUps())
    assert str(caught.value) == (
        "encoders of look-ups are flat, delta, huffman, ans, lz4, zstd, rows, rows-ans, half, bf16, fp8, "
        f"group8, group4, mx4, flat-device, ans-device, rows-device, not {name!r}"
    )


def test_unknown_peers_are_refused():
    with pytest.raises(SpecError, match="no-such"):
        run_lookups(small(peers=("no-such",)), MadeLookUps())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([LookUp(0, torch.ones(2, 4)), LookUp(1, torch.ones(2, 8))], "4 and 8 values"),
        ([LookUp(3, torch.ones(2, 4)), LookUp(3, torch.ones(2, 4))], "two look-ups at iteration 3"),
        ([LookUp(0, torch.ones(0, 4))], "empty"),
        ([LookUp(0, torch.full((2, 4), torch.nan))], "not finite"),
    ],
)
def test_look_ups_that_cannot_be_measured_are_refused(found, words):
    with pytest.raises(SpecError, match=words):
        checked_look_ups(7, found)


def test_made_up_look_ups_know_how_large_their_tables_are():
    look_ups = SyntheticLookUps(dim=8, num_iterations=2, batch=16, num_tables=3)
    assert list(look_ups.tables) == [0, 1, 2]
    assert look_ups.num_rows == {0: 1460, 1: 583, 2: 10**6}
    assert [tuple(one.rows.shape) for one in look_ups.read(2)] == [(16, 8)] * 2
    assert (
        look_ups.digest()
        == SyntheticLookUps(dim=8, num_iterations=2, batch=16, num_tables=3).digest()
    )


def test_mx4_is_what_the_format_says():
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = torch.cat([levels, -levels, levels / 2, -levels / 2]) * 2.0**-7
    mx4 = Mx4()
    encoded = mx4.encode(x, 0.0)
    assert mx4.nbytes(encoded) == 17
    out = mx4.decode(encoded, torch.empty(32))
    assert torch.equal(out[:16], x[:16])
    # ties between two levels go to the even code: 0.25 to 0, 0.75 to 1
    assert (out[17:20] * 2**7).tolist() == [0.0, 0.5, 1.0]
    y = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    back = mx4.decode(mx4.encode(y, 0.0), torch.empty(5, 7))
    # a block's largest value lies in [4, 8) steps of its scale, where levels are 2 apart or cut off at 6
    assert float((y - back).abs().max()) <= 2 * float(y.abs().max()) / 4
    assert mx4.nbytes(mx4.encode(y, 0.0)) == 34
