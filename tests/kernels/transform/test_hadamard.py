"""The Hadamard transform, checked against the matrix."""

from __future__ import annotations

import torch

from tersor.kernels.transform import hadamard


def sylvester(order: int) -> torch.Tensor:
    """Entry (i, j) is -1 to the number of ones that i and j share."""
    rows = [[(-1) ** (i & j).bit_count() for j in range(order)] for i in range(order)]
    return torch.tensor(rows, dtype=torch.float64)


def test_whole_numbers_are_transformed_exactly(generator):
    x = torch.randint(-1000, 1000, (64, 32), generator=generator).float()
    found = hadamard(x.view(-1))
    assert torch.equal(found.view(64, 32).double(), x.double() @ sylvester(32))
    assert torch.equal(hadamard(found, inverse=True), x.view(-1))


def test_floats_are_within_rounding_of_the_matrix(generator):
    x = torch.randn(64, 32, generator=generator)
    exact = x.double() @ sylvester(32)
    # five additions round by at most 2**-24 of a partial sum each, none above the sum of all
    allowed = 5 * 2.0**-24 * x.double().abs().sum(1, keepdim=True) * (1 + 1e-6)
    assert bool(((hadamard(x.view(-1)).view(64, 32).double() - exact).abs() <= allowed).all())


def test_nan_stays_in_its_block():
    x = torch.zeros(96)
    x[40] = float("nan")
    found = hadamard(x).view(3, 32)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()
