"""Every file that no writer produces is refused, quickly and without large allocation."""

from __future__ import annotations

import copy
import io
import json
import tracemalloc

import pytest
import torch

from tersor.container import Reader, Writer
from tersor.container.header import MAX_INDEX_NBYTES
from tersor.errors import CorruptDataError, UnknownCodecError, UnsupportedVersionError
from tests.container.signing import sign_again, take_apart

REFUSALS = (CorruptDataError, UnsupportedVersionError, UnknownCodecError)


def read_all(data: bytes) -> dict[str, torch.Tensor]:
    with Reader(io.BytesIO(data)) as reader:
        return {name: reader.read(name) for name in reader.names}


@pytest.fixture
def small(raw, rounding) -> bytes:
    """Two arrays, three sections, all with padding."""
    stream = io.BytesIO()
    with Writer(stream) as writer:
        writer.add("x", torch.tensor([1.0, -2.0, 3.0]), rounding, {"unit": "m"}, chunk_values=2)
        writer.add("y", torch.tensor([5, 6, 7], dtype=torch.uint8), raw)
    return stream.getvalue()


@pytest.fixture
def parts(small):
    return take_apart(small)


def refused(parts, message: str, error: type[Exception] = CorruptDataError) -> None:
    with pytest.raises(error, match=message):
        read_all(parts.sign())


def test_signing_an_unchanged_file_changes_no_data(small, parts):
    assert sign_again(small) == small
    assert read_all(parts.sign()).keys() == {"x", "y"}


def test_a_file_cut_at_any_byte_is_refused(small):
    for nbytes in range(len(small)):
        with pytest.raises(CorruptDataError):
            read_all(small[:nbytes])


def test_a_file_cut_at_any_byte_is_refused_on_disk(small, tmp_path):
    path = tmp_path / "x.tsr"
    for nbytes in range(0, len(small), 7):
        path.write_bytes(small[:nbytes])
        with pytest.raises(CorruptDataError):
            Reader(path)


def test_any_flipped_bit_is_refused(small):
    for position in range(len(small)):
        for bit in range(8):
            damaged = bytearray(small)
            damaged[position] ^= 1 << bit
            with pytest.raises(REFUSALS):
                read_all(bytes(damaged))


def test_any_flipped_bit_is_found_by_verify(small):
    for position in range(len(small)):
        damaged = bytearray(small)
        damaged[position] ^= 16
        with pytest.raises(REFUSALS), Reader(io.BytesIO(damaged)) as reader:
            reader.verify()


@pytest.mark.parametrize("extra", [b"\0", b"\n", bytes(8), bytes(40)])
def test_bytes_after_the_end_are_refused(small, extra):
    with pytest.raises(CorruptDataError):
        read_all(small + extra)


def test_a_file_behind_a_file_is_refused(small):
    with pytest.raises(CorruptDataError):
        read_all(small + small)


def test_damage_is_named_and_leaves_other_chunks_readable(small, parts):
    damaged = bytearray(small)
    damaged[parts.sections[1][0]] ^= 1
    with Reader(io.BytesIO(damaged)) as reader:
        assert reader.read_chunk("x", 0).tolist() == [1.0, -2.0]
        assert reader.read("y").tolist() == [5, 6, 7]
        with pytest.raises(CorruptDataError, match="array 'x', chunk 1 is damaged"):
            reader.read("x")
        with pytest.raises(CorruptDataError, match="array 'x', chunk 1 is damaged"):
            reader.verify()


def test_a_codec_refusing_its_payload_is_named(parts):
    payloads = [parts.payload(number) for number in range(3)]
    parts.set_payloads([payloads[0], payloads[1] + b"\0", payloads[2]])
    refused(parts, "array 'x', chunk 1: the number of codes is wrong")


def test_other_files_are_not_ours():
    for data in (b"", b"\x89", b"\x93NUMPY" + bytes(100), bytes(1000), b"\x89tersor\r\n" * 20):
        with pytest.raises(CorruptDataError, match="not a tersor file"):
            read_all(data)


def test_a_newer_format_is_not_called_corrupt(parts):
    parts.preamble = parts.preamble[:8] + b"\2\0" + bytes(6)
    refused(parts, "format version 2 is newer", UnsupportedVersionError)


@pytest.mark.parametrize(
    "fields", [b"\0\0" + bytes(6), b"\1\0\1" + bytes(5), b"\1" + b"\0" * 6 + b"\1"]
)
def test_unknown_preamble_fields_are_refused(parts, fields):
    parts.preamble = parts.preamble[:8] + fields
    refused(parts, "preamble")


@pytest.mark.parametrize("name", ["table_offset", "num_sections", "index_nbytes"])
@pytest.mark.parametrize("value", [0, 1, 2**24 + 1, 2**32, 2**60, 2**63, 2**64 - 1])
def test_a_trailer_that_does_not_account_for_the_file_is_refused(parts, name, value):
    parts.trailer_changes = {name: value}
    refused(parts, "accounts for|16 MiB")


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("change", [-16, -8, 8, 16, 2**40, 2**63])
def test_sections_with_holes_or_overlaps_are_refused(parts, column, number, change):
    changed = parts.sections[number][column] + change
    parts.sections[number][column] = changed % 2**64
    refused(parts, "overlap or leave holes|outside")


