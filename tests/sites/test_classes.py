"""Tables are classed by their rows and by how many of them a bound would make equal."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import SpecError
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay, classify
from tersor.sites.embeddings.classes import (
    MAX_SMALL_ROWS,
    MIN_DISTINCT_SHARE,
    MIN_TIGHT_ROWS,
    table_stats,
)
from tersor.types import Bound


def looked_up(num_rows: int, batch: int = 256, width: int = 16) -> torch.Tensor:
    """Look up rows that lie far apart."""
    weights = torch.randn(num_rows, width)
    return weights[torch.arange(batch) % num_rows]


def crowded(num_rows: int = 64, width: int = 4) -> torch.Tensor:
    """Return rows of which all but two are far smaller than the range."""
    rows = torch.randn(num_rows, width) * 1e-3
    rows[0], rows[1] = 1.0, -1.0
    return rows


def naive_distinct_share(rows: torch.Tensor, bound: float) -> float:
    error_bound = bound * float(rows.max() - rows.min())
    codes = torch.round(rows.double() / (2 * error_bound))
    return len(torch.unique(codes, dim=0)) / len(torch.unique(rows, dim=0))


@pytest.mark.parametrize(
    ("num_rows", "expected"),
    [
        (3, "tight"),
        (MAX_SMALL_ROWS, "tight"),
        (MAX_SMALL_ROWS + 1, "base"),
        (MIN_TIGHT_ROWS - 1, "base"),
        (MIN_TIGHT_ROWS, "tight"),
    ],
)
def test_the_size_of_a_table_decides_where_rows_stay_apart(num_rows, expected):
    [found] = classify([looked_up(50)], [num_rows])
    assert found.table_class == expected
    assert f"{num_rows:,}" in found.reason


def test_a_table_whose_rows_would_become_equal_is_tighter():
    [found] = classify([crowded()], [1000])
    assert found.stats.distinct_shares["base"] < MIN_DISTINCT_SHARE
    assert found.table_class == "tight"
    assert "distinct" in found.reason


def test_the_statistic_is_the_share_of_rows_that_stay_distinct():
    rows = torch.cat([crowded(), looked_up(20, width=4)])
    stats = table_stats(0, rows, ClassBounds())
    assert stats.num_distinct == stats.num_rows == len(torch.unique(rows, dim=0))
    for name, bound in (("tight", 0.01), ("base", 0.03), ("loose", 0.05)):
        assert stats.distinct_shares[name] == pytest.approx(
            naive_distinct_share(rows, bound), abs=0.03
        )


def test_constant_and_not_finite_rows_have_a_class():
    rows = [torch.zeros(5, 3), torch.full((5, 3), torch.nan)]
    assert [found.table_class for found in classify(rows)] == ["tight", "tight"]


def test_a_policy_from_a_sample_has_the_classes_and_bounds():
    bounds = ClassBounds(0.001, 0.01, 0.1)
    samples = [looked_up(50), looked_up(50), crowded()]
    policy = AdaptiveBounds.from_sample(
        samples, [10**6, 1000, 1000], bounds=bounds, decay=Decay("constant", 3.0, 5)
    )
    assert [policy.table_class(k) for k in range(3)] == ["tight", "base", "tight"]
    assert policy.bound(1, 4) == Bound.relative(0.01 * 3.0)
    assert policy.bound(1, 5) == Bound.relative(0.01)
    assert policy.bound(7, 5) == Bound.relative(0.01)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ClassBounds(tight=0.2), "tight to loose"),
        (lambda: ClassBounds(base=0), "above 0"),
        (lambda: ClassBounds(loose="1"), "number"),
        (lambda: AdaptiveBounds(tight=[1], loose=[1, 2]), "both"),
        (lambda: AdaptiveBounds(tight="12"), "list of table numbers"),
        (lambda: AdaptiveBounds(loose=[-1]), "numbered from 0"),
        (lambda: AdaptiveBounds(loose=[1.5]), "numbered from 0"),
        (lambda: AdaptiveBounds(tight=[[1]]), "numbered from 0"),
        (lambda: AdaptiveBounds(tight=3), "list of table numbers"),
        (lambda: AdaptiveBounds(bounds=(0.01, 0.02, 0.03)), "bounds must be ClassBounds"),
        (lambda: AdaptiveBounds(bounds=0.01), "bounds must be ClassBounds"),
        (lambda: AdaptiveBounds(bounds=None), "bounds must be ClassBounds"),
        (lambda: AdaptiveBounds(decay="step"), "decay must be a Decay"),
        (lambda: AdaptiveBounds(decay=None), "decay must be a Decay"),
        (lambda: AdaptiveBounds.from_classes([], bounds=(0.1, 0.2, 0.3)), "must be ClassBounds"),
        (lambda: AdaptiveBounds.from_sample([torch.ones(2, 4)], bounds=0.1), "be ClassBounds"),
        (lambda: classify([torch.ones(2, 4)], bounds=(0.1, 0.2, 0.3)), "must be ClassBounds"),
        (lambda: classify([torch.empty(0, 4)]), "empty"),
        (lambda: classify([torch.ones(2, 4)], [1, 2]), "give both of the same"),
    ],
)
def test_wrong_classes_are_refused(make, word):
    with pytest.raises(SpecError, match=word):
        make()
