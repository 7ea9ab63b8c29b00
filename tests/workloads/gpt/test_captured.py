"""A captured pass takes what it was captured with; no GPU is needed to see what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch

from tersor.workloads.gpt.captured import CapturedGradients


class Stream:
    def wait_stream(self, _: object) -> None:
        """Do nothing."""


class Graph:
    """Counts how often it is replayed."""

    num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


@pytest.fixture(autouse=True)
def _no_gpu() -> Iterator[None]:
    def stream_of(*_: object) -> Stream:
        return Stream()

    def context(*_: object) -> Any:
        return nullcontext()

    with mock.patch.multiple(
        torch.cuda, Stream=stream_of, current_stream=stream_of, stream=context, device=context,
        graph=context, CUDAGraph=Graph,
    ):  # fmt: skip
        yield


@pytest.fixture
def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(3))


@pytest.fixture
def captured(weight) -> CapturedGradients:
    def compute(sequences: torch.Tensor) -> torch.Tensor:
        loss = (weight * sequences).mean()
        loss.backward()
        return loss.detach()

    return CapturedGradients(compute, [weight], torch.arange(6).view(2, 3))


def test_gradients_are_there_after_a_call_alone(captured, weight) -> None:
    assert weight.grad is None
    loss = captured(torch.arange(6).view(2, 3))
    assert captured._graph.num_replays == 1
    assert float(loss) == 2.5
    # of one pass: those that warm the device up leave nothing
    assert weight.grad.tolist() == [0.5, pytest.approx(5 / 6), pytest.approx(7 / 6)]


def test_a_call_passes_its_own_sequences_on(captured) -> None:
    sequences = torch.arange(6, 12).view(2, 3)
    captured(sequences)
    assert torch.equal(captured._sequences, sequences)


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        (torch.zeros(3, 2, dtype=torch.int64), r"not \(3, 2\) of torch.int64 on cpu"),
        (torch.zeros(2, 3), r"not \(2, 3\) of torch.float32 on cpu"),
        (
            torch.zeros(2, 3, dtype=torch.int64, device="meta"),
            r"not \(2, 3\) of torch.int64 on meta",
        ),
    ],
)
def test_other_sequences_are_refused_and_nothing_is_replayed(
    captured, weight, sequences, words
) -> None:
    with pytest.raises(ValueError, match=rf"\(2, 3\) of torch.int64 on cpu, {words}"):
        captured(sequences)
    assert captured._graph.num_replays == 0
    assert weight.grad is None
