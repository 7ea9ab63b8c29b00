"""Lists encoded by recorded launches get the bytes of an ordinary call, and a recording holds no working memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")
import triton.language as tl

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.kernels.batch.encoded_list import EncodedList, settled
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu import ans, lists, recorded_encoder, rms
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.recorded_encoder import RecordedEncoder
from tersor.kernels.batch.pipeline import Bounded, Pipeline, RmsLevels
from tersor.kernels.runtime.gpu.launch import Kernel, jit_kernel
from tersor.kernels.runtime.gpu.tiles import address_table, tile_table
from tersor.kernels.runtime.op import use_backend
from tersor.kernels.runtime.recording import RECORDINGS, Recording, Recordings, logged
from tersor.kernels.runtime.replay import graph_replay_nbytes, set_graph_replay
from tersor.kernels.runtime.sparing import sparing_memory
from tersor.types import Bound
from tests.codecs.variants import NARROW_TABLE


@jit_kernel(do_not_specialize=["room"])
def narrow_kernel(target, room):
    tl.store(target, room)


SHAPES = ((2100,), (3, 400), (1,), (256,))


class Case(NamedTuple):
    """An encoder whose calls are repeated, and the codec whose payloads it writes."""

    encode: Callable[[Sequence[Tensor]], FusedList]
    codec: Codec


def encode_ans(xs, bound, table=None, **options):
    return ans.encode_ans(xs, [bound] * len(xs), AnsEncoder(frequencies=table), **options)


def ans_case(bound, lorenzo=0, table=None, **options) -> Case:
    codec = registry.create("ans", bound=bound, lorenzo=lorenzo, frequencies=table)
    return Case(partial(encode_ans, bound=bound, table=table, dims=lorenzo, **options), codec)


RMS = Case(
    partial(rms.encode_rms_list, pipeline=Pipeline(None, RmsLevels(1.0, None), 0, "ans")),
    registry.create("rms"),
)
CASES = {
    "rms": RMS,
    "ans": ans_case(Bound.absolute(0.25)),
    "ans-relative": ans_case(Bound.relative(0.03)),
    "ans-wide": ans_case(Bound.relative(1e-3), are_wide=True),
    "ans-axes": ans_case(Bound.relative(0.03), lorenzo=2),
    "ans-static": ans_case(Bound.absolute(0.25), table=tuple(NARROW_TABLE)),
}


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture
def _no_symbols(monkeypatch) -> None:
    """Let ``ans`` compute symbols and words again instead of holding them, as it does for large lists."""
    monkeypatch.setattr(ans, "MOST_HELD_NBYTES", 0)


def drawn_lists(dtype=torch.float32, device="cpu"):
    """Return lists of one form: ordinary values, a ReLU's output, one value, values that are stored exactly."""
    generator = torch.Generator().manual_seed(0)
    drawn = [[torch.randn(s, generator=generator) for s in SHAPES] for _ in range(4)]
    drawn[1] = [x.relu() for x in drawn[1]]
    drawn[2] = [torch.full_like(x, 2.5) for x in drawn[2]]
    drawn[3][1][0, ::3] = float("nan")
    drawn[3][3][:] = float("inf")
    return [[x.to(device, dtype) for x in xs] for xs in drawn]


def payloads(made, nbytes=None) -> list[bytes]:
    memory = made.memory
    sizes = made.sizes.tolist()
    buffer = memory.written(memory.capacity if nbytes is None else nbytes(sizes))
    return [bytes(x.cpu().numpy()) for x in EncodedList(sizes, buffer).payloads()]


def ordinary(xs, codec: Codec = RMS.codec) -> list[bytes]:
    with use_backend("reference"):
        return [bytes(codec.pack(x.cpu()).payloads[0].numpy()) for x in xs]


def recording_of(encoder: RecordedEncoder) -> Recording:
    return RECORDINGS.get(encoder._key()).recording


