"""Lines of click logs: every number is read, and a wrong line is named with its fault."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tersor.errors import CorruptDataError
from tersor.workloads.data import open_clicks
from tersor.workloads.data.criteo_lines import parse_lines
from tests.checks import assert_rejects
from tests.workloads.text_logs import line, make_log, quiet


def test_lines_are_parsed_as_int_parses_each_field():
    log = make_log(300)
    text = "".join(f"{line}\n" for line in log.lines()).encode()
    found = parse_lines(text, 1, "x")
    assert np.array_equal(found.labels, log.labels)
    assert np.array_equal(found.dense, log.dense)
    assert np.array_equal(found.categories, log.values)


def test_edges_of_numbers_are_read():
    dense = ("2147483647", "-2147483647", "99999999", "100000000", "-12345678", "0", "-0", "007")
    values = ("ffffffff", "0", "a", "DEADbeef", "00000001", "abcdefg"[:6])
    found = parse_lines(line("1", dense, values), 1, "x")
    assert found.dense[0, :8].tolist() == [int(field) for field in dense]
    assert found.categories[0, :6].tolist() == [int(field, 16) for field in values]


def test_windows_line_ends_are_accepted():
    text = line("1", ["5"], ["ab"] * 26)
    found = parse_lines(text.replace(b"\n", b"\r\n") * 2, 1, "x")
    assert found.categories.tolist() == [[0xAB] * 26] * 2


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\n", "1 fields"),
        (line()[1:-1].replace(b"\t", b"", 1) + b"\n", "39 fields.*test file without labels"),
        (line("2"), "the label is '2'"),
        (line(""), "the label is ''"),
        (line("0", ["", "1.5"]), "integer feature 2 is '1.5'"),
        (line("0", ["-"]), "integer feature 1 is '-'"),
        (line("0", ["--1"]), "integer feature 1 is '--1'"),
        (line("0", ["1-"]), "integer feature 1 is '1-'"),
        (line("0", ["2147483648"]), "integer feature 1 is '2147483648', beyond 32 bits"),
        (line("0", ["-2147483648"]), "beyond 32 bits"),
        (line("0", ["1" * 5000]), "integer feature 1 is '1111"),
        (line("0", [], ["g"]), "category 1 is 'g'"),
        (line("0", [], ["", "123456789"]), "category 2 is '123456789', not up to eight"),
        (line("0", [], ["-1"]), "category 1 is '-1'"),
        (line("0", [], ["0x12"]), "category 1 is '0x12'"),
        (line("0", [], ["\x00\x1b[2J"]), r"category 1 is '\\x00\\x1b\[2J'"),
    ],
)
def test_a_wrong_line_is_named_with_its_fault(tmp_path, bad, reason, small_blocks):
    log = make_log(200)
    good = [f"{text}\n".encode() for text in log.lines()]
    path = tmp_path / "train.txt"
    path.write_bytes(b"".join([*good[:150], bad, *good[150:]]))
    error = assert_rejects(lambda: open_clicks(path, progress=quiet), CorruptDataError)
    assert str(error).startswith("train.txt, line 151: ")
    assert re.search(reason, str(error))


def test_something_without_lines_is_refused_before_it_fills_the_memory(tmp_path, small_blocks):
    path = tmp_path / "train.txt"
    path.write_bytes(b"\x01" * 20000)
    error = assert_rejects(lambda: open_clicks(path, progress=quiet), CorruptDataError)
    assert "no end of line" in str(error)
