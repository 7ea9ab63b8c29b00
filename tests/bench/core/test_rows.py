from __future__ import annotations

import json
import os

import pytest

from tersor.bench.core.blocks import TITLES, Estimate, Memory, Quality
from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.core.rows import ExchangeRow, LookupRow, ResultRow, row_key
from tersor.bench.core.timing import Percentiles
from tersor.bench.report import read_runs
from tersor.errors import CorruptDataError, SpecError
from tests.arch.source_files import REPOSITORY
from tests.bench.report import runs as made

RESULTS = REPOSITORY / "results"
KINDS = {"exchange": ExchangeRow, "lookups": LookupRow}


def make_row(**changes):
    kind = next((KINDS[name] for name in changes if name in KINDS), ResultRow)
    values = {
        "suite": "kernels",
        "codec": "flat",
        "version": "1",
        "spec": {"bound": {"relative": 0.03}, "block": 32},
        "input": "gradients",
        "device": "cpu",
        "num_values": 1000,
        "original_nbytes": 4000,
        "encoded_nbytes": 500,
        "worst_error": 0.25,
        "error_bound": 0.5,
        "encode_s": Percentiles(1e-6, 2e-6, 3e-6),
        "decode_s": Percentiles(0.5e-6, 1e-6, 2e-6),
        "memcpy_s": Percentiles(1e-7, 2e-7, 4e-7),
        "versions": {"python": "3.11.0"},
        "machine": {"cpu": "some", "cores": 2},
    }
    return kind(**{**values, **changes})


def test_a_row_survives_json():
    row = make_row(sampled_fraction=0.125, note="é", distinct_rows=0.5, memcpy_s=None)
    assert ResultRow.from_config(json.loads(json.dumps(row.to_config()))) == row


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_committed_row_can_be_read_and_says_the_same_when_written_again(path):
    lines = path.read_text().splitlines()
    first = json.loads(lines[0])
    if "schema" not in first:
        assert len(read_runs([str(path)])) == 1
        return
    rows = read_rows(path)
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        old, new = json.loads(line), json.loads(json.dumps(row.to_config()))
        assert {name: new[name] for name in _facts_of(old)} == _facts_of(old)
        assert ResultRow.from_config(new) == row


def _facts_of(old):
    """Return what a committed row says; some have keys without a value that rows no longer have."""
    config = {name: value for name, value in old.items() if value is not None}
    if "exchange" in config:
        config["exchange"] = {"ranks_per_node": 1, **config["exchange"]}
    if "training" in config:
        config["training"] = {"saved": None, **config["training"]}
    facts = config.get("lookups")
    return (
        config
        if facts is None
        else {**config, "lookups": {"num_tables": 0, "setting": "", **facts}}
    )


@pytest.mark.parametrize(
    ("kind", "made_row"),
    [
        (ResultRow, made.kernel_rows()[0]),
        (ExchangeRow, made.exchange_rows()[0]),
        (LookupRow, made.lookup_rows()[0]),
    ],
)
def test_the_kind_of_a_row_is_written_and_read_and_old_rows_have_that_of_their_block(
    kind, made_row
):
    config = json.loads(json.dumps(made_row.to_config()))
    assert type(ResultRow.from_config(config)) is kind
    old = {"exchange": None, "lookups": None, **config}
    del old["kind"]
    assert ResultRow.from_config(old) == made_row
    with pytest.raises(SpecError, match="kind must be one that is known: invalid value 'other'"):
        ResultRow.from_config({**config, "kind": "other"})


def test_a_row_of_a_kind_must_have_its_block_and_no_other():
    exchange, lookups = made.exchange_rows()[0].to_config(), made.lookup_rows()[0].to_config()
    with pytest.raises(SpecError, match="it lacks the required field `exchange`"):
        ResultRow.from_config({k: v for k, v in exchange.items() if k != "exchange"})
    with pytest.raises(SpecError, match="it contains unknown field `lookups`"):
        ResultRow.from_config({**exchange, "lookups": lookups["lookups"]})


