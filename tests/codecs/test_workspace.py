"""Working memory is limited by working in pieces, which have the same bytes where the format allows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import tersor
from tersor import Bound, SpecError, TensorInfo, create, decode_batch, encode_batch
from tersor.codecs import workspace
from tersor.codecs.workspace import list_pieces
from tersor.kernels.runtime import replay
from tersor.kernels.runtime.op import use_backend
from tersor.kernels.runtime.sparing import is_sparing, sparing_memory
from tests.allocations import DeviceAllocations
from tests.checks import assert_bits_equal, assert_within_bound
from tests.triton_device import INTERPRETED

MIB = 2**20
CODECS = ["flat", "delta", "ans", "huffman", "rows", "group4", "half", "auto"]


def codec_of(name: str) -> tersor.Codec:
    options = {} if name in ("group4", "half") else {"bound": Bound.relative(1e-3)}
    return create(name, **options)


def test_a_tensor_within_the_limit_has_the_bytes_of_one_without_a_limit():
    x = torch.randn(1000, 20)
    packed = tersor.compress(x, codec=codec_of("delta"), max_workspace_nbytes=10 * MIB)
    expected = tersor.compress(x, codec=codec_of("delta"))
    assert packed.chunk_values == expected.chunk_values
    assert_bits_equal(packed.payloads[0], expected.payloads[0])


@pytest.mark.parametrize("name", ["flat", "ans", "huffman"])
def test_a_larger_tensor_is_cut_into_chunks_that_keep_to_it(name):
    x, limit_nbytes = torch.randn(300, 1000), 16 * MIB
    codec = codec_of(name)
    per_value = codec.workspace_nbytes(1, x.dtype)
    packed = tersor.compress(x, codec=codec, max_workspace_nbytes=limit_nbytes)
    if name != "huffman":
        assert len(packed.payloads) == 1
        limit_nbytes = 8 * MIB + 2**18 + per_value * 70_000
        packed = tersor.compress(x, codec=codec, max_workspace_nbytes=limit_nbytes)
    assert len(packed.payloads) > 1
    assert 8 * MIB + 2**18 + per_value * packed.chunk_values <= limit_nbytes
    decoded = tersor.decompress(packed, max_workspace_nbytes=limit_nbytes)
    # relative to the range of the whole tensor, not of a chunk
    assert packed.error_bound == codec.resolve_bound(x)
    assert_within_bound(x, decoded, packed.error_bound)
    assert_bits_equal(decoded, tersor.decompress(packed))


def test_ans_says_that_it_takes_less_than_a_third_of_float32_values():
    codec = create("ans", bound=Bound.relative(1e-3))
    assert 3 * codec.workspace_nbytes(2**20, torch.float32) < 4 * 2**20


def test_auto_tries_no_more_than_a_chunk():
    codec, x = codec_of("auto"), torch.ones(300_000)
    limit_nbytes = 8 * MIB + 2**18 + 70_000 * codec.workspace_nbytes(1, x.dtype)
    packed = tersor.compress(x, codec=codec, max_workspace_nbytes=limit_nbytes)
    assert packed.chunk_values == 70_000
    assert "on a sample of 70000 values" in packed.reason


@pytest.mark.parametrize("name", CODECS)
def test_too_small_a_limit_is_refused_with_the_least_that_is_taken(name):
    x = torch.randn(600, 500)
    with pytest.raises(
        SpecError, match=r"max_workspace_nbytes must be at least [\d,]+ for"
    ) as found:
        tersor.compress(x, codec=codec_of(name), max_workspace_nbytes=1000)
    least = int(str(found.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    packed = tersor.compress(x, codec=codec_of(name), max_workspace_nbytes=least)
    assert tersor.decompress(packed, max_workspace_nbytes=least).shape == x.shape
    with pytest.raises(SpecError, match=f"{least:,}"):
        tersor.compress(x, codec=codec_of(name), max_workspace_nbytes=least - 1)


def test_a_copy_of_a_strided_tensor_counts():
    x = torch.randn(500, 600)
    limit_nbytes = 8 * MIB + 2**18 + 2 * 300_000
    tersor.compress(x, codec=codec_of("flat"), max_workspace_nbytes=limit_nbytes)
    with pytest.raises(SpecError, match="at least"):
        tersor.compress(x.t(), codec=codec_of("flat"), max_workspace_nbytes=limit_nbytes)


def test_a_payload_that_is_one_chunk_cannot_be_decoded_in_less():
    packed = tersor.compress(torch.randn(300_000), codec=codec_of("huffman"))
    with pytest.raises(SpecError, match=r"at least .* for the largest chunk of this tensor"):
        tersor.decompress(packed, max_workspace_nbytes=16 * MIB)


def test_chunks_are_decoded_into_a_strided_output_too():
    x = torch.randn(300, 1000)
    packed = tersor.compress(x, codec=codec_of("huffman"), max_workspace_nbytes=16 * MIB)
    assert len(packed.payloads) > 1
    out = torch.zeros(1000, 300).t()
    assert tersor.decompress(packed, out, max_workspace_nbytes=18 * MIB) is out
    assert_bits_equal(out.contiguous(), tersor.decompress(packed))


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(value):
    x, codec = torch.randn(10), codec_of("flat")
    with pytest.raises(SpecError, match="whole number of bytes"):
        tersor.compress(x, codec=codec, max_workspace_nbytes=value)
    with pytest.raises(SpecError, match="whole number of bytes"):
        encode_batch([x], [codec], max_workspace_nbytes=value)
    with pytest.raises(SpecError, match="whole number of bytes"):
        tersor.decompress(tersor.compress(x, codec=codec), max_workspace_nbytes=value)


def test_a_list_is_encoded_in_calls_that_keep_to_it(monkeypatch):
    monkeypatch.setattr(workspace, "_CALL_NBYTES", 1000)
    monkeypatch.setattr(workspace, "_TENSOR_NBYTES", 10)
    xs = [torch.randn(n) for n in (100, 100, 300, 50, 0, 200)]
    codecs = [create("flat", bound=Bound.absolute(0.01))] * 6
    # 6 bytes a value, 10 a tensor
    pieces = list_pieces(codecs, xs, 1000 + 1820)
    assert pieces == [range(2), range(2, 3), range(3, 6)]
    assert list_pieces(codecs, xs, 10**9) == [range(6)]
    batch = encode_batch(xs, codecs, max_workspace_nbytes=1000 + 1820)
    expected = encode_batch(xs, codecs)
    for payload, same in zip(batch.payloads(), expected.payloads(), strict=True):
        assert_bits_equal(payload, same)
    assert_bits_equal(batch.buffer, expected.buffer)
    for y, x in zip(decode_batch(batch, list(map(TensorInfo.of, xs)), codecs), xs, strict=True):
        assert_within_bound(x, y, 0.01)
    with pytest.raises(SpecError, match="at least 2,810 for the largest of these tensors"):
        encode_batch(xs, codecs, max_workspace_nbytes=2809)


STATED = {
    "flat": {"bound": Bound.relative(1e-3)},
    "delta": {"bound": Bound.relative(1e-3), "lorenzo": 3},
    "ans": {"bound": Bound.relative(1e-2)},
    "ans-second-pass": {"bound": Bound.relative(1e-6)},
    "ans-lorenzo": {"bound": Bound.relative(1e-6), "lorenzo": 1},
    "ans-static": {"bound": Bound.relative(1e-2), "frequencies": (16,) * 256, "lorenzo": 1},
    "rows-ans": {"bound": Bound.relative(1e-6), "entropy": "ans"},
    "huffman": {"bound": Bound.relative(1e-6)},
    "rms": {},
    "half": {},
    "fp8": {},
    "group4": {"hadamard": True},
    "mask4": {},
    "group2": {},
    "lossless": {},
}


def least_favourable(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return inputs with as many codes, and as many outliers, as a tensor has that is not stored exactly."""
    x = torch.rand(2**15, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    outliers = x.clone()
    outliers[::4] = torch.nan
    near = x * 0.01
    near[::5] = x[::5]
    return {"wide": x.to(dtype), "outliers": outliers.to(dtype), "escapes": near.to(dtype)}


def taken_nbytes(codec, x: torch.Tensor) -> tuple[int, int]:
    """Return the memory that encoding and decoding take at their peaks, beyond what they return."""
    with use_backend("gpu"), sparing_memory():
        with DeviceAllocations() as encoding:
            packed = codec.pack(x)
            result_nbytes = sum(one.untyped_storage().nbytes() for one in packed.payloads)
        with DeviceAllocations() as decoding:
            y = codec.unpack(packed)
    return encoding.peak_nbytes - result_nbytes, decoding.peak_nbytes - y.nbytes


def test_allocations_are_counted_as_long_as_they_are_held():
    with use_backend("gpu"), DeviceAllocations() as found:
        x = torch.empty(1000)
        y = x.view(10, 100)[3:]
        assert (found.nbytes, found.peak_nbytes) == (4000, 4000)
        z = y + 1
        assert found.nbytes == 4000 + z.nbytes
        del x, y
        assert (found.nbytes, found.peak_nbytes) == (z.nbytes, 4000 + z.nbytes)
    with DeviceAllocations() as found:
        torch.empty(1000)
    assert found.peak_nbytes == 0


@pytest.mark.skipif(not INTERPRETED, reason="the allocator of a GPU is asked below")
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("name", STATED)
def test_kernels_take_no_more_than_their_codec_says(name, dtype):
    codec = create(name.split("-")[0], **STATED[name])
    for kind, values in least_favourable(dtype).items():
        x = values.view(8, -1, 64)
        # what a call and a tensor take, however small: 8 MiB are allowed, far less is taken
        allowed_nbytes = codec.workspace_nbytes(x.numel(), dtype) + 384 * 1024
        assert max(taken_nbytes(codec, x)) <= allowed_nbytes, kind


@pytest.mark.skipif(not INTERPRETED, reason="needs CPU tensors on either backend")
@pytest.mark.parametrize("group", [96, 8192])
def test_a_transform_that_is_not_fused_stores_its_values(group):
    codec = create("group4", group=group, hadamard=True)
    # large, so that what a call takes does not hide bytes per value
    x = torch.randn(2**20)
    stated_nbytes = codec.workspace_nbytes(x.numel(), x.dtype)
    for found_nbytes in taken_nbytes(codec, x):
        assert x.numel() < found_nbytes <= stated_nbytes + 384 * 1024


@pytest.mark.skipif(not INTERPRETED, reason="needs CPU tensors on either backend")
@pytest.mark.parametrize("name", ["ans-second-pass", "ans-lorenzo", "rows-ans"])
def test_what_is_composed_on_the_host_has_the_same_bytes(name):
    codec = create(name.split("-")[0], **STATED[name])
    for kind, values in least_favourable(torch.float32).items():
        x = values[:8192].view(-1, 64)
        expected = codec.pack(x)
        with use_backend("gpu"), sparing_memory():
            found = codec.pack(x)
            y = codec.unpack(found)
            batch = encode_batch([x, x], [codec] * 2)
        assert_bits_equal(found.payloads[0], expected.payloads[0])
        assert_bits_equal(y, codec.unpack(expected))
        with use_backend("gpu"), DeviceAllocations() as allocations:
            payloads = batch.payloads()
        assert allocations.peak_nbytes <= 5 * x.nbytes + 384 * 1024, kind
        for payload in payloads:
            assert_bits_equal(payload, expected.payloads[0])


def test_no_graph_is_captured_where_memory_is_short(monkeypatch):
    runs: list[int] = []
    replays, form = replay.Replays(), replay.Form(torch.device("cuda", 0), 5)
    call = replay.Call(form, torch.device("cpu"), (), lambda x: [x])
    with sparing_memory():
        assert is_sparing()
        for _ in range(5):
            replays.note(call, lambda: runs.append(1))
    assert not is_sparing()
    assert not runs


def test_no_graph_is_replayed_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(replay, "_is_current", lambda form: True)
    launched: list[object] = []
    replays, form = replay.Replays(), replay.Form(torch.device("cuda", 0), 5)
    form.replay = replay.Replay((), None, (), None, SimpleNamespace(replay=lambda: None), (), [])
    with sparing_memory():
        assert replays.launch(form, (), launched.append) is None
        assert not launched
        # before CUDA is asked for a stream, which there may not be
        assert replays.form_of("a form", form.device) is None
    replays.launch(form, (), launched.append)
    assert launched == [form.replay]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flat", "ans"])
def test_a_limit_holds_for_calls_of_which_there_is_a_graph(name):
    codec, x = codec_of(name), torch.randn(256, 4096, device="cuda")
    tersor.set_graph_replay(True)
    for _ in range(4):
        packed = tersor.compress(x, codec=codec)
        tersor.decompress(packed)
    held_nbytes, limit_nbytes = tersor.graph_replay_nbytes(), 16 * MIB
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    small = tersor.compress(x, codec=codec, max_workspace_nbytes=limit_nbytes)
    result = sum(payload.untyped_storage().nbytes() for payload in small.payloads)
    assert torch.cuda.max_memory_allocated() - before - result <= limit_nbytes
    assert_bits_equal(
        tersor.decompress(small, max_workspace_nbytes=limit_nbytes), tersor.decompress(packed)
    )
    assert tersor.graph_replay_nbytes() == held_nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [*CODECS, "delta3", "ans-second-pass"])
