"""A few kilobytes that mean gigabytes are refused before anything is allocated."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tersor import Bound, Packed, Reader, TensorInfo, create, decompress, dumps, load, loads, save
from tersor.container import Writer
from tersor.errors import MemoryLimitError, SpecError
from tersor.kernels.payload.layout import CONSTANT, HEADER
from tests.checks import assert_rejects

CHUNK_VALUES = 2**28
NUM_CHUNKS = 4


@pytest.fixture
def bomb() -> Packed:
    """A constant of 1 GiB per chunk, as 4 KiB each: valid, and 4 GiB in all."""
    header = HEADER.pack(CONSTANT, 0, 0.5, 0)
    data = bytearray(header.ljust(CHUNK_VALUES >> 16, b"\0"))
    payload = torch.frombuffer(data, dtype=torch.uint8)
    codec = create("flat", bound=Bound.absolute(0.1))
    info = TensorInfo((NUM_CHUNKS, CHUNK_VALUES), torch.float32)
    return Packed(info, codec, (payload,) * NUM_CHUNKS, CHUNK_VALUES, 0.1)


@pytest.fixture
def path(bomb, tmp_path) -> Path:
    path = tmp_path / "bomb.tsr"
    path.write_bytes(dumps(bomb))
    assert path.stat().st_size < 20_000
    return path


@pytest.fixture
def no_large_memory(monkeypatch) -> None:
    """Fail where torch is asked for more than 16 MiB."""
    make = torch.empty

    def checked(*shape, **options):
        sizes = shape[0] if shape and not isinstance(shape[0], int) else shape
        assert math.prod(sizes) < 2**24, f"{sizes} is allocated"
        return make(*shape, **options)

    monkeypatch.setattr(torch, "empty", checked)


def read(path: Path, what: Callable[[Reader], object], **limit: int) -> object:
    with Reader(path, **limit) as reader:
        return what(reader)


CALLS = {
    "decompress": lambda path, **limit: decompress(loads(path.read_bytes()), **limit),
    "load": load,
    "read": lambda path, **limit: read(path, lambda reader: reader.read(""), **limit),
    "read_chunk": lambda path, **limit: read(
        path, lambda reader: reader.read_chunk("", 0), **limit
    ),
    "iter_chunks": lambda path, **limit: read(
        path, lambda reader: next(reader.iter_chunks("")), **limit
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_more_than_the_limit_is_refused_unallocated(call, path, no_large_memory):
    error = assert_rejects(lambda: CALLS[call](path, max_nbytes=2**20), MemoryLimitError)
    assert "limit of 1,048,576 bytes" in str(error)
    assert "max_nbytes" in str(error)
    if call != "decompress":
        assert str(error).count("bomb.tsr") == 1


@pytest.mark.parametrize("call", CALLS)
def test_more_than_what_is_free_is_refused_unallocated(call, path, monkeypatch, no_large_memory):
    monkeypatch.setattr("tersor.memory.free_nbytes", lambda: 2**30)
    assert "free" in str(assert_rejects(lambda: CALLS[call](path), MemoryLimitError))


def test_an_array_over_the_limit_can_be_read_in_chunks_or_into_memory_of_ones_own(raw):
    stream, x = io.BytesIO(), torch.arange(1000.0)
    with Writer(stream) as writer:
        writer.add("x", x, raw, chunk_values=100)
    reader = Reader(io.BytesIO(stream.getvalue()), max_nbytes=800)
    assert torch.equal(torch.cat(list(reader.iter_chunks("x"))), x)
    assert torch.equal(reader.read("x", out=torch.empty(1000)), x)
    for call in (
        lambda: reader.read("x"),
        lambda: reader.read("x", out=torch.empty(2000)[::2]),
        lambda: reader.read_packed("x"),
    ):
        assert_rejects(call, MemoryLimitError)
    reader.verify()


def test_a_limit_counts_values_and_the_bytes_of_a_chunk_to_the_byte(raw, tmp_path):
    save(tmp_path / "x.tsr", {"x": torch.ones(1000), "y": torch.ones(500)}, codec="raw")
    with Reader(tmp_path / "x.tsr", max_nbytes=8000) as reader:
        assert reader.read("x").numel() == 1000
    with Reader(tmp_path / "x.tsr", max_nbytes=7999) as reader:
        assert_rejects(lambda: reader.read("x"), MemoryLimitError)
        assert reader.read("y").numel() == 500
    # both together
    assert len(load(tmp_path / "x.tsr", max_nbytes=8000)) == 2
    assert_rejects(lambda: load(tmp_path / "x.tsr", max_nbytes=5999), MemoryLimitError)


def test_a_table_over_the_limit_is_refused(tmp_path, raw):
    with Writer(tmp_path / "x.tsr") as writer:
        writer.add("x", torch.ones(1000), raw, chunk_values=1)
    error = assert_rejects(lambda: Reader(tmp_path / "x.tsr", max_nbytes=20_000), MemoryLimitError)
    assert "table" in str(error)


@pytest.mark.parametrize("limit", [-1, 2.0, "4G"])
def test_what_is_no_limit_is_refused(limit, path):
    for call in CALLS.values():
        assert "max_nbytes" in str(
            assert_rejects(lambda call=call: call(path, max_nbytes=limit), SpecError)
        )
