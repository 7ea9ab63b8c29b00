from __future__ import annotations

from pathlib import Path

import pytest

from tersor.bench.core.row_file import read_rows
from tests.bench.peers.log_samples import GPULZ, NVCOMP, SAMPLES, logged

IMPORT = ("bench", "import-log")


@pytest.fixture
def lz4_log(tersor) -> str:
    runs = [logged(f"/opt/benchmark_lz4_chunked -f EMB_{k}.bin", NVCOMP, table=k) for k in range(3)]
    Path("lz4.log").write_text("".join(runs))
    return "lz4.log"


def test_a_log_becomes_rows_next_to_others(tersor, lz4_log) -> None:
    command = (*IMPORT, "--format", "nvcomp", lz4_log, "--output", "rows.jsonl")
    done = tersor.ok(*command, "--value-nbytes", "1", "--machine", "A100", "--json").json
    rows = read_rows("rows.jsonl")
    assert [row.to_config() for row in rows] == done["rows"]
    assert [row.input for row in rows] == ["EMB_0.bin", "EMB_1.bin", "EMB_2.bin"]
    assert {(row.codec, row.ratio, row.device) for row in rows} == {
        ("nvcomp-lz4-chunked", 64.0, "cuda")
    }
    assert rows[0].machine == {"gpu": "A100"}
    assert "EMB_0.bin" in tersor.ok("report", "rows.jsonl").out
    assert "resume" in tersor.refused(*command)
    # the same log adds nothing, another one does
    tersor.ok(*command, "--value-nbytes", "1", "--resume")
    assert len(read_rows("rows.jsonl")) == 3
    Path("lz.log").write_text(GPULZ)
    tersor.ok(
        *IMPORT, "--format", "gpulz", "lz.log", "--input-nbytes", "4096", "-o", "rows.jsonl",
        "--resume",
    )  # fmt: skip
    assert [row.codec for row in read_rows("rows.jsonl")][-1] == "gpulz"


def test_people_see_ratio_and_speeds(tersor, lz4_log) -> None:
    shown = tersor.ok(*IMPORT, "--format", "nvcomp", lz4_log).out
    for words in ("EMB_1.bin", "nvcomp-lz4-chunked", "16.00", "5.5", "16.8"):
        assert words in shown


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bare_output_of_every_program_is_read(tersor, name) -> None:
    Path("the.log").write_text(SAMPLES[name])
    facts = {
        "nvcomp": ("--codec", "nvcomp-ans-chunked"),
        "gpulz": ("--input-nbytes", "1048576"),
        "cusz": (),
        "sz3": ("--input-nbytes", "80000"),
    }
    done = tersor.ok(*IMPORT, "--format", name, "the.log", *facts[name], "--json").json
    assert len(done["rows"]) == 1


def test_a_log_cut_short_writes_nothing_unless_a_part_is_enough(tersor, lz4_log) -> None:
    text = Path(lz4_log).read_text()
    Path(lz4_log).write_text(text[: text.rindex("decompression")])
    command = (*IMPORT, "--format", "nvcomp", lz4_log, "--output", "rows.jsonl")
    words = tersor.refused(*command, code=1)
    assert words.startswith("tersor: line 17 of lz4.log")
    assert "--partial" in words
    done = tersor.ok(*command, "--partial")
    assert "left out: line 17 of lz4.log" in done.err
    assert len(read_rows("rows.jsonl")) == 2


@pytest.mark.parametrize(
    ("text", "arguments", "code", "words"),
    [
        ("hello\n", ("--format", "nvcomp"), 1, "check --format"),
        (GPULZ, ("--format", "nvcomp"), 1, "--format gpulz fits it"),
        (GPULZ, ("--format", "zip"), 2, "log formats are nvcomp, gpulz, cusz, sz3"),
        (GPULZ, ("--format", "gpulz"), 2, "line 1 of the.log"),
        (
            GPULZ,
            ("--format", "gpulz", "--input-nbytes", "8192", "--resume"),
            2,
            "--resume needs",
        ),
        (GPULZ[:-9], ("--format", "gpulz", "--partial"), 1, "nothing to import"),
        (GPULZ, (), 2, "--format"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(tersor, text, arguments, code, words) -> None:
    Path("the.log").write_text(text)
    done = tersor(*IMPORT, "the.log", *arguments)
    assert done.code == code
    assert done.out == ""
    assert words in done.err.splitlines()[-1]


@pytest.fixture
def bare_path(tersor, monkeypatch) -> Path:
    """A folder that is all of PATH."""
    folder = tersor.folder / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_programs_that_nobody_asked_for_may_be_missing(tersor, bare_path) -> None:
    done = tersor.ok("bench", "programs", "--smoke", "--json")
    assert done.json == {"rows": [], "notes": ["left out: not on PATH: sz3"]}
    assert done.words.splitlines() == [
        "left out: not on PATH: sz3",
        "nothing was measured: none of these programs is on PATH",
    ]


def test_programs_that_are_named_and_missing_fail_the_check(tersor, bare_path) -> None:
    done = tersor("bench", "programs", "--smoke", "--programs", "sz3-cli")
    assert done.code == 1
    assert done.words.splitlines()[-1] == (
        "nothing was measured: none of these programs is on PATH; put one there, or leave out --programs"
    )
    assert "programs on cpu" in tersor.refused("bench", "programs", "--programs", "gpulz")


@pytest.mark.parametrize("named", [(), ("--programs", "sz3-cli")])
def test_programs_that_all_fail_fail_the_check(tersor, bare_path, named) -> None:
    script = bare_path / "sz3"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    command = ("bench", "programs", "--smoke", "--inputs", "gradients", "--bounds", "0.01", *named)
    done = tersor(*command)
    assert done.code == 1
    failure, sentence = done.words.splitlines()
    assert failure.startswith("left out: sz3-cli on gradients")
    assert "--format" not in failure
    assert sentence == "nothing was measured: every run failed, for the reasons above"