def test_the_allocator_says_that_the_limit_is_kept(name, dtype):
    codec = codec_of(name.split("-")[0].rstrip("3"))
    if name == "delta3":
        codec = create("delta", bound=Bound.relative(1e-3), lorenzo=3)
    if name == "ans-second-pass":
        codec = create("ans", bound=Bound.relative(1e-6))
    x = torch.randn(64, 256, 256, device="cuda").to(dtype)
    limit_nbytes = 64 * MIB
    for _ in range(4):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        packed = tersor.compress(x, codec=codec, max_workspace_nbytes=limit_nbytes)
        result = sum(payload.untyped_storage().nbytes() for payload in packed.payloads)
        assert torch.cuda.max_memory_allocated() - before - result <= limit_nbytes
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = tersor.decompress(packed, max_workspace_nbytes=limit_nbytes)
        assert torch.cuda.max_memory_allocated() - before - y.nbytes <= limit_nbytes
        del y, packed


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flat", "ans", "rows", "huffman"])
def test_the_allocator_says_that_lists_keep_to_the_limit(name):
    options = {"entropy": "ans"} if name == "rows" else {}
    codecs = [create(name, bound=Bound.relative(1e-2), **options)] * 40
    xs = [torch.randn(100, 64, device="cuda")[torch.randint(100, (4096,))] for _ in range(40)]
    limit_nbytes = 64 * MIB
    for _ in range(4):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        batch = encode_batch(xs, codecs, max_workspace_nbytes=limit_nbytes)
        held = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in batch.payloads()}
        result = sum(storage.nbytes() for storage in held.values())
        assert torch.cuda.max_memory_allocated() - before - result <= limit_nbytes
        del batch, held
