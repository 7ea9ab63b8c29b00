"""Which tensors of a list share a call of a codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tersor import Bound, create
from tersor.codecs.stream import Flat
from tersor.container.calls import calls_of


def tensors(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(3, dtype=dtype) for _ in range(count)]


def test_codecs_that_differ_in_their_bound_alone_share_a_call():
    bounds = [Bound.relative(0.1), Bound.absolute(0.2), Bound.relative(0.1), Bound.relative(0.3)]
    codecs = [Flat(bound=bound) for bound in bounds]
    [(codec, places)] = calls_of(codecs, tensors(4), range(4))
    assert (codec, places) == (codecs[0], [0, 1, 2, 3])


def test_dtypes_and_other_options_are_apart():
    bound = Bound.relative(0.1)
    flat, wide, half = Flat(bound=bound), Flat(bound=bound, block=64), create("half")
    codecs = [flat, wide, half, flat, flat, wide]
    xs = [*tensors(3), *tensors(1, torch.float16), *tensors(2)]
    calls = list(calls_of(codecs, xs, range(6)))
    assert [places for _, places in calls] == [[0, 4], [1, 5], [2], [3]]


class MadeAnew(Sequence[Any]):
    """Codecs that nobody else holds, so that one may get the id of another."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, k: Any) -> Any:
        if k >= len(self):
            raise IndexError
        return Flat(bound=Bound.absolute(1.0 + k), block=(32, 64)[k % 2])


def test_codecs_that_are_made_when_asked_for_are_not_taken_for_each_other():
    (_, even), (_, odd) = calls_of(MadeAnew(), tensors(200), range(200))
    assert (even, odd) == (list(range(0, 200, 2)), list(range(1, 200, 2)))


def test_seeds_are_apart():
    codecs = [create("group4", seed=seed) for seed in (None, 1, 1, 2)]
    calls = list(calls_of(codecs, tensors(4), range(4)))
    assert [places for _, places in calls] == [[0], [1, 2], [3]]
