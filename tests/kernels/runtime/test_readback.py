"""Numbers from a device arrive in memory that is used again only when it was read."""

from __future__ import annotations

import pytest
import torch

from tersor.kernels.runtime import readback
from tersor.kernels.runtime.readback import Readback
from tests.kernels.simulated_readback import main_memory_as_device


@pytest.fixture
def device(monkeypatch) -> torch.device:
    return main_memory_as_device(monkeypatch)


def received(numbers, device) -> Readback:
    box = Readback.receiving(torch.tensor(numbers, dtype=torch.uint8, device=device))
    box.wait()
    return box


def test_contents_stay_until_the_memory_is_given_back(device):
    first, second = received([1, 2], device), received([3], device)
    assert first.contents.tolist() == [1, 2]
    assert second.contents.tolist() == [3]


def test_memory_is_used_again_once_it_was_read(device):
    first = received([1, 2], device)
    first.reuse()
    again = received([4, 5, 6], device)
    assert again is first
    assert again.contents.tolist() == [4, 5, 6]
    assert received([7], device) is not first


def test_larger_numbers_of_bytes_get_memory_of_their_own(device):
    many = [1] * 5000
    large = received(many, device)
    assert large.contents.tolist() == many
    large.reuse()
    assert received([1], device) is not large


def test_memory_made_in_inference_mode_is_used_outside_of_it(device):
    with torch.inference_mode():
        first = received([1], device)
    first.reuse()
    assert received([2], device).contents.tolist() == [2]


def test_few_are_kept(device):
    boxes = [received([1], device) for _ in range(50)]
    for box in boxes:
        box.reuse()
    assert len(readback._free[None]) < 50


@pytest.mark.gpu
def test_on_a_gpu_the_numbers_of_many_lists_arrive():
    waiting: list[tuple[int, Readback]] = []
    for k in range(100):
        waiting.append((k, Readback.receiving(torch.full((k + 1,), k, device="cuda").byte())))
        while len(waiting) > 3:
            value, box = waiting.pop(0)
            box.wait()
            assert box.has_arrived
            assert box.contents.tolist() == [value] * (value + 1)
            box.reuse()
