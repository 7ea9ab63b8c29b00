from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from tersor.codecs.raw import Raw
from tersor.container import Reader, Writer, dumps, loads
from tersor.errors import BackendUnavailableError, SpecError
from tersor.types import DTYPES, TensorInfo


def written(*arrays, **options) -> bytes:
    stream = io.BytesIO()
    with Writer(stream) as writer:
        for name, x, codec in arrays:
            writer.add(name, x, codec, **options)
    return stream.getvalue()


class OneWay(io.RawIOBase):
    """A pipe: no seeking, and every call moves seven bytes at most."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer) -> int:
        part = self.data[: min(7, len(buffer))]
        del self.data[: len(part)]
        buffer[: len(part)] = part
        return len(part)

    def write(self, data) -> int:
        self.data += bytes(data[:7])
        return min(7, len(data))


def test_every_array_of_a_file_comes_back(tmp_path, raw, rounding):
    path = tmp_path / "several.tsr"
    x, y = torch.randn(10, 3), torch.arange(7)
    with Writer(path) as writer:
        writer.add("x", x, rounding, {"unit": "K", "schlüssel": "größe ✓"})
        writer.add("y/ü", y, raw, reason="smallest of 3")
    with Reader(path) as reader:
        assert reader.names == ["x", "y/ü"]
        assert (reader.read("x") - x).abs().max() <= 0.5
        assert torch.equal(reader.read("y/ü"), y)
        first, second = reader.arrays["x"], reader.arrays["y/ü"]
        assert first.codec == rounding
        assert first.error_bound == 0.5
        assert first.metadata == {"unit": "K", "schlüssel": "größe ✓"}
        assert first.info == TensorInfo.of(x)
        assert second.error_bound is None
        assert second.reason == "smallest of 3"
        assert second.metadata == {}
        assert second.nbytes == 56
        assert second.ratio == 1.0
        reader.verify()


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(name, raw):
    values = torch.arange(24, dtype=torch.uint8) % (2 if name == "bool" else 24)
    x = values.repeat(2).view(DTYPES[name]).reshape(3, -1)
    with Reader(io.BytesIO(written(("x", x, raw)))) as reader:
        y = reader.read("x")
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (0, 5), (1, 1, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize("chunk_values", [1, 5, 2**22])
def test_every_shape_comes_back_whole_and_by_chunk(shape, chunk_values, raw):
    x = torch.randn(shape)
    with Reader(io.BytesIO(written(("x", x, raw), chunk_values=chunk_values))) as reader:
        entry = reader.arrays["x"]
        assert torch.equal(reader.read("x"), x)
        flat = x.reshape(-1)
        chunks = list(reader.iter_chunks("x"))
        assert len(chunks) == len(entry.plan) == len(entry.sections)
        for index, (chunk, values) in enumerate(zip(entry.plan, chunks, strict=True)):
            assert values.shape == chunk.shape
            assert torch.equal(values.reshape(-1), flat[chunk.start : chunk.stop])
            assert torch.equal(reader.read_chunk("x", index), values)


@pytest.mark.parametrize("num_values", [15, 16, 17, 31, 32, 33])
def test_nothing_is_lost_at_chunk_boundaries(num_values, raw):
    x = torch.arange(num_values, dtype=torch.int16)
    with Reader(io.BytesIO(written(("x", x, raw), chunk_values=16))) as reader:
        assert len(reader.arrays["x"].sections) == -(-num_values // 16)
        assert torch.equal(reader.read("x"), x)


def test_a_file_without_arrays_is_a_file():
    with Reader(io.BytesIO(written())) as reader:
        assert reader.names == []
        reader.verify()


def test_a_strided_or_tracked_tensor_is_written_by_value(raw):
    x = torch.randn(6, 4, requires_grad=True)
    with Reader(io.BytesIO(written(("x", x.t()[::2], raw)))) as reader:
        assert torch.equal(reader.read("x"), x.detach().t()[::2])


def test_out_is_filled_in_place_also_when_strided(raw):
    x = torch.randn(6, 4)
    with Reader(io.BytesIO(written(("x", x, raw), chunk_values=7))) as reader:
        out = torch.zeros(6, 4)
        assert reader.read("x", out=out) is out
        strided = torch.zeros(4, 6).t()
        assert reader.read("x", out=strided) is strided
        assert torch.equal(out, x)
        assert torch.equal(strided, x)
        with pytest.raises(SpecError, match="out must be"):
            reader.read("x", out=torch.zeros(4, 6))


def test_the_same_calls_give_the_same_bytes(tmp_path, raw, rounding):
    x = torch.randn(100)
    arrays = [("a", x, rounding), ("b", x, raw)]
    options = {"metadata": {"z": "1", "a": "2"}, "chunk_values": 30}
    path = tmp_path / "x.tsr"
    for metadata in ({"z": "1", "a": "2"}, {"a": "2", "z": "1"}):
        with Writer(path) as writer:
            for name, x, codec in arrays:
                writer.add(name, x, codec, metadata, chunk_values=30)
        assert path.read_bytes() == written(*arrays, **options)


def test_chunks_can_be_streamed_and_equal_one_add(raw, rounding):
    x = torch.randn(9, 5)
    stream = io.BytesIO()
    with Writer(stream) as writer:
        info = TensorInfo.of(x)
        # 12 values per chunk hold two rows of five
        rows = (x[row : row + 2] for row in range(0, 9, 2))
        writer.add_chunks("x", info, rounding, 0.5, rows, 12)
    assert stream.getvalue() == written(("x", x, rounding), chunk_values=12)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([torch.zeros(4)], "only 1 given"),
        ([torch.zeros(4), torch.zeros(2), torch.zeros(4)], "more were given"),
        ([torch.zeros(4), torch.zeros(3)], "2 values"),
        ([torch.zeros(4), torch.zeros(2, dtype=torch.float64)], "float64"),
    ],
)
def test_chunks_that_do_not_match_the_plan_make_no_file(chunks, message, raw, tmp_path):
    path = tmp_path / "x.tsr"
    info = TensorInfo((6,), torch.float32)
    with pytest.raises(SpecError, match=message), Writer(path) as writer:
        writer.add_chunks("x", info, raw, None, chunks, 4)
    assert list(tmp_path.iterdir()) == []
    writer = Writer(path)
    with pytest.raises(SpecError, match=message):
        writer.add_chunks("x", info, raw, None, chunks, 4)
    with pytest.raises(SpecError, match="failed before"):
        writer.add("y", torch.zeros(1), raw)
    with pytest.raises(SpecError, match="write it again"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_packed_tensors_go_through_bytes_and_files(rounding):
    x = torch.randn(40)
    packed = rounding.pack(x, chunk_values=16)
    back = loads(dumps(packed))
    assert back.info == packed.info
    assert back.codec == packed.codec
    assert back.chunk_values == 16
    assert back.error_bound == 0.5
    assert all(map(torch.equal, back.payloads, packed.payloads))
    assert torch.equal(back.codec.unpack(back), rounding.unpack(packed))
    assert dumps(back) == dumps(packed)
    assert torch.equal(Reader(io.BytesIO(dumps(packed))).read(""), rounding.unpack(packed))


def test_loads_wants_exactly_one_array(raw):
    x = torch.zeros(2)
    with pytest.raises(SpecError, match="2 arrays"):
        loads(written(("a", x, raw), ("b", x, raw)))
    assert loads(memoryview(written(("a", x, raw)))).info.shape == (2,)


def test_pipes_can_be_written_and_read(raw, rounding):
    x = torch.randn(50)
    pipe = OneWay()
    with Writer(pipe) as writer:
        writer.add("x", x, raw, chunk_values=20)
    data = bytes(pipe.data)
    assert data == written(("x", x, raw), chunk_values=20)
    with Reader(OneWay(data)) as reader:
        assert torch.equal(reader.read("x"), x)


def test_standard_input_can_be_read(raw):
    code = (
        "import sys; from tersor.codecs.raw import Raw; from tersor.container import Reader;"
        "print(Reader(sys.stdin.buffer).read('x').tolist())"
    )
    data = written(("x", torch.arange(3), raw))
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=data,
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout.split() == b"[0, 1, 2]".split(), result.stderr


def test_a_stream_is_used_from_its_position_and_left_open(raw):
    x = torch.arange(5)
    stream = io.BytesIO()
    stream.write(b"before")
    with Writer(stream) as writer:
        writer.add("x", x, raw)
    assert stream.getvalue() == b"before" + written(("x", x, raw))
    stream.seek(6)
    with Reader(stream) as reader:
        assert torch.equal(reader.read("x"), x)
    assert not stream.closed


def test_opening_reads_no_payload(raw):
    class Counting(io.BytesIO):
        num_read = 0

        def readinto(self, buffer) -> int:
            self.num_read += len(buffer)
            return super().readinto(buffer)

    x = torch.zeros(2**16)
    stream = Counting(written(("a", x, raw), ("b", x, raw), chunk_values=2**12))
    with Reader(stream) as reader:
        assert stream.num_read < 2000
        reader.read_chunk("b", 3)
        assert stream.num_read < 2000 + 2**14


def test_several_threads_share_a_reader(raw):
    x = torch.arange(2**12)
    with Reader(io.BytesIO(written(("x", x, raw), chunk_values=16))) as reader:
        barrier = threading.Barrier(4)

        def part(start: int) -> list[torch.Tensor]:
            barrier.wait()
            return [reader.read_chunk("x", index) for index in range(start, 256, 4)]

        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(part, range(4)))
    assert all(
        torch.equal(chunk, x[16 * (4 * step + start) :][:16])
        for start, chunks in enumerate(parts)
        for step, chunk in enumerate(chunks)
    )


def test_wrong_use_is_refused_in_one_sentence(raw, rounding):
    writer = Writer(io.BytesIO())
    writer.add("x", torch.zeros(4), raw)
    with pytest.raises(SpecError, match="already has an array named 'x'"):
        writer.add("x", torch.zeros(4), raw)
    with pytest.raises(SpecError, match="cannot encode"):
        writer.add("y", torch.arange(4), rounding)
    with pytest.raises(SpecError, match="UTF-8"):
        writer.add("\ud800", torch.zeros(4), raw)
    with pytest.raises(SpecError, match="strings"):
        writer.add("y", torch.zeros(4), raw, {"a": 1})
    with pytest.raises(SpecError, match="chunk_values"):
        writer.add("y", torch.zeros(4), raw, chunk_values=0)
    for error_bound in (-1.0, float("nan"), float("inf")):
        info = TensorInfo((4,), torch.float32)
        with pytest.raises(SpecError, match="error bound"):
            writer.add_chunks("y", info, rounding, error_bound, [torch.zeros(4)])
    with pytest.raises(SpecError, match="16 MiB"):
        writer.add("y", torch.zeros(4), raw, {"a": "x" * 2**24})
    writer.close()
    writer.close()
    with pytest.raises(SpecError, match="closed"):
        writer.add("y", torch.zeros(4), raw)
    reader = Reader(io.BytesIO(written(("x", torch.zeros(4), raw))))
    with pytest.raises(SpecError, match="no array named 'y'; the file has 'x'"):
        reader.read("y")
    for index in (-1, 1):
        with pytest.raises(SpecError, match="chunks 0 to 0"):
            reader.read_chunk("x", index)


def test_refused_arrays_leave_the_file_usable(raw, rounding):
    stream = io.BytesIO()
    with Writer(stream) as writer:
        with pytest.raises(SpecError):
            writer.add("y", torch.arange(4), rounding)
        writer.add("x", torch.zeros(4), raw)
    assert stream.getvalue() == written(("x", torch.zeros(4), raw))


def test_a_missing_checksum_package_is_named(raw, monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(BackendUnavailableError, match="xxhash"):
        written(("x", torch.zeros(4), raw))


def test_one_reader_may_be_used_in_processes_that_were_forked_later(tmp_path):
    """As workers of a DataLoader do; all share the position of the open file."""
    num_chunks, length = 32, 1 << 12
    values = torch.arange(num_chunks, dtype=torch.float32).repeat_interleave(length)
    with Writer(tmp_path / "a.tsr") as writer:
        writer.add("a", values, Raw(), chunk_values=length)
    with Reader(tmp_path / "a.tsr") as reader:

        def read_all() -> None:
            for k in [*range(num_chunks)] * 20:
                assert float(reader.read_chunk("a", k)[-1]) == k

        workers = [get_context("fork").Process(target=read_all) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]


def test_a_closed_reader_reads_no_file_that_got_its_number(tmp_path):
    with Writer(tmp_path / "a.tsr") as writer:
        writer.add("a", torch.ones(9), Raw())
    with Reader(tmp_path / "a.tsr") as reader:
        pass
    with (tmp_path / "a.tsr").open("rb"), pytest.raises(ValueError, match="closed"):
        reader.read("a")
