"""Lorenzo prediction, checked against its definition by neighbours."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tersor.kernels.predict import lorenzo_residual, lorenzo_restore

SHAPES = ((7,), (5, 6), (3, 4, 5), (2, 3, 4, 5), (1, 9), (9, 1), (2, 1, 3))


def residual_by_neighbours(codes: torch.Tensor, dims: int) -> list[int]:
    """Subtract the inclusion-exclusion sum of the lower neighbours, modulo 2**32."""
    found = []
    for place in product(*(range(size) for size in codes.shape)):
        total = 0
        for back in product((0, 1), repeat=dims):
            lead = len(place) - dims
            neighbour = (*place[:lead], *(p - b for p, b in zip(place[lead:], back, strict=True)))
            if min(neighbour) >= 0:
                total += (-1) ** sum(back) * int(codes[neighbour])
        found.append((total + 2**31) % 2**32 - 2**31)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("limit", [50, 2**31])
def test_residual_is_the_difference_to_the_neighbours(shape, dims, limit, generator):
    if dims > len(shape):
        return
    codes = torch.randint(-limit, limit, shape, generator=generator).to(torch.int32)
    found = lorenzo_residual(codes.clone(), dims)
    assert found.view(-1).tolist() == residual_by_neighbours(codes, dims)
    assert torch.equal(lorenzo_restore(found.clone(), dims), codes)


def test_a_plane_is_predicted_perfectly():
    plane = (torch.arange(20)[:, None] * 3 + torch.arange(30) * 7).to(torch.int32)
    residual = lorenzo_residual(plane, 2)
    assert int((residual[1:, 1:] != 0).sum()) == 0


def test_leading_axes_do_not_predict(generator):
    codes = torch.randint(-9, 9, (3, 4, 5), generator=generator).to(torch.int32)
    whole = lorenzo_residual(codes.clone(), 2)
    parts = torch.stack([lorenzo_residual(part.clone(), 2) for part in codes])
    assert torch.equal(whole, parts)