def test_sections_in_another_order_are_refused(parts):
    parts.sections.reverse()
    refused(parts, "overlap or leave holes")


def test_sizes_that_wrap_around_are_refused(parts):
    # 2**64 - 8 bytes after the first section end where it starts
    parts.sections[0][1] = 2**64 - 8
    parts.sections[1][0] = parts.sections[0][0] - 8
    refused(parts, "outside")


def test_padding_that_is_not_zero_is_refused(parts):
    offset, nbytes, _ = parts.sections[2]
    body = bytearray(parts.body)
    body[offset - 16 + nbytes] = 1
    parts.body = bytes(body)
    refused(parts, "array 'y', chunk 0 is damaged: its padding is not zero")


def test_a_section_that_belongs_to_no_array_is_refused(parts):
    parts.set_payloads([parts.payload(0), parts.payload(1), parts.payload(2), b"hidden"])
    refused(parts, "1 sections belong to no array")


def test_an_array_without_its_sections_is_refused(parts):
    parts.set_payloads([parts.payload(0), parts.payload(1)])
    refused(parts, "1 sections are needed, 0 are left")


def test_two_arrays_of_one_name_are_refused(parts):
    parts.index["arrays"][1]["name"] = "x"
    refused(parts, "two arrays named 'x'")


def test_an_unknown_codec_is_named(parts):
    parts.index["arrays"][1]["codec"]["id"] = "no-such-codec"
    refused(parts, "no-such-codec", UnknownCodecError)


def test_an_unknown_codec_hinders_no_other_array_where_that_is_asked_for(parts):
    parts.index["arrays"][1]["codec"]["id"] = "no-such-codec"
    with Reader(io.BytesIO(parts.sign()), allow_absent=True) as reader:
        assert reader.read("x").shape == (3,)
        assert reader.arrays["y"].stored_codec.to_config()["id"] == "no-such-codec"
        reader.verify()
        for read in (reader.read, reader.read_packed, lambda name: reader.read_chunk(name, 0)):
            with pytest.raises(UnknownCodecError, match="no-such-codec"):
                read("y")


@pytest.mark.parametrize("codec", [{"id": 3}, [], {"id": "flat", "version": 1, "bound": 3}])
def test_a_malformed_codec_is_no_absent_one(parts, codec):
    parts.index["arrays"][1]["codec"] = codec
    with pytest.raises(CorruptDataError):
        Reader(io.BytesIO(parts.sign()), allow_absent=True)


def test_a_newer_codec_is_not_called_corrupt(parts):
    parts.index["arrays"][1]["codec"]["version"] = 99
    refused(parts, "version 99 is newer", UnsupportedVersionError)