def test_every_figure_has_a_title():
    assert set(TITLES) == {*Quality.__struct_fields__, *Memory.__struct_fields__}


def test_quality_and_memory_survive_json():
    accuracy = Estimate(mean=0.8, half_width=0.01, num_runs=5)
    row = make_row(
        quality=Quality(psnr_db=42.0, ssim=0.99, loss=Estimate(mean=2.5), accuracy=accuracy),
        memory=Memory(held_nbytes=1 << 20, peak_nbytes=1 << 30),
    )
    assert ResultRow.from_config(json.loads(json.dumps(row.to_config()))) == row
    assert list(row.figures()) == [
        "psnr_db", "ssim", "loss", "accuracy", "held_nbytes", "peak_nbytes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quality": {}}, "quality must be at least one figure, or null"),
        ({"memory": {"held_nbytes": None}}, "memory must be at least one figure, or null"),
        ({"quality": {"ssim": 1.5}}, "quality.ssim must be a number <= 1.0"),
        ({"quality": {"sharpness": 1.5}}, "quality contains unknown field `sharpness`"),
        ({"quality": {"loss": 1.5}}, "quality.loss must be an object or null, not a number"),
        ({"quality": {"loss": {"mean": 1, "half_width": -1}}}, "half_width must be a number >= 0"),
        ({"memory": {"peak_nbytes": -1}}, "memory.peak_nbytes must be a whole number >= 0"),
        ({"num_launches": {"encode": 1.5}}, "num_launches.* must be a whole number, not a number"),
    ],
)
def test_a_wrong_value_is_named_in_one_sentence_with_file_and_line(change, words, tmp_path):
    path = tmp_path / "rows.jsonl"
    good, bad = make_row().to_config(), {**make_row().to_config(), **change}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    with pytest.raises(
        CorruptDataError, match=rf"^line 2 of .*rows.jsonl is not a result row: .*{words}"
    ):
        read_rows(path)


def test_ratio_is_original_over_encoded_and_speed_counts_raw_bytes():
    row = make_row()
    assert row.ratio == 8.0
    assert row.encode_gbps == pytest.approx(4000 / 2e-6 / 1e9)
    assert row.decode_gbps == pytest.approx(4000 / 1e-6 / 1e9)


def test_speed_of_a_sampled_row_counts_only_the_timed_bytes():
    row = make_row(sampled_fraction=0.25)
    assert row.encode_gbps == pytest.approx(1000 / 2e-6 / 1e9)
    assert row.ratio == 8.0


@pytest.mark.parametrize(
    ("error", "bound", "held"), [(0.5, 0.5, True), (0.50000001, 0.5, False), (1.0, None, None)]
)
def test_the_bound_is_judged_without_slack(error, bound, held):
    assert make_row(worst_error=error, error_bound=bound).bound_held is held


@pytest.mark.parametrize(
    "change",
    [{"surprise": 1}, {"schema": 2}, {"encode_s": {"p50": 1.0}}, {"codec": None}],
)
def test_an_unknown_missing_or_foreign_field_is_refused(change):
    config = make_row().to_config() | change
    if change == {"codec": None}:
        del config["codec"]
    with pytest.raises(SpecError):
        ResultRow.from_config(config)


def test_results_do_not_change_a_row_s_key_but_the_question_does():
    row = make_row()
    assert make_row(encoded_nbytes=1, worst_error=9.0, note="other").key == row.key
    for change in ({"threads": 2}, {"spec": {}}, {"input": "field"}, {"git_commit": "abc"}):
        assert make_row(**change).key != row.key


def test_a_key_needs_all_its_fields():
    with pytest.raises(SpecError, match="suite"):
        row_key(codec="flat")


