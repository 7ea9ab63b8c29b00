"""What docs/format.md says is what the writer does."""

from __future__ import annotations

import io
import itertools
import json
import re
import struct
from pathlib import Path

import pytest
import torch

from tersor.chunks import ChunkPlan
from tersor.container import Reader, Writer
from tersor.types import DTYPES
from tests.container.stranger import read_container

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def dumped_file() -> bytes:
    dump = re.search(r"```hexdump\n(.*?)```", PAGE, re.DOTALL).group(1)
    data = b""
    for line in dump.splitlines():
        offset, numbers, text = re.fullmatch(r"(\w{4})  (.{47})  \|(.*)\|", line).groups()
        row = bytes.fromhex(numbers)
        assert int(offset, 16) == len(data)
        assert text == "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        data += row
    return data


def test_the_dump_is_what_the_writer_makes(raw):
    stream = io.BytesIO()
    with Writer(stream) as writer:
        writer.add("x", torch.tensor([1.0, 2.0, 3.0]), raw, chunk_values=2)
        writer.add("n", torch.tensor(-2, dtype=torch.int16), raw)
    assert stream.getvalue() == dumped_file()


def test_the_dump_reads_as_the_page_says():
    with Reader(io.BytesIO(dumped_file())) as reader:
        assert reader.read("x").tolist() == [1.0, 2.0, 3.0]
        assert reader.read("n").item() == -2
    arrays = read_container(dumped_file())
    assert [chunk.payload for chunk in arrays["x"].chunks] == [
        struct.pack("<2f", 1, 2),
        struct.pack("<f", 3),
    ]
    assert arrays["n"].chunks[0].payload == struct.pack("<h", -2)


def test_the_index_shown_is_the_one_in_the_dump():
    shown = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL).group(1))
    arrays = read_container(dumped_file()).values()
    assert shown == {"arrays": [array.config for array in arrays]}


def test_the_fields_below_the_dump_are_in_it():
    data = dumped_file()
    rows = re.findall(r"^\| 0x(\w{4}) \| (\d+) \| [^|]+ \| `?([^|`]+)`? \|$", PAGE, re.MULTILINE)
    assert len(rows) == 17
    position = 0
    for offset, nbytes, value in rows:
        assert int(offset, 16) == position
        field = data[position : position + int(nbytes)]
        position += int(nbytes)
        if re.fullmatch(r"[0-9a-f]{16}", value):
            assert int.from_bytes(field, "little") == int(value, 16)
        elif re.fullmatch(r"\d+(, \d+)*", value):
            numbers = [int(number) for number in value.split(", ")]
            assert struct.unpack(f"<{len(numbers)}Q", field) == tuple(numbers)
    assert position == len(data)


@pytest.mark.parametrize("chunk_values", [1, 2, 3, 5, 6, 7, 12, 100])
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (7,), (3, 2), (2, 6), (4, 3, 2), (3, 0, 2), (0, 4), (1, 9), (5, 1)]
)
def test_a_stranger_finds_the_same_chunks(shape, chunk_values, raw):
    x = torch.randn(shape)
    stream = io.BytesIO()
    with Writer(stream) as writer:
        writer.add("before", torch.zeros(3), raw)
        writer.add("x", x, raw, chunk_values=chunk_values)
    array = read_container(stream.getvalue())["x"]
    plan = ChunkPlan(shape, chunk_values)
    assert len(array.chunks) == len(plan)
    for chunk, planned in itertools.zip_longest(array.chunks, plan):
        assert (chunk.start, chunk.stop) == (planned.start, planned.stop)
        assert tuple(chunk.shape) == planned.shape
    payload = b"".join(chunk.payload for chunk in array.chunks)
    assert payload == x.numpy().tobytes()


def test_a_stranger_refuses_a_damaged_file():
    data = dumped_file()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match="malformed"):
            read_container(bytes(damaged))


def test_the_page_lists_every_dtype_with_its_size():
    section = PAGE.split("## Dtypes")[1].split("##")[0]
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([\d, ]+) \|$", section, re.MULTILINE)
    listed = {}
    for names_text, sizes_text in rows:
        names = re.findall(r"`(\w+)`", names_text)
        sizes = [int(size) for size in sizes_text.split(",")]
        listed |= zip(names, sizes * (len(names) if len(sizes) == 1 else 1), strict=True)
    assert listed == {name: dtype.itemsize for name, dtype in DTYPES.items()}
