"""Many tensors in one buffer, each with its own codec and bound."""

from __future__ import annotations

import pytest
import torch

from tersor import Batch, Bound, TensorInfo, create, decode_batch, encode_batch, use_backend
from tersor.container import begin_decode_batch
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.runtime import threads
from tests import data
from tests.checks import assert_bits_equal, assert_rejects, assert_within_bound
from tests.codecs.variants import PAYLOADS, build


def everything() -> tuple[list[torch.Tensor], list]:
    """One tensor per codec, shapes and bounds all different."""
    names = list(data.FACTORIES)
    tensors, codecs = [], []
    for number, variant in enumerate(PAYLOADS):
        dtype = (torch.float32, torch.float64, torch.float16, torch.bfloat16)[number % 4]
        tensors.append(data.make(names[number % len(names)], dtype))
        bound = (
            Bound.relative(10.0 ** -(number % 5)) if number % 2 else Bound.absolute(number / 100)
        )
        codecs.append(build(variant, bound))
    return tensors, codecs


def infos_of(tensors: list[torch.Tensor]) -> list[TensorInfo]:
    return [TensorInfo.of(x) for x in tensors]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_each_tensor_keeps_its_codec_and_bound(num_threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    monkeypatch.setattr(threads, "_MIN_NBYTES_PER_THREAD", 1)
    tensors, codecs = everything()
    batch = encode_batch(tensors, codecs)
    assert batch.sizes.shape == (len(tensors),)
    assert batch.offsets[-1] == batch.buffer.numel()
    found = decode_batch(batch, infos_of(tensors), codecs)
    for x, y, codec, start, size in zip(
        tensors, found, codecs, batch.offsets.tolist(), batch.sizes.tolist(), strict=False
    ):
        alone = codec.pack(x)
        assert_bits_equal(batch.buffer[start : start + size], alone.payloads[0])
        assert_bits_equal(y, codec.unpack(alone))
        if alone.error_bound is not None:
            assert_within_bound(x, y, alone.error_bound)


def test_threads_share_the_tensors_between_them(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(threads, "_MIN_NBYTES_PER_THREAD", 1)
    counts = []
    run = threads.run
    monkeypatch.setattr(
        threads, "run", lambda function, parts: counts.append(len(parts)) or run(function, parts)
    )
    tensors = [torch.randn(100) for _ in range(6)]
    codecs = [build("half")] * 6
    batch = encode_batch(tensors, codecs)
    decode_batch(batch, infos_of(tensors), codecs)
    assert counts == [2, 2]


def test_sizes_of_one_large_and_many_small_tensors(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(threads, "_MIN_NBYTES_PER_THREAD", 1)
    for order in (1, -1):
        tensors = [torch.randn(n) for n in (5000, 1, 0, 3, 2, 1, 0)[::order]]
        codecs = [build("flat", Bound.absolute(0.1))] * len(tensors)
        found = decode_batch(encode_batch(tensors, codecs), infos_of(tensors), codecs)
        for x, y in zip(tensors, found, strict=True):
            assert_within_bound(x, y, 0.1)


def test_an_empty_list():
    batch = encode_batch([], [])
    assert batch.buffer.numel() == 0
    assert decode_batch(batch, [], []) == []
    assert decode_batch(batch, [], [], out=[]) == []


def test_out_is_written_whatever_its_strides():
    tensors = [torch.randn(6, 8), torch.randn(5), torch.zeros(0, 3)]
    codecs = [build("rows", Bound.absolute(0.01)), build("half"), build("flat", Bound.absolute(1))]
    batch = encode_batch(tensors, codecs)
    expected = decode_batch(batch, infos_of(tensors), codecs)
    out = [
        torch.full((8, 6), torch.nan).t(),
        torch.full((5, 2), torch.nan)[:, 0],
        torch.zeros(0, 3),
    ]
    found = decode_batch(batch, infos_of(tensors), codecs, out=out)
    for one, other, given in zip(expected, found, out, strict=True):
        assert other is given
        assert_bits_equal(one, given.contiguous())


def test_lists_of_different_lengths_are_refused():
    x, codec = torch.randn(4), build("half")
    assert_rejects(lambda: encode_batch([x, x], [codec]), SpecError)
    batch = encode_batch([x], [codec])
    infos = infos_of([x])
    assert_rejects(lambda: decode_batch(batch, infos, []), SpecError)
    assert_rejects(lambda: decode_batch(batch, infos, [codec], out=[]), SpecError)
    assert_rejects(lambda: decode_batch(batch, [*infos, *infos], [codec, codec]), CorruptDataError)


def test_out_that_does_not_fit_is_refused():
    x, codec = torch.randn(4), build("half")
    batch = encode_batch([x], [codec])
    for out in (torch.zeros(5), torch.zeros(4, dtype=torch.float64), torch.zeros(4, device="meta")):
        assert_rejects(
            lambda out=out: decode_batch(batch, infos_of([x]), [codec], out=[out]), SpecError
        )


def test_tensors_that_cannot_be_encoded_are_refused():
    flat, auto = build("flat", Bound.absolute(0.1)), build("auto", Bound.absolute(0.1))
    assert_rejects(lambda: encode_batch([torch.arange(3)], [flat]), SpecError)
    assert_rejects(lambda: encode_batch([torch.eye(3).to_sparse()], [flat]), SpecError)
    assert_rejects(lambda: encode_batch([torch.randn(3)], [auto]), SpecError)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [8],
        [8, -8, 16],
        [0, 0],
        [2**62, 2**62],
        [2**63 - 1, 9],
        [-1, 25],
    ],
    ids=str,
)
def test_malformed_sizes_are_refused(sizes):
    tensors = [torch.randn(12), torch.randn(12)]
    codecs = [build("half"), build("half")]
    batch = encode_batch(tensors, codecs)
    wrong = Batch(batch.buffer, torch.tensor(sizes, dtype=torch.int64))
    assert_rejects(lambda: decode_batch(wrong, infos_of(tensors), codecs), CorruptDataError)


def test_swapped_and_damaged_payloads_are_refused():
    tensors = [torch.randn(12), torch.randn(40)]
    codecs = [build("half"), build("flat", Bound.absolute(0.1))]
    batch = encode_batch(tensors, codecs)
    swapped = infos_of(tensors[::-1])
    assert_rejects(lambda: decode_batch(batch, swapped, codecs), CorruptDataError)
    cut = Batch(batch.buffer[:-8], batch.sizes)
    assert_rejects(lambda: decode_batch(cut, infos_of(tensors), codecs), CorruptDataError)


def test_absurd_shapes_are_refused_before_anything_is_allocated():
    batch = encode_batch([torch.zeros(10)], [build("flat", Bound.absolute(0.1))])
    info = TensorInfo((2**40,), torch.float32)
    assert_rejects(
        lambda: decode_batch(batch, [info], [build("flat", Bound.absolute(0.1))]), CorruptDataError
    )


def test_on_the_cpu_decoding_is_done_when_it_begins():
    tensors, codecs = everything()
    batch = encode_batch(tensors, codecs)
    decoding = begin_decode_batch(batch, infos_of(tensors), codecs)
    assert decoding.check() is decoding.tensors
    expected = decode_batch(batch, infos_of(tensors), codecs)
    for x, y in zip(expected, decoding.tensors, strict=True):
        assert_bits_equal(y, x)
    assert_bits_equal(batch.trimmed().buffer, batch.buffer)


def test_a_payload_is_decoded_to_no_dtype_that_its_codec_does_not_take():
    codec = create("flat", bound=Bound.relative(0.01))
    batch = encode_batch([torch.randn(100)], [codec])
    with pytest.raises(SpecError, match=r"'flat' cannot encode torch\.int32"):
        decode_batch(batch, [TensorInfo((100,), torch.int32)], [codec])


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_sizes_read_ahead_give_the_same_payloads(backend):
    codecs = [create("ans", bound=Bound.relative(0.01)), create("group4")]
    tensors = [torch.randn(2048), torch.randn(300)]
    with use_backend(backend):
        expected = encode_batch(tensors, codecs).payloads()
        batch = encode_batch(tensors, codecs)
        batch.read_ahead()
        found = batch.payloads()
    assert all(map(torch.equal, found, expected))
    # on the CPU payloads lie apart, as those of a second pass
    assert batch.has_second_pass == (backend == "cpu")