def test_an_appended_row_is_on_disk_at_once(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    path = tmp_path / "new" / "rows.jsonl"
    with RowFile(path) as file:
        file.append(make_row())
        assert read_rows(path) == [make_row()]
        assert len(synced) == 1


def test_a_torn_last_line_is_dropped_and_the_file_goes_on(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file:
        file.append(make_row())
    with path.open("ab") as stream:
        stream.write(b'{"schema": 1, "suite": "ker')
    assert read_rows(path) == [make_row()]
    with RowFile(path, resume=True) as file:
        assert file.keys == {make_row().key}
        file.append(make_row(threads=2))
    assert read_rows(path) == [make_row(), make_row(threads=2)]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file:
        file.append(make_row())
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(CorruptDataError, match="line 2"):
        read_rows(path)


@pytest.mark.parametrize(
    "change",
    [
        {"encode_s": None},
        {"decode_s": {"p20": 1, "p50": "x", "p80": 1}},
        {"encoded_nbytes": "many"},
        {"codec": 5},
        {"machine": "x"},
    ],
)
def test_a_value_of_another_type_is_refused_with_its_line(change, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**make_row().to_config(), **change}) + "\n")
    with pytest.raises(CorruptDataError, match=r"line 1 of .* must be "):
        read_rows(path)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\n", b"[" * 100_000 + b"\n"])
def test_what_is_no_text_of_rows_is_refused(data, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"rows\.jsonl is n"):
        read_rows(path)


def test_rows_are_never_mixed_into_an_old_file_unasked(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file:
        file.append(make_row())
    with pytest.raises(SpecError, match="resume"):
        RowFile(path)


@pytest.mark.parametrize(
    "change", [{"spec": {"bound": {"relative": 0.0}}}, {"codec": 5}, {"sampled_fraction": 0.0}]
)
def test_a_row_that_could_not_be_read_again_is_not_written(change, tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowFile(path) as file:
        with pytest.raises(SpecError, match="must be"):
            file.append(make_row(**change))
        file.append(make_row())
    assert len(read_rows(path)) == 1


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("exchange", {"direction": "sideways"}),
        ("exchange", {"batch": 0}),
        ("exchange", {"num_ranks": 0}),
        ("lookups", {"table_class": "odd"}),
        ("lookups", {"table_class": "all"}),
        ("lookups", {"table": None}),
        ("lookups", {"num_ranks": 0}),
        ("lookups", {"num_slices": 0}),
        ("lookups", {"num_iterations": 0}),
        ("lookups", {"width": 0}),
    ],
)
def test_what_nothing_can_be_computed_with_is_refused(part, change, tmp_path):
    row = (made.exchange_rows if part == "exchange" else made.lookup_rows)()[0].to_config()
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    read_rows(path)
    path.write_text(json.dumps({**row, part: {**row[part], **change}}) + "\n")
    with pytest.raises(CorruptDataError, match=f"{next(iter(change)).split('_')[0]}.* must be"):
        read_rows(path)


def test_a_value_that_is_not_a_number_is_never_written(tmp_path):
    with RowFile(tmp_path / "rows.jsonl") as file, pytest.raises(ValueError, match="JSON"):
        file.append(make_row(worst_error=float("nan")))


@pytest.mark.parametrize("text", ['{"kind": "run"}', '{"kind": "run"}\n', "notes", "# a page\n"])
def test_a_file_of_another_kind_is_neither_read_nor_emptied(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    for opened in (read_rows, RowFile, lambda path: RowFile(path, resume=True)):
        with pytest.raises((SpecError, CorruptDataError)):
            opened(path)
    assert path.read_text() == text


@pytest.mark.parametrize("length", [1, 5, 12, 40])
def test_a_first_row_that_was_cut_short_is_one_of_ours(tmp_path, length):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(make_row().to_config())[:length])
    assert read_rows(path) == []
    RowFile(path).close()
    assert path.read_text() == ""
