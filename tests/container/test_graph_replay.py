"""Calls that the library replays as CUDA graphs: the same bytes and values, whatever changes between them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

import tersor
from tersor import Bound, TensorInfo, begin_decode_batch, create, decode_batch, encode_batch
from tersor.kernels.batch.encoded_list import settled
from tersor.kernels.runtime.op import use_backend
from tersor.kernels.runtime.replay import REPLAYS
from tests.checks import assert_bits_equal

pytestmark = pytest.mark.gpu

NAMES = ["flat", "ans", "rows", "delta"]
NUM_CALLS = 6
"""Two are made as they are, the third is captured, the others are replayed."""


@pytest.fixture(autouse=True)
def _no_graphs() -> Iterator[None]:
    tersor.set_graph_replay(True)
    yield
    tersor.set_graph_replay(True)


def codec_of(name: str, scale: float = 1.0) -> tersor.Codec:
    options = {"entropy": "ans"} if name == "rows" else {}
    return create(name, bound=Bound.relative(0.02 * scale), **options)


def lookups(seed: int, name: str = "ans", num_rows: int = 700) -> list[torch.Tensor]:
    """Return new tables of repeated rows; one has a value that is not finite.

    But not for ``rows``: its kernels leave such a table to a second pass, and decode it exactly before that.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    tables = []
    for _ in range(4):
        distinct = torch.randn(40, 16, generator=generator)
        tables.append(distinct[torch.randint(40, (num_rows,), generator=generator)])
    if name != "rows":
        tables[2][seed % num_rows, 3] = torch.inf
    return [table.cuda() for table in tables]


def expected_of(xs, codecs) -> tersor.Batch:
    with use_backend("cpu"):
        return encode_batch([x.cpu() for x in xs], codecs)


def check(batch, xs, codecs) -> None:
    expected = expected_of(xs, codecs)
    assert_bits_equal(batch.trimmed().buffer.cpu(), expected.buffer)
    infos = [TensorInfo.of(x) for x in xs]
    with use_backend("cpu"):
        values = decode_batch(expected, infos, codecs)
    for decoded in (
        decode_batch(batch, infos, codecs),
        decode_batch(batch.trimmed(), infos, codecs),
    ):
        for y, value in zip(decoded, values, strict=True):
            assert_bits_equal(y.cpu(), value)


@pytest.mark.parametrize("name", NAMES)
def test_batches_have_their_own_bytes_when_tensors_and_bounds_change(name):
    made = []
    for k in range(NUM_CALLS):
        # all tensors live on: every call has new addresses
        xs, codecs = lookups(k, name), [codec_of(name, 1 + k + j) for j in range(4)]
        made.append((encode_batch(xs, codecs), xs, codecs))
    assert tersor.graph_replay_nbytes() > 0
    for one in made:
        check(*one)


@pytest.mark.parametrize("name", NAMES)
def test_one_tensor_is_compressed_to_its_own_bytes(name):
    xs = [lookups(k, name, num_rows=3000)[0] for k in range(NUM_CALLS)]
    codec = codec_of(name)
    made = [tersor.compress(x, codec=codec) for x in xs]
    assert tersor.graph_replay_nbytes() > 0
    for x, packed in zip(xs, made, strict=True):
        with use_backend("cpu"):
            expected = tersor.compress(x.cpu(), codec=codec)
        assert_bits_equal(packed.payloads[0].cpu(), expected.payloads[0])
        assert packed.error_bound == expected.error_bound
        assert_bits_equal(tersor.decompress(packed).cpu(), tersor.decompress(expected))


@pytest.mark.parametrize("name", ["flat", "delta"])
def test_payloads_can_be_written_after_later_calls(name, monkeypatch):
    # larger ones are measured by a replay, and written later
    monkeypatch.setattr("tersor.kernels.batch.gpu.replay.MOST_RESULT_NBYTES", 1000)
    xs = [lookups(k, name, num_rows=3000)[0] for k in range(NUM_CALLS)]
    codec = codec_of(name)
    unsettled = [codec.encode([x]) for x in xs]
    assert REPLAYS.num_graphs == 1
    assert all(encoded.unwritten is not None for encoded in unsettled)
    for x, encoded in zip(xs, settled(unsettled), strict=True):
        with use_backend("cpu"):
            expected = tersor.compress(x.cpu(), codec=codec)
        assert_bits_equal(encoded.payloads()[0].cpu(), expected.payloads[0])


