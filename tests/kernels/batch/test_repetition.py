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

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.kernels.batch.encoded_list import EncodedList, settled
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.gpu import ans, lists, rms
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.repetition import Repetition
from tersor.kernels.batch.pipeline import Bounded, Pipeline, RmsLevels
from tersor.kernels.runtime.gpu.launch import Kernel
from tersor.kernels.runtime.op import use_backend
from tersor.kernels.runtime.sparing import sparing_memory
from tersor.types import Bound
from tests.codecs.variants import NARROW_TABLE

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
    repetition = Repetition(all_lists[0][0], case.encode)
    for xs in all_lists:
        repeated, once = repetition(xs), case.encode(xs)
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
    repetition = Repetition(first[0], RMS.encode)
    for xs in others:
        exact = payloads(repetition(xs), lambda sizes: sum(-(-size // 8) * 8 for size in sizes))
        assert exact == ordinary(xs)


def test_payloads_that_do_not_fit_are_not_written():
    first, other, *_ = drawn_lists()
    repetition = Repetition(first[0], RMS.encode)
    payloads(repetition(first))
    first_payload, second_payload, *_ = ordinary(other)
    room = len(first_payload) + len(second_payload) // 2
    memory = repetition(other).memory.written(room)
    assert bytes(memory[: len(first_payload)].numpy()) == first_payload


def test_results_of_earlier_repetitions_stay():
    xs, ys, zs, _ = drawn_lists()
    repetition = Repetition(xs[0], RMS.encode)
    repetition_of_xs = payloads(repetition(xs))
    assert repetition_of_xs == ordinary(xs)
    found = [repetition(one) for one in (xs, ys, zs)]
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
    repetition = Repetition(xs[0], case.encode)
    payloads(repetition(xs))
    recording = repetition._recorded.recording
    # of the working memory, over a byte per value, it holds nothing; static tables take 9 KiB
    most = sum(x.numel() for x in xs) // 2
    assert 0 < recording.held_nbytes < most + (16384 if case is CASES["ans-static"] else 0)
    arguments = [x for phase in recording._phases for launch in phase for x in launch.arguments]
    held = {id(x) for x in recording._held}
    assert all(id(x) in held for x in arguments if isinstance(x, Tensor) and x.numel())
    before = [x.clone() for x in recording._held]
    payloads(repetition(other))
    assert all(torch.equal(x, was) for x, was in zip(recording._held, before, strict=True))


def test_a_planted_fault_is_found(monkeypatch):
    first, other, *_ = drawn_lists()
    repetition = Repetition(first[0], RMS.encode)
    payloads(repetition(first))
    phases = repetition._recorded.recording._phases
    # the first kernel clears counters
    monkeypatch.setattr(repetition._recorded.recording, "_phases", [phases[0][1:], phases[1]])
    assert payloads(repetition(other)) != ordinary(other)


def test_nothing_is_repeated_where_memory_is_short():
    first, *_ = drawn_lists()
    repetition = Repetition(first[0], RMS.encode)
    with sparing_memory():
        assert repetition(first) is None


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


def test_tensors_that_are_not_aligned_are_not_repeated():
    first, other, *_ = drawn_lists()
    repetition = Repetition(first[0], RMS.encode)
    payloads(repetition(first))
    shifted = [torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in other]
    assert repetition(shifted) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rms", "ans-relative", "ans-wide"])
def test_on_a_gpu_steps_that_alternate_between_streams_get_the_same_bytes(name):
    case = CASES[name]
    first, *others = drawn_lists(device="cuda")
    check_repetitions(case, [*others, first] * 3)
    repetition = Repetition(first[0], case.encode)
    payloads(repetition(first))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert repetition(first) is None
    payloads(repetition(first))
    held = torch.cuda.memory_allocated()
    for _ in range(20):
        payloads(repetition(first))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held


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
