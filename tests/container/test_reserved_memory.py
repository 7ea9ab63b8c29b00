"""Calls on ever other shapes leave the memory that torch reserves as it is."""

from __future__ import annotations

import random

import pytest
import torch

import tersor
from tersor import Bound

pytestmark = pytest.mark.gpu
NUM_CALLS, NUM_FIRST = 10_000, 3_000
SEGMENT_NBYTES = 20 * 2**20
"""What torch's allocator reserves at once for tensors of 1 to 10 MiB: fragments may cost one more."""
BOUND = Bound.relative(0.01)
CODECS = ("flat", "delta", "ans", "rows", "auto")


def call(draw: random.Random, memory: torch.Tensor) -> None:
    """Compress one tensor, or encode and decode a list, of a shape that is drawn."""
    rows, width = draw.randint(1, 2000), draw.choice((1, 16, 64, 100))
    x = memory[: rows * width].view(rows, width)
    if draw.random() < 0.5:
        tersor.decompress(tersor.compress(x, BOUND, codec=draw.choice(CODECS)))
        return
    xs = [x[: draw.randint(1, rows)] for _ in range(draw.randint(1, 8))]
    codecs = [tersor.create(draw.choice(CODECS[:3]), bound=BOUND)] * len(xs)
    tersor.decode_batch(
        tersor.encode_batch(xs, codecs), [tersor.TensorInfo.of(x) for x in xs], codecs
    )


@pytest.mark.timeout(300)
def test_ten_thousand_calls_of_changing_shapes_reserve_no_more_memory():
    draw = random.Random(1)
    memory = torch.randn(200_000, generator=torch.Generator().manual_seed(1)).cuda()
    for k in range(NUM_CALLS):
        call(draw, memory)
        if k + 1 == NUM_FIRST:
            first_nbytes = torch.cuda.memory_reserved()
    assert torch.cuda.memory_reserved() <= first_nbytes + SEGMENT_NBYTES