KEYS = ["name", "codec", "shape", "dtype", "chunk_values", "num_chunks"]
KEYS += ["error_bound", "reason", "metadata"]
JUNK = [None, True, 0, -1, 2, 1.5, 10**19, "", "x", [], [[]], [-1], {}, {"id": "raw"}, {"a": 1}]
FINE = {
    "reason": ["", "x"],
    "name": ["", "x"],
    "metadata": [{}, {"id": "raw"}],
    "error_bound": [None, 0, 2, 1.5, 10**19],
    "chunk_values": [2],
    "num_chunks": [2],
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", JUNK, ids=repr)
def test_a_field_that_makes_no_sense_is_refused(parts, key, value):
    array = parts.index["arrays"][0]
    array[key] = value
    if any(value is fine or (value == fine and value is not True) for fine in FINE.get(key, [])):
        assert len(read_all(parts.sign())) == 2
    else:
        refused(parts, ".")


@pytest.mark.parametrize(
    "change",
    [
        {"bound": None},
        {"bound": {"absolute": -1.0}},
        {"bound": {"absolute": "1"}},
        {"bound": {"absolute": 1.0, "relative": 1.0}},
        {"bound": {"other": 1.0}},
        {"salt": -1},
        {"salt": "much"},
        {"salt": None},
        {"salt": []},
        {"option": 1},
        {"version": 0},
        {"version": True},
        {"version": "1"},
        {"id": 5},
        {"id": None},
    ],
    ids=repr,
)
def test_codec_options_that_make_no_sense_are_corrupt_data(parts, change):
    parts.index["arrays"][0]["codec"] |= change
    refused(parts, "array 'x'")


def test_a_dtype_that_the_codec_cannot_hold_is_refused(parts):
    parts.index["arrays"][0]["dtype"] = "i64"
    refused(parts, "cannot hold torch.int64")


def test_missing_and_additional_keys_are_refused(parts):
    before = copy.deepcopy(parts.index)
    for key in before["arrays"][0]:
        parts.index = copy.deepcopy(before)
        del parts.index["arrays"][0][key]
        refused(parts, "exactly")
    parts.index = copy.deepcopy(before)
    parts.index["arrays"][0]["more"] = 1
    refused(parts, "exactly")
    for index in ({}, [], None, {"arrays": {}}, {"arrays": None}, {**before, "more": 1}):
        parts.index = index
        refused(parts, "arrays")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b'{"arrays":[]', "not JSON"),
        (b'{"arrays":[]} x', "not JSON"),
        (b"\xef\xbb\xbf" + b'{"arrays":[]}', "not JSON"),
        (b'{"arrays":["\xff"]}', "UTF-8"),
        (b'{"arrays":["\\ud800"]}', "UTF-8"),
        ('{"arrays":[]}'.encode("utf-16"), "UTF-8"),
        (b'{"arrays":[NaN]}', "not JSON"),
        (b'{"arrays":[-Infinity]}', "not JSON"),
        (b'{"arrays":[1e999]}', "too large"),
        (b'{"arrays":[' + b"1" * 21 + b"]}", "too large"),
        (b'{"arrays":[' + b"1" * 10**6 + b"]}", "too large"),
        (b'{"arrays":[],"arrays":[]}', "twice"),
        (b'{"arrays":[{"a":1,"\\u0061":2}]}', "twice"),
        (b"[" * 17 + b"]" * 17, "nested too deeply"),
        (b"[" * 10**6 + b"]" * 10**6, "nested too deeply"),
        (b'{"a":' * 10**6 + b"1" + b"}" * 10**6, "nested too deeply"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_an_index_that_is_not_plain_json_is_refused(parts, text, message):
    parts.raw_index = text
    refused(parts, message)


def test_an_index_over_16_mib_is_refused(parts):
    parts.raw_index = json.dumps(parts.index).encode().ljust(2**24)
    assert len(read_all(parts.sign())) == 2
    parts.raw_index += b" "
    refused(parts, "16 MiB")


@pytest.mark.parametrize(
    ("shape", "chunk_values", "num_chunks"),
    [
        ([2**60], 2**30, 2**30),
        ([2**60], 1, 2**60),
        ([2**30], 2**30, 1),
        ([2**20], 2**30, 1),
        ([2**15, 2**15], 2**30, 1),
        ([2**30], 2**29, 2),
        ([2**62, 2**62], 2**30, 2**94),
        ([0, 2**62, 2**62], 2**30, 1),
        ([2**62, 0, 2**62], 2**30, 1),
        ([0, 2**62], 2**30, 1),
        ([2**62, 2, 0], 2**30, 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("array", [0, 1])
def test_a_huge_shape_with_valid_checksums_costs_no_memory(
    parts, array, shape, chunk_values, num_chunks, monkeypatch
):
    parts.index["arrays"][array] |= {
        "shape": shape,
        "chunk_values": chunk_values,
        "num_chunks": num_chunks,
    }
    data = parts.sign()
    largest = 0
    empty = torch.empty

    def counting(*size, **options):
        nonlocal largest
        made = empty(*size, **options)
        if made.device.type == "cpu":
            largest = max(largest, made.nbytes)
        return made

    monkeypatch.setattr(torch, "empty", counting)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError):
            read_all(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert largest < 2**20


def test_a_codec_of_fixed_size_must_have_it(parts):
    parts.index["arrays"][1]["shape"] = [4]
    refused(parts, "array 'y': a payload of 3 bytes cannot be a chunk of shape")


def test_an_index_of_a_million_empty_lists_is_refused(parts):
    parts.raw_index = b'{"arrays":[' + b"[]," * 10**6 + b"[]]}"
    refused(parts, "exactly")


@pytest.mark.parametrize(
    "value",
    [b"[],", b"{},", b"[[[]]],", b'{"a":0},'],
    ids=["lists", "objects", "nested", "members"],
)
def test_an_index_of_more_values_than_any_writer_makes_is_refused_unparsed(parts, value):
    room = MAX_INDEX_NBYTES - 100
    parts.raw_index = b'{"arrays":[' + value * (room // len(value)) + b"0]}"
    data = parts.sign()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match="2\\*\\*22 values"):
            Reader(io.BytesIO(data))
        # its own bytes, four times: read, copied, joined for the checksum, and without escapes
        assert tracemalloc.get_traced_memory()[1] < 5 * MAX_INDEX_NBYTES
    finally:
        tracemalloc.stop()


def test_a_file_that_shrinks_while_open_is_refused(small, tmp_path):
    path = tmp_path / "x.tsr"
    path.write_bytes(small)
    with Reader(path) as reader:
        path.write_bytes(small[:20])
        with pytest.raises(CorruptDataError, match="shorter"):
            reader.read("y")


def test_a_refused_file_is_closed(tmp_path, recwarn):
    path = tmp_path / "x.tsr"
    path.write_bytes(bytes(100))
    with pytest.raises(CorruptDataError):
        Reader(path)
    assert not recwarn.list
