"""New tensors to decode into, which share one memory."""

from __future__ import annotations

import pytest
import torch

from tersor import TensorInfo
from tersor.container.new_tensors import NewTensors

META = torch.device("meta")


def infos_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[TensorInfo]:
    return [TensorInfo(shape, dtype) for shape in shapes]


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 8), (2, 8), (0, 8), (1, 8)],
        [(4, 8), (2, 4), (3, 2, 2), (5,)],
        [(3, 4), (7, 4)],
        [(5, 3)],
        [()],
    ],
)
def test_each_has_its_shape_and_lies_where_it_is_said_to(shapes):
    new = NewTensors.of(infos_of(*shapes), META)
    memory = torch.zeros(new.shape)
    made = new.tensors(memory)
    assert [tuple(x.shape) for x in made] == shapes
    pairs = zip(made, new.pointers(memory), strict=True)
    assert all(x.data_ptr() == pointer for x, pointer in pairs if x.numel())
    for k, x in enumerate(made):
        x.fill_(k)
    assert all((x == k).all() for k, x in enumerate(made))
    assert all(x.is_contiguous() for x in made)


def test_writing_to_one_does_not_concern_autograd_of_another():
    new = NewTensors.of(infos_of((4, 8), (4, 8)), META)
    first, second = new.tensors(torch.ones(new.shape))
    weight = torch.ones(4, 8, requires_grad=True)
    loss = (weight * first).sum()
    second.add_(1)
    loss.backward()
    assert torch.equal(weight.grad, torch.ones(4, 8))


def test_what_would_not_start_at_16_bytes_is_not_made_so():
    assert NewTensors.of(infos_of((3, 3), (4, 4)), META) is None
    assert NewTensors.of(infos_of((4, 4), (3, 3)), META) is not None


def test_dtypes_that_differ_are_not_made_so():
    infos = [*infos_of((4, 4)), *infos_of((4, 4), dtype=torch.float16)]
    assert NewTensors.of(infos, META) is None
