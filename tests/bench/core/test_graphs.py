"""Which graph is replayed, with a device that only writes down what it is asked."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tersor.bench.core import graphs
from tersor.bench.core.graphs import Replays


class OnCuda:
    """What looks like a tensor there."""

    is_cuda = True

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


@pytest.fixture
def log(monkeypatch):
    seen = []
    stream = SimpleNamespace(wait_stream=lambda other: None)

    class Graph:
        def __init__(self):
            self.number = seen.count("captured")
            seen.append("captured")

        def replay(self):
            seen.append(f"replayed {self.number}")

    cuda = SimpleNamespace(
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda one: nullcontext(),
        CUDAGraph=Graph,
        graph=lambda graph: nullcontext(),
    )
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=cuda))
    return seen


def test_a_list_is_captured_once_and_what_it_returned_comes_back(log):
    replays, tensors = Replays(), [OnCuda(1), OnCuda(2)]
    results = iter(["warm", "captured", "never"])
    for _ in range(3):
        assert replays.call("encode", tensors, lambda: next(results)) == "captured"
    assert log == ["captured", *["replayed 0"] * 3]


@pytest.mark.parametrize("other", [[OnCuda(3), OnCuda(2)], "longer", "elsewhere"])
def test_another_list_has_another_graph(log, other):
    replays, tensors = Replays(), [OnCuda(1), OnCuda(2)]
    known = {"longer": [*tensors, OnCuda(3)], "elsewhere": [tensors[0], OnCuda(4)]}
    for one in (tensors, known.get(other, other) if isinstance(other, str) else other):
        replays.call("encode", one, lambda: None)
    assert log == ["captured", "replayed 0", "captured", "replayed 1"]


def test_a_call_of_another_kind_has_another_graph(log):
    replays, tensors = Replays(), [OnCuda(1)]
    for kind in ("encode", "decode", "encode"):
        replays.call(kind, tensors, lambda: None)
    assert log == ["captured", "replayed 0", "captured", "replayed 1", "replayed 0"]


def test_memory_that_another_tensor_has_now_is_captured_again(log):
    replays = Replays()
    for _ in range(2):
        replays.call("encode", [OnCuda(1)], lambda: None)
        gc.collect()
    assert log.count("captured") == 2


def test_on_the_cpu_calls_are_simply_made():
    results = iter([1, 2])
    replays, tensors = Replays(), [torch.zeros(1)]
    assert [replays.call("encode", tensors, lambda: next(results)) for _ in range(2)] == [1, 2]