@pytest.mark.parametrize("name", NAMES)
def test_decoding_follows_new_outputs_and_payloads(name):
    codecs = [codec_of(name)] * 4
    inputs = [lookups(k, name) for k in range(NUM_CALLS)]
    batches = [(encode_batch(xs, codecs), xs) for xs in inputs]
    infos = [TensorInfo.of(x) for x in batches[0][1]]
    assert REPLAYS.num_graphs == 1
    decodings = [begin_decode_batch(batch, infos, codecs) for batch, _ in batches]
    assert REPLAYS.num_graphs == 2
    for (_, xs), decoding in zip(batches, decodings, strict=True):
        with use_backend("cpu"):
            values = decode_batch(expected_of(xs, codecs), infos, codecs)
        for y, value in zip(decoding.check(), values, strict=True):
            assert_bits_equal(y.cpu(), value)


@pytest.mark.parametrize("name", NAMES)
def test_frames_and_outputs_that_change_are_decoded_with_their_own_values(name):
    codecs = [codec_of(name)] * 4
    batches = [(encode_batch(xs, codecs), xs) for xs in (lookups(k, name) for k in range(3))]
    infos = [TensorInfo.of(x) for x in batches[0][1]]
    outs = [[torch.empty_like(x) for x in batches[0][1]] for _ in range(2)]
    for k in range(4 * NUM_CALLS):
        batch, xs = batches[k % 3]
        with use_backend("cpu"):
            values = decode_batch(expected_of(xs, codecs), infos, codecs)
        out = None if k % 4 < 2 else outs[k % 2]
        # infos that are equal but not the same
        found = decode_batch(batch, [TensorInfo.of(x) for x in xs], codecs, out)
        for y, value in zip(found, values, strict=True):
            assert_bits_equal(y.cpu(), value)


def test_threads_that_wait_read_their_own_status():
    codecs = [codec_of("ans")] * 4
    good, bad = encode_batch(lookups(0), codecs), encode_batch(lookups(1), codecs)
    infos = [TensorInfo.of(x) for x in lookups(0)]
    for _ in range(NUM_CALLS):
        decode_batch(good, infos, codecs)
    bad.buffer[:4] = 255
    torch.cuda.synchronize()
    wrong: list[bool] = []

    def work(batch: tersor.Batch, is_good: bool) -> None:
        for _ in range(50):
            try:
                decode_batch(batch, infos, codecs)
                wrong.append(not is_good)
            except tersor.CorruptDataError:
                wrong.append(is_good)

    workers = [threading.Thread(target=work, args=one) for one in ((good, True), (bad, False)) * 2]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == [False] * 200


@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_payload_is_refused_by_a_replay(name):
    codecs = [codec_of(name)] * 4
    xs = lookups(0, name)
    infos = [TensorInfo.of(x) for x in xs]
    batch = encode_batch(xs, codecs)
    for _ in range(NUM_CALLS):
        decode_batch(batch, infos, codecs)
    batch.buffer[:4] = 255
    with pytest.raises(tersor.CorruptDataError):
        decode_batch(batch, infos, codecs)


@pytest.mark.parametrize("name", ["flat", "ans"])
def test_large_tensors_are_decoded_by_replays_too(name):
    xs = [torch.randn(1 << 18, device="cuda") for _ in range(NUM_CALLS)]
    packs = [tersor.compress(x, Bound.relative(1e-3), codec=name) for x in xs]
    before = REPLAYS.num_graphs
    for x, packed in zip(xs, packs, strict=True):
        error = (tersor.decompress(packed).double() - x.double()).abs().max()
        assert error <= packed.error_bound
    assert REPLAYS.num_graphs == before + 1


@pytest.mark.parametrize("name", ["flat", "delta", "ans"])
def test_a_packed_tensor_holds_little_more_than_its_payload(name):
    codec = codec_of(name, 0.01)
    for k in range(NUM_CALLS):
        packed = tersor.compress(lookups(k, name, num_rows=30000)[0], codec=codec)
        held = sum(payload.untyped_storage().nbytes() for payload in packed.payloads)
        assert held <= 1.07 * packed.nbytes