def facts(made) -> list[list[int] | None]:
    return [None if x is None else x.tolist() for x in (made.needed, made.keys)]


class Operations(TorchDispatchMode):
    """Lists the torch operations inside the block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def check_repetitions(case: Case, all_lists: Sequence[Sequence[Tensor]]) -> None:
    """Repeat a call for lists of one form, and compare results and payloads with those of ordinary calls."""
    encoder = RecordedEncoder(all_lists[0][0].device, case.encode)
    for xs in all_lists:
        repeated, once = encoder(xs), case.encode(xs)
        assert facts(repeated) == facts(once)
        left = [0] * len(xs) if once.needed is None else once.needed.tolist()
        # what a second pass encodes is stored exactly before
        triples = zip(left, payloads(repeated), ordinary(xs, case.codec), strict=True)
        assert all(is_left or found == wanted for is_left, found, wanted in triples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repetitions_give_the_bytes_of_ordinary_calls(case, dtype):
    first, *others = drawn_lists(dtype)
    check_repetitions(case, [*others, first, others[0]])


@pytest.mark.usefixtures("_no_symbols")
@pytest.mark.parametrize("name", ["ans-wide", "ans-axes", "ans-static"])
def test_repetitions_without_symbols_give_the_same_bytes(name):
    first, second, _, last = drawn_lists()
    check_repetitions(CASES[name], [first, second, last])


def test_payloads_can_be_written_to_memory_of_their_size():
    first, *others = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    for xs in others:
        exact = payloads(encoder(xs), lambda sizes: sum(-(-size // 8) * 8 for size in sizes))
        assert exact == ordinary(xs)


def test_payloads_that_do_not_fit_are_not_written(monkeypatch):
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    unwritten = encoder(other).memory
    first_payload, second_payload, *_ = ordinary(other)
    room = len(first_payload) + len(second_payload) // 2
    # memory behind what the kernels get shows what they write there
    guarded = torch.full((unwritten.capacity + room,), 0x5A, dtype=torch.uint8)
    monkeypatch.setattr(recorded_encoder, "_new_memory", lambda nbytes, _: guarded[:nbytes])
    memory = unwritten.written(room)
    assert bytes(memory[: len(first_payload)].numpy()) == first_payload
    rest = guarded[-(-len(first_payload) // 8) * 8 :]
    assert torch.equal(rest, torch.full_like(rest, 0x5A))


def test_a_call_that_returns_no_payload_is_not_recorded():
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    assert not encoder(first).memory.written(0).numel()
    assert RECORDINGS.get(encoder._key()) is None
    assert payloads(encoder(other)) == ordinary(other)
    assert payloads(encoder(first)) == ordinary(first)


@pytest.mark.parametrize("name", ["rms", "ans", "ans-static"])
def test_a_recording_reads_the_addresses_of_its_call_however_late_it_is_written(name):
    case = CASES[name]
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, case.encode)
    made = encoder(first)
    # others push the table of addresses out of the cache
    for k in range(600):
        address_table((k,), first[0].device)
    assert payloads(made) == ordinary(first, case.codec)
    assert payloads(encoder(other)) == ordinary(other, case.codec)


def test_a_size_that_would_be_cut_off_beyond_32_bits_is_not_recorded():
    with logged() as log:
        narrow_kernel[(1,)](torch.zeros(1, dtype=torch.int64), 1)
    with pytest.raises(TypeError, match=r"must be tl\.int64"):
        Recording([log], [], ["room"])


def test_results_of_earlier_repetitions_stay():
    xs, ys, zs, _ = drawn_lists()
    encoder = RecordedEncoder(xs[0].device, RMS.encode)
    assert payloads(encoder(xs)) == ordinary(xs)
    found = [encoder(one) for one in (xs, ys, zs)]
    assert [payloads(one) for one in found] == [ordinary(one) for one in (xs, ys, zs)]


def check_consists_of_kernels(case: Case, monkeypatch) -> None:
    """Fail if an encoding calls an operation of torch that a repetition would leave out, such as a fill."""
    xs = drawn_lists()[0]
    case.encode(xs).written(1 << 30)
    # the interpreter computes with torch
    monkeypatch.setattr(Kernel, "_launch", lambda *args, **options: None)
    with Operations() as operations:
        case.encode(xs).written(1 << 30)
    names = operations.names
    assert set(names) <= {"empty", "fill_", "view", "slice", "split_with_sizes", "detach"}
    # tests fill fresh memory once
    assert names.count("fill_") == names.count("empty")


def test_a_recorded_call_consists_of_kernels(case, monkeypatch):
    check_consists_of_kernels(case, monkeypatch)


@pytest.mark.usefixtures("_no_symbols")
@pytest.mark.parametrize("name", ["ans-wide", "ans-static"])
def test_a_recorded_call_without_symbols_consists_of_kernels(name, monkeypatch):
    check_consists_of_kernels(CASES[name], monkeypatch)


def test_a_recording_holds_tables_only(case):
    xs, other, *_ = drawn_lists()
    encoder = RecordedEncoder(xs[0].device, case.encode)
    payloads(encoder(xs))
    recording = recording_of(encoder)
    # of the working memory, over a byte per value, it holds nothing; static tables take 9 KiB
    most = sum(x.numel() for x in xs) // 2
    assert 0 < recording.held_nbytes < most + (16384 if case is CASES["ans-static"] else 0)
    arguments = [x for phase in recording._phases for launch in phase for x in launch.arguments]
    held = [x for phase in recording._phases for launch in phase for x in launch.held]
    ids = {id(x) for x in held}
    assert all(id(x) in ids for x in arguments if isinstance(x, Tensor) and x.numel())
    before = [x.clone() for x in held]
    payloads(encoder(other))
    assert all(torch.equal(x, was) for x, was in zip(held, before, strict=True))


def test_a_planted_fault_is_found(monkeypatch):
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    phases = recording_of(encoder)._phases
    # the first kernel clears counters
    monkeypatch.setattr(recording_of(encoder), "_phases", [phases[0][1:], phases[1]])
    assert payloads(encoder(other)) != ordinary(other)


def test_tensors_that_are_not_aligned_are_encoded_as_usual():
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    shifted = [torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in other]
    assert payloads(encoder(shifted)) == ordinary(other)
    assert payloads(encoder(other)) == ordinary(other)


def test_nothing_is_repeated_where_memory_is_short(monkeypatch):
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    monkeypatch.setattr(Recording, "repeat", None)
    with sparing_memory():
        assert payloads(encoder(other)) == ordinary(other)


@pytest.fixture
def stream(monkeypatch) -> list[int]:
    """The handle of the current stream, which a test may replace."""
    handles = [1]
    monkeypatch.setattr(recorded_encoder, "_stream", lambda _: handles[0])
    return handles


def test_a_payload_that_is_written_on_another_stream_is_not_recorded(stream):
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    made = encoder(first)
    key, stream[0] = encoder._key(), 2
    assert payloads(made) == ordinary(first)
    assert RECORDINGS.get(key) is None
    assert RECORDINGS.get(encoder._key()) is None
    # each stream has a recording of its own
    payloads(encoder(other))
    assert RECORDINGS.get(encoder._key()) is not None
    assert RECORDINGS.get(key) is None


def test_nothing_is_repeated_while_a_stream_is_captured(monkeypatch):
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    monkeypatch.setattr(Recording, "repeat", None)
    monkeypatch.setattr(recorded_encoder, "_is_being_captured", lambda _: True)
    assert payloads(encoder(other)) == ordinary(other)


def test_a_repetition_keeps_the_tables_of_its_call_in_the_cache():
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    form = tuple(x.numel() for x in first)
    table = tile_table(form, rms._TILE, first[0].device)
    for k in range(600):
        tile_table((1000 + k,), rms._TILE, first[0].device)
    payloads(encoder(other))
    # made again, it would be another object
    assert tile_table(form, rms._TILE, first[0].device) is table


def test_recordings_beyond_the_limit_of_memory_are_dropped_the_least_recently_used_first():
    recordings = Recordings(max_nbytes=100)
    for key in "abc":
        recordings.put(key, key, 30)
    assert recordings.get("a") == "a"
    recordings.put("d", "d", 30)
    assert [recordings.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    assert recordings.nbytes == 90
    recordings.put("large", "large", 101)
    assert recordings.nbytes == 0


def test_turning_replays_off_drops_recordings_and_makes_none(monkeypatch):
    first, other, *_ = drawn_lists()
    encoder = RecordedEncoder(first[0].device, RMS.encode)
    payloads(encoder(first))
    assert graph_replay_nbytes() >= recording_of(encoder).held_nbytes > 0
    try:
        set_graph_replay(False)
        assert graph_replay_nbytes() == 0
        monkeypatch.setattr(Recording, "repeat", None)
        for xs in (first, other, first):
            assert payloads(encoder(xs)) == ordinary(xs)
        assert graph_replay_nbytes() == 0
    finally:
        set_graph_replay(True)


def test_lists_too_large_for_a_graph_are_repeated(monkeypatch):
    monkeypatch.setattr(
        "tersor.kernels.batch.gpu.fused_list.FusedList.can_be_copied", lambda *_: False
    )
    pipeline = Pipeline(None, Bounded(), 0, AnsEncoder())
    first, *others = drawn_lists()
    bounds, codec = [Bound.absolute(0.25)] * len(first), CASES["ans"].codec
    made = lists.encode_streams(first, bounds, pipeline)
    for xs in [*others, first]:
        made = made.again(xs)
        (known,) = settled([made], xs[0].dtype)
        assert [bytes(x.numpy()) for x in known.payloads()] == ordinary(xs, codec)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rms", "ans-relative", "ans-wide"])
def test_on_a_gpu_streams_have_recordings_of_their_own(name):
    case = CASES[name]
    first, *others = drawn_lists(device="cuda")
    check_repetitions(case, [*others, first] * 3)
    encoder = RecordedEncoder(first[0].device, case.encode)
    side = torch.cuda.Stream()
    for _ in range(3):
        wanted = payloads(encoder(first))
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            assert payloads(encoder(first)) == wanted
            side.synchronize()
    assert RECORDINGS.get(encoder._key()) is not None
    with torch.cuda.stream(side):
        assert RECORDINGS.get(encoder._key()) is not None
    held = torch.cuda.memory_allocated()
    for _ in range(20):
        payloads(encoder(first))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held


@pytest.mark.gpu
def test_on_a_gpu_a_payload_larger_than_expected_is_written_again():
    codec = registry.create("ans", bound=Bound.relative(1e-3))
    smooth, noise = torch.linspace(0, 1, 1 << 24, device="cuda"), torch.rand(1 << 24, device="cuda")
    smooth = smooth.square().round(decimals=1)
    for x in (smooth, smooth, smooth, noise, smooth, noise):
        packed = codec.pack(x)
        with use_backend("cpu"):
            wanted = codec.pack(x.cpu()).payloads[0]
        assert torch.equal(packed.payloads[0].cpu(), wanted)


@pytest.mark.gpu
def test_on_a_gpu_a_large_tensor_takes_no_memory_between_repetitions():
    xs = [torch.randn(1 << 24, device="cuda") for _ in range(2)]
    codec = registry.create("ans", bound=Bound.relative(1e-3))
    payload = codec.pack(xs[0]).payloads[0].clone()
    for _ in range(4):
        codec.pack(xs[1])
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        assert torch.equal(codec.pack(xs[0]).payloads[0], payload)
        codec.pack(xs[1])
    torch.cuda.synchronize()
    # a payload each time, of which none is left
    assert torch.cuda.memory_allocated() <= held + (1 << 20)
