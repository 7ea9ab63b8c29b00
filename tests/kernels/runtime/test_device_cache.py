"""Tables on a device are made once per key, and forgotten in the order of their use."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tersor.errors import SpecError
from tersor.kernels.runtime import device_cache as module
from tersor.kernels.runtime.device_cache import cached_on_stream, on_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def counted():
    """A function that keeps, and the keys it was really called with."""
    calls = []

    @cached_on_stream
    def make(*key):
        calls.append(key)
        return object()

    return make, calls


@pytest.fixture
def cuda(monkeypatch):
    """A device with a current stream and a capture that a test sets."""
    state = SimpleNamespace(cuda_stream=1, capturing=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    monkeypatch.setattr(module, "stream_of", lambda device: state.cuda_stream)
    return state


def test_a_key_is_made_once():
    make, calls = counted()
    assert make(1, CPU) is make(1, CPU)
    assert make(2, CPU) is not make(1, CPU)
    assert calls == [(1, CPU), (2, CPU)]


def test_what_was_not_used_longest_is_forgotten(monkeypatch):
    monkeypatch.setattr(module, "_MAX_TABLES", 2)
    make, calls = counted()
    for number in (1, 2, 1, 3, 1, 2):
        make(number, CPU)
    assert [number for number, _ in calls] == [1, 2, 3, 2]


def test_every_stream_has_its_own(cuda):
    make, calls = counted()
    make(1, CUDA)
    cuda.cuda_stream = 2
    make(1, CUDA)
    make(1, CUDA)
    assert len(calls) == 2


def test_a_captured_graph_keeps_the_table_of_its_warm_up(cuda, monkeypatch):
    monkeypatch.setattr(module, "_MAX_TABLES", 1)
    make, calls = counted()
    table = make(1, CUDA)
    cuda.cuda_stream, cuda.capturing = 2, True
    assert make(1, CUDA) is table
    with pytest.raises(SpecError, match="once before"):
        make(2, CUDA)
    cuda.capturing = False
    make(2, CUDA)
    cuda.capturing = True
    assert make(1, CUDA) is table
    assert len(calls) == 2


def test_numbers_arrive_as_they_are():
    assert on_device((3, 1 << 62), CPU).tolist() == [3, 1 << 62]