@pytest.mark.parametrize("name", ["flat", "ans"])
def test_a_graph_holds_no_tensor_of_the_call_it_was_made_of(name, monkeypatch):
    monkeypatch.setattr("tersor.kernels.batch.gpu.replay.MOST_RESULT_NBYTES", 10**6)
    refs = []
    for k in range(NUM_CALLS):
        x = lookups(k, name, num_rows=60000)[0]
        refs.append(weakref.ref(x))
        tersor.compress(x, codec=codec_of(name))
        del x
    gc.collect()
    assert [ref() for ref in refs] == [None] * NUM_CALLS


def test_a_call_captured_in_an_inference_is_replayed_in_a_training():
    codecs = [codec_of("ans")] * 4
    with torch.inference_mode():
        for k in range(NUM_CALLS):
            encode_batch(lookups(k), codecs)
    for k in range(NUM_CALLS):
        xs = lookups(k)
        check(encode_batch(xs, codecs), xs, codecs)


def test_streams_have_graphs_of_their_own():
    codecs = [codec_of("ans")] * 4
    streams = [torch.cuda.Stream() for _ in range(3)]
    made = []
    for k in range(3 * NUM_CALLS):
        stream = streams[k % 3]
        xs = lookups(k)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made.append((encode_batch(xs, codecs), xs))
    torch.cuda.synchronize()
    for batch, xs in made:
        check(batch, xs, codecs)


def test_threads_share_a_graph():
    codecs, made = [codec_of("ans")] * 4, []
    inputs = [lookups(k) for k in range(4 * NUM_CALLS)]

    def work(start: int) -> None:
        made.extend((encode_batch(xs, codecs), xs) for xs in inputs[start::4])

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == len(inputs)
    for batch, xs in made:
        check(batch, xs, codecs)


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_of_the_user_takes_the_kernels_themselves(name):
    xs, codecs = lookups(0, name), [codec_of(name)] * 4
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for k in range(1, NUM_CALLS):
            encode_batch(lookups(k, name), codecs)
        # the only call with these tensors, and a replay
        encode_batch(xs, codecs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = encode_batch(xs, codecs)
    for x, other in zip(xs, lookups(5, name), strict=True):
        x.copy_(other)
    graph.replay()
    check(batch, xs, codecs)


def test_what_is_turned_off_holds_no_memory_and_gives_the_same_bytes():
    codecs = [codec_of("rows")] * 4
    for k in range(NUM_CALLS):
        encode_batch(lookups(k, "rows"), codecs)
    assert tersor.graph_replay_nbytes() > 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    held = tersor.graph_replay_nbytes()
    tersor.set_graph_replay(False)
    assert tersor.graph_replay_nbytes() == 0
    assert torch.cuda.memory_reserved() <= before - held
    for k in range(NUM_CALLS):
        xs = lookups(k, "rows")
        check(encode_batch(xs, codecs), xs, codecs)
    assert tersor.graph_replay_nbytes() == 0


def test_a_limit_of_memory_is_kept():
    codecs = [codec_of("rows")] * 4
    tersor.set_graph_replay(True, max_nbytes=1)
    for k in range(30):
        xs = lookups(k, "rows")
        check(encode_batch(xs, codecs), xs, codecs)
        assert tersor.graph_replay_nbytes() <= 1


def test_large_results_are_not_copied():
    x = torch.randn(12 * 2**20, device="cuda")
    for _ in range(NUM_CALLS):
        tersor.compress(x, Bound.relative(0.02), codec="ans")
    assert tersor.graph_replay_nbytes() == 0


def test_changing_shapes_do_not_let_memory_grow():
    codecs = [codec_of("ans")] * 4
    pool = [torch.randn(64, 16, device="cuda") for _ in range(4)]
    reserved = []
    for k in range(3000):
        xs = [x[: 1 + (k * 7 + j) % 60] for j, x in enumerate(pool)]
        batch = encode_batch(xs, codecs)
        begin_decode_batch(batch, [TensorInfo.of(x) for x in xs], codecs)
        if k % 1000 == 999:
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[-2]
