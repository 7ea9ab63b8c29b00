"""What a writer or a batch cannot take is refused in one sentence, before a byte is written."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from tersor import (
    Bound,
    TensorInfo,
    begin_decode_batch,
    compress,
    create,
    decode_batch,
    decompress,
    dumps,
    encode_batch,
    loads,
)
from tersor.codecs.packed import Packed
from tersor.container import Batch, Reader, Writer
from tersor.errors import CorruptDataError, SpecError
from tersor.types import MAX_DIMS
from tests.checks import assert_rejects

# the most dimensions and the largest strides that a reader takes
STORABLE = [(1,) * MAX_DIMS, (0, 2**60), (2**30, 0, 2**30)]
NOT_STORABLE = [(1,) * 40, (0, 2**62), (0, 2**61), (2**31, 0, 2**31)]


@pytest.mark.parametrize("shape", STORABLE, ids=str)
def test_the_largest_shapes_come_back(shape):
    assert loads(dumps(compress(torch.zeros(shape), codec="raw"))).info.shape == shape


@pytest.mark.parametrize("shape", NOT_STORABLE, ids=str)
def test_a_shape_that_no_reader_takes_is_not_written(shape, raw):
    x, info = torch.empty(shape), TensorInfo(shape, torch.float32)
    stream = io.BytesIO()
    writer = Writer(stream)
    before = stream.getvalue()
    payload = torch.zeros(max(4, 4 * info.numel), dtype=torch.uint8)
    for call in (
        lambda: compress(x, codec="raw"),
        lambda: writer.add("x", x, raw),
        lambda: writer.add_chunks("x", info, raw, None, [x.reshape(-1)]),
        lambda: writer.add_packed("x", Packed(info, raw, (payload,), 2**22)),
    ):
        assert "reshape" in str(assert_rejects(call, SpecError))
    assert stream.getvalue() == before


def test_values_that_no_memory_holds_are_refused_by_their_size():
    x = torch.zeros(1).expand(2**31, 2**31)
    assert "reshape" in str(assert_rejects(lambda: compress(x, codec="raw"), SpecError))


@pytest.mark.parametrize("shape", [(-1,), (3, -2), (2.0,), (True,), ("3",), (None,), 5, None, "33"])
def test_a_description_with_impossible_sizes_is_refused(shape):
    assert "sizes" in str(assert_rejects(lambda: TensorInfo(shape, torch.float32), SpecError))


@pytest.mark.parametrize("dtype", ["f32", None, np.dtype("f4"), torch.quint8])
def test_a_description_with_another_dtype_is_refused(dtype):
    assert "dtype" in str(assert_rejects(lambda: TensorInfo((3,), dtype), SpecError))


@pytest.mark.parametrize("x", [np.zeros(3, np.float32), [1.0], 1.0, None], ids=repr)
def test_what_is_no_tensor_is_refused_with_the_way_to_one(x, raw):
    writer = Writer(io.BytesIO())
    for call in (
        lambda: writer.add("x", x, raw),
        lambda: raw.pack(x),
        lambda: encode_batch([x], [raw]),
        lambda: encode_batch([x], [raw]).payloads(),
        lambda: TensorInfo.of(x),
    ):
        assert "torch.as_tensor" in str(assert_rejects(call, SpecError))


@pytest.mark.parametrize("data", [b"", b"abc", dumps(compress(torch.ones(3), codec="raw"))])
def test_a_stream_that_stands_behind_its_end_is_refused(data):
    stream = io.BytesIO(data)
    stream.seek(len(data) + 7)
    error = assert_rejects(lambda: Reader(stream), SpecError)
    assert f"stands at {len(data) + 7}" in str(error)
    assert "seek" in str(error)


@pytest.mark.parametrize("codec", ["raw", None, "class"])
def test_what_is_no_codec_is_refused_with_the_way_to_one(codec, raw):
    codec = type(raw) if codec == "class" else codec
    writer, x, info = Writer(io.BytesIO()), torch.zeros(3), TensorInfo((3,), torch.float32)
    batch = encode_batch([x], [raw])
    payloads = encode_batch([x], [raw]).payloads()
    for call in (
        lambda: writer.add("x", x, codec),
        lambda: writer.add_chunks("x", info, codec, None, [x]),
        lambda: encode_batch([x], [codec]),
        lambda: encode_batch([x], [codec]).payloads(),
        lambda: decode_batch(batch, [info], [codec]),
        lambda: decode_batch(Batch.of(payloads), [info], [codec]),
    ):
        assert "tersor.create" in str(assert_rejects(call, SpecError))


def test_chunks_that_are_no_tensors_are_refused(raw):
    writer, info = Writer(io.BytesIO()), TensorInfo((3,), torch.float32)
    error = assert_rejects(
        lambda: writer.add_chunks("x", info, raw, None, [np.zeros(3, np.float32)]), SpecError
    )
    assert "torch.as_tensor" in str(error)


def test_one_codec_for_a_list_is_refused_with_the_way_out(raw):
    error = assert_rejects(lambda: encode_batch([torch.zeros(3)], raw), SpecError)
    assert "[codec] * len(tensors)" in str(error)


@pytest.mark.parametrize("packed", [torch.zeros(3), b"bytes", None], ids=repr)
def test_what_is_not_compressed_is_not_dumped(packed):
    assert "compress" in str(assert_rejects(lambda: dumps(packed), SpecError))


@pytest.mark.parametrize("metadata", [[], ["a"], "a", 5, [("a", "b")]], ids=repr)
def test_metadata_must_be_a_dict(metadata, raw):
    writer, x = Writer(io.BytesIO()), torch.zeros(3)
    packed = compress(x, codec="raw")
    for call in (
        lambda: writer.add("x", x, raw, metadata),
        lambda: writer.add_packed("x", packed, metadata),
    ):
        assert "dict" in str(assert_rejects(call, SpecError))


@pytest.mark.parametrize("error_bound", [1, 10**30, np.float32(0.5), np.float64(0.5), np.int64(2)])
def test_an_error_bound_is_any_real_number(error_bound):
    codec, stream = create("flat", bound=Bound.absolute(0.25)), io.BytesIO()
    info = TensorInfo((4,), torch.float32)
    with Writer(stream) as writer:
        writer.add_chunks("x", info, codec, error_bound, [torch.arange(4.0)])
    stream.seek(0)
    found = Reader(stream).arrays["x"].error_bound
    assert (found, type(found)) == (float(error_bound), float)
    assert Bound.absolute(error_bound).value == float(error_bound)


@pytest.mark.parametrize("error_bound", [True, "0.1", 1j, [0.1], 10**400, np.float32("nan")])
def test_an_error_bound_that_is_no_such_number_is_refused(error_bound, rounding):
    info = TensorInfo((4,), torch.float32)
    writer = Writer(io.BytesIO())
    error = assert_rejects(
        lambda: writer.add_chunks("x", info, rounding, error_bound, [torch.zeros(4)]), SpecError
    )
    assert "error bound" in str(error)


X, CODEC = torch.ones(4, 8), create("half")
NO_LISTS = [None, 3, X, iter([X])]


@pytest.mark.parametrize("given", NO_LISTS, ids=lambda given: type(given).__name__)
def test_what_is_no_list_is_refused(given):
    batch, info = encode_batch([X], [CODEC]), TensorInfo.of(X)
    for call in (
        lambda: encode_batch(given, [CODEC] * 4),
        lambda: encode_batch([X], given),
        lambda: decode_batch(batch, given, [CODEC]),
        lambda: decode_batch(batch, [info], given),
        lambda: begin_decode_batch(batch, given, [CODEC]),
    ):
        assert "give a list of" in str(assert_rejects(call, SpecError))


@pytest.mark.parametrize("out", [3, X, iter([X])], ids=lambda out: type(out).__name__)
def test_outputs_that_are_no_list_are_refused(out):
    batch, info = encode_batch([X], [CODEC]), TensorInfo.of(X)
    for call in (
        lambda: decode_batch(batch, [info], [CODEC], out=out),
        lambda: begin_decode_batch(batch, [info], [CODEC], out=out),
    ):
        assert "give a list of" in str(assert_rejects(call, SpecError))


def test_tensors_in_place_of_descriptions_are_refused():
    error = assert_rejects(
        lambda: decode_batch(encode_batch([X], [CODEC]), [X], [CODEC]), SpecError
    )
    assert "TensorInfo.of" in str(error)


@pytest.mark.parametrize(
    "batch", [None, X, compress(X, codec="raw")], ids=lambda x: type(x).__name__
)
def test_what_is_no_batch_is_refused(batch):
    for call in (
        lambda: decode_batch(batch, [TensorInfo.of(X)], [CODEC]),
        lambda: begin_decode_batch(batch, [TensorInfo.of(X)], [CODEC]),
    ):
        assert "encode_batch" in str(assert_rejects(call, SpecError))


FRAME, SIZES = torch.zeros(16, dtype=torch.uint8), torch.tensor([3, 8])


@pytest.mark.parametrize(
    ("buffer", "sizes"),
    [
        (None, SIZES), (FRAME.float(), SIZES), (FRAME.view(2, 8), SIZES), (b"16", SIZES),
        (FRAME, None), (FRAME, [3, 8]), (FRAME, SIZES.float()), (FRAME, SIZES.view(1, 2)),
        (FRAME, torch.tensor(8)),
    ],
)  # fmt: skip
def test_a_batch_is_made_of_bytes_and_whole_numbers(buffer, sizes):
    assert "of a batch must be" in str(assert_rejects(lambda: Batch(buffer, sizes), SpecError))


@pytest.mark.parametrize("sizes", [[-8], [17], [16, 1], [2**62] * 4], ids=repr)
def test_a_batch_is_not_trimmed_to_sizes_that_it_does_not_hold(sizes):
    batch = Batch(FRAME, torch.tensor(sizes))
    assert "outside of the frame" in str(assert_rejects(batch.trimmed, CorruptDataError))


def test_room_behind_the_payloads_is_trimmed():
    batch = Batch(torch.zeros(40, dtype=torch.uint8), SIZES).trimmed()
    assert batch.buffer.numel() == 16


@pytest.mark.parametrize("name", ["half", "raw"])
def test_an_expanded_output_is_refused(name):
    codec, out = create(name), torch.zeros(1, 8).expand(4, 8)
    packed = codec.pack(X)
    for call in (
        lambda: decompress(packed, out),
        lambda: decode_batch(encode_batch([X], [codec]), [TensorInfo.of(X)], [codec], out=[out]),
    ):
        assert "expanded" in str(assert_rejects(call, SpecError))


def test_an_infinite_ratio_is_refused_for_what_it_is():
    error = assert_rejects(
        lambda: encode_batch([X], [CODEC], expected_ratio=float("inf")), SpecError
    )
    assert "finite" in str(error)


def test_a_list_without_tensors_takes_no_memory():
    assert encode_batch([], [], max_workspace_nbytes=0).buffer.numel() == 0


@pytest.mark.parametrize(
    ("payloads", "chunk_values"),
    [((b"12345678",), 4), ((np.zeros(8, np.uint8),), 4), ((FRAME,), 0), ((FRAME,), -1),
     ((FRAME,), 1.5), ((FRAME,), True)],
)  # fmt: skip
def test_a_packed_tensor_has_payloads_and_a_size_of_chunks(payloads, chunk_values, raw):
    assert_rejects(
        lambda: decompress(Packed(TensorInfo.of(X), raw, payloads, chunk_values)), SpecError
    )


def test_a_packed_tensor_without_payloads_is_refused(raw):
    packed = Packed(TensorInfo.of(X), raw, (), 4)
    for limits in ({}, {"max_workspace_nbytes": 2**24}):
        assert_rejects(lambda limits=limits: decompress(packed, **limits), CorruptDataError)


@pytest.mark.parametrize("packed", [None, FRAME, b"16"], ids=lambda x: type(x).__name__)
def test_a_codec_unpacks_only_what_a_codec_packed(packed, raw):
    assert "pack" in str(assert_rejects(lambda: raw.unpack(packed), SpecError))
