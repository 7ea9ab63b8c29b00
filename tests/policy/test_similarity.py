"""The score of gradients sees noise, bias and length, and its prediction agrees with what noise does."""

from __future__ import annotations

import math

import pytest
import torch

from tersor.errors import SpecError
from tersor.policy import gradient_similarity, predicted_similarity


def test_equal_gradients_score_one() -> None:
    g = torch.randn(100)
    assert gradient_similarity([g], [g.clone()]) == pytest.approx((1.0, 1.0, 1.0, 1.0))


def test_a_wrong_length_lowers_the_score_but_not_the_cosine() -> None:
    g = torch.randn(100)
    found = gradient_similarity([g], [3 * g])
    assert found.score == pytest.approx(0.6)
    assert found.cosine == pytest.approx(1.0)


def test_opposite_gradients_score_zero() -> None:
    g = torch.randn(100)
    assert gradient_similarity([g], [-g]).score == 0.0


def test_small_gradients_are_compared_without_underflow() -> None:
    g = torch.full((10,), 1e-30)
    assert gradient_similarity([g], [3 * g]).score == pytest.approx(0.6)


def test_gradients_of_zeros_are_equal_and_one_of_zeros_is_not() -> None:
    zero, g = torch.zeros(4), torch.ones(4)
    assert gradient_similarity([zero], [zero]).score == 1.0
    assert gradient_similarity([zero], [g]).score == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_scores_zero(value) -> None:
    g = torch.ones(4)
    assert gradient_similarity([g, g], [g, torch.full((4,), value)]).score == 0.5


def test_weights_count_by_their_bytes_in_the_weighted_mean() -> None:
    small, large = torch.ones(1), torch.ones(3)
    found = gradient_similarity([small, large], [small, -large])
    assert (found.score, found.weighted, found.lowest) == (0.5, 0.25, 0.0)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(SpecError):
        gradient_similarity([], [])
    with pytest.raises(SpecError):
        gradient_similarity([torch.ones(2)], [torch.ones(3)])
    with pytest.raises(SpecError):
        predicted_similarity([])


def test_the_closed_form_predicts_what_noise_in_the_input_of_a_linear_layer_does() -> None:
    x, dy = torch.randn(4096, 64), torch.randn(4096, 32)
    # correlated, so that the gradient is more than noise itself
    dy += x[:, :32]
    step = 1.0
    error = (torch.rand_like(x) - 0.5) * step
    exact, lossy = dy.T @ x, dy.T @ (x + error)
    rho = 64 * float(error.square().mean()) * float(dy.square().sum() / exact.square().sum())
    measured, predicted = gradient_similarity([exact], [lossy]), predicted_similarity([rho])
    assert measured.score < 0.9999
    # the energy of the noise is the mean of 2048 squares: its deviation is about 3 % of 1 - score
    assert 1 - predicted.score == pytest.approx(1 - measured.score, rel=0.3)
    assert 1 - predicted.cosine == pytest.approx(1 - measured.cosine, rel=0.3)


def test_noise_that_is_not_finite_scores_zero() -> None:
    assert predicted_similarity([math.nan]).score == 0.0
    assert predicted_similarity([math.inf, 0.0]).score == 0.5


def _sparse(numbers: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a gradient of a table of 10 rows, as a sparse embedding makes it: a row may occur several times."""
    values = torch.randn(len(numbers), 4, dtype=dtype)
    return _rows(numbers, values, 10)


def _rows(numbers: list[int], values: torch.Tensor, num_rows: int) -> torch.Tensor:
    places = torch.tensor([numbers], dtype=torch.int64)
    return torch.sparse_coo_tensor(places, values, (num_rows, 4), check_invariants=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_sparse_gradients_score_as_dense_ones_do(dtype) -> None:
    pairs = [
        (_sparse([1, 3, 3, 7], dtype), _sparse([1, 3, 7, 7], dtype)),
        (_sparse([1, 2], dtype), _sparse([3], dtype)),
        (_sparse([], dtype), _sparse([4], dtype)),
        (_sparse([5, 6], dtype), _sparse([5, 8], dtype).to_dense()),
        (_sparse([5, 6], dtype), 2 * _sparse([5, 6], dtype)),
        (torch.randn(3, dtype=dtype), torch.randn(3, dtype=dtype)),
    ]
    found = gradient_similarity(*zip(*pairs, strict=True))
    dense = [(g.to_dense(), h.to_dense()) for g, h in pairs]
    assert found == pytest.approx(gradient_similarity(*zip(*dense, strict=True)))


def test_sparse_gradients_of_a_table_are_compared_without_one() -> None:
    g = _rows([5, 1 << 39], torch.ones(2, 4), 1 << 40)
    assert gradient_similarity([g], [3 * g]).score == pytest.approx(0.6)


def test_both_parts_of_complex_gradients_count() -> None:
    g = torch.full((4, 4), 3 + 4j)
    # at a right angle, each value as a vector of two
    assert gradient_similarity([g], [1j * g]).score == 0.0
    # a product of 9 - 16
    assert gradient_similarity([g], [g.conj()]).score == 0.0
    assert gradient_similarity([g], [g.real + 0j]).score == pytest.approx(2 * 9 / (9 + 25))
    assert gradient_similarity([g.conj()], [g.conj()]) == pytest.approx((1.0, 1.0, 1.0, 1.0))
