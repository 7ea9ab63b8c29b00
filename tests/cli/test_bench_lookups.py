from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor.bench.embeddings.lookups import suite
from tersor.bench.peers import PEERS, load_peer
from tersor.cli.app import command
from tersor.cli.arrays.dumps import FolderLookUps
from tersor.errors import BackendUnavailableError
from tersor.policy import Decay
from tests.bench.report import runs as made

# blosc2 sets an environment variable when it is imported; here it is no test's leak
for name in PEERS:
    try:
        load_peer(name)
    except BackendUnavailableError:
        continue

FAST = ("--codecs", "rows,lz4,huffman", "--peers", "none", "--rounds", "1")


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, 64, 8), dtype=np.float32)


@pytest.fixture
def dumps(tersor, rows) -> Path:
    """Two tables at two iterations, as ``tersor train dlrm`` writes them."""
    folder = Path("dumps")
    folder.mkdir()
    for k, values in enumerate(rows):
        np.save(folder / f"step-{k // 2 * 100:09d}-table-{k % 2:02d}.npy", values)
    (folder / "tables.json").write_text('{"num_rows": [4, 1000000]}')
    return folder


def test_dumps_of_every_kind_are_the_same_look_ups(dumps, rows) -> None:
    pairs = {f"table_{k}": values for k, values in enumerate(rows[:2])}
    later = {f"table_{k}": values for k, values in enumerate(rows[2:])}
    for kind in ("npz", "pt", "raw", "lists"):
        Path(kind).mkdir()
        (Path(kind) / "tables.json").write_text('{"num_rows": [4, 1000000]}')
    np.savez("npz/iter_0.npz", **pairs)
    np.savez("npz/iter_100.npz", **later)
    torch.save({k: torch.from_numpy(v) for k, v in pairs.items()}, "pt/iteration-0.pt")
    torch.save({k: torch.from_numpy(v) for k, v in later.items()}, "pt/iteration-100.pt")
    torch.save([torch.from_numpy(v) for v in rows[:2]], "lists/step0.pt")
    torch.save([torch.from_numpy(v) for v in rows[2:]], "lists/step100.pt")
    for k, values in enumerate(rows):
        values.tofile(f"raw/emb_{k % 2}_step_{k // 2 * 100}.bin")
    wanted = FolderLookUps(str(dumps))
    assert list(wanted.tables) == [0, 1]
    assert [one.iteration for one in wanted.read(1)] == [0, 100]
    assert np.array_equal(wanted.read(1)[1].rows.numpy(), rows[3])
    for kind in ("npz", "pt", "lists", "raw"):
        found = FolderLookUps(kind, dim=8 if kind == "raw" else None)
        assert found.digest() == wanted.digest(), kind
        assert found.num_rows == {0: 4, 1: 10**6}


def test_files_without_numbers_are_tables_in_natural_order(tersor, rows) -> None:
    Path("d").mkdir()
    for k, name in enumerate(("user", "user10", "user9")):
        np.save(f"d/{name}.npy", rows[k])
    found = FolderLookUps("d")
    assert [float(found.read(table)[0].rows[0, 0]) for table in found.tables] == [
        float(rows[k][0, 0]) for k in (0, 2, 1)
    ]


def test_every_encoder_is_shown_per_table_and_overall(tersor, dumps) -> None:
    done = tersor.ok("bench", "embeddings", str(dumps), *FAST, "--details", "--ranks", "2")
    for words in (
        "Tables of dumps-",
        "All tables of dumps-",
        "Table 1 of",
        "Goals",
        "best at 1gbit",
    ):
        assert words in done.out
    assert done.words == ""


def test_rows_are_written_and_another_bandwidth_needs_no_new_ones(tersor, dumps) -> None:
    command = ("bench", "embeddings", str(dumps), *FAST, "--output", "rows.jsonl", "--json")
    done = tersor.ok(*command).json
    written = Path("rows.jsonl").read_text()
    assert [json.loads(line) for line in written.splitlines()] == done["rows"]
    assert len(done["rows"]) == 6
    (typed,) = {row["command"] for row in done["rows"]}
    assert typed == shlex.join(["tersor", "bench", "embeddings", *FAST, *command[-3:], str(dumps)])
    links = "56kbit,1mbit,400gbit,3.2tbit,0.5kbit"
    again = tersor.ok(*command, "--resume", "--bandwidth", links).json
    assert Path("rows.jsonl").read_text() == written
    (summary,) = again["summary"]
    best = summary["best"]
    # slower and faster than any link that an exchange between ranks is throttled to
    assert set(best) == {"56kbit", "1mbit", "400gbit", "3.2tbit", "0.5kbit"}
    assert best["3.2tbit"] == best["400gbit"] == {"0": "float32", "1": "float32"}
    assert "float32" not in best["1mbit"].values()


