from __future__ import annotations

import math

import pytest
import torch

from tersor.bench.core.roundtrip import worst_error
from tersor.types import bound_share

NAN, INF = math.nan, math.inf


def test_the_worst_error_is_taken_in_float64():
    x, y = torch.tensor([0.0, 1.0]), torch.tensor([2**-30, 1.0])
    assert worst_error(x, y) == 2**-30


def test_special_values_that_come_back_are_no_error():
    x = torch.tensor([NAN, INF, -INF, 0.0])
    assert worst_error(x, x.clone()) == 0.0


@pytest.mark.parametrize(
    ("original", "decoded"),
    [
        (torch.tensor([NAN]), torch.tensor([0.0])),
        (torch.tensor([0.0]), torch.tensor([NAN])),
        (torch.tensor([INF]), torch.tensor([-INF])),
        (torch.tensor([INF]), torch.tensor([1.0])),
        (torch.tensor([INF]), torch.tensor([NAN])),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    ],
)
def test_a_lost_or_made_special_value_is_an_infinite_error(original, decoded):
    assert worst_error(original, decoded) == INF


def test_an_error_in_a_later_block_is_found():
    x = torch.zeros(3 * 2**20)
    y = x.clone()
    y[-1] = 0.5
    assert worst_error(x, y) == 0.5


def test_a_bound_of_zero_allows_no_error():
    assert bound_share(0.0, 0.0) == 0.0
    assert bound_share(1e-30, 0.0) == INF
    assert bound_share(0.25, 0.5) == 0.5
