from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.core.test_compare import steady_row, times


@pytest.fixture
def write(tersor):
    def rows(name, *rows):
        lines = [json.dumps(row.to_config()) + "\n" for row in rows]
        Path(name).write_text("".join(lines))

    return rows


def test_people_see_what_changed_and_a_sentence(tersor, write) -> None:
    write("a.jsonl", steady_row(), steady_row(codec="rows"), steady_row(codec="gone"))
    write("b.jsonl", steady_row(encode_s=times(2e-3)), steady_row(codec="rows"))
    done = tersor.ok("bench", "compare", "a.jsonl", "b.jsonl")
    assert "b.jsonl against a.jsonl" in done.out
    assert "encode speed" in done.out
    assert "0.50 times, slower" in done.out
    assert "only in a.jsonl: kernels gone" in done.out
    # no change, so no line of its own
    assert "rows" not in done.out.split("measurements in both")[0]
    assert "rows" in tersor.ok("bench", "compare", "a.jsonl", "b.jsonl", "--all").out


def test_files_that_agree_need_no_table(tersor, write) -> None:
    write("a.jsonl", steady_row())
    shown = tersor.ok("bench", "compare", "a.jsonl", "a.jsonl").out
    assert shown == (
        "measurements in both files: 1; times: 0 slower, 0 faster, 2 the same within noise; "
        "sizes: 0 larger, 0 smaller, 1 the same\n"
    )


def test_programs_get_json(tersor, write) -> None:
    write("a.jsonl", steady_row())
    write("b.jsonl", steady_row(decode_s=times(1e-3), machine={"cpu": "other"}))
    done = tersor.ok("bench", "compare", "a.jsonl", "b.jsonl", "--json")
    assert done.json["pairs"][0]["times"]["decode"]["verdict"] == "faster"
    assert done.json["warnings"] == done.err.splitlines()
    assert len(done.json["warnings"]) == 1


def test_ci_fails_on_what_is_slower_beyond_the_limit(tersor, write) -> None:
    write("a.jsonl", steady_row())
    write("b.jsonl", steady_row(encode_s=times(1.4e-3)))
    command = ("bench", "compare", "a.jsonl", "b.jsonl", "--fail-on-slower")
    failed = tersor(*command, "10")
    assert failed.code == 1
    assert failed.err == (
        "times longer by more than 10 %: 1; the worst: encode of flat on gradients by 40.0 %\n"
    )
    assert tersor(*command, "50").code == 0
    # wide noise explains it
    assert tersor(*command, "10", "--noise", "60").code == 0


def test_a_slower_machine_is_no_slower_codec_per_copy(tersor, write) -> None:
    slow = {"encode_s": times(2e-3), "decode_s": times(4e-3), "memcpy_s": times(2e-4)}
    write("a.jsonl", steady_row())
    write("b.jsonl", steady_row(**slow))
    command = ("bench", "compare", "a.jsonl", "b.jsonl", "--fail-on-slower", "5")
    assert tersor(*command).code == 1
    assert tersor(*command, "--per-copy").code == 0


def test_a_row_without_a_copy_fails_no_check_per_copy(tersor, write) -> None:
    lone = {"codec": "zstd-huffman", "peer": True, "memcpy_s": None}
    write("a.jsonl", steady_row(), steady_row(**lone))
    write("b.jsonl", steady_row(), steady_row(**lone, encode_s=times(9e-3)))
    command = ("bench", "compare", "a.jsonl", "b.jsonl", "--fail-on-slower", "5")
    assert tersor(*command).code == 1
    done = tersor.ok(*command, "--per-copy", "--all")
    assert done.err == "no copy to divide by, so that times are left out: 1 of 2 pairs\n"
    (line,) = [line for line in done.out.splitlines() if "zstd-huffman" in line]
    assert "times" not in line


def test_wrong_files_and_numbers_are_one_sentence(tersor, write) -> None:
    write("a.jsonl", steady_row())
    write("b.jsonl", steady_row(codec="other"))
    write("empty.jsonl")
    Path("torn.jsonl").write_text('{"schema": 1}\n')
    compare = ("bench", "compare", "a.jsonl")
    assert "no measurement in common" in tersor.refused(*compare, "b.jsonl")
    assert "no measurement in common" in tersor.refused(*compare, "empty.jsonl")
    assert "no file" in tersor.refused(*compare, "c.jsonl")
    assert "line 1 of torn.jsonl" in tersor.refused(*compare, "torn.jsonl", code=1)
    assert "from 0 on" in tersor.refused(*compare, "a.jsonl", "--fail-on-slower", "-3")
    assert "from 0 on" in tersor.refused(*compare, "a.jsonl", "--noise", "-3")


def test_a_file_of_something_else_is_one_sentence(tersor, write) -> None:
    write("a.jsonl", steady_row())
    compare = ("bench", "compare", "a.jsonl", "b.jsonl")
    Path("b.jsonl").write_bytes(b"\xff\xfe\x00\n")
    assert "b.jsonl is not text" in tersor.refused(*compare, code=1)
    Path("b.jsonl").write_text(json.dumps({**steady_row().to_config(), "encode_s": None}) + "\n")
    assert "encode_s must be an object, not null" in tersor.refused(*compare, code=1)
