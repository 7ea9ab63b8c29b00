"""Lists encoded by recorded launches get the bytes of an ordinary call, and a recording holds no working memory."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from tersor.codecs import registry
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.gpu import rms
from tersor.kernels.batch.gpu.repetition import Repetition
from tersor.kernels.batch.pipeline import Pipeline, RmsLevels
from tersor.kernels.runtime.gpu.launch import Kernel
from tersor.kernels.runtime.op import use_backend

PIPELINE = Pipeline(None, RmsLevels(1.0, None), 0, "ans")
SHAPES = ((5000,), (3, 700), (1,), (256,))


def encode(xs):
    return rms.encode_rms_list(xs, PIPELINE)


def lists(dtype=torch.float32, device="cpu"):
    """Yield lists of one form: ordinary values, a ReLU's output, one value, values that are stored exactly."""
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


def ordinary(xs) -> list[bytes]:
    codec = registry.create("rms")
    with use_backend("reference"):
        return [bytes(codec.pack(x.cpu()).payloads[0].numpy()) for x in xs]


class Operations(TorchDispatchMode):
    """Lists the torch operations inside the block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repetitions_give_the_bytes_of_ordinary_calls(dtype):
    first, *others = lists(dtype)
    repetition = Repetition(first[0], encode)
    for xs in [*others, first, *others]:
        assert payloads(repetition(xs)) == ordinary(xs)


def test_payloads_can_be_written_to_memory_of_their_size():
    first, *others = lists()
    repetition = Repetition(first[0], encode)
    for xs in others:
        exact = payloads(repetition(xs), lambda sizes: sum(-(-size // 8) * 8 for size in sizes))
        assert exact == ordinary(xs)


def test_payloads_that_do_not_fit_are_not_written():
    first, other, *_ = lists()
    repetition = Repetition(first[0], encode)
    payloads(repetition(first))
    first_payload, second_payload, *_ = ordinary(other)
    room = len(first_payload) + len(second_payload) // 2
    memory = repetition(other).memory.written(room)
    assert bytes(memory[: len(first_payload)].numpy()) == first_payload


def test_results_of_earlier_repetitions_stay():
    xs, ys, zs, _ = lists()
    repetition = Repetition(xs[0], encode)
    repetition_of_xs = payloads(repetition(xs))
    assert repetition_of_xs == ordinary(xs)
    found = [repetition(one) for one in (xs, ys, zs)]
    assert [payloads(one) for one in found] == [ordinary(one) for one in (xs, ys, zs)]


def test_a_recorded_call_consists_of_kernels(monkeypatch):
    xs = lists()[0]
    encode(xs).written(1 << 30)
    # the interpreter computes with torch
    monkeypatch.setattr(Kernel, "_launch", lambda *args, **options: None)
    with Operations() as operations:
        encode(xs).written(1 << 30)
    names = operations.names
    # nothing else, such as a fill, would be repeated; tests fill fresh memory once
    assert set(names) <= {"empty", "fill_", "view", "slice", "split_with_sizes", "detach"}
    assert names.count("fill_") == names.count("empty")


def test_a_recording_holds_tables_only():
    xs = lists()[0]
    repetition = Repetition(xs[0], encode)
    payloads(repetition(xs))
    recording = repetition._recorded.recording
    # the working memory is over a byte per value
    assert 0 < recording.held_nbytes < sum(x.numel() for x in xs) // 4
    arguments = [x for phase in recording._phases for launch in phase for x in launch.arguments]
    held = {id(x) for x in recording._held}
    assert all(id(x) in held for x in arguments if isinstance(x, torch.Tensor))


def test_a_planted_fault_is_found(monkeypatch):
    first, other, *_ = lists()
    repetition = Repetition(first[0], encode)
    payloads(repetition(first))
    phases = repetition._recorded.recording._phases
    # the first kernel clears counters
    monkeypatch.setattr(repetition._recorded.recording, "_phases", [phases[0][1:], phases[1]])
    assert payloads(repetition(other)) != ordinary(other)


def test_tensors_that_are_not_aligned_are_not_repeated():
    first, other, *_ = lists()
    repetition = Repetition(first[0], encode)
    payloads(repetition(first))
    shifted = [torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in other]
    assert repetition(shifted) is None


@pytest.mark.gpu
def test_on_a_gpu_steps_that_alternate_between_streams_get_the_same_bytes():
    first, *others = lists(device="cuda")
    repetition = Repetition(first[0], encode)
    for xs in [*others, first] * 3:
        assert payloads(repetition(xs)) == ordinary(xs)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert repetition(first) is None
    payloads(repetition(first))
    held = torch.cuda.memory_allocated()
    for _ in range(20):
        payloads(repetition(first))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held
