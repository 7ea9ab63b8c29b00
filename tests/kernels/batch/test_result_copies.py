"""Copies of what a graph wrote: apart from it, in one launch, and of payloads only what they take."""

from __future__ import annotations

import pytest
import torch

from tersor.kernels.batch.gpu.result_copies import ResultCopies
from tests.triton_device import DEVICE, MARKS

pytestmark = MARKS


def results() -> tuple[torch.Tensor, list[torch.Tensor]]:
    sizes = torch.tensor([3, 0, 17], dtype=torch.int64, device=DEVICE)
    needed = torch.tensor([1, 0, 5], dtype=torch.int32, device=DEVICE)
    plan = torch.arange(12, dtype=torch.int64, device=DEVICE).view(3, 4)
    memory = torch.arange(80, device=DEVICE).to(torch.uint8)
    return sizes, [sizes, needed, plan, memory]


def test_copies_are_apart_from_what_a_replay_writes():
    _, tensors = results()
    copies = ResultCopies(tensors, None)
    expected = [x.clone() for x in tensors]
    for add in (0, 1):
        made = copies.copies()
        for x, copy, value in zip(tensors, made, expected, strict=True):
            assert copy.dtype == x.dtype
            assert torch.equal(copy, value + add)
            assert copy.data_ptr() != x.data_ptr()
        for x in tensors:
            x.add_(1)


def test_of_payloads_only_what_they_take_is_copied(monkeypatch):
    sizes, tensors = results()
    copies = ResultCopies(tensors, sizes)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    *_, memory = copies.copies()
    # 8 + 0 + 24 bytes
    assert torch.equal(memory[:32], tensors[-1][:32])
    assert not memory[32:].any()


@pytest.mark.parametrize("num_words", [1, 1024, 5000, 300_000])
def test_memory_of_any_size_is_copied(num_words):
    memory = torch.randint(-(2**31), 2**31 - 1, (num_words,), dtype=torch.int32, device=DEVICE)
    facts = torch.arange(num_words % 7000, dtype=torch.int32, device=DEVICE)
    first, last = ResultCopies([facts, memory], None).copies()
    assert torch.equal(first, facts)
    assert torch.equal(last, memory)


def test_payloads_alone_are_copied():
    _, (*_, memory) = results()
    (copy,) = ResultCopies([memory], None).copies()
    assert torch.equal(copy, memory)
