"""Which tensors of a list go through one call of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tersor import Bound, create
from tersor.codecs.flat import Flat
from tersor.codecs.lists import grouped


def tensors(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(3, dtype=dtype) for _ in range(count)]


def test_equal_engines_share_a_call_and_each_tensor_keeps_its_bound():
    bounds = [Bound.relative(0.1), Bound.absolute(0.2), Bound.relative(0.1), Bound.relative(0.3)]
    codecs = [Flat(bound=bound) for bound in bounds]
    [group], alone = grouped(codecs, tensors(4))
    assert (group.places, group.bounds, alone) == ([0, 1, 2, 3], bounds, [])


def test_dtypes_engines_and_codecs_without_one_are_apart():
    bound = Bound.relative(0.1)
    flat, half, lz4 = Flat(bound=bound), create("half"), create("lz4", bound=bound)
    codecs = [flat, lz4, half, flat, flat, lz4]
    xs = [*tensors(3), *tensors(1, torch.float16), *tensors(2)]
    groups, alone = grouped(codecs, xs)
    assert [group.places for group in groups] == [[0, 4], [2], [3]]
    assert alone == [1, 5]


class MadeAnew(Sequence[Any]):
    """Codecs that nobody else holds, so that one may get the id of another."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, k: Any) -> Any:
        if k >= len(self):
            raise IndexError
        return Flat(bound=Bound.absolute(1.0 + k))


def test_codecs_that_are_made_when_asked_for_are_not_taken_for_each_other():
    [group], _ = grouped(MadeAnew(), tensors(200))
    assert [bound.value for bound in group.bounds] == [1.0 + k for k in range(200)]