def test_an_interrupt_says_what_is_kept_and_how_to_go_on(tersor, dumps, monkeypatch) -> None:
    def interrupted(*_args, on_row, **_options):
        on_row(made.lookup_rows()[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "run_lookups", interrupted)
    done = tersor("bench", "embeddings", str(dumps), "--output", "rows.jsonl")
    assert done.code == 130
    assert "interrupted; rows kept in rows.jsonl: 1; go on with --resume" in done.err
    assert len(Path("rows.jsonl").read_text().splitlines()) == 1


def test_bounds_classes_decay_and_repeats_are_in_the_rows(tersor, dumps) -> None:
    done = tersor.ok(
        "bench", "embeddings", str(dumps), "--codecs", "rows", "--peers", "lz4", "--rounds", "1",
        "--tight-tables", "0", "--bounds", "0.02,0.04,0.08", "--decay", "linear", "--decay-end", "200",
        "--repeat", "2", "--batch", "32", "--code-dtype", "int16", "--json",
    ).json  # fmt: skip
    tight, _, base, plain = done["rows"]
    assert [row["spec"]["bound"]["relative"] for row in done["rows"]] == [0.02, 0.02, 0.04, 0.04]
    assert tight["spec"]["decay"]["shape"] == "linear"
    assert plain["spec"]["code_dtype"] == "int16"
    assert base["lookups"]["table_class"] == "base"
    assert {row["repeat"] for row in done["rows"]} == {2}
    assert tight["lookups"]["num_slices"] == 2 * 4 * 4


def test_a_bound_that_decays_is_reported_in_the_table(tersor, dumps) -> None:
    shown = tersor.ok("bench", "embeddings", str(dumps), *FAST, "--decay", "step").out
    assert shown.count("tight 0.01, decaying") == 2


def test_the_help_says_what_a_decay_is_without_options() -> None:
    options = {
        one.opts[0]: one.help
        for one in command().commands["bench"].commands["embeddings"].params
        if one.opts
    }
    assert options["--decay-end"].endswith(f"default: {Decay().end}.")
    assert options["--decay-magnitude"].endswith(f"default: {Decay().magnitude:g}.")


def test_a_codec_that_is_no_encoder_is_one_sentence(tersor, dumps) -> None:
    words = tersor.refused("bench", "embeddings", "dumps", "--codecs", "auto", "--peers", "none")
    assert "encoders of look-ups are flat, " in words
    assert " rows-ans, " in words
    assert words.endswith("not 'auto'\n")


def test_a_smoke_run_takes_the_options_of_the_full_one(tersor) -> None:
    command = ("bench", "embeddings", "--synthetic", "--smoke", "--dim", "8", *FAST)
    rows = tersor.ok(*command, "--tight-tables", "25", "--json").json["rows"]
    assert {row["lookups"]["table"] for row in rows} == {0, 1, 2}


def test_made_up_look_ups_need_no_dumps(tersor) -> None:
    done = tersor.ok("bench", "embeddings", "--synthetic", "--smoke", "--dim", "8", *FAST, "--json")
    assert {row["lookups"]["table"] for row in done.json["rows"]} == {0, 1, 2}
    assert done.json["goals"] == []
    assert done.words == "--smoke measures too little to judge the goals\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.rename("elsewhere"), "there is no folder"),
        (lambda d: [one.unlink() for one in d.iterdir()], "there are no dumps"),
        (lambda d: (d / "notes.csv").write_text("a,b"), "is no dump of look-ups"),
        (lambda d: (d / "below").mkdir(), "is no dump of look-ups"),
        (lambda d: (d / "table-3.bin").write_bytes(bytes(32)), "--dim"),
        (lambda d: np.save(d / "table-0-step-7.npy", np.ones((4, 3), "f4")), "3 and 8 values"),
        (lambda d: np.save(d / "table-3.npy", np.ones((4, 8))), "float64"),
        (lambda d: np.save(d / "table-3.npy", np.ones(8, "f4")), "flat list"),
        (lambda d: np.save(d / "t0-step-100.npy", np.ones((64, 8), "f4")), "iteration 100"),
        (lambda d: np.save(d / "table-3.npy", np.full((4, 8), np.inf, "f4")), "not finite"),
        (lambda d: (d / "tables.json").write_text("[]"), "how large the tables are"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_measured_is_one_sentence(tersor, dumps, change, words) -> None:
    change(dumps)
    assert words in tersor.refused("bench", "embeddings", "dumps", *FAST)


def test_a_damaged_dump_is_one_sentence(tersor, dumps) -> None:
    (dumps / "table-7.npz").write_bytes(b"PK but no archive")
    assert "archive" in tersor.refused("bench", "embeddings", "dumps", *FAST, code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dumps", "--synthetic"), "not both"),
        (("dumps", "--code-dtype", "int4"), "int8, int16, auto"),
        (("dumps", "--code-dtype", "int8", "--bounds", "0.001,0.001,0.001"), "more than the 127"),
        (("dumps", "--classes", "some"), "auto or hand"),
        (("dumps", "--tight-tables", "x"), "--tight-tables"),
        (("dumps", "--bounds", "0.1"), "three"),
        (("dumps", "--decay", "sudden"), "decay"),
        (("dumps", "--batch", "1,2"), "one --batch"),
        (("dumps", "--batch", "128"), "no batch of 128"),
        (("dumps", "--ranks", "0"), "--ranks"),
        (("dumps", "--bandwidth", "fast"), "bandwidth"),
        (("dumps", "--dim", "3"), "--dim 3"),
        (("dumps", "--repeat", "0"), "begin at 1, not"),
        (("dumps", "--tight-tables", "7"), "name table 7, but dumps has tables 0, 1"),
        (("dumps", "--tight-tables", "1", "--loose-tables", "0,1"), "table 1 is both"),
        (("dumps", "--exchanges", "rows"), "--exchanges"),
        (("dumps", "--ranks-per-node", "2"), "--ranks-per-node is for exchanges between ranks"),
        (("--repeat", "2"), "--synthetic"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(tersor, dumps, arguments, words) -> None:
    command = ("bench", "embeddings", *arguments)
    extra = () if "dumps" not in arguments and "--repeat" in arguments else FAST
    assert words in tersor.refused(*command, *extra, "--output", "rows.jsonl")
